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
    """position of o, base axes; home is inside `[platform.limits]`"""
    yaw_rad: float
    pitch_rad: float
    roll_rad: float
    """R = Rz(yaw) Ry(pitch) Rx(roll)"""


class PoseLimits(Table, frozen=True):
    """Closed ranges of the six pose coordinates."""

    x_m: Range
    y_m: Range
    z_m: Range
    """position of o, base axes"""
    yaw_rad: Range
    pitch_rad: Range
    roll_rad: Range
    """angles of R = Rz(yaw) Ry(pitch) Rx(roll)"""


class MotionLimits(Table, frozen=True):
    """What the trajectory generator may ask of each platform axis."""

    speed_m_s: Positive
    acceleration_m_s2: Positive
    jerk_m_s3: Positive
    """for each of x, y, z"""
    speed_rad_s: Positive
    acceleration_rad_s2: Positive
    jerk_rad_s3: Positive
    """for each of yaw, pitch, roll"""


class Platform(Table, frozen=True):
    """The moving platform; com and tensor in platform axes, the tensor about the com."""

    kind: Literal["free", "spherical", "2r1t"]
    """what the platform can do, see below"""
    mass_kg: Positive
    """mass with everything bolted to it"""
    com_m: Vector
    """centre of mass from o, platform axes"""
    inertia_kg_m2: Tensor
    """tensor about the centre of mass, platform axes"""
    home: Pose
    limits: PoseLimits
    motion: MotionLimits


class Link(Table, frozen=True):
    """A rigid link of a leg; com and tensor (about the com) in the frame of the joint it turns with.

    `lower` turns with the base joint, com from the base joint; `rod` slides and turns with the base joint,
    com from the platform joint; `upper` slides and turns with the platform joint, com from the platform joint.
    """

    group: Literal["lower", "rod", "upper"]
    """what it turns with and whether it slides, see below"""
    mass_kg: NonNegative
    """its mass"""
    com_m: Vector
    """centre of mass, leg frame; from the base joint for `lower`, from the platform joint for the others"""
    inertia_kg_m2: Tensor
    """tensor about the centre of mass, leg frame"""


class LegLimits(Table, frozen=True):
    """What a leg may do."""

    length_m: Range
    """stroke: shortest and longest distance between the joint centres"""
    speed_m_s: Positive
    """largest rate of the length"""
    acceleration_m_s2: Positive
    """largest change of the rate"""
    force_n: Positive
    """largest axis force; what is sent is clamped to it, above 1.25 × measured is a fault"""
    jerk_m_s3: Positive | None = None
    """largest change of the acceleration; left out: `acceleration_m_s2` may come and go within 40 ms"""
    base_swing_rad: Annotated[float, Meta(gt=0.0, le=1.5708)] = 1.5708
    platform_swing_rad: Annotated[float, Meta(gt=0.0, le=1.5708)] = 1.5708
    """how far the leg may swing from home in the joint"""


class ScrewDrive(Table, frozen=True, kw_only=True, tag_field="kind", tag="screw"):
    """A rotary motor on a screw: motor turns = gear_ratio * screw turns; rotor inertia at the motor shaft.

    Friction of screw and guide as seen along the leg, opposing its rate.
    """

    lead_m: Positive
    """travel per turn of the screw"""
    hand: Literal[-1, 1] = 1
    """+1 right-hand thread, −1 left-hand; matters in UHU legs only, where the screw turns with the twist"""
    gear_ratio: Positive = 1.0
    """turns of the motor per turn of the screw"""
    rotor_inertia_kg_m2: NonNegative
    """everything that turns, at the motor shaft"""
    rated_torque_nm: Positive
    """of the motor; sizes the holding brake of the virtual cell"""
    peak_torque_nm: Positive
    """of the motor; limits the force that is sent, and that of the virtual drives"""
    efficiency: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """of screw and gear, driving and back-driven"""
    coulomb_n: NonNegative = 0.0
    """friction of screw and guide along the leg, opposing its rate; fades below 2 mm/s"""
    viscous_n_s_m: NonNegative = 0.0
    """the same, proportional to the rate"""


class HydraulicDrive(Table, frozen=True, kw_only=True, tag_field="kind", tag="hydraulic"):
    """A double-acting cylinder with one rod, on the side of the platform."""

    piston_diameter_m: Positive
    """of the piston"""
    rod_diameter_m: Positive
    """of the rod"""


