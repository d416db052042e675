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
Coefficients = Annotated[list[float], Meta(max_length=20)]


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
    jerk_m_s3: Positive | None = None  # None: the acceleration may come and go within 40 ms
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

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*\Z")]
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

    ams_net_id: Annotated[str, Meta(pattern=r"^((25[0-5]|2[0-4]\d|[01]?\d{1,2})(\.(?!\Z)|\Z)){6}\Z")]  # 6 x 0 ... 255
    ams_port: Port = 851
    address: str
    timeout_s: Annotated[float, Meta(ge=0.005, le=1.0)] = 0.02


ShortTime = Annotated[float, Meta(gt=0.0, le=0.1)]


class PlcLine(Table, frozen=True, kw_only=True, tag_field="kind", tag="plc"):
    """The analogue terminals of the CX5130; the channels of such a device are numbers of inputs, from 1."""


class TcpLine(Table, frozen=True, kw_only=True, tag_field="kind", tag="tcp"):
    """Modbus TCP, a gateway to several units included."""

    host: str
    port: Port = 502
    timeout_s: ShortTime = 0.1


class RtuLine(Table, frozen=True, kw_only=True, tag_field="kind", tag="rtu"):
    """Modbus RTU; `path` below /dev/serial/by-id, because the short names change when an adapter is plugged again."""

    path: str
    baudrate: Annotated[int, Meta(ge=1200, le=1000000)] = 38400
    parity: Literal["N", "E", "O"] = "N"
    stopbits: Literal[1, 2] = 1
    timeout_s: ShortTime = 0.1


class SerialLine(Table, frozen=True, kw_only=True, tag_field="kind", tag="serial"):
    """A serial line with one instrument, whose profile says how bytes travel; `path` as in RtuLine."""

    path: str


class Device(Table, frozen=True, kw_only=True):
    """An instrument: what it is (a profile, path relative to the site file) and where it is plugged in."""

    profile: str
    line: PlcLine | TcpLine | RtuLine | SerialLine
    unit_id: Annotated[int, Meta(ge=1, le=247)] = 1  # of a Modbus device
    period_s: Annotated[float, Meta(ge=0.001, le=60.0)] = 0.01  # a Modbus device is asked this often, at most


class BridgeCalibration(Table, frozen=True, kw_only=True, tag_field="kind", tag="bridge"):
    """The certificate of a load cell with a strain-gauge bridge, and what it read without a load."""

    rated_n: Positive
    sensitivity_mv_v: Annotated[float, Meta(gt=0.0, le=10.0)]  # at the rated load
    zero_mv_v: float = 0.0
    certificate: str = ""  # serial number and date
    temperature: str = ""  # in which range it holds


class CurrentCalibration(Table, frozen=True, kw_only=True, tag_field="kind", tag="current"):
    """What a transmitter with 4 to 20 mA means, in the unit of the sensor."""

    at_4_ma: float
    at_20_ma: float
    certificate: str = ""


class Sensor(Table, frozen=True, kw_only=True):
    """One measured quantity: a channel of a device. The unit is that of `controller.records.SENSORS`."""

    device: str
    channel: str
    max_age_s: Positive = 0.1  # an older value is not valid
    required: bool = True  # without it no motion starts, and one that runs is stopped
    sign: Literal[-1, 1] = 1  # -1 where it is mounted or wired the other way round
    calibration: BridgeCalibration | CurrentCalibration | None = None


class Feedback(Table, frozen=True):
    """The law "force": one bandwidth for all coordinates, the model weights the error; refused where it is unstable."""

    bandwidth_1_s: Positive = 30.0
    damping: Annotated[float, Meta(ge=0.3, le=3.0)] = 1.0
    integral_time_s: Positive = 0.2
    model_error: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.3  # share by which the true inertia may be off, anywhere
    force_delay_s: ShortTime = 0.003  # from a force set-point of the PLC to the force in the axis
    status_lead_s: ShortTime = 0.0025  # before a tick the status is read once more, for so young a measurement


class Bounds(Table, frozen=True):
    """What the force of a leg may be off its model; None: derived from the machine."""

    base_n: NonNegative | None = None
    per_speed_n_s_m: NonNegative | None = None  # of the axis
    per_acceleration_n_s2_m: NonNegative | None = None


class Monitor(Table, frozen=True):
    """What is made of forces that the model does not explain."""

    collision: Literal["trip", "warn", "off"] = "trip"
    persistence_ticks: Annotated[int, Meta(ge=1, le=100)] = 3
    filter_s: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.02  # time constant
    cells: Bounds = Bounds()
    drives: Bounds = Bounds()  # of pressures, too


