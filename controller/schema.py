"""What may stand in a machine file and in a site file: typed tables, nothing else.

`controller.settings` reads TOML into these and turns every violation into one plain sentence.
Units are in the names; frames and signs are explained in config/README.md.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[float, Meta(gt=0.0)]
NonNegative = Annotated[float, Meta(ge=0.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Vector = tuple[float, float, float]
Tensor = tuple[Vector, Vector, Vector]
Range = tuple[float, float]


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A TOML table: unknown keys are refused, values do not change after reading."""


# ---------------------------------------------------------------- machine file


class Pose(Table, frozen=True):
    """Platform pose in the base frame; R = Rz(yaw) Ry(pitch) Rx(roll)."""

    x_m: float
    y_m: float
    z_m: float
    yaw_rad: float
    pitch_rad: float
    roll_rad: float


class PoseLimits(Table, frozen=True):
    """Closed ranges of the six pose coordinates."""

    x_m: Range
    y_m: Range
    z_m: Range
    yaw_rad: Range
    pitch_rad: Range
    roll_rad: Range


class MotionLimits(Table, frozen=True):
    """What the trajectory generator may ask of each platform axis."""

    speed_m_s: Positive
    acceleration_m_s2: Positive
    jerk_m_s3: Positive
    speed_rad_s: Positive
    acceleration_rad_s2: Positive
    jerk_rad_s3: Positive


class Platform(Table, frozen=True):
    """The moving platform; com and tensor in platform axes, the tensor about the com."""

    kind: Literal["free", "spherical", "2r1t"]
    mass_kg: Positive
    com_m: Vector
    inertia_kg_m2: Tensor
    home: Pose
    limits: PoseLimits
    motion: MotionLimits


class Link(Table, frozen=True):
    """A rigid link of a leg; com and tensor (about the com) in the frame of the joint it turns with.

    `lower` turns with the base joint, com from the base joint; `rod` slides and turns with the base joint,
    com from the platform joint; `upper` slides and turns with the platform joint, com from the platform joint.
    """

    group: Literal["lower", "rod", "upper"]
    mass_kg: NonNegative
    com_m: Vector
    inertia_kg_m2: Tensor


class LegLimits(Table, frozen=True):
    """What a leg may do."""

    length_m: Range
    speed_m_s: Positive
    acceleration_m_s2: Positive
    force_n: Positive
    base_swing_rad: Annotated[float, Meta(gt=0.0, le=1.5708)] = 1.5708  # how far the leg may swing in its base joint
    platform_swing_rad: Annotated[float, Meta(gt=0.0, le=1.5708)] = 1.5708  # likewise in its platform joint, from home


class ScrewDrive(Table, frozen=True, kw_only=True, tag_field="kind", tag="screw"):
    """A rotary motor on a screw: motor turns = gear_ratio * screw turns; rotor inertia at the motor shaft.

    Friction of screw and guide as seen along the leg, opposing its rate.
    """

    lead_m: Positive
    hand: Literal[-1, 1] = 1  # +1 right-hand thread; matters where the screw turns with the leg's twist (UHU)
    gear_ratio: Positive = 1.0
    rotor_inertia_kg_m2: NonNegative
    rated_torque_nm: Positive
    peak_torque_nm: Positive
    efficiency: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0  # of screw and gear; back-driven as well as driving
    coulomb_n: NonNegative = 0.0
    viscous_n_s_m: NonNegative = 0.0


class HydraulicDrive(Table, frozen=True, kw_only=True, tag_field="kind", tag="hydraulic"):
    """A double-acting cylinder with one rod, on the side of the platform."""

    piston_diameter_m: Positive
    rod_diameter_m: Positive


Drive = ScrewDrive | HydraulicDrive


class Friction(Table, frozen=True, kw_only=True):
    """Friction of a leg's joints, part of the mechanism: the actuator force has to overcome it.

    In the sliding joint (coulomb_n + normal * seal load) sgn(rate) + viscous_n_s_m * rate. The seal load is the lateral
    resultant, or the loads on gland and piston where these have places behind the platform joint.
    """

    universal_nm_s_rad: NonNegative = 0.0
    spherical_nm_s_rad: NonNegative = 0.0
    viscous_n_s_m: NonNegative = 0.0
    coulomb_n: NonNegative = 0.0
    normal: NonNegative = 0.0
    gland_m: NonNegative = 0.0
    piston_m: NonNegative = 0.0


class Cell(Table, frozen=True):
    """A load cell in the leg; `links_below` are the sliding links between actuator and cell."""

    links_below: list[str]
    capacity_n: Positive


LegKind = Literal["UPRU", "UPS", "UHU", "UPR", "RPU", "UPU"]  # UPU: known in order to be refused with the reason


class Legs(Table, frozen=True):
    """What all legs share; a [[leg]] table may override any of it."""

    kind: LegKind
    limits: LegLimits
    drive: Drive
    friction: Friction = Friction()
    cell: Cell | None = None
    links: dict[str, Link] = {}
    preload_n: float = 0.0  # actuator force that a machine with more legs than freedoms stays close to


