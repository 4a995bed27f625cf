"""Queries to Prometheus that show whether a panel has data."""

import pytest

from tools.prometheus.answers import ask, load, without_zero
from tools.prometheus.grafana import Window

OF_OPERATOR = {"Blocked": "service_blocked_replicas", "Operator": "leader"}


@pytest.mark.parametrize("title", OF_OPERATOR)
def test_missing_metrics_are_seen_where_a_panel_shows_0_for_them(title):
    class Empty:
        def label_values(self, label, series):
            return ["one"]

        def query(self, expr, when):
            asked.append(expr)
            return []

        def query_range(self, expr, start, end, step):
            return []

    asked = []
    (panel,) = (one for one in load()["fleet"]["panels"] if one["title"] == title and one["type"] == "stat")
    dashboard = load()["fleet"] | {"panels": [panel]}
    found = ask(Empty(), dashboard, Window(0, 60, 1), {})
    (expr,) = asked
    assert f"inflight_operator_{OF_OPERATOR[title]}" in expr
    assert "vector" not in expr
    assert [one.problem for one in found.problems] == ["no data"]


@pytest.mark.parametrize("expr", ["count(m unless n) or vector(0)", "sum(m)", "m or vector(0) + 1"])
def test_other_queries_are_asked_as_they_are(expr):
    assert without_zero(expr) == expr