class Control(Table, frozen=True):
    """The control law: set-points of position for the drives' own loops, or of force."""

    law: Literal["position", "force"] = "position"
    feedback: Feedback = Feedback()
    velocity_feedforward: Share = 1.0
    force_feedforward: Share = 1.0
    screw_compensation: bool = True  # false takes the axis of a UHU leg for its length, the twist of its screw left out
    start_tolerance_m: Positive = 2e-4  # |set-point - length| before a motion may start
    following_error_m: Positive = 0.015  # a larger lag trips
    enable_timeout_s: Positive = 3.0
    condition_limit: Annotated[float, Meta(ge=1.0)] | None = None  # of the Jacobian; None: 20 times that at home
    tare_limit: Share = 0.05  # of a load cell's capacity: the largest difference to the model that a tare may take away
    monitor: Monitor = Monitor()


class Homing(Table, frozen=True, kw_only=True):
    """How the drives find out where they are after power-up: all legs move slowly one way until each has found its
    reference, then all go back a little."""

    method: Literal["absolute", "reference", "force"] = "absolute"
    length_m: Positive | list[Positive] | None = None  # of a leg at its mark or stop: one number, or a number a leg
    direction: Literal["retract", "extend"] = "retract"
    speed_m_s: Annotated[float, Meta(gt=0.0, le=0.05)] = 0.01
    travel_m: Positive = 0.4  # a leg that has found nothing after this way fails
    back_m: Annotated[float, Meta(ge=0.001, le=0.1)] = 0.01  # away from mark or stop at the end
    force_n: Positive = 600.0  # at a stop it is found there, elsewhere the leg is blocked
    timeout_s: Positive = 90.0


class Harmonics(Table, frozen=True, kw_only=True):
    """Coefficients of a Fourier series, of the base frequency, twice that and so on, for each pose coordinate."""

    x_m: Coefficients = []
    y_m: Coefficients = []
    z_m: Coefficients = []
    yaw_rad: Coefficients = []
    pitch_rad: Coefficients = []
    roll_rad: Coefficients = []


class FourierTrack(Table, frozen=True, kw_only=True, tag_field="kind", tag="fourier"):
    """Whole periods of a Fourier series about `centre`, which is home where it is left out."""

    base_frequency_hz: Annotated[float, Meta(ge=0.001, le=5.0)]
    periods: Annotated[int, Meta(ge=1, le=1000)] = 1
    centre: Pose | None = None
    sine: Harmonics = Harmonics()
    cosine: Harmonics = Harmonics()


class CsvTrack(Table, frozen=True, kw_only=True, tag_field="kind", tag="csv"):
    """A table of poses over time; `file` is relative to the site file."""

    file: str


Track = FourierTrack | CsvTrack


class Stream(Table, frozen=True, kw_only=True):
    """Where a motion-base host sends its poses (UDP), and how they are followed."""

    address: str
    timeout_s: Annotated[float, Meta(ge=0.02, le=2.0)] = 0.25  # without a usable pose the motion is stopped
    filter_hz: Annotated[float, Meta(ge=0.1, le=50.0)] = 5.0  # of third order
    start_within_m: Positive = 0.05  # of where the machine is: the pose with which following may begin
    start_within_rad: Positive = 0.1


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


class Hydraulics(Table, frozen=True, kw_only=True):
    """Supply, oil and valves of the virtual cell's cylinders; pressures count from that of the air.

    The drop is that over one control edge at the rated flow and full stroke.
    """

    supply_pa: Positive = 210e5
    tank_pa: NonNegative = 5e5
    bulk_modulus_pa: Positive = 1.0e9
    rated_flow_m3_s: Positive = 6.7e-4
    rated_drop_pa: Positive = 35e5
    null_opening: Annotated[float, Meta(ge=1e-4, le=0.1)] = 0.003  # of every edge with the spool at rest
    valve_time_s: Positive = 0.002
    leakage_m3_s_pa: NonNegative = 1e-13  # over the piston
    dead_volume_m3: Positive = 5e-5  # of each chamber at its end, lines included


class VirtualCell(Table, frozen=True):
    """The virtual CX5130 and its plant, and how the plant differs from the machine file.

    Scales multiply the machine file's numbers; delay is the force (current) loop delay of motors.
    """

    start: bool = True
    control: str = ""  # a Unix datagram socket for `pkm fault`; empty: none
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
    homed: bool = True  # false: the encoders start with unknown offsets, as those that are not absolute
    encoder_offset_m: NonNegative = 0.05  # the largest of these
    force_delay_s: NonNegative = 0.0
    plc_cycle_s: Annotated[float, Meta(ge=0.001, le=0.002)] = 0.002
    hydraulics: Hydraulics = Hydraulics()


class Site(Table, frozen=True, kw_only=True):
    """A site file; `machine` is a path relative to the site file."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*\Z")]
    machine: str
    rate_hz: Annotated[float, Meta(ge=10.0, le=1000.0)] = 100.0
    ads: Ads
    devices: dict[str, Device] = {}
    sensors: dict[str, Sensor] = {}
    control: Control = Control()
    tracks: dict[str, Track] = {}
    stream: Stream | None = None
    homing: Homing = Homing()
    realtime: RealTime = RealTime()
    ring: Ring
    requests: Requests
    mqtt: Mqtt = Mqtt()
    recording: Recording
    broker: Broker | None = None
    virtual_cell: VirtualCell | None = None
