"""Reading metrics pages: our engine's own, vLLM's, and whatever else a pod may send."""

import re
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.page.reader import PageError
from inflight_cost.model import CostModel
from inflight_gateway.scrape.page import MAX_SERIES, READER, read_page
from inflight_gateway.types import EngineSample
from inflight_settings.limits import Limits
from tests.base.page.pages import engine_page

PROJECT = Path(__file__).parents[3]

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/model {x}"} 3.0
vllm:num_requests_running{engine="1",model_name="org/model {x}"} 4.0
vllm:num_requests_waiting{engine="0",model_name="org/model {x}"} 2.0
vllm:num_requests_waiting{engine="1",model_name="org/model {x}"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="org/model {x}"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="org/model {x}"} 0.75
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_gpu_blocks="1000",num_gpu_blocks_override="None"} 1.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="1",num_gpu_blocks="500",num_gpu_blocks_override="None"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="org/model {x}"} 0.0
"""  # noqa: E501

TERMS = ("step", "decode_sequence", "prefill_token", "decode_kv_token", "prefill_context_token")


def page_of(**values):
    lines = {"vllm:num_requests_running": "0", **{name.replace("__", ":"): value for name, value in values.items()}}
    return "".join(f"{name} {value}\n" for name, value in lines.items()).encode()


def cost_page(values=(0.01, 1e-5, 1e-5, 1e-8, 1e-9), curve=()):
    terms = [
        f'inflight_step_cost_seconds{{model_name="m",term="{t}"}} {v}' for t, v in zip(TERMS, values, strict=False)
    ]
    points = [f'inflight_step_cost_curve_seconds{{tokens="{tokens}"}} {seconds}' for tokens, seconds in curve]
    return ("\n".join(["vllm:num_requests_running 0", *terms, *points]) + "\n").encode()


@pytest.mark.parametrize("names", [None, READER.names], ids=["whole page", "only what is asked for"])
def test_our_engines_page(names):
    assert read_page(engine_page(names).encode(), 7.0) == EngineSample(
        at=7.0,
        running=5,
        waiting=2,
        waiting_prompt_tokens=300,
        kv_utilization=0.5,
        kv_cache_tokens=160,
        limits=Limits(48, 1024),
        cost=CostModel(0.005, 1e-5, 3e-5, 4e-8, 1e-9, curve=((1.0, 0.001), (512.0, 0.01))),
    )


def test_a_page_of_vllm_with_two_engines_has_sums_largest_shares_and_defaults():
    assert read_page(VLLM, 1.0) == EngineSample(
        at=1.0, running=7, waiting=2, kv_utilization=0.75, kv_cache_tokens=32 * 1500
    )


@pytest.mark.parametrize(
    ("tiers", "slowness"),
    [
        ({"host": 4.6e9, "disk": 0.75e9}, 4.6 / 0.75),
        ({"host": 4.6e9, "disk": 0.0}, 0.0),
        ({"host": 4.6e9}, 0.0),
        ({}, 0.0),
    ],
)
def test_disk_and_peers_of_an_engine_are_as_slow_as_it_measured(tiers, slowness):
    for name, attribute in (("disk", "disk_slowness"), ("peer", "peer_slowness")):
        renamed = {tier.replace("disk", name): speed for tier, speed in tiers.items()}
        speeds = {f'inflight_tier_bytes_per_second{{model_name="m",tier="{tier}"}}': renamed[tier] for tier in renamed}
        assert getattr(read_page(page_of(**speeds), 0.0), attribute) == pytest.approx(slowness)


def test_every_wanted_name_is_one_that_the_engine_documents():
    documented = set(re.findall(r"^\| `([^`]+)`", (PROJECT / "docs/reference/metrics.md").read_text(), re.MULTILINE))
    assert set(READER.names) <= documented


@pytest.mark.parametrize("page", [b"", b"<html>hello</html>", b"vllm:num_requests_running_total 1\n"])
def test_a_page_without_running_requests_is_an_error(page):
    with pytest.raises(PageError, match="not an engine's metrics page"):
        read_page(page, 0.0)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300", "many"])
def test_numbers_that_no_engine_has_count_as_not_given(value):
    names = {name.replace(":", "__"): value for name in READER.names}
    assert read_page(page_of(**names), 0.0) == EngineSample(0.0)


@pytest.mark.parametrize(
    ("values", "curve"),
    [
        ((0.01, 1e-5, 1e-5, 1e-8), ()),
        ((0.01, 1e-5, "NaN", 1e-8, 1e-9), ()),
        ((0.01, 1e-5, "-1", 1e-8, 1e-9), ()),
        ((0.01, 1e-5, "1e9", 1e-8, 1e-9), ()),
        ((0, 0, 1e-5, 0, 1e-9), ()),
        ((0.01, 1e-5, 1e-5, 1e-8, 1e-9), (("1", "0.1"), ("1.0", "0.2"))),
        ((0.01, 1e-5, 1e-5, 1e-8, 1e-9), (("many", "0.1"),)),
        ((0.01, 1e-5, 1e-5, 1e-8, 1e-9), (("1", "NaN"),)),
    ],
)
def test_a_cost_model_that_no_engine_has_counts_as_not_given(values, curve):
    assert read_page(cost_page(), 0.0).cost is not None
    assert read_page(cost_page(values, curve), 0.0).cost is None


@pytest.mark.parametrize(("value", "sleeps"), [("0", False), ("0.0", False), ("1", True)])
def test_an_engine_says_that_it_sleeps(value, sleeps):
    assert read_page(page_of(inflight_asleep=value), 0.0).asleep == sleeps


@pytest.mark.parametrize(("value", "drains"), [("0", False), ("0.0", False), ("1", True)])
def test_an_engine_says_that_it_drains(value, drains):
    assert read_page(page_of(inflight_draining=value), 0.0).draining == drains


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(b"vllm:num_requests_running 1\n" * 19_000, id="samples"),
        pytest.param(b"vllm:cache_config_info{" + b'a="1",' * 170_000 + b"} 1\n", id="labels"),
        pytest.param((b"vllm:cache_config_info{" + b'a="1",' * 5000 + b"} 1\n") * 32, id="many labels"),
        pytest.param(b"\xff" * 2**20, id="bytes that are no text"),
        pytest.param(b"\n" * 20_000 + b" " * 2**20, id="spaces"),
        pytest.param(
            b"".join(b'inflight_step_cost_curve_seconds{tokens="%d"} 1\n' % number for number in range(19_000)),
            id="points of a curve",
        ),
    ],
)
def test_reading_any_page_takes_milliseconds(page):
    body = (b"vllm:num_requests_running 1\n" + page)[: 2**20]

    def seconds():
        begin = time.thread_time()
        with suppress(PageError):
            read_page(body, 0.0)
        return time.thread_time() - begin

    assert min(seconds() for _ in range(5)) < 0.1


def test_series_without_end_are_bounded():
    page = b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % number for number in range(10_000))
    assert read_page(page, 0.0).running == MAX_SERIES


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*READER.names, "other"]),
            st.sampled_from(["", "{", '{term="step"}', '{a="\\"}']),
            st.text(),
        )
    ),
    st.binary(),
)
def test_whatever_a_pod_sends_is_a_sample_or_a_page_error(lines, rest):
    page = "".join(f"{name}{labels} {value}\n" for name, labels, value in lines).encode(errors="replace") + rest
    try:
        sample = read_page(page, 0.0)
    except PageError:
        return
    assert sample.running >= 0
    assert 0 <= sample.kv_utilization <= 1
