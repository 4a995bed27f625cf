"""Lines of load: each holds what changed, and all of them together give the load of the writer."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.state.load import Loads, SentLoad, ServiceLoad, read_line

KEY = ServiceKey("team", "chat")


def test_a_line_is_what_the_contract_says():
    loads = Loads({KEY: ServiceLoad(2, 300, 1.23456, 5, 0.0)}, {"10.0.0.1:8000": SentLoad(5, 1200)})
    assert json.loads(loads.line("gateway-0", full=True)) == {
        "gateway": "gateway-0",
        "full": True,
        "services": [
            {
                "namespace": "team",
                "name": "chat",
                "held": 2,
                "held_prompt_tokens": 300,
                "oldest_held_s": 1.235,
                "in_flight": 5,
                "idle_s": 0.0,
            }
        ],
        "endpoints": [{"address": "10.0.0.1:8000", "in_flight": 5, "sent_tokens": 1200}],
    }


@pytest.mark.parametrize("line", [b"", b"[]", b'{"full":true}', b'{"gateway":"g","services":[{"name":5}]}', b"\xff"])
def test_other_lines_are_refused(line):
    with pytest.raises(msgspec.DecodeError):
        read_line(line)


def test_fields_of_a_later_version_are_ignored():
    assert read_line(b'{"gateway":"g","full":true,"more":1}').loads == Loads({}, {})


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (ServiceLoad(), ServiceLoad(), False),
        (ServiceLoad(held=1, oldest_held_s=1.0), ServiceLoad(held=1, oldest_held_s=2.0), False),
        (ServiceLoad(idle_s=1.0), ServiceLoad(idle_s=2.0), False),
        (ServiceLoad(idle_s=2.0), ServiceLoad(idle_s=0.1), True),
        (ServiceLoad(), ServiceLoad(idle_s=0.1), True),
        (ServiceLoad(), ServiceLoad(held=1), True),
        (ServiceLoad(held_prompt_tokens=1), ServiceLoad(held_prompt_tokens=2), True),
        (ServiceLoad(in_flight=1), ServiceLoad(), True),
    ],
)
def test_time_that_passes_is_no_change_and_a_request_that_came_and_went_is_one(before, now, said):
    assert (not Loads({KEY: now}, {}).since(Loads({KEY: before}, {})).empty) == said


ENDPOINTS = st.dictionaries(
    st.sampled_from(["a:1", "b:1", "c:1"]), st.builds(SentLoad, st.integers(0, 9), st.integers(0, 9)), max_size=3
)


@given(st.lists(ENDPOINTS, min_size=1))
def test_the_first_line_and_all_changes_together_are_the_load(states):
    known: dict[str, SentLoad] = {}
    before = Loads({}, {})
    for number, endpoints in enumerate(states):
        now = Loads({}, endpoints)
        line = (now if number == 0 else now.since(before)).line("g", full=number == 0)
        known.update(read_line(line).loads.endpoints)
        before = now
    assert {address: load for address, load in known.items() if load != SentLoad()} == {
        address: load for address, load in states[-1].items() if load != SentLoad()
    }
