"""What Telegraf, Grafana and Node-RED are told to read exists: names of channels, fields and topics, for every site."""

import json
import re
import tomllib
from pathlib import Path

import msgspec
import pytest
import yaml

from controller.gateway.events import Event
from controller.gateway.mqtt.publisher import Publisher, live_columns
from controller.records import channels
from controller.ring import RingReader, RingWriter
from controller.settings import load_site
from tests.gateway.bench import COLUMNS, ROOT, make_meta, make_site

DEPLOY = ROOT / "deploy"
SITES = sorted((ROOT / "config" / "sites").glob("*.toml"))
TOPICS = {"state", "meta", "event", "telemetry/live", "telemetry/batch", "request/anna", "response/anna"}
TELEGRAF = tomllib.loads((DEPLOY / "telegraf" / "pkm.conf").read_text())
BOARD = json.loads((DEPLOY / "grafana" / "pkm-site.json").read_text())
FLOW = json.loads((DEPLOY / "node-red" / "flows.json").read_text())
EVENT = {"session", "gateway", "seq"} | {field.name for field in msgspec.structs.fields(Event)}


def columns_of(site: Path) -> list[str]:
    files = load_site(site)
    sensors, stream = list(files.site.sensors), files.site.stream is not None
    return [channel.name for channel in channels(len(files.machine.leg), sensors, stream)]


def live_of(site: Path) -> set[str]:
    columns = columns_of(site)
    return {columns[k] for k in live_columns(columns, len(load_site(site).machine.leg))}


@pytest.fixture
def state(tmp_path: Path) -> dict:
    RingWriter(tmp_path / "ring", len(COLUMNS), 100, make_meta()).close()
    return Publisher(make_site(tmp_path), RingReader(tmp_path / "ring"))._state(True, None)


def subscribed(pattern: str) -> set[str]:
    """The topics of a site that a subscription gets."""
    rule = re.escape(pattern).replace(r"\+", "[^/]+").replace(r"/\#", "/.*")
    return {topic for topic in TOPICS if re.fullmatch(rule, f"pkm/site/{topic}")}


# ------------------------------------------------------------------ Telegraf


def test_telegraf_reads_topics_that_are_and_text_fields_that_are_text(state: dict):
    read = {
        "pkm_live": ({"telemetry/live"}, set(), {"t"}),
        "pkm_state": (
            {"state"},
            {k for k, v in state.items() if isinstance(v, bool | str | None)} - {"since"},
            set(state),
        ),
        "pkm_event": ({"event"}, {"text", "session", "gateway", "who", "source"}, EVENT),
    }
    inputs = TELEGRAF["inputs"]["mqtt_consumer"]
    assert {one["name_override"] for one in inputs} == set(read)
    for one in inputs:
        topics, texts, keys = read[one["name_override"]]
        [pattern] = one["topics"]
        assert subscribed(pattern) == topics
        [parsing] = one["topic_parsing"]
        assert parsing["topic"] == pattern
        assert parsing["tags"].split("/")[1] == "site"
        assert len(parsing["tags"].split("/")) == len(pattern.split("/"))
        assert set(one.get("json_string_fields", ())) == texts
        assert {*one.get("tag_keys", ()), *([one["json_time_key"]] if "json_time_key" in one else [])} <= keys
    assert set(TELEGRAF["outputs"]["influxdb_v2"][0]["namepass"]) == set(read)


def test_live_has_nothing_but_numbers_so_that_each_is_a_field():
    names = set[str]().union(*map(live_of, SITES))
    assert not names & {"site", "t", "seq"}  # of the tag and of the message itself


# ------------------------------------------------------------------ Grafana


def queries() -> list[str]:
    panels = [target["query"] for panel in BOARD["panels"] for target in panel["targets"]]
    return panels + [note["target"]["query"] for note in BOARD["annotations"]["list"]]


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.stem)
def test_every_field_of_the_dashboard_is_there(site: Path, state: dict):
    fields = {"pkm_live": live_of(site), "pkm_state": set(state), "pkm_event": {"text"}}
    legs, seen = len(load_site(site).machine.leg), 0
    for query in queries():
        [measurement] = re.findall(r'r\._measurement == "(\w+)"', query)
        named, patterns = re.findall(r'r\._field == "(\w+)"', query), re.findall(r"r\._field =~ /(.*?)/", query)
        assert named or patterns, query
        assert set(named) <= fields[measurement], query
        for pattern in patterns:
            found = [name for name in fields[measurement] if re.search(pattern, name)]
            assert len(found) % legs == 0 and len(found) >= legs, (pattern, found)
        seen += len(named) + len(patterns)
        assert set(re.findall(r'"(kind|code|who)"', query)) <= {"kind", "code"}  # the tags
    assert seen > 25


def test_the_dashboard_can_be_laid_out_and_finds_its_source():
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    taken = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24
    folder = DEPLOY / "grafana" / "provisioning"
    [source] = yaml.safe_load((folder / "datasources" / "pkm.yaml").read_text())["datasources"]
    [provider] = yaml.safe_load((folder / "dashboards" / "pkm.yaml").read_text())["providers"]
    assert provider["type"] == "file"
    assert {panel["datasource"]["uid"] for panel in BOARD["panels"]} == {source["uid"]}
    bucket = TELEGRAF["outputs"]["influxdb_v2"][0]["bucket"]
    assert source["jsonData"]["defaultBucket"] == bucket
    assert all(f'from(bucket: "{bucket}")' in query for query in queries())


# ------------------------------------------------------------------ Node-RED


def test_the_flow_hangs_together_and_keeps_no_secret():
    nodes = {node["id"]: node for node in FLOW}
    assert len(nodes) == len(FLOW)
    for node in FLOW:
        assert {to for wires in node.get("wires", ()) for to in wires} <= set(nodes)
        assert {node[key] for key in ("broker", "z") if node.get(key) and "$" not in node[key]} <= set(nodes)
    assert not any("credentials" in node for node in FLOW)


def test_the_flow_reads_topics_that_are():
    heard = [subscribed(node["topic"]) for node in FLOW if node["type"] == "mqtt in"]
    assert heard == [{"state"}, {"event"}, {"telemetry/batch"}, {"response/anna"}]
    [out] = [node for node in FLOW if node["type"] == "mqtt out"]
    assert (out["qos"], out["retain"]) == ("1", "false")


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.stem)
def test_every_name_in_the_flow_is_there(site: Path, state: dict):
    code = {node["id"]: node["func"] for node in FLOW if node["type"] == "function"}
    samples = {"seq", "t", *columns_of(site)}
    for which, variable, known in (
        ("state-watch", "payload", set(state)),
        ("event-faults", "payload", EVENT),
        ("batch-gaps", "sample", samples),
        ("batch-gaps", "newest", samples),
        ("answer", "payload", {"id", "verdict", "mode", "text", "status"}),
    ):
        used = set(re.findall(rf"\b{variable}\.(\w+)", code[which]))
        assert used and used <= known, (which, used - known)
    for pattern in re.findall(r"sample\[`(.*?)`\]", code["batch-gaps"]):
        legs = len(load_site(site).machine.leg)
        assert {pattern.replace("${i}", str(i)) for i in range(1, legs + 1)} <= samples
        assert pattern.replace("${i}", str(legs + 1)) not in samples
    asked = set(re.findall(r"(\w+):", code["ask"].split("payload: {")[1]))
    assert asked == {"id", "kind", "deadline_t", "token"}