Drive = ScrewDrive | HydraulicDrive


class Friction(Table, frozen=True, kw_only=True):
    """Friction of a leg's joints, part of the mechanism: the actuator force has to overcome it.

    In the sliding joint (coulomb_n + normal * seal load) sgn(rate) + viscous_n_s_m * rate. The seal load is the lateral
    resultant, or the loads on gland and piston where these have places behind the platform joint.
    """

    universal_nm_s_rad: NonNegative = 0.0
    """viscous, each axis of every U joint"""
    spherical_nm_s_rad: NonNegative = 0.0
    """viscous, S joint: UPS legs only"""
    viscous_n_s_m: NonNegative = 0.0
    """viscous, sliding joint"""
    coulomb_n: NonNegative = 0.0
    """dry, sliding joint; fades below 2 mm/s"""
    normal: NonNegative = 0.0
    """dry friction per newton of load on the seals: UPS and UPRU legs only"""
    gland_m: NonNegative = 0.0
    piston_m: NonNegative = 0.0
    """places of the seals behind the platform joint; equal: one seal takes the lateral force"""


class Cell(Table, frozen=True):
    """A load cell in the leg; `links_below` are the sliding links between actuator and cell."""

    links_below: list[str]
    """names of the sliding links (group `rod` or `upper`) between actuator and cell"""
    capacity_n: Positive
    """rated load; `control.tare_limit` is a share of it"""


LegKind = Literal["UPRU", "UPS", "UHU", "UPR", "RPU", "UPU"]  # UPU: known in order to be refused with the reason


class Legs(Table, frozen=True):
    """What all legs share; a [[leg]] table may override any of it."""

    kind: LegKind
    """joints from base to platform; UPU is known in order to be refused with the reason"""
    limits: LegLimits
    drive: Drive
    friction: Friction = Friction()
    cell: Cell | None = None
    links: dict[str, Link] = {}
    preload_n: float = 0.0
    """actuator force that a machine with more legs than freedoms stays close to"""


class Leg(Table, frozen=True):
    """One leg: its joints, and whatever differs from [legs].

    `base_joint_m` and `base_axis` in base axes: the U axis fixed in the base, or the axis of a base R joint.
    `platform_joint_m` and `platform_axis` in platform axes: the U axis fixed in the platform, or the axis of a
    platform R joint; an S joint has none.
    """

    base_joint_m: Vector
    """centre of the base joint, base axes"""
    platform_joint_m: Vector
    """centre of the platform joint, platform axes"""
    base_axis: Vector
    """U axis fixed in the base, or axis of the base R joint (RPU), base axes; length 0.5 … 2, normalised"""
    platform_axis: Vector | None = None
    """U axis fixed in the platform, or axis of its R joint (UPR), platform axes, likewise; not in UPS legs"""
    kind: LegKind | None = None
    """kind of this leg, where it differs from `[legs]`"""
    limits: LegLimits | None = None
    drive: Drive | None = None
    friction: Friction | None = None
    cell: Cell | None = None
    links: dict[str, Link] | None = None
    preload_n: float | None = None
    """of this leg alone, as are the tables `limits`, `drive`, `friction`, `cell`, `links`"""


