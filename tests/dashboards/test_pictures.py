"""What a picture is checked for, and the types of the dashboards' JSON."""

import copy

import pytest

from dashboards.draw import front_end
from dashboards.draw.pictures import Look, problems
from dashboards.draw.types import literals
from dashboards.live.answers import load
from dashboards.live.grafana import Window
from e2e.cluster import ClusterError

PANEL = {"id": 2, "type": "stat", "title": "Replicas", "fieldConfig": {"defaults": {}}}
DASHBOARD = {"title": "D", "panels": [{"id": 1, "type": "row", "title": "r"}, PANEL]}


def report(**panel):
    return {"errors": [], "panels": {"2": {"state": "Done", "frames": 1} | panel}}


def test_a_picture_with_data_in_every_panel_has_no_problem():
    assert problems(report(), DASHBOARD) == []


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (report(frames=0), "panel 'Replicas' is empty"),
        (report(state="Error", error="parse error"), "panel 'Replicas' is broken: parse error"),
        (report(state="Loading"), "panel 'Replicas' was not drawn"),
        ({"errors": [], "panels": {}}, "panel 'Replicas' was not drawn"),
        (report() | {"errors": ["no such icon"]}, "the page failed: no such icon"),
        (report() | {"fatal": "Error: broken\n  at x"}, "the page failed: Error: broken"),
    ],
)
def test_a_problem_names_the_panel(seen, words):
    assert problems(seen, DASHBOARD) == [words]


def test_a_panel_with_a_text_for_no_value_may_be_empty():
    panel = PANEL | {"fieldConfig": {"defaults": {"noValue": "none"}}}
    assert problems(report(frames=0), DASHBOARD | {"panels": [panel]}) == []


def test_the_address_has_the_window_and_the_variables():
    look = Look("http://p:1", Window(1.5, 2, 0.5), {"service": "a b"}, "light")
    address = look.address("http://s:2", "fleet")
    assert address.startswith("http://s:2/index.html?")
    for part in ("prometheus=http%3A%2F%2Fp%3A1", "from=1500&to=2000", "var-service=a+b", "theme=light", "scrape=0.5"):
        assert part in address


def test_a_panel_type_that_is_not_drawn_is_an_error():
    with pytest.raises(ValueError, match="heatmap is not drawn"):
        literals({"title": "D", "panels": [PANEL | {"type": "heatmap"}]})


@pytest.fixture
def compiler():
    if not (front_end.MODULES / ".installed").exists():
        pytest.skip("Grafana's front-end libraries are not installed: `make dashboards` installs them")


@pytest.mark.slow
def test_the_dashboards_have_only_what_grafanas_schema_has(compiler):
    front_end.check_types(load())


@pytest.mark.slow
def test_an_unknown_key_and_a_wrong_word_are_found(compiler):
    dashboard = copy.deepcopy(load()["fleet"])
    panel = next(one for one in dashboard["panels"] if one["type"] == "stat")
    panel["options"] |= {"colorMode": "rainbow", "sparkles": True}
    panel["gridPos"]["width"] = 3
    with pytest.raises(ClusterError, match="TS2") as found:
        front_end.check_types({"fleet": dashboard})
    assert "rainbow" in str(found.value)
    assert "width" in str(found.value)
