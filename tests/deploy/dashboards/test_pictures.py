"""What a picture is checked for."""

import httpx
import pytest

from deploy.dashboards.draw.pictures import Look, problems, served
from tools.prometheus.answers import load
from tools.prometheus.grafana import Window

PANEL = {"id": 2, "type": "stat", "title": "Replicas", "fieldConfig": {"defaults": {}}}
DASHBOARD = {"title": "D", "panels": [{"id": 1, "type": "row", "title": "r"}, PANEL]}


def report(**panel):
    return {"errors": [], "timedOut": False, "panels": {"2": {"state": "Done", "frames": 1} | panel}}


def test_a_picture_with_data_in_every_panel_has_no_problem():
    assert problems(report(), DASHBOARD) == []


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (report(frames=0), "panel 'Replicas' is empty"),
        (report(state="Error", error="parse error"), "panel 'Replicas' is broken: parse error"),
        (report(state="Loading"), "panel 'Replicas' was not drawn"),
        ({"errors": [], "timedOut": False, "panels": {}}, "panel 'Replicas' was not drawn"),
        (report() | {"errors": ["no such icon"]}, "the page failed: no such icon"),
        (report() | {"timedOut": True}, "the page was not complete in time"),
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


def test_a_panel_type_that_is_not_drawn_is_a_problem():
    dashboard = DASHBOARD | {"panels": [PANEL | {"type": "heatmap"}]}
    assert problems(report(), dashboard) == ["panel 'Replicas' has the type heatmap, which is not drawn"]


def test_the_page_gets_the_dashboards_of_the_chart_and_nothing_beside_them():
    with served() as server:
        assert httpx.get(f"{server}/dashboards/fleet.json", trust_env=False).json() == load()["fleet"]
        assert httpx.get(f"{server}/dashboards/..%2fvalues.yaml", trust_env=False).status_code == 404