class Machine(Table, frozen=True, kw_only=True):
    """A machine file."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*\Z")]
    """short name: `a-z`, `0-9`, `-`; not first a `-`"""
    title: str = ""
    """one line for people"""
    source: str = ""
    """where the numbers come from"""
    gravity_m_s2: Vector = (0.0, 0.0, -9.81)
    """gravity, base axes"""
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

    ams_net_id: Annotated[str, Meta(pattern=r"^((25[0-5]|2[0-4]\d|[01]?\d{1,2})(\.(?!\Z)|\Z)){6}\Z")]
    """AMS NetId of the PLC, six numbers with dots"""
    ams_port: Port = 851
    """AMS port of the PLC run-time"""
    address: str
    """`host` or `host:port`; without a port 48898"""
    timeout_s: Annotated[float, Meta(ge=0.005, le=1.0)] = 0.02
    """for one request"""


ShortTime = Annotated[float, Meta(gt=0.0, le=0.1)]


class PlcLine(Table, frozen=True, kw_only=True, tag_field="kind", tag="plc"):
    """The analogue terminals of the CX5130; the channels of such a device are numbers of inputs, from 1."""


class TcpLine(Table, frozen=True, kw_only=True, tag_field="kind", tag="tcp"):
    """Modbus TCP, a gateway to several units included."""

    host: str
    """name or address of the device or its gateway"""
    port: Port = 502
    """TCP port"""
    timeout_s: ShortTime = 0.1
    """of one request"""


class RtuLine(Table, frozen=True, kw_only=True, tag_field="kind", tag="rtu"):
    """Modbus RTU; `path` below /dev/serial/by-id, because the short names change when an adapter is plugged again."""

    path: str
    """below `/dev/serial/by-id`: the short names change when an adapter is plugged again"""
    baudrate: Annotated[int, Meta(ge=1200, le=1000000)] = 38400
    """of the line"""
    parity: Literal["N", "E", "O"] = "N"
    """none, even or odd"""
    stopbits: Literal[1, 2] = 1
    """of the line"""
    timeout_s: ShortTime = 0.1
    """of one request"""


class SerialLine(Table, frozen=True, kw_only=True, tag_field="kind", tag="serial"):
    """A serial line with one instrument, whose profile says how bytes travel; `path` as in RtuLine."""

    path: str
    """as in RtuLine; how bytes travel stands in the profile"""


class Device(Table, frozen=True, kw_only=True):
    """An instrument: what it is (a profile, path relative to the site file) and where it is plugged in."""

    profile: str
    """what it is: a file of `devices/`, relative to the site file, see below"""
    line: PlcLine | TcpLine | RtuLine | SerialLine
    unit_id: Annotated[int, Meta(ge=1, le=247)] = 1
    """address of a Modbus device on its line or behind its gateway"""
    period_s: Annotated[float, Meta(ge=0.001, le=60.0)] = 0.01
    """a Modbus device is asked this often at most; the shortest of a line counts"""


class BridgeCalibration(Table, frozen=True, kw_only=True, tag_field="kind", tag="bridge"):
    """The certificate of a load cell with a strain-gauge bridge, and what it read without a load."""

    rated_n: Positive
    """of the certificate; 1.5 times as much is not believed"""
    sensitivity_mv_v: Annotated[float, Meta(gt=0.0, le=10.0)]
    """output at the rated load, mV/V"""
    zero_mv_v: float = 0.0
    """output without a load, mV/V"""
    certificate: str = ""
    """serial number and date, kept for the record"""
    temperature: str = ""
    """in which range it holds, kept for the record"""


class CurrentCalibration(Table, frozen=True, kw_only=True, tag_field="kind", tag="current"):
    """What a transmitter with 4 to 20 mA means, in the unit of the sensor."""

    at_4_ma: float
    at_20_ma: float
    """what both ends mean, in the unit of the sensor; not the same"""
    certificate: str = ""
    """kept for the record"""


class Sensor(Table, frozen=True, kw_only=True):
    """One measured quantity: a channel of a device. The unit is that of `controller.records.SENSORS`."""

    device: str
    """table in `[devices]`"""
    channel: str
    """which of its channels"""
    max_age_s: Positive = 0.1
    """an older value is not valid"""
    required: bool = True
    """without it no run begins and no drive comes on, and a motion is stopped; otherwise its loss is told"""
    sign: Literal[-1, 1] = 1
    """−1 where it is mounted or wired the other way round"""
    calibration: BridgeCalibration | CurrentCalibration | None = None


class Feedback(Table, frozen=True):
    """The law "force": one bandwidth for all coordinates, the model weights the error; refused where it is unstable."""

    bandwidth_1_s: Positive = 30.0
    """of the pose error, all coordinates alike"""
    damping: Annotated[float, Meta(ge=0.3, le=3.0)] = 1.0
    """likewise"""
    integral_time_s: Positive = 0.2
    """proportional gain / integral gain"""
    model_error: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.3
    """share by which the true inertia may be off, in any direction"""
    force_delay_s: ShortTime = 0.003
    """from a force set-point of the PLC to the force in the axis: PLC cycle and drive; cylinders take some 8 ms"""
    status_lead_s: ShortTime = 0.0025
    """the status is read once more so long before a tick, for so young a measurement"""


class Bounds(Table, frozen=True):
    """What the force of a leg may be off its model; None: derived from the machine."""

    base_n: NonNegative | None = None
    """at rest; left out: of cells 2.5 % of a leg's part of the weight, of drives 5 % of `force_n`"""
    per_speed_n_s_m: NonNegative | None = None
    """more with the rate of the axis; left out: of cells 0, of drives 5 % of `force_n` at `speed_m_s`"""
    per_acceleration_n_s2_m: NonNegative | None = None
    """more with its acceleration; left out: 20 % of the mass of that weight, of drives 20 % of the rotor, too"""


