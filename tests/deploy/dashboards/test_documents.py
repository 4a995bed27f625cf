"""The JSON of the dashboards: that of the code, whole, described, and laid out without overlaps."""

import itertools
import json
import re
from collections import Counter

import pytest

from deploy.dashboards.__main__ import FOLDER, documents
from tests.deploy.dashboards.checked import DASHBOARDS, KIND, NAMES, panels

DRAWN = {"stat", "timeseries", "bargauge", "table"}
"""Panel types of the dashboards."""


def test_the_chart_has_what_the_code_makes():
    assert {path: path.read_text() for path in FOLDER.glob("*.json")} == documents(), "run make dashboards-json"


def test_there_is_a_dashboard_for_the_fleet_and_for_each_kind_a_service_engines_with_known_metrics_and_the_autopilot():
    assert {name: one["uid"] for name, one in DASHBOARDS.items()} == {
        name: f"inflight-{name}" for name in ("fleet", *KIND) if name != "engine-custom"
    }
    assert len({one["title"] for one in DASHBOARDS.values()}) == len(DASHBOARDS)


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_has_a_title_a_description_queries_and_units(name):
    for panel in panels(DASHBOARDS[name]):
        about = f"{name}: {panel['title']}"
        assert panel["type"] in DRAWN, about
        assert len(panel["description"]) > 20, about
        assert panel["description"].endswith("."), about
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, about
        references = [target["refId"] for target in panel["targets"]]
        assert references, about
        assert len(set(references)) == len(references), about
        for unit in units(panel):
            assert unit, about


def units(panel):
    """Unit of the panel, or of each column of a table that shows a value."""
    if panel["type"] != "table":
        return [panel["fieldConfig"]["defaults"].get("unit")]
    (organize,) = (one for one in panel["transformations"] if one["id"] == "organize")
    shown = [header for name, header in organize["options"]["renameByName"].items() if name.startswith("Value")]
    assert len(shown) == len(panel["targets"])
    found = {
        override["matcher"]["options"]: value["value"]
        for override in panel["fieldConfig"]["overrides"]
        for value in override["properties"]
        if value["id"] == "unit"
    }
    return [found.get(header) for header in shown]


@pytest.mark.parametrize("name", NAMES)
def test_titles_and_ids_of_panels_are_unique(name):
    assert repeated(panel["id"] for panel in DASHBOARDS[name]["panels"]) == []
    assert repeated(panel["title"] for panel in panels(DASHBOARDS[name])) == []
    assert repeated(panel["title"] for panel in DASHBOARDS[name]["panels"] if panel["type"] == "row") == []


def repeated(values):
    return [value for value, times in Counter(values).items() if times > 1]


@pytest.mark.parametrize("name", NAMES)
def test_no_two_panels_overlap_and_all_are_on_the_grid(name):
    places = [panel["gridPos"] for panel in DASHBOARDS[name]["panels"]]
    assert all(one["x"] >= 0 and one["x"] + one["w"] <= 24 and one["h"] > 0 for one in places)
    for one, other in itertools.combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@pytest.mark.parametrize("name", NAMES)
def test_variables_are_data_source_namespace_and_service_first(name):
    variables = [one["name"] for one in DASHBOARDS[name]["templating"]["list"]]
    assert variables[:3] == ["datasource", "namespace", "service"]
    text = json.dumps(DASHBOARDS[name])
    assert all(re.search(rf"\$\{{?{one}\b", text) for one in variables), "a variable that nothing reads"


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_dashboards_that_exist_and_take_the_variables_along(name):
    (all_of_them,) = DASHBOARDS[name]["links"]
    assert all_of_them["tags"] == DASHBOARDS[name]["tags"] == ["inflight"]
    assert all_of_them["includeVars"]
    assert all_of_them["keepTime"]
    addresses = re.findall(r"/d/([\w-]+)\?([^\"]*)", json.dumps(DASHBOARDS[name]))
    for uid, query in addresses:
        assert uid in {one["uid"] for one in DASHBOARDS.values()}
        assert "${datasource:queryparam}" in query
        assert "${__url_time_range}" in query
    assert bool(addresses) == (name.startswith("service") and KIND[name] != "custom")


@pytest.mark.parametrize("name", [name for name in NAMES if name in KIND])
def test_links_choices_and_rows_are_those_of_the_kind(name):
    dashboard = DASHBOARDS[name]
    text = json.dumps(dashboard)
    assert all(
        f'engine=\\"{KIND[name]}\\"' in json.dumps(one)
        for one in dashboard["templating"]["list"]
        if one["name"] in ("namespace", "service")
    )
    suffix = name.removeprefix("service")
    assert set(re.findall(r"/d/([\w-]+)", text)) <= {f"inflight-engine{suffix}"}
    kinds = [panel["type"] for panel in dashboard["panels"]]
    assert all(one != ("row", "row") for one in itertools.pairwise([*kinds, "row"])), "a row without panels"


def test_a_service_of_the_fleet_leads_to_the_dashboard_of_its_kind():
    (services,) = (one for one in panels(DASHBOARDS["fleet"]) if one["title"] == "Services")
    (linked,) = (one["expr"] for one in services["targets"] if "label_replace" in one["expr"])
    replaced = re.findall(r'"dashboard", "([\w$-]+)", "(\w*)", "(.*?)"', linked)
    for kind in ("inflight", "vllm", "vllm-plain", "custom"):
        uid = ""
        for to, label, pattern in replaced:  # a label that is not there is empty
            if found := re.fullmatch(pattern, kind if label else ""):
                uid = found.expand(to.replace("$1", r"\1"))
        assert uid in {one["uid"] for name, one in DASHBOARDS.items() if KIND.get(name) == kind}
    assert "/d/${__data.fields.Dashboard}?" in json.dumps(services)
    hidden = {
        "matcher": {"id": "byName", "options": "Dashboard"},
        "properties": [{"id": "custom.hidden", "value": True}],
    }
    assert hidden in services["fieldConfig"]["overrides"]


def test_decisions_mark_services_and_the_autopilot():
    marked = {name for name, one in DASHBOARDS.items() if one["annotations"].get("list")}
    assert marked == {name for name in NAMES if name.startswith(("service", "autopilot"))}


def test_hand_overs_are_shown_where_engines_can_make_them():
    """The gateway's count alone would be an empty panel for other engines."""
    titles = {name: {one["title"] for one in panels(DASHBOARDS[name])} for name in NAMES}
    assert [name for name in NAMES if "Hand-overs" in titles[name]] == ["service"]
    assert [name for name in NAMES if "Keys and values read from other engines" in titles[name]] == ["service"]