class Leg(Table, frozen=True):
    """One leg: its joints, and whatever differs from [legs].

    `base_joint_m` and `base_axis` in base axes: the U axis fixed in the base, or the axis of a base R joint.
    `platform_joint_m` and `platform_axis` in platform axes: the U axis fixed in the platform, or the axis of a
    platform R joint; an S joint has none.
    """

    base_joint_m: Vector
    platform_joint_m: Vector
    base_axis: Vector
    platform_axis: Vector | None = None
    kind: LegKind | None = None
    limits: LegLimits | None = None
    drive: Drive | None = None
    friction: Friction | None = None
    cell: Cell | None = None
    links: dict[str, Link] | None = None
    preload_n: float | None = None


class Machine(Table, frozen=True, kw_only=True):
    """A machine file."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]*$")]
    title: str = ""
    source: str = ""
    gravity_m_s2: Vector = (0.0, 0.0, -9.81)
    platform: Platform
    legs: Legs
    leg: Annotated[list[Leg], Meta(min_length=3, max_length=6)]


def effective_leg(machine: Machine, index: int) -> Legs:
    """What holds for leg `index` (0-based): the leg's own tables go before those of [legs], links by name."""
    shared, own = machine.legs, machine.leg[index]
    return Legs(
        kind=own.kind or shared.kind,
        limits=own.limits or shared.limits,
        drive=own.drive or shared.drive,
        friction=own.friction or shared.friction,
        cell=own.cell or shared.cell,
        links=shared.links | (own.links or {}),
        preload_n=shared.preload_n if own.preload_n is None else own.preload_n,
    )


# ---------------------------------------------------------------- site file


class Ads(Table, frozen=True, kw_only=True):
    """The CX5130: where its ADS server is and how long one request may take."""

    ams_net_id: Annotated[str, Meta(pattern=r"^\d{1,3}(\.\d{1,3}){5}$")]
    ams_port: Port = 851
    address: str
    timeout_s: Annotated[float, Meta(ge=0.005, le=1.0)] = 0.02


class Control(Table, frozen=True):
    """The control law."""

    velocity_feedforward: Share = 1.0
    force_feedforward: Share = 1.0
    start_tolerance_m: Positive = 2e-4  # |set-point - length| before a motion may start
    following_error_m: Positive = 0.015  # a larger lag trips
    enable_timeout_s: Positive = 3.0


class RealTime(Table, frozen=True):
    """What the control process asks of the operating system; refused wishes are reported."""

    priority: Annotated[int, Meta(ge=0, le=80)] = 50
    lock_memory: bool = True
    required: bool = False


class Ring(Table, frozen=True):
    """The memory-mapped flight recorder between the control process and the gateway."""

    path: str
    seconds: Annotated[float, Meta(ge=60.0, le=3600.0)] = 120.0


class Requests(Table, frozen=True):
    """Where operator requests reach the control process: a Unix datagram socket of the service's own user."""

    path: str


class Mqtt(Table, frozen=True):
    """The broker to publish to."""

    host: str = "127.0.0.1"
    port: Port = 1883


class Recording(Table, frozen=True):
    """Where runs are recorded."""

    folder: str


class Broker(Table, frozen=True):
    """A broker that `pkm run` starts itself, loopback only: mosquitto where installed, otherwise amqtt."""

    start: bool = True


class VirtualCell(Table, frozen=True):
    """The virtual CX5130 and its plant, and how the plant differs from the machine file.

    Scales multiply the machine file's numbers; delay is the drive's force (current) loop delay.
    """

    start: bool = True
    seed: Annotated[int, Meta(ge=0)] = 1
    mass_scale: Positive = 1.0
    inertia_scale: Positive = 1.0
    com_offset_m: Vector = (0.0, 0.0, 0.0)
    geometry_error_m: NonNegative = 0.0
    rotor_inertia_scale: Positive = 1.0
    coulomb_n: NonNegative = 0.0
    viscous_n_s_m: NonNegative = 0.0
    cell_noise_n: NonNegative = 0.0
    cell_resolution_n: NonNegative = 0.0
    encoder_resolution_m: NonNegative = 0.0
    force_delay_s: NonNegative = 0.0
    plc_cycle_s: Annotated[float, Meta(ge=0.001, le=0.002)] = 0.002


class Site(Table, frozen=True, kw_only=True):
    """A site file; `machine` is a path relative to the site file."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]*$")]
    machine: str
    rate_hz: Annotated[float, Meta(ge=10.0, le=1000.0)] = 100.0
    ads: Ads
    control: Control = Control()
    realtime: RealTime = RealTime()
    ring: Ring
    requests: Requests
    mqtt: Mqtt = Mqtt()
    recording: Recording
    broker: Broker | None = None
    virtual_cell: VirtualCell | None = None