class Monitor(Table, frozen=True):
    """What is made of forces that the model does not explain."""

    collision: Literal["trip", "warn", "off"] = "trip"
    """a push on the platform: `"trip"` stops (COLLISION), `"warn"` tells (EXTERNAL_LOAD), `"off"` neither"""
    persistence_ticks: Annotated[int, Meta(ge=1, le=100)] = 3
    """for so long it must last"""
    filter_s: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.02
    """time constant of the low-pass on residuals and wrench; 0: none"""
    cells: Bounds = Bounds()
    drives: Bounds = Bounds()  # of pressures, too


class Control(Table, frozen=True):
    """The control law: set-points of position for the drives' own loops, or of force."""

    law: Literal["position", "force"] = "position"
    """`"position"`: the drives close the loops; `"force"`: the controller does, with the model (decision 0011)"""
    feedback: Feedback = Feedback()
    velocity_feedforward: Share = 1.0
    """share of the set-point velocity that the drives get as feed-forward"""
    force_feedforward: Share = 1.0
    """share of the model's axis force that is sent"""
    screw_compensation: bool = True
    """the screws of UHU legs turn with the twist of the legs; `false` takes their axes for leg lengths, to show
    what that costs"""
    start_tolerance_m: Positive = 2e-4
    """largest lag of a leg at which a motion may start"""
    following_error_m: Positive = 0.015
    """a larger lag of a leg trips"""
    enable_timeout_s: Positive = 3.0
    """for the drives to come on"""
    condition_limit: Annotated[float, Meta(ge=1.0)] | None = None
    """condition number of the Jacobian, rotations scaled by the platform radius: above it the legs hardly hold the
    platform, a fault; left out: 20 times that at home"""
    tare_limit: Share = 0.05
    """share of a cell's `capacity_n`: the largest difference to the model that a tare takes away"""
    monitor: Monitor = Monitor()


class Homing(Table, frozen=True, kw_only=True):
    """How the drives find out where they are after power-up: all legs move slowly one way until each has found its
    reference, then all go back a little."""

    method: Literal["absolute", "reference", "force"] = "absolute"
    """`absolute`: the encoders know; `reference`: a mark that the drive's touch probe catches; `force`: a stop"""
    length_m: Positive | list[Positive] | None = None
    """of a leg at its mark or stop: one number, or a number a leg in the order of `[[leg]]`; needed by both searches"""
    direction: Literal["retract", "extend"] = "retract"
    """the one way in which all legs search"""
    speed_m_s: Annotated[float, Meta(gt=0.0, le=0.05)] = 0.01
    """of every leg"""
    travel_m: Positive = 0.4
    """a leg that has found nothing after this way fails"""
    back_m: Annotated[float, Meta(ge=0.001, le=0.1)] = 0.01
    """all legs end so far before their marks or stops: inside stroke and pose limits, and ready to search again"""
    force_n: Positive = 600.0
    """at a stop: found when a drive gives it for 20 ms; at marks: the leg is blocked. Drives give at most 1.25
    times it. Above the weight a leg bears"""
    timeout_s: Positive = 90.0
    """for the whole search"""


class Harmonics(Table, frozen=True, kw_only=True):
    """Coefficients of a Fourier series, of the base frequency, twice that and so on, for each pose coordinate."""

    x_m: Coefficients = []
    y_m: Coefficients = []
    z_m: Coefficients = []
    yaw_rad: Coefficients = []
    pitch_rad: Coefficients = []
    roll_rad: Coefficients = []
    """amplitudes of the harmonics of this coordinate"""


