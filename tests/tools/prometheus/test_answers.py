"""Queries to Prometheus that show whether a panel has data."""

import re

import pytest

from tools.prometheus.answers import NO_DATA, Window, ask, load, replaced, without_zero

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
    assert [one.problem for one in found] == [NO_DATA]


@pytest.mark.parametrize("expr", ["count(m unless n) or vector(0)", "sum(m)", "m or vector(0) + 1"])
def test_other_queries_are_asked_as_they_are(expr):
    assert without_zero(expr) == expr


def test_a_step_is_never_shorter_than_a_scrape_and_a_rate_covers_four():
    short = Window(start=0, end=300, scrape_seconds=15)
    assert short.step_seconds == 15
    assert short.variables() == {"__interval": "15000ms", "__rate_interval": "60000ms", "__range": "300000ms"}
    long = Window(start=0, end=40_000, scrape_seconds=15)
    assert (long.step_seconds, long.variables()["__rate_interval"]) == (40, "60000ms")


def test_variables_are_replaced_by_whole_names_and_unknown_ones_stay():
    assert replaced('a{n="$ns"}[$__rate_interval] $nsx', {"ns": "b", "__rate_interval": "8s"}) == 'a{n="b"}[8s] $nsx'


class Named:
    """Stands in for a Prometheus with two services; a query finds its own expression."""

    def label_values(self, label, series):
        return [] if label == "pod" else [f"{label}-1", f"{label}-2"]

    def query(self, expr, *_):
        return [expr]

    query_range = query


def test_a_variable_has_the_wanted_value_else_all_else_the_first():
    def exprs(name, **wanted):
        return " ".join(one.expr for one in ask(Named(), load()[name], Window(0, 60, 1), wanted))

    assert 'namespace="namespace-1", name="name-1"' in exprs("service")
    assert 'name="name-2"' in exprs("service", service="name-2")
    assert 'namespace=~".+", name=~".+"' in exprs("fleet")
    assert not re.search(r"\$(?!1\b)", exprs("fleet") + exprs("service"))
    with pytest.raises(ValueError, match="service cannot be c: it has name-1, name-2"):
        exprs("service", service="c")
    with pytest.raises(ValueError, match="pod has no value"):
        exprs("engine")
