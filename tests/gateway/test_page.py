"""The operator page in a real browser, in front of a real `pkm run` with its virtual cell."""

import csv
import functools
import hashlib
import io
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from scipy.spatial import ConvexHull
from scipy.spatial.transform import Rotation

from controller.gateway.web.describe import described
from controller.mechanism.kinematics import leg_lengths
from controller.message import token_path
from controller.recording import read
from controller.records import POSE, Mode, channels
from controller.ring import RingReader
from controller.schema import Site
from controller.settings import load_site, parse
from controller.state import prepare
from tests.hil.stand import Stand
from tests.machines import ROOT, SIMULATION, free_port
from tests.shell import pkm

FILES = ROOT / "controller" / "gateway" / "web" / "page"
PATIENCE_S = 30.0
PASSWORDS = {"vera": "viewer's secret", "olaf": "operator's secret"}
ROLES = {"vera": "viewer", "olaf": "operator"}
VIEWS = ["Overview", "3-D", "Trends", "Scope", "Events", "Recordings", "Health", "Help"]
SITES = sorted(path.stem for path in (ROOT / "config" / "sites").glob("simulation*.toml"))
TABLET = {"width": 1024, "height": 768}
HOME_Z_M = 0.85
MORE = """
[tracks.wave]
kind = "fourier"
base_frequency_hz = 0.5
periods = 2
sine = { x_m = [0.01] }

[tracks.nod]
kind = "fourier"
base_frequency_hz = 0.5
periods = 2
sine = { pitch_rad = [0.02] }

[stream]
address = "HOST"
"""

expect.set_options(timeout=1e3 * PATIENCE_S)


class Desk:
    """The system, and what the test knows of it without the page."""

    def __init__(self, folder: Path) -> None:
        site = folder / "port.toml"
        self.host_port = free_port()  # of the motion-base host
        more = MORE.replace("HOST", f"127.0.0.1:{self.host_port}")
        site.write_text(SIMULATION.read_text().replace("port = 8080", f"port = {free_port()}") + more)
        self.stand = Stand(folder, site, {"z_m": 0.02})
        found = parse(self.stand.system.site.read_text(), Site, folder)
        for name, role in ROLES.items():
            assert pkm("user", "add", self.stand.system.site, name, "--role", role, given=PASSWORDS[name]).code == 0
        path = token_path(Path(found.requests.path))
        end_s = time.monotonic() + PATIENCE_S
        while not path.exists():
            assert time.monotonic() < end_s
            time.sleep(0.05)
        link = json.loads(path.read_text())
        self.url, self.token = link["url"], link["token"]
        self.ring = RingReader(Path(found.ring.path))

    def reach(self, mode: Mode, seconds: float = PATIENCE_S) -> None:
        """Lead the machine into a mode behind the page's back: a busy computer may have stopped it."""
        end_s = time.monotonic() + seconds
        while (now := self.stand.latest()["mode"]) != mode:
            assert time.monotonic() < end_s, (now, self.stand.system.log.read_text()[-2000:])
            self.stand.ask(
                {Mode.FAULT: "acknowledge", Mode.OFF: "ready", Mode.ACTIVE: "stop"}.get(Mode(int(now)), "off")
            )
            time.sleep(0.05)
        if mode is Mode.READY:
            self.stand.wait(lambda row: row["drives_enabled"] == 1.0, seconds)

    def column(self, name: str, first: int, last: int) -> np.ndarray:
        """Values of a channel in rows first … last of the ring."""
        at, rows = self.ring.read(first, last - first + 1)
        assert at == first
        return rows[:, self.stand.columns.index(name)]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    made = Desk(tmp_path_factory.mktemp("page"))
    yield made
    if made.stand.system.process.poll() is None:
        made.stand.system.process.terminate()
        made.stand.system.ends()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert shutil.which("chromium"), "chromium is missing: apt-get install chromium"
    program = tmp_path_factory.mktemp("browser") / "chromium"  # elsewhere it runs on a computer of its own
    program.write_text('#!/bin/sh\nexec nice -n 5 chromium "$@"\n')
    program.chmod(0o755)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        started = playwright.chromium.launch(executable_path=program, args=flags)
        yield started
        started.close()