class FourierTrack(Table, frozen=True, kw_only=True, tag_field="kind", tag="fourier"):
    """Whole periods of a Fourier series about `centre`, which is home where it is left out."""

    base_frequency_hz: Annotated[float, Meta(ge=0.001, le=5.0)]
    """of the first harmonic"""
    periods: Annotated[int, Meta(ge=1, le=1000)] = 1
    """how many of it"""
    centre: Pose | None = None
    """a pose, all six coordinates; left out: home"""
    sine: Harmonics = Harmonics()
    cosine: Harmonics = Harmonics()


class CsvTrack(Table, frozen=True, kw_only=True, tag_field="kind", tag="csv"):
    """A table of poses over time; `file` is relative to the site file."""

    file: str
    """a table of poses over time, relative to the site file"""


Track = FourierTrack | CsvTrack


class Stream(Table, frozen=True, kw_only=True):
    """Where a motion-base host sends its poses (UDP), and how they are followed."""

    address: str
    """`host:port` of this computer to listen at"""
    timeout_s: Annotated[float, Meta(ge=0.02, le=2.0)] = 0.25
    """without a good pose for longer the motion is stopped"""
    filter_hz: Annotated[float, Meta(ge=0.1, le=50.0)] = 5.0
    """corner of the filter over the poses, third order"""
    start_within_m: Positive = 0.05
    start_within_rad: Positive = 0.1
    """how far from the machine the host's pose may be when following begins"""


Condition = Literal["kernel", "priority", "memory", "clock", "disk"]  # of a control PC, judged at every start


class RealTime(Table, frozen=True):
    """What the control process asks of the operating system; refused wishes are reported."""

    priority: Annotated[int, Meta(ge=0, le=80)] = 50
    """SCHED_FIFO priority of the control thread, 5 less for the link to the PLC, 10 for the virtual cell; 0: none"""
    lock_memory: bool = True
    """lock all pages of the control process in memory"""
    required: bool = False
    """refuse to run if any of it is asked for and not granted"""
    accept: list[Condition] = []
    """conditions that `pkm doctor` calls a fail and with which a site without a virtual cell runs all the same"""


class Ring(Table, frozen=True):
    """The memory-mapped flight recorder between the control process and the gateway."""

    path: str
    """the ring file; the folder is made"""
    seconds: Annotated[float, Meta(ge=60.0, le=3600.0)] = 120.0
    """how much it holds"""


class Requests(Table, frozen=True):
    """Where operator requests reach the control process: a Unix datagram socket of the service's own user."""

    path: str
    """the request socket; the folder is made"""


class MqttTls(Table, frozen=True):
    """How broker and gateway prove who they are; files in PEM, paths as in `Mqtt`."""

    ca: str = ""
    """whom to believe that the broker is the broker; empty: the authorities of the operating system"""
    certificate: str = ""
    """of the gateway, for brokers that ask for one"""
    key: str = ""
    """to that certificate, readable by its owner only"""
    server_name: str = ""
    """that the broker's certificate must hold; empty: the host"""


class Mqtt(Table, frozen=True):
    """The broker to publish to. Paths are relative to the working directory; the password never stands here."""

    host: str = "127.0.0.1"
    """the broker to publish to"""
    port: Port = 1883
    """its TCP port"""
    version: Literal["5", "3.1.1"] = "5"
    """of the protocol"""
    user: str = ""
    """name at the broker; empty: none"""
    password_file: str = ""
    """its first line; readable by its owner only"""
    tls: MqttTls | None = None


class Web(Table, frozen=True, kw_only=True):
    """The operator page and the way in for requests; passwords and control over anything but loopback need TLS."""

    host: str = "127.0.0.1"
    """address to listen at"""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    """TCP port of the operator page; 0: any that is free"""
    certificate: str = ""
    key: str = ""
    """PEM files; both or none"""
    users: str = ""
    """TOML file of `pkm user`; empty: whoever may read the local token, nobody else"""


class Recording(Table, frozen=True):
    """Where runs are recorded, and how many are kept: the oldest finished runs go first, flight recordings apart."""

    folder: str
    """where runs are recorded"""
    keep_bytes: Annotated[int, Meta(ge=0)] = 0
    """of all recordings in the folder together, then the oldest go; 0: no bound"""
    free_bytes: Annotated[int, Meta(ge=0)] = 0
    """of its disk, kept free for everything else"""
    flights: Annotated[int, Meta(ge=1, le=1000)] = 20
    """newest flight recordings that are kept; the first five stay for ever"""


