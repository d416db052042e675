"""Wrong cables and a wrong screw in the virtual machine: axes show and move what a technician would find."""

import numpy as np
import pytest

from controller.settings import load_site
from drivers.virtual.plant import Plant
from tests.machines import SIMULATION

FILES = load_site(SIMULATION)


def tips_m(plant: Plant) -> np.ndarray:
    """True leg lengths from MuJoCo's own sites and the joints of the machine."""
    plant.pose()  # brings the sites up to date
    ends = np.array([plant.data.site_xpos[plant.model.site(f"joint {i}").id] for i in range(1, 7)])
    return np.linalg.norm(ends - np.array([leg.base_joint_m for leg in plant.machine.leg]), axis=1)


def pushed(plant: Plant, axis: int, more_n: float) -> np.ndarray:
    """How the true leg lengths change when one axis gives more than it takes to bear the weight."""
    before_m = tips_m(plant)
    for _ in range(100):
        bearing_n = plant.balance()  # of the legs
        force_n = np.empty(6)
        force_n[:] = (bearing_n * TRAVEL)[WIRED]
        force_n[axis] += more_n
        plant.step(force_n)
    return tips_m(plant) - before_m


WIRED = [0, 4, 2, 3, 1, 5]
TRAVEL = np.array([1.0, 1.0, 1.0, 0.8, 1.0, 1.0])


@pytest.fixture
def plant() -> Plant:
    assert FILES.site.virtual_cell is not None
    built = Plant(FILES.machine, FILES.site.virtual_cell)
    built.swap((1, 4))
    built.mislead(3, 0.8)
    return built


def test_the_axis_moves_the_leg_that_its_cable_leads_to_and_its_encoder_shows_that_leg(plant: Plant) -> None:
    shown_m = plant.position_m
    moved_m = pushed(plant, 1, 200.0)
    assert int(np.argmax(moved_m)) == 4 and moved_m[4] > 1e-4  # told to move leg 2, leg 5 moves
    assert int(np.argmax(plant.position_m - shown_m)) == 1
    np.testing.assert_allclose(plant.position_m - shown_m, (moved_m / TRAVEL)[WIRED], atol=2e-7)


def test_a_screw_gives_the_way_that_it_takes_and_the_force_that_it_gives_for_it(plant: Plant) -> None:
    shown_m = plant.position_m
    moved_m = pushed(plant, 3, 200.0)
    assert moved_m[3] == pytest.approx(0.8 * (plant.position_m - shown_m)[3], abs=2e-7)
    # no power is made or lost between the axes and the legs
    plant.swap(None)
    plant.mislead(3, 1.0)
    legs_m_s, legs_m = plant.velocity_m_s, plant.position_m
    plant.swap((1, 4))
    plant.mislead(3, 0.8)
    axes_m_s, force_n = plant.velocity_m_s, np.arange(1.0, 7.0)
    legs_n = np.empty(6)
    legs_n[WIRED] = force_n
    assert axes_m_s @ force_n == pytest.approx(legs_m_s @ (legs_n / TRAVEL))
    plant.swap(None)
    plant.mislead(3, 1.0)
    np.testing.assert_array_equal(plant.position_m, legs_m)


def test_load_cells_stay_where_they_are(plant: Plant) -> None:
    sound = Plant(FILES.machine, FILES.site.virtual_cell)  # type: ignore[arg-type]
    np.testing.assert_allclose(plant.cell_n, sound.cell_n, atol=6.0)
