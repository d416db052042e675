"""The numbers of a machine file in which forces are linear, how uncertain they are, and back into the file.

Mass, first moment and inertia about the joint of every body, friction, rotor inertia. Forces are linear in these:
f = Y (T p + held) + known. A body that is symmetric about its leg in the file stays so: four numbers instead of ten.

p            these parameters                                      (m,)   kg, kg m, kg m2, N, N s/m, ...
all          the columns of `controller.mechanism.regressor`, then rotor mass, dry and viscous friction of the drives
J            pseudo-inertia of a body about its joint, [[S, h], [h^T, m]] with S = tr(I)/2 E - I   (4, 4)
"""

import math
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from controller import schema
from controller.mechanism import layout, regressor
from controller.mechanism.drive import build_drives
from controller.mechanism.model import GROUP_MOMENT, about_joint, build, six
from controller.records import Array

Body = TypeVar("Body", schema.Platform, schema.Link)
DRIVE_COLUMNS = ("rotor_mass_kg", "coulomb_n", "viscous_n_s_m")  # of each set of legs, behind the regressor's
# How far a drawing may be off, one standard deviation. Only what the forces do not tell stays near the drawing.
SHARE = 0.3  # of masses, moments and inertias
FRICTION_SHARE = 0.05  # of a leg's largest force, at its largest speed: data sheets tell next to nothing of friction
JOINT_SHARE = 0.5  # of the friction of joints

_TENSOR = ("xx", "yy", "zz", "xy", "xz", "yz")
_TEN = ("mass_kg", *(f"moment_{a}_kg_m" for a in "xyz"), *(f"inertia_{a}_kg_m2" for a in _TENSOR))
_FOUR = ("mass_kg", "moment_z_kg_m", "inertia_transverse_kg_m2", "inertia_axial_kg_m2")
_SYMMETRIC = np.zeros((10, 4))
_SYMMETRIC[[0, 3, 4, 5, 6], [0, 1, 2, 2, 3]] = 1.0


class Place(NamedTuple):
    """A body, or a number, of the machine file."""

    leg: int | None  # from 0; None: of all legs, or the platform
    name: str  # of a link; empty: the platform; or a key of a friction or drive table
    at: slice  # among the parameters
    body: bool


class Parameters(NamedTuple):
    """The parameters of a machine for one side of the legs."""

    names: tuple[str, ...]  # m, with units
    values: Array  # (m,) of the machine file
    spread: Array  # (m,) standard deviation of what the file says
    T: Array  # (all, m)
    held: Array  # (all,) what is not identified
    each_leg: bool  # columns for each leg
    places: tuple[Place, ...]


def parameters_of(machine: schema.Machine, cell: bool) -> Parameters:
    """The parameters that load cells (cell) or axes can tell of."""
    model, drives = build(machine), build_drives(machine)
    legs = np.hstack([model.legs[:, list(regressor.LEG_PARAMETERS)], drives[:, 1:]])
    each_leg = bool(np.any(legs != legs[0]))
    sets = len(machine.leg) if each_leg else 1
    width, first_drive = regressor.LEG_WIDTH, regressor.PLATFORM_WIDTH + sets * regressor.LEG_WIDTH
    held = np.concatenate([regressor.parameters(model, each_leg), drives[:sets, 1:].ravel()])
    names, values, spread = list[str](), list[float](), list[float]()
    columns, places = list[Array](), list[Place]()

    def add(leg: int | None, name: str, titles: list[str], given: Array, sigma: Array, into: Array, body: bool) -> None:
        places.append(Place(leg, name, slice(len(names), len(names) + len(titles)), body))
        names.extend(titles)
        values.extend(given.tolist())
        spread.extend(sigma.tolist())
        columns.append(into)

    body = machine.platform
    ten = ten_of(body.mass_kg, body.com_m, body.inertia_kg_m2)
    add(None, "", [f"platform_{title}" for title in _TEN], ten, _spread(ten), np.eye(len(held))[:, :10], True)
    for k in range(sets):
        leg, owner = schema.effective_leg(machine, k), k if each_leg else None
        prefix, offset = f"leg_{k + 1}_" if each_leg else "", regressor.PLATFORM_WIDTH + k * width
        for name, link in leg.links.items():
            ten = ten_of(link.mass_kg, link.com_m, link.inertia_kg_m2)
            into = np.zeros((len(held), 10))
            _of_link(into[offset : offset + width], link.group, bool(leg.cell and name in leg.cell.links_below))
            symmetric = is_symmetric(link)
            shape = _SYMMETRIC if symmetric else np.eye(10)
            given = ten[[0, 3, 4, 6]] if symmetric else ten
            sigma = _spread(ten)[[0, 3, 4, 6]] if symmetric else _spread(ten)
            titles = [f"{prefix}{name}_{title}" for title in (_FOUR if symmetric else _TEN)]
            add(owner, name, titles, given, sigma, into @ shape, True)
        for key, column, sigma, factor, given in _numbers(machine, k, cell, offset, first_drive + 3 * k):
            into = np.zeros((len(held), 1))
            into[column] = factor
            add(owner, key, [f"{prefix}{key}"], np.array([given]), np.array([sigma]), into, False)
    T, p = np.hstack(columns), np.array(values)
    return Parameters(tuple(names), p, np.array(spread), T, _rounded(held - T @ p, held), each_leg, tuple(places))