class Broker(Table, frozen=True):
    """A broker that `pkm run` starts itself, loopback only: mosquitto where installed, otherwise amqtt."""

    start: bool = True
    """start a broker at `mqtt.port`; loopback only. Without the table none is started"""


class Hydraulics(Table, frozen=True, kw_only=True):
    """Supply, oil and valves of the virtual cell's cylinders; pressures count from that of the air.

    The drop is that over one control edge at the rated flow and full stroke.
    """

    supply_pa: Positive = 210e5
    """of the pump, constant, above `tank_pa`; head side × supply is also the limit of the force feed-forward"""
    tank_pa: NonNegative = 5e5
    """of the return line"""
    bulk_modulus_pa: Positive = 1.0e9
    """of oil, hoses and dissolved air together; pure oil has 1.4e9 to 1.8e9"""
    rated_flow_m3_s: Positive = 6.7e-4
    """through one control edge of the head side at full stroke and the rated drop (default 40 l/min); the rod side
    has its ring area over piston area of it"""
    rated_drop_pa: Positive = 35e5
    """pressure drop over one control edge at which that flow is meant"""
    null_opening: Annotated[float, Meta(ge=1e-4, le=0.1)] = 0.003
    """how far every edge is open with the spool at rest, share of the full stroke: its leakage, and how fast the
    pressures settle"""
    valve_time_s: Positive = 0.002
    """the spool follows its command with this time constant; above 3 ms the light end of the oil's spring is hardly
    damped"""
    leakage_m3_s_pa: NonNegative = 1e-13
    """over the piston, laminar; the position loop lags by leakage × pressure difference / (piston area × 32 1/s)"""
    dead_volume_m3: Positive = 5e-5
    """oil between valve and piston with the piston at its end, each side"""


class VirtualCell(Table, frozen=True):
    """The virtual CX5130 and its plant, and how the plant differs from the machine file.

    Scales multiply the machine file's numbers; delay is the force (current) loop delay of motors.
    """

    start: bool = True
    """`pkm run` starts it; with false, start `pkm plant` first"""
    control: str = ""
    """a Unix datagram socket for `pkm fault`; empty: none"""
    seed: Annotated[int, Meta(ge=0)] = 1
    """of all random numbers"""
    mass_scale: Positive = 1.0
    """multiplies the masses of platform and links"""
    inertia_scale: Positive = 1.0
    """multiplies their tensors"""
    com_offset_m: Vector = (0.0, 0.0, 0.0)
    """added to the platform's centre of mass, platform axes"""
    geometry_error_m: NonNegative = 0.0
    """every coordinate of every joint is off by up to this"""
    rotor_inertia_scale: Positive = 1.0
    """multiplies the rotor inertias"""
    coulomb_n: NonNegative = 0.0
    viscous_n_s_m: NonNegative = 0.0
    """friction of the drives, in place of the machine file's; of the seals of cylinders, which `[legs.friction]`
    has, it is added"""
    cell_noise_n: NonNegative = 0.0
    """standard deviation of each cell reading"""
    cell_resolution_n: NonNegative = 0.0
    """step of the cell readings, 0 for none"""
    encoder_resolution_m: NonNegative = 0.0
    """step of the positions, 0 for none"""
    homed: bool = True
    """`false`: the encoders start with unknown offsets, the same for the same `seed`"""
    encoder_offset_m: NonNegative = 0.05
    """the largest of these offsets"""
    force_delay_s: NonNegative = 0.0
    """from a motor's force command to the force, rounded to 0.5 ms; cylinders have none"""
    plc_cycle_s: Annotated[float, Meta(ge=0.001, le=0.002)] = 0.002
    """cycle of the virtual PLC"""
    hydraulics: Hydraulics = Hydraulics()


class Site(Table, frozen=True, kw_only=True):
    """A site file; `machine` is a path relative to the site file."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*\Z")]
    """short name as for machines; part of MQTT topics and file names"""
    machine: str
    """path of the machine file, relative to this file"""
    rate_hz: Annotated[float, Meta(ge=10.0, le=1000.0)] = 100.0
    """ticks per second"""
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
    web: Web = Web()
    recording: Recording
    broker: Broker | None = None
    virtual_cell: VirtualCell | None = None
