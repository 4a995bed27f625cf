"""Figures and verdict of a wake storm."""

import json

from hypothesis import given
from hypothesis import strategies as st

from e2e.storm.account import Request, Storm, storm_of

BEGUN = 1000.0


def asked(service="a", outcome="answered", first=2.0, refusals=0, why=""):
    return Request(service, outcome, first if outcome == "answered" else None, refusals, why)


def storm(*those, services=2, ordered=("a", "b")):
    times = {name: BEGUN + 1 + number for number, name in enumerate(ordered)}
    return Storm(services, BEGUN, len(those), those, times, {"gateway-1": 100 * 2**20})


def test_answers_and_clean_refusals_pass():
    found = storm(asked(), asked("b", "refused", refusals=3))
    assert found.problems == ()
    assert found.last_order == 2.0
    facts = found.as_json()
    assert (facts["answered"], facts["refused_to_the_end"], facts["clean_refusals"]) == (1, 1, 3)
    assert facts["memory_mib"] == {"gateway-1": 100}


def test_a_lost_request_does_not_pass_and_says_why():
    found = storm(asked(), asked("b", "lost", why="HTTP 502"), asked("b", "lost", why="HTTP 502"))
    assert found.problems == ("lost: HTTP 502 (x2)",)
    assert "PROBLEM: lost: HTTP 502" in found.text()


def test_nothing_but_refusals_does_not_pass():
    assert "no request was answered" in storm(asked(outcome="refused", refusals=1)).problems


def test_a_service_that_was_never_woken_does_not_pass():
    found = storm(asked(), ordered=("a",))
    assert found.problems == ("1 of 2 services were woken",)
    assert found.as_json()["last_replica_ordered_after_s"] is None


def test_an_answer_shows_that_its_service_was_woken_though_no_look_saw_it():
    assert storm(asked(), asked("b"), ordered=("a",)).problems == ()
    assert storm(asked(), asked("b", "refused", refusals=1), ordered=("a",)).problems != ()


@given(st.lists(st.tuples(st.sampled_from(["answered", "refused", "lost"]), st.floats(0, 600), st.integers(0, 9))))
def test_every_request_is_counted_once(requests):
    found = storm(*(asked("a", outcome, first, refusals) for outcome, first, refusals in requests))
    facts = found.as_json()
    assert facts["answered"] + facts["refused_to_the_end"] + facts["lost"] == facts["requests"] == len(requests)
    assert facts["answered_at_the_first_attempt"] <= facts["answered"]
    if facts["answered"]:
        assert facts["first_token_p50_s"] <= facts["first_token_p95_s"] <= facts["first_token_longest_s"]


def test_the_lines_of_the_script_are_read_and_missing_ones_noticed():
    line = {"service": "a", "outcome": "answered", "refusals": 1, "first_token": 1003.5, "begun": 1000.5, "why": ""}
    output = "\n".join(["warning: x", json.dumps({"begun": BEGUN, "requests": 2}), json.dumps(line), '{"done": true}'])
    found = storm_of(output, 1, {"a": 1001.0}, {})
    assert found.requests == (Request("a", "answered", 3.0, 1),)
    assert found.problems == ("1 requests are unaccounted for",)
