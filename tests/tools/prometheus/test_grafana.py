"""Intervals and variables as Grafana has them."""

import pytest

from tools.prometheus.grafana import Variable, Window, chosen, label_values, queries, replace, round_interval

# From the tests of rangeUtil.roundInterval in @grafana/data, and either side of a limit.
ROUNDED = {30: 20, 45: 50, 3499: 2000, 3500: 5000, 17499: 15000, 899999: 900000, 700_000_000: 604_800_000}


@pytest.mark.parametrize("milliseconds", ROUNDED)
def test_intervals_are_round(milliseconds):
    assert round_interval(milliseconds) == ROUNDED[milliseconds]


def test_a_step_is_never_shorter_than_a_scrape_and_a_rate_covers_four():
    short = Window(start=0, end=300, scrape_seconds=15)
    assert (short.step_seconds, short.rate_interval_seconds) == (15, 60)
    long = Window(start=0, end=24 * 3600, scrape_seconds=15)
    assert (long.step_seconds, long.rate_interval_seconds) == (60, 75)


def test_grafanas_own_variables_are_durations():
    values = Window(start=100, end=400, scrape_seconds=0.5).builtins()
    assert values["__interval"] == "500ms"
    assert values["__rate_interval"] == "2s"
    assert values["__range"] == "300s"
    assert values["__range_ms"] == "300000"


def test_every_form_of_a_variable_is_replaced_and_unknown_ones_stay():
    text = 'a{n="$ns", m="${ns}", o="${ns:regex}", p="[[ns]]"}[$__rate_interval] $nsx $other'
    assert replace(text, {"ns": "chat", "__rate_interval": "8s"}) == (
        'a{n="chat", m="chat", o="chat", p="chat"}[8s] $nsx $other'
    )


def test_several_values_are_a_regular_expression_and_one_value_is_text():
    assert Variable(("a.b", "c"), regex=True).text == r"(a\\.b|c)"
    assert Variable(("a.b",), regex=True).text == r"a\\.b"
    assert Variable(('a."b\\',)).text == r"a.\"b\\"
    assert Variable(("a", "b"), regex=True, all_values=".+").text == ".+"


def definition(**more):
    return {"name": "service", "type": "query", "query": 'label_values(up{a="b"}, name)'} | more


def test_a_variable_takes_what_is_wanted_else_its_default_else_the_first_value():
    assert chosen(definition(), ["a", "b"], "b").values == ("b",)
    assert chosen(definition(), ["a", "b"], None).values == ("a",)
    assert chosen(definition(current={"value": "b"}), ["a", "b"], None).values == ("b",)
    everything = chosen(definition(multi=True, current={"value": "$__all"}, allValue=".*"), ["a", "b"], None)
    assert everything.text == ".*"


def test_a_variable_without_the_wanted_value_is_an_error_that_names_both():
    with pytest.raises(ValueError, match=r"service cannot be c: it has a, b"):
        chosen(definition(), ["a", "b"], "c")
    with pytest.raises(ValueError, match="service has no value"):
        chosen(definition(), [], None)


def test_the_query_of_a_variable_gives_series_and_label():
    assert label_values(definition()) == ('up{a="b"}', "name")
    assert label_values(definition(query={"query": "label_values(job)"})) == (None, "job")
    with pytest.raises(ValueError, match="no label_values"):
        label_values(definition(query="metrics(up)"))


def test_queries_of_rows_are_found_and_hidden_ones_are_not():
    target = {"refId": "A", "expr": "up"}
    inner = {"type": "stat", "title": "in", "targets": [target | {"instant": True}, target | {"hide": True}]}
    dashboard = {
        "title": "D",
        "panels": [
            {"type": "row", "title": "r", "panels": [inner]},
            {"type": "timeseries", "title": "out", "targets": [target]},
        ],
    }
    assert [(query.panel, query.instant) for query in queries(dashboard)] == [("in", True), ("out", False)]