def without(parameters: Parameters, held: list[Place]) -> Parameters:
    """Those that are left when some places are held at what they are."""
    keep = np.zeros(len(parameters.names), np.bool_)
    places = list[Place]()
    for place in parameters.places:
        if place not in held:
            at, width = int(keep.sum()), place.at.stop - place.at.start
            places.append(place._replace(at=slice(at, at + width)))
            keep[place.at] = True
    names = tuple(name for name, kept in zip(parameters.names, keep, strict=True) if kept)
    return parameters._replace(
        names=names, values=parameters.values[keep], spread=parameters.spread[keep], T=parameters.T[:, keep],
        held=parameters.held + parameters.T[:, ~keep] @ parameters.values[~keep], places=tuple(places),
    )  # fmt: skip


def _numbers(
    machine: schema.Machine, k: int, cell: bool, offset: int, drive_offset: int
) -> list[tuple[str, int, float, float, float]]:
    """Of a leg: key, column among all, spread, factor of the column, value."""
    leg = schema.effective_leg(machine, k)
    friction, limits = leg.friction, leg.limits
    at = {name: offset + regressor.LEG_PARAMETERS.index(column) for name, column in _FRICTION.items()}
    dry_n, viscous = FRICTION_SHARE * limits.force_n, FRICTION_SHARE * limits.force_n / limits.speed_m_s
    found = [
        (key, at[key], JOINT_SHARE * getattr(friction, key), 1.0, getattr(friction, key))
        for key in ("universal_nm_s_rad", "spherical_nm_s_rad")
        if getattr(friction, key) > 0.0
    ]
    if cell:
        return found
    screw = leg.drive if isinstance(leg.drive, schema.ScrewDrive) else None
    if friction.normal > 0.0:
        found.append(("normal", at["normal"], JOINT_SHARE * friction.normal, 1.0, friction.normal))
    if screw is None:
        found.append(("viscous_n_s_m", at["viscous_n_s_m"], viscous, 1.0, friction.viscous_n_s_m))
        found.append(("coulomb_n", at["coulomb_n"], dry_n, 1.0, friction.coulomb_n))
        return found
    # a drive's own friction: that of the mechanism beside it acts in the same way, and stays what the file says
    found.append(("drive_viscous_n_s_m", drive_offset + 2, viscous, 1.0, screw.viscous_n_s_m))
    found.append(("drive_coulomb_n", drive_offset + 1, dry_n, 1.0, screw.coulomb_n))
    if screw.rotor_inertia_kg_m2 > 0.0:
        turns = 2.0 * math.pi * screw.gear_ratio / screw.lead_m
        twisting = leg.kind == "UHU"
        column = offset + regressor.LEG_PARAMETERS.index(layout.ROTOR_INERTIA) if twisting else drive_offset
        spread = SHARE * screw.rotor_inertia_kg_m2
        found.append(("rotor_inertia_kg_m2", column, spread, 1.0 if twisting else turns**2, screw.rotor_inertia_kg_m2))
    return found


_FRICTION = {
    "universal_nm_s_rad": layout.UNIVERSAL_FRICTION,
    "spherical_nm_s_rad": layout.SPHERICAL_FRICTION,
    "viscous_n_s_m": layout.VISCOUS_FRICTION,
    "coulomb_n": layout.COULOMB_FRICTION,
    "normal": layout.NORMAL_FRICTION,
}


def ten_of(mass_kg: float, com_m: schema.Vector, inertia_kg_m2: schema.Tensor) -> Array:
    """Mass, first moment and the six of the inertia about the joint (10,)."""
    com, inertia = np.array(com_m), np.array(inertia_kg_m2)
    return np.array([mass_kg, *(mass_kg * com), *six(about_joint(mass_kg, com, inertia))])


def is_symmetric(link: schema.Link) -> bool:
    """Whether a link is symmetric about the leg."""
    (a, d, e), (_, b, f), _ = link.inertia_kg_m2
    return a == b and not any((d, e, f, *link.com_m[:2]))


def _spread(ten: Array) -> Array:
    """Of a body: a share of its mass, of the moment it would have at its radius of inertia, and of its inertia."""
    mass, trace = abs(ten[0]), max(float(ten[4:7].sum()) / 2.0, 0.0)
    moment = math.sqrt(mass * trace)
    return SHARE * np.array([mass or 1e-9, *[moment or 1e-9] * 3, *[trace or 1e-9] * 6])


