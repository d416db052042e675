"""The steps of a commissioning, as data: from a wired machine to an accepted one, in the order in which they are safe.

A step is done when those it needs have passed. A finding of a step does not end the walk: later ones that do not need
it may find more.
"""

from typing import NamedTuple


class Step(NamedTuple):
    """One step."""

    name: str
    shows: str
    needs: tuple[str, ...]
    how: str
    passes: str
    moves: str = ""  # what moves, for the confirmation before; empty: nothing, and the drives stay as they are


STEPS = (
    Step(
        "files", "machine and site file are sound", (),
        "`pkm check` of both; the digests of the files go into the record",
        "no error",
    ),
    Step(
        "doctor", "the computer is fit to control", (),
        "`pkm doctor`; devices too, if no service runs",
        "no fail; with a virtual cell what fails is noted only",
    ),
    Step(
        "link", "the PLC answers, with the layout and the lengths of this machine", ("files",),
        "one second of the running service, drives off",
        "link up, PLC cycles counted, status fresh, lengths inside the strokes and a pose that fits them",
    ),
    Step(
        "sensors", "every sensor measures, inside its range", ("link",),
        "one second of all sensors, drives off; press on every load cell by hand",
        "all values good, none at its end; its value and no other rose",
    ),
    Step(
        "static", "every load cell bears its part of the weight, with the right sign", ("sensors",),
        "one second at rest, drives off, compared with the model",
        "difference within 30 % and the largest zero (`control.tare_limit`)",
    ),
    Step(
        "homing", "the axes find their references, and find them again", ("link",),
        "homing twice, where encoders are not absolute",
        "the second one moves no length by more than `control.start_tolerance_m`",
        "The drives come on and look for their references, twice",
    ),
    Step(
        "hold", "the drives come on and hold", ("link", "homing"),
        "ready, then a second at rest",
        "no fault, lag within `control.start_tolerance_m`, nothing moves",
        "The drives come on, the brakes open and the platform is held where it is",
    ),
    Step(
        "legs", "each leg is the one that was meant, goes the right way and as far as told", ("hold", "sensors"),
        "leg by leg out and back at 15 mm/s; forces at rest in all poses against every mistake; dial gauge if there",
        "no mistake explains the readings better than none",
        "One leg after the other goes out by some millimetres and back",
    ),
    Step(
        "check", "sensors follow the model in seven poses", ("legs", "static"),
        "the check move",
        "sign, order, scale and zero of every cell and of the inclinometer",
        "The platform visits seven poses at 30 % of its speed, half of its room",
    ),
    Step(
        "limits", "what must not be reached is refused", ("legs",),
        "a pose beyond the limits is asked for; the table of limits is read and confirmed",
        "refused, nothing moved; confirmed",
    ),
    Step(
        "stop", "a stop takes the time and the way that it should", ("legs", "limits"),
        "stop out of a slow move; then the emergency stop by hand, drives on and at rest",
        "within 50 ms and 10 % of what the motion limits say; the drives went off by wire",
        "The platform moves slowly along one coordinate and is stopped on its way",
    ),
    Step(
        "tracking", "the drives follow", ("stop",),
        "two turns of a slow sine",
        "largest following error below a tenth of `control.following_error_m`",
        "The platform swings slowly",
    ),
    Step(
        "identification", "the dynamic model is the machine's own", ("tracking",),
        "`pkm excite`, `pkm request track`, `pkm identify --write`; name the file it wrote, or why there is none",
        "`pkm identify` says PASS; or waived, with a reason",
    ),
)  # fmt: skip
