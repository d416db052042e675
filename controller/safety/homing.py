"""Homing as the host sees it: whether it was done, whether it failed, and what may be believed meanwhile. Pure."""

from typing import NamedTuple

from controller.records import Fault, Mode, Sample

# What follows from leg lengths: nothing of it means anything while an axis does not know where it is.
ABOUT_LENGTHS = Fault.STROKE | Fault.POSE | Fault.POSE_UNKNOWN | Fault.SINGULAR | Fault.JOINT_ANGLE

FOLLOWS_LENGTHS = (Mode.READY, Mode.ACTIVE, Mode.STOPPING)
_HALF = 1 << 31  # half the range of the numbers of commands in the PLC


class Search(NamedTuple):
    """What is remembered of homing from tick to tick."""

    located: bool = True  # the pose was found since the axes are homed
    since_s: float = 0.0  # in mode HOMING
    first_seq: int = 0  # of the first command that asked for it


def judge_homing(
    search: Search, mode: Mode, sent_seq: int, sample: Sample, elapsed_s: float, most_s: float
) -> tuple[Search, bool, Fault]:
    """Whether homing has come to its end in this tick, and what is wrong.

    `mode` is that of the last tick, in which command `sent_seq` was sent `elapsed_s` ago. `located` stays as it is as
    long as the axes are homed. What the PLC said before it saw the first command of a homing does not count.
    """
    located = search.located and sample.axes_homed
    if mode is not Mode.HOMING:
        lost = mode in FOLLOWS_LENGTHS and not sample.axes_homed
        return Search(located), False, Fault.HOMING_FAILED if lost else Fault.NONE
    first_seq = search.first_seq or sent_seq
    since_s = search.since_s + elapsed_s
    seen = (sample.seq_echo - first_seq) % (2 * _HALF) < _HALF
    done = seen and sample.axes_homed and sample.drives_enabled
    failed = sample.plc_stopped or since_s > most_s
    return Search(located, since_s, first_seq), done, Fault.HOMING_FAILED if failed else Fault.NONE