def _of_link(rows: Array, group: str, below: bool) -> None:
    """Where the ten of a link enter among a leg's columns (LEG_WIDTH, 10)."""

    def enter(column: int, ten: slice) -> None:
        at = regressor.LEG_PARAMETERS.index(column)
        rows[at : at + ten.stop - ten.start, ten] = np.eye(ten.stop - ten.start)

    enter(GROUP_MOMENT[group], slice(1, 4))
    enter(layout.UPPER_INERTIA if group == "upper" else layout.BASE_INERTIA, slice(4, 10))
    if group != "lower":
        enter(layout.ROD_MASS if group == "rod" else layout.UPPER_MASS, slice(0, 1))
    if below:
        enter(layout.BELOW_MASS, slice(0, 1))
        enter(layout.BELOW_MOMENT, slice(1, 4))


def _rounded(rest: Array, of: Array) -> Array:
    """Without what is rounding only."""
    return np.where(np.abs(rest) > 1e-12 * np.maximum(np.abs(of), 1.0), rest, 0.0)


# ---------------------------------------------------------------- bodies that can be


def bodies(parameters: Parameters) -> list[Place]:
    """Platform and links."""
    return [place for place in parameters.places if place.body]


def pseudo_inertia(values: Array) -> Array:
    """J (4, 4) of the ten, or the four, of a body; a body can be such if J is positive definite."""
    ten = _SYMMETRIC @ values if len(values) == 4 else values
    mass, h = ten[0], ten[1:4]
    xx, yy, zz, xy, xz, yz = ten[4:]
    inertia = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    J = np.empty((4, 4))
    J[:3, :3] = 0.5 * np.trace(inertia) * np.eye(3) - inertia
    J[:3, 3] = J[3, :3] = h
    J[3, 3] = mass
    return J


def from_pseudo_inertia(J: Array, count: int) -> Array:
    """The ten, or the four, of a body."""
    S = J[:3, :3]
    inertia = np.trace(S) * np.eye(3) - S
    ten = np.array([J[3, 3], *J[:3, 3], *six(inertia)])
    return ten[[0, 3, 4, 6]] if count == 4 else ten


# ---------------------------------------------------------------- back into the machine file


def with_parameters(machine: schema.Machine, parameters: Parameters, values: Array) -> schema.Machine:
    """The machine with these parameters (m,); bodies without mass keep what they have."""
    shared: dict[str, Array] = {place.name: values[place.at] for place in parameters.places if place.leg is None}
    result = replace(machine, platform=_changed(machine.platform, shared[""])) if "" in shared else machine
    if not parameters.each_leg:
        return replace(
            result,
            legs=_with_leg(machine.legs, shared),
            leg=[_own(leg, schema.effective_leg(machine, i), shared) for i, leg in enumerate(machine.leg)],
        )
    legs = list[schema.Leg]()
    for i, leg in enumerate(machine.leg):
        own = {place.name: values[place.at] for place in parameters.places if place.leg == i}
        whole = _with_leg(schema.effective_leg(machine, i), own)
        legs.append(replace(leg, links=whole.links, friction=whole.friction, drive=whole.drive))
    return replace(result, leg=legs)


def _own(leg: schema.Leg, whole: schema.Legs, found: dict[str, Array]) -> schema.Leg:
    """A leg whose own tables, where it has such, say the same as those of all legs now do."""
    new = _with_leg(whole, found)
    links = {name: new.links[name] for name in leg.links} if leg.links else leg.links
    return replace(
        leg, links=links, friction=new.friction if leg.friction else None, drive=new.drive if leg.drive else None
    )


def _with_leg(leg: schema.Legs, found: dict[str, Array]) -> schema.Legs:
    links = {name: _changed(link, found[name]) if name in found else link for name, link in leg.links.items()}
    numbers = {name: float(value[0]) for name, value in found.items() if len(value) == 1}
    friction = replace(leg.friction, **{key: numbers[key] for key in _FRICTION if key in numbers})
    drive = leg.drive
    if isinstance(drive, schema.ScrewDrive):
        keys = {"drive_viscous_n_s_m": "viscous_n_s_m", "drive_coulomb_n": "coulomb_n"}
        keys |= {"rotor_inertia_kg_m2": "rotor_inertia_kg_m2"}
        drive = replace(drive, **{key: numbers[name] for name, key in keys.items() if name in numbers})
    return replace(leg, links=links, friction=friction, drive=drive)


def _changed(body: Body, values: Array) -> Body:
    """The body with the ten, or the four, about its joint; com and tensor about the com follow."""
    J = pseudo_inertia(values)
    mass = float(J[3, 3])
    if not mass > 0.0:
        return body
    com = J[:3, 3] / mass
    S = J[:3, :3] - mass * np.outer(com, com)
    inertia = np.trace(S) * np.eye(3) - S
    rows = [tuple(_short(float(value)) for value in row) for row in (inertia + inertia.T) / 2.0]
    return replace(
        body,
        mass_kg=_short(mass),
        com_m=tuple(_short(float(value)) for value in com),
        inertia_kg_m2=tuple(rows),
    )


def _short(value: float) -> float:
    """Nine digits: what stands behind them no machine has."""
    return float(f"{value:.9g}") if abs(value) > 1e-15 else 0.0