@pytest.fixture(scope="module")
def modules(browser: Browser, desk: Desk) -> Iterator[Page]:
    """A page that only has the modules at hand."""
    page = browser.new_page()
    page.goto(desk.url)
    yield page
    page.close()


Open = Callable[[str], Page]


@pytest.fixture
def screen(browser: Browser, desk: Desk) -> Iterator[Open]:
    """Opens the page as a user in a browser of its own; at the end nothing may have gone wrong in it."""
    complaints: list[str] = []
    contexts = []

    def start(user: str = "local") -> Page:
        contexts.append(browser.new_context(viewport=TABLET, has_touch=True, accept_downloads=True))
        page = contexts[-1].new_page()
        page.on(
            "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(desk.url + (f"/#token={desk.token}" if user == "local" else ""))
        if user != "local":
            page.get_by_label("user").fill(user)
            page.get_by_label("password").fill(PASSWORDS[user])
            page.get_by_role("button", name="Log in").click()
        expect(page.locator("body")).to_have_attribute("data-worth", "live")
        return page

    yield start
    for context in contexts:
        context.close()
    assert complaints == []


class Host(threading.Thread):
    """A motion-base host: sends the pose where the machine is, swaying in y by `sway_m`, 50 times a second."""

    def __init__(self, port: int, row: dict[str, float]) -> None:
        super().__init__()
        self.pose, self.sway_m = [row[f"reference_{name}"] for name in POSE], 0.0
        self._port, self._ended = port, threading.Event()

    def run(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            since_s = None
            for seq in range(1 << 20):
                time_s = time.monotonic()
                since_s = since_s or (time_s if self.sway_m else None)
                sway_m = self.sway_m * math.sin(math.pi * (time_s - since_s)) if since_s else 0.0
                pose = [self.pose[0], self.pose[1] + sway_m, *self.pose[2:]]
                way.sendto(struct.pack("<4sHHII7d", b"PKMS", 1, 0, seq, 0, time_s, *pose), ("127.0.0.1", self._port))
                if self._ended.wait(0.02):
                    return

    def __enter__(self) -> "Host":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def view(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def shown(page: Page, name: str) -> float:
    """A number on the page."""
    return float(page.get_by_label(name, exact=True).locator(".value").inner_text().replace("−", "-"))


def within(seconds: float, what: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.03)
    return True


# ---------------------------------------------------------------- files


def test_the_libraries_are_those_of_the_table() -> None:
    table = re.findall(
        r"^\| (\S+) \| \S+ \| \S+ \| \S+ \| MIT \| ([0-9a-f]{64}) \|$", (FILES / "vendor/README.md").read_text(), re.M
    )
    assert {name: hashlib.sha256((FILES / "vendor" / name).read_bytes()).hexdigest() for name, _ in table} == dict(
        table
    )
    assert {path.name for path in (FILES / "vendor").iterdir()} == {"README.md", *(name for name, _ in table)}


def test_the_page_names_no_other_computer() -> None:
    for path in FILES.rglob("*.*"):
        if "vendor" not in path.parts:
            assert set(re.findall(r"https?://[^\"' )]*", path.read_text())) <= {"http://www.w3.org/2000/svg"}, path


# ---------------------------------------------------------------- the parts that only reckon


def test_the_trigger_finds_the_row(modules: Page) -> None:
    chance, cases, expected = random.Random(5), [], []
    for _ in range(300):
        values = [math.nan if chance.random() < 0.1 else round(chance.uniform(-2, 2), 1) for _ in range(40)]
        level, edge = round(chance.uniform(-1, 1), 1), chance.choice(["rising", "falling", "either"])
        before, now = np.array(values[:-1]), np.array(values[1:])
        rising, falling = (before < level) & (now >= level), (before > level) & (now <= level)
        hits = np.flatnonzero({"rising": rising, "falling": falling, "either": rising | falling}[edge]) + 1
        cases.append([[None if math.isnan(value) else value for value in values], edge, level])
        expected.append(int(hits[0]) if len(hits) else -1)
    found = modules.evaluate(
        """async (cases) => {
          const { findTrigger } = await import("/assets/trigger.js");
          return cases.map(([values, edge, level]) =>
            findTrigger((row) => values[row] ?? NaN, 1, values.length, edge, level));
        }""",
        cases,
    )
    assert found == expected


def test_a_trigger_takes_what_came_before_it_and_goes_on(modules: Page) -> None:
    taken = modules.evaluate(
        """async () => {
          const { createTrigger } = await import("/assets/trigger.js");
          const square = (row) => (row < 0 ? NaN : Math.floor(row / 10) % 2);  // rises at 10, 30, 50, ...
          const run = (mode, level) => {
            const trigger = createTrigger({ edge: "rising", level, mode, width: 8, before: 3 }, 0), found = [];
            for (let next = 1; next < 100; next++) {
              const capture = trigger.take(square, 0, next);
              if (capture) found.push([capture.at, capture.from, capture.to, capture.forced, next]);
            }
            return found;
          };
          return [run("single", 0.5), run("normal", 0.5), run("normal", 5), run("auto", 5)];
        }"""
    )
    single, normal, never, auto = taken
    assert single == [[10, 7, 15, False, 15]]
    assert [capture[0] for capture in normal] == [10, 30, 50, 70, 90]
    assert never == []
    assert [capture[3:] for capture in auto] == [[True, 8 * k] for k in range(1, 13)]


def test_rows_keep_their_numbers_over_gaps_and_repeats(modules: Page) -> None:
    chance, at, follows = random.Random(3), 100, 100
    blocks, held = list[Any](), dict[int, float]()
    for _ in range(60):
        at = max(100, at + chance.choice([0, 0, 0, -4, 7]))  # in order, again, or with a gap
        count = chance.randint(1, 9)
        blocks.append([at, [[row, row / 100, row * row] for row in range(at, at + count)]])
        held |= {row: float(row * row) for row in range(max(at, follows), at + count)}  # what was missed stays so
        at += count
        follows = max(follows, at)
    found = modules.evaluate(
        """async (blocks) => {
          const { createRows } = await import("/assets/rows.js");
          const rows = createRows(["tick", "t_s", "value"], 100, 1);  // the newest 100
          for (const [at, block] of blocks) rows.append(at, new Float64Array(block.flat()));
          const all = (column) => Array.from({ length: rows.next - rows.first }, (_, k) =>
            rows.value(rows.first + k, column)).map((value) => (Number.isNaN(value) ? null : value));
          return { next: rows.next, first: rows.first, missing: rows.missing, times: all(1), values: all(2) };
        }""",
        blocks,
    )
    assert (found["first"], found["next"]) == (follows - 100, follows)
    assert found["values"] == [held.get(row) for row in range(follows - 100, follows)]
    assert found["times"] == pytest.approx([row / 100 for row in range(follows - 100, follows)])
    assert found["missing"] == sum(row not in held for row in range(100, follows))


def test_the_age_is_that_of_the_data(modules: Page) -> None:
    ages, worths, never = modules.evaluate(
        """async () => {
          const { createAge, worth } = await import("/assets/rows.js");
          const age = createAge(), found = [];
          for (let k = 0; k < 100; k++) age.note(k / 10, 1000 + k / 10 + (k % 7) / 100);  // a way of 0 to 60 ms
          found.push(age.age_s(1009.9 + 0.3), age.age_s(1009.9 + 1), age.age_s(1009.9 + 3));
          age.note(10, 1020);  // a row comes ten seconds late: it is old although it came just now
          found.push(age.age_s(1020));
          return [found, found.map(worth), createAge().age_s(5) === Infinity];
        }"""
    )
    assert ages == pytest.approx([0.3, 1.0, 3.0, 10.0], abs=0.01)
    assert worths == ["live", "stale", "none", "none"]
    assert never


def test_an_alarm_stays_until_it_is_seen_and_gone(modules: Page) -> None:
    lives = modules.evaluate(
        """async () => {
          const { createAlarms } = await import("/assets/alarms.js");
          const row = (bit, name, effect) => ({ bit, name, meaning: "", effect });
          const alarms = createAlarms([row(0, "A", "TRIP"), row(1, "B", "WARN")]), told = [];
          const line = ({ name, since, stands, times, seen }) =>
            [name, since, stands ? "stands" : "gone", times, seen?.who ?? "unseen"].join(" ");
          const tell = () => told.push(alarms.list().map(line).join("; "));
          const event = (t, kind, code, who = "", text = "") => {
            alarms.take({ t, kind, code, who, text, values: {} });
            tell();
          };
          event(5, "fault_set", "B");
          event(6, "fault_set", "A");
          event(7, "fault_cleared", "B");
          event(8, "fault_set", "B");
          event(9, "acknowledged", "B", "olaf");
          event(10, "fault_cleared", "B");
          event(11, "request", "WRONG_MODE", "olaf", "Request 4 (ACKNOWLEDGE) is refused.");
          event(12, "request", "ACCEPTED", "olaf", "Request 5 (ACKNOWLEDGE) is accepted, asked by olaf.");
          alarms.stand(0, 13); tell();
          alarms.stand(3, 14); tell();
          event(13.5, "request", "ACCEPTED", "olaf", "Request 6 (ACKNOWLEDGE) is accepted, asked by olaf.");
          return told;
        }"""
    )
    assert lives == [
        "B 5 stands 1 unseen",
        "B 5 stands 1 unseen; A 6 stands 1 unseen",  # the oldest first
        "B 5 gone 1 unseen; A 6 stands 1 unseen",
        "B 5 stands 2 unseen; A 6 stands 1 unseen",
        "A 6 stands 1 unseen; B 5 stands 2 olaf",
        "A 6 stands 1 unseen",
        "A 6 stands 1 unseen",
        "A 6 stands 1 olaf",
        "",
        "A 14 stands 1 unseen; B 14 stands 1 unseen",  # the faults of a row, before their events
        "A 14 stands 1 unseen; B 14 stands 1 unseen",  # nobody can have seen them before they came
    ]


def test_turning_and_outlines_are_right(modules: Page) -> None:
    chance = np.random.default_rng(2)
    angles, points = chance.uniform(-3, 3, (20, 3)), chance.uniform(-1, 1, (12, 3))
    rotations, corners = modules.evaluate(
        """async ([angles, points]) => {
          const { rotation, outline } = await import("/assets/views/geometry.js");
          return [angles.map((one) => rotation(...one)), outline(points, 0)];
        }""",
        [angles.tolist(), points.tolist()],
    )
    assert np.array(rotations) == pytest.approx(Rotation.from_euler("ZYX", angles).as_matrix())
    hull = ConvexHull(points[:, :2])
    assert sorted(map(tuple, corners)) == sorted(map(tuple, points[hull.vertices, :2]))


@pytest.mark.parametrize("name", SITES)
def test_every_machine_has_its_picture(modules: Page, name: str) -> None:
    files = load_site(ROOT / "config" / "sites" / f"{name}.toml")
    setup = prepare(files.machine, files.site, files.track_texts)
    columns = channels(len(files.machine.leg), list(files.site.sensors), files.site.stream is not None)
    told = described(
        {
            "session": "s", "site": name, "version": "0", "started_unix_s": 0.0, "rate_hz": 100.0,
            "legs": len(files.machine.leg), "limits": setup.limits.told(), "sensors": list(files.site.sensors),
            "channels": [list(channel) for channel in columns], "configuration_sha256": "",
            "machine_toml": files.machine_text, "site_toml": files.site_text, "tracks": {},
        }
    )  # fmt: skip
    lengths = np.zeros(len(files.machine.leg))
    leg_lengths(setup.machine, np.array(told["home"]), lengths)
    at = dict.fromkeys((channel.name for channel in columns), 0.0)
    at |= dict(zip(POSE, told["home"], strict=True)) | {
        f"reference_{name}": value for name, value in zip(POSE, told["home"], strict=True)
    }
    at |= {f"length_{i}_m": length for i, length in enumerate(lengths, 1)}
    words, colours, tags = modules.evaluate(
        """async ([meta, row]) => {
          const from = (name) => import(`/assets/${name}.js`);
          const { machineOf } = await from("machine"), { createRows } = await from("rows");
          const machine = machineOf(meta), rows = createRows(machine.channels.map(({ name }) => name), 100, 1);
          rows.append(0, new Float64Array(row));
          const reader = (name) => () => rows.value(0, rows.column(name));
          const page = { machine, rows, reader, value: (name) => reader(name)(), session: { user: "u", role: "viewer" },
            status: () => ({}), events: () => [], whyNotAcknowledge: () => "", drawing_s: () => 0, online: () => true };
          const made = [(await from("views/overview")).overview(page), (await from("views/health")).health(page),
            (await from("views/machine3d")).machine3d(page)];
          document.body.replaceChildren(...made.map(({ element }) => element));
          for (const view of made) view.draw({ now_s: 1, age_s: 0.01, worth: "live" });
          const canvas = document.querySelector(".canvas-place canvas"), copy = document.createElement("canvas");
          made[2].element.style.height = "400px";
          await new Promise(requestAnimationFrame);
          await new Promise(requestAnimationFrame);
          made[2].draw({ now_s: 2, age_s: 0.01, worth: "live" });
          [copy.width, copy.height] = [canvas.width, canvas.height];
          const pencil = copy.getContext("2d");
          pencil.drawImage(canvas, 0, 0);
          const seen = new Uint32Array(pencil.getImageData(0, 0, copy.width, copy.height).data.buffer);
          return [document.body.innerText, new Set(seen).size, document.querySelectorAll(".tag.leg").length];
        }""",
        [told, [at[channel.name] for channel in columns]],
    )
    assert tags == len(files.machine.leg)
    assert colours > 100  # something is drawn, with light and shadow
    assert not re.search(r"undefined|NaN|Infinity|\[object", words)
    for length in lengths:
        assert f"{1e3 * length:.2f}" in words
    assert "no value" not in words.split("Forces")[0]  # pose and legs are all there


# ---------------------------------------------------------------- the operator's day


def test_a_wrong_password_says_so_and_a_token_leaves_the_address(browser: Browser, desk: Desk, screen: Open) -> None:
    context = browser.new_context(viewport=TABLET)
    page = context.new_page()
    page.goto(desk.url)
    page.get_by_label("user").fill("olaf")
    page.get_by_label("password").fill("not his secret")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).not_to_be_empty()
    expect(page.get_by_label("password")).to_have_value("")
    context.close()
    local = screen("local")
    assert "token" not in local.url
    assert local.evaluate("document.cookie") == ""
    local.get_by_role("button", name="Log out").click()
    expect(local.get_by_role("button", name="Log in")).to_be_visible()


def test_every_view_has_state_alarms_and_stop_and_fits_a_finger(screen: Open) -> None:
    page = screen("olaf")
    for number, name in enumerate(VIEWS, 1):
        page.keyboard.press(str(number))
        expect(page.get_by_role("tab", name=name, exact=True)).to_have_attribute("aria-selected", "true")
        page.wait_for_timeout(150)
        for place in (".stop-button", ".mode", ".banner", "header [aria-label=connection]"):
            expect(page.locator(place)).to_be_in_viewport(ratio=1)
        small = page.evaluate(
            """() => [...document.querySelectorAll("button, summary, a.button, select, label:has(input)")]
                .filter((e) => e.checkVisibility()).map((e) => [e.textContent, e.getBoundingClientRect()])
                .filter(([, box]) => box.height < 43.5 || box.width < 40).map(([text]) => text)"""
        )
        assert small == [], name
        assert page.evaluate("document.documentElement.scrollWidth") <= TABLET["width"], name
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, canvas")].filter((e) => e.checkVisibility()
                && !e.closest("[role=img][aria-label]")
                && !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).map((e) => e.outerHTML)"""
        )
        assert nameless == [], name
    page.keyboard.press("?")
    expect(page.get_by_role("region", name="Keys")).to_contain_text("Esc")


def arm(page: Page, desk: Desk, level_mm: float, edge: str) -> int:
    """Set the scope on the reference of z; the row from which it may trigger, or a little earlier."""
    view(page, "Scope")
    page.get_by_label("trigger channel").select_option("reference_z_m")
    page.get_by_label("trigger level").fill(f"{level_mm}")
    page.get_by_label("edge", exact=True).select_option(edge)
    page.get_by_label("mode", exact=True).last.select_option("single")
    page.get_by_label("width").select_option("0.5")
    page.get_by_label("before the trigger").select_option("50")
    armed = desk.ring.written
    page.get_by_role("button", name="Arm").click()
    expect(page.locator(".scope-state")).to_contain_text("Armed")
    view(page, "Overview")
    return armed


def move(page: Page, z_mm: float) -> bool:
    """Ask for a pose with the form; False if the preview says that it cannot be now."""
    page.locator("[data-kind=move]").first.click()
    page.get_by_label("z", exact=False).locator("xpath=self::input").first.fill(f"{z_mm}")
    go, consequence = page.locator(".dialog .go"), page.locator(".consequence")
    if within(8.0, lambda: f"z {z_mm:.0f} mm" in consequence.inner_text() and go.is_enabled()):
        go.click()
        return True
    page.locator(".dialog .cancel").click()
    return False


def is_beyond(page: Page, level_mm: float, up: bool) -> bool:
    return shown(page, "z") > level_mm if up else shown(page, "z") < level_mm


def test_ready_move_trigger_and_save(desk: Desk, screen: Open) -> None:
    page = screen("olaf")
    desk.reach(Mode.OFF)
    expect(page.locator(".mode")).to_contain_text("OFF")
    expect(page.get_by_label("leg 1 residual")).to_contain_text("no value")  # nothing is modelled with the drives off
    page.locator("[data-kind=ready]").first.click()
    expect(page.locator(".dialog .cancel")).to_be_focused()  # what is pressed by mistake does nothing
    page.keyboard.press("Enter")
    expect(page.locator(".dialog")).to_have_count(0)
    page.locator("[data-kind=ready]").first.click()
    page.locator(".dialog .go").click()
    expect(page.locator(".answer")).to_contain_text("READY is accepted")
    for _ in range(10):  # a busy computer may stop the motion on its way
        desk.reach(Mode.READY)
        start_mm = round(shown(page, "z"))
        target_mm = start_mm + (10 if start_mm < 1e3 * HOME_Z_M + 20 else -10)
        level_mm, up = (start_mm + target_mm) / 2, target_mm > start_mm
        armed = arm(page, desk, level_mm, "rising" if up else "falling")
        if move(page, target_mm) and within(4.0, functools.partial(is_beyond, page, level_mm, up)):
            break
    else:
        raise AssertionError("the machine never came where it was sent")
    expect(page.locator(".answer")).to_contain_text("MOVE is accepted")
    assert within(PATIENCE_S, lambda: abs(1e3 * desk.stand.latest()["z_m"] - shown(page, "z")) < 0.5)

    view(page, "Scope")
    expect(page.locator(".scope-state")).to_contain_text("trigger at row")
    at, first, last = map(
        int, re.findall(r"row (\d+).* rows (\d+) … (\d+)", page.locator(".scope-state").inner_text())[0]
    )
    assert (first, last) == (at - 25, at + 24)
    reference = desk.column("reference_z_m", armed - 100, last)
    passed = (
        np.flatnonzero(np.diff((reference >= 1e-3 * level_mm) if up else (reference <= 1e-3 * level_mm)).astype(int))
        + 1
    )
    assert list(passed + armed - 100) == [at]  # the one row of them all
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save CSV").click()
    lines = list(csv.reader(io.StringIO(Path(saving.value.path()).read_text())))
    assert lines[0] == ["row", "t_s", "z_m", "reference_z_m", "following_error_1_m", "drive_1_n"]
    assert [int(line[0]) for line in lines[1:]] == list(range(first, last + 1))
    for k, name in enumerate(lines[0][1:], 1):
        assert [float(line[k]) for line in lines[1:]] == desk.column(name, first, last).tolist()  # SI, bit for bit
    view(page, "Events")
    row = page.locator("tr", has_text="(MOVE) is accepted").first
    expect(row).to_contain_text("olaf")


def test_esc_stops_at_once_and_is_never_asked_twice(desk: Desk, screen: Open) -> None:
    page = screen("olaf")
    for _ in range(6):
        desk.stand.move()
        page.locator("[data-kind=off]").first.focus()
        desk.stand.mark()
        page.keyboard.press("Escape")
        if within(10.0, lambda: "is accepted" in page.locator(".answer").inner_text()):
            break
    kinds = [row["request_kind"] for row in [*desk.stand.dicts(), *desk.stand.watch(0.5)] if row["request_kind"]]
    assert 4 in kinds  # RequestKind.STOP
    assert desk.stand.wait(lambda row: row["mode"] != Mode.ACTIVE, PATIENCE_S)
    expect(page.locator(".dialog")).to_have_count(0)


def test_a_track_is_chosen_by_its_name_and_followed(desk: Desk, screen: Open) -> None:
    page = screen("olaf")
    for _ in range(6):  # a busy computer may stop the motion on its way
        desk.reach(Mode.READY)
        desk.stand.mark()
        page.locator("[data-kind=track]").first.click()
        page.locator(".dialog select").select_option("nod")
        go = page.locator(".dialog .go")
        if not within(8.0, go.is_enabled):
            page.locator(".dialog .cancel").click()
            continue
        go.click()
        expect(page.locator(".answer")).to_contain_text("TRACK is")
        if within(6.0, lambda: abs(desk.stand.latest()["reference_pitch_rad"]) > 0.015):
            break
    else:
        raise AssertionError("the track was never followed")
    x_m = [row["reference_x_m"] for row in desk.stand.dicts()]
    assert max(x_m) - min(x_m) < 0.005  # no "wave"


def test_the_host_is_followed_from_the_page(desk: Desk, screen: Open) -> None:
    page = screen("olaf")
    for _ in range(6):
        desk.reach(Mode.READY)
        with Host(desk.host_port, desk.stand.latest()) as host:
            assert within(PATIENCE_S, lambda: desk.stand.latest()["stream_seq"] > 5)
            page.locator("[data-kind=stream]").first.click()
            page.locator(".dialog .go").click()
            expect(page.locator(".answer")).to_contain_text("STREAM is")
            host.sway_m = 0.01
            if within(6.0, lambda: abs(desk.stand.latest()["y_m"] - host.pose[1]) > 0.005):
                break
    else:
        raise AssertionError("the host was never followed")
    expect(page.locator(".mode")).to_contain_text("READY")  # it has gone, and the motion has ended


def test_a_fault_stands_out_until_somebody_acknowledges_it(desk: Desk, screen: Open) -> None:
    page = screen("olaf")
    desk.reach(Mode.READY)
    view(page, "Trends")
    assert pkm("fault", desk.stand.system.site, "plc.frozen").code == 0
    alarm = page.locator("[data-alarm=PLC_FROZEN]")
    expect(page.locator(".mode")).to_contain_text("FAULT")
    if not alarm.is_visible():  # more alarms than lines: they are all under Events
        assert page.locator(".alarm-more").inner_text()
        view(page, "Events")
    expect(page.locator(".alarm.unseen.trip").first).to_be_visible()
    shape, words, colour = page.evaluate(
        """() => {
          const alarm = document.querySelector(".alarm.unseen.trip"), symbol = alarm.querySelector("svg");
          return [symbol.firstChild.tagName, alarm.textContent, getComputedStyle(symbol).fill];
        }"""
    )
    assert shape == "rect"
    assert "TRIP" in words
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    assert red > 150 > 2 * max(green, blue)  # colour
    assert pkm("fault", desk.stand.system.site, "plc.frozen", "off").code == 0
    for _ in range(20):
        page.keyboard.press("a")
        if within(1.5, lambda: desk.stand.latest()["mode"] == Mode.OFF and not page.locator(".alarm.unseen").count()):
            break
    expect(page.locator(".mode")).to_contain_text("OFF")
    view(page, "Events")
    expect(page.locator("tr", has_text="(ACKNOWLEDGE) is accepted").first).to_contain_text("olaf")
    expect(page.locator("tr", has_text="Fault PLC_FROZEN is set").first).to_be_visible()
    page.get_by_role("button", name="modes", exact=True).click()
    expect(page.locator("tr", has_text="Fault PLC_FROZEN is set")).to_have_count(0)


def test_a_viewer_sees_all_and_moves_nothing(desk: Desk, screen: Open) -> None:
    page = screen("vera")
    desk.reach(Mode.OFF)
    for button in page.locator(".ask").all():
        expect(button).to_be_disabled()
    expect(page.locator("#why-not")).to_contain_text("vera is viewer")
    desk.stand.mark()
    page.keyboard.press("Escape")
    expect(page.locator(".answer")).to_contain_text("STOP is not possible")
    asked = {"id": "x", "kind": "ready", "deadline_t": time.time() + 3.0}
    answer = page.request.post(f"{desk.url}/api/request", data=asked, headers={"Origin": desk.url})
    assert answer.status == 403
    assert "operator" in answer.json()["error"]
    assert all(row["request_kind"] == 0.0 for row in desk.stand.watch(0.3))


def test_the_recording_is_downloaded_and_whole(desk: Desk, screen: Open, tmp_path: Path) -> None:
    page = screen("olaf")
    view(page, "Recordings")
    row = page.locator("tbody tr", has_text="running")
    row.get_by_label("note to").fill("the page's own test")
    row.get_by_label("note to").press("Tab")
    expect(page.locator(".recordings")).to_contain_text("is kept")
    with page.expect_download() as saving:
        row.get_by_role("link", name="Download").click()
    path = tmp_path / "run.mcap"
    saving.value.save_as(path)
    meta, _, rows = read(path)
    assert meta["session"] == desk.ring.meta["session"]
    assert len(rows) > 100
    _, held = desk.ring.read(max(0, desk.ring.written - 6000), 6000)
    by_tick = {row[0]: row for row in held}
    assert all(np.array_equal(row, by_tick[row[0]], equal_nan=True) for row in rows[-100:])


def test_history_is_there_at_once_and_a_lost_connection_loses_no_row(desk: Desk, browser: Browser) -> None:
    context = browser.new_context(viewport=TABLET)
    page, sockets = context.new_page(), []

    def route(socket: Any) -> None:
        sockets.append(socket)
        socket.connect_to_server()

    page.route_web_socket("**/api/live**", route)
    page.goto(f"{desk.url}/#token={desk.token}")
    expect(page.locator("body")).to_have_attribute("data-worth", "live")
    view(page, "Health")
    line = page.locator("tr", has_text="rows this page holds")
    assert within(
        PATIENCE_S, lambda: int(re.findall(r"(\d+) of", line.inner_text() + " 0 of")[0]) > 1500
    )  # 60 s of them
    sockets[0].close()
    assert within(PATIENCE_S, lambda: page.wait_for_timeout(50) or len(sockets) == 2)
    expect(page.locator("body")).to_have_attribute("data-worth", "live")
    expect(page.locator("tr", has_text="rows this page missed")).to_contain_text("0")
    context.close()


# ---------------------------------------------------------------- what hangs; the last of all


@pytest.mark.parametrize("who", ["gateway", "control"])
def test_frozen_data_are_stale_and_then_none(who: str, desk: Desk, screen: Open) -> None:
    page = screen("local")
    page.evaluate(
        """() => {
          window.worths = [[document.body.dataset.worth, performance.now()]];
          new MutationObserver(() => window.worths.push([document.body.dataset.worth, performance.now()]))
            .observe(document.body, { attributeFilter: ["data-worth"] });
        }"""
    )
    pid = desk.stand.system.pid("gateway") if who == "gateway" else desk.stand.system.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        expect(page.locator("body")).to_have_attribute("data-worth", "none")
        expect(page.locator("header")).to_contain_text("NO DATA")
        expect(page.get_by_label("z", exact=True)).to_contain_text("no data")
        expect(page.locator("[data-kind=move]").first).to_be_disabled()
    finally:
        os.kill(pid, signal.SIGCONT)
    expect(page.locator("body")).to_have_attribute("data-worth", "live")
    worths = page.evaluate("window.worths")
    none = max(k for k, (worth, _) in enumerate(worths) if worth == "none")
    assert worths[none - 1][0] == "stale"  # never straight from good to nothing
    assert 1000.0 < worths[none][1] - worths[none - 1][1] < 8000.0  # 1.5 s where the computer has time
