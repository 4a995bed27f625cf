"""Reading /metrics pages: ours, vLLM's, and what is neither."""

import math
import re
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from inflight_base.page.histogram import Histogram
from inflight_base.page.reader import MAX_BUCKETS, MAX_CURVE, MAX_LINES, PageError
from inflight_cost.model import CostModel
from inflight_operator.observe.metrics import PLUGIN_INFO, READER, parse_metrics
from inflight_settings.limits import Limits
from tests.base.page.pages import CACHE_PROBLEM, DIGEST, engine_page

VLLM_PAGE = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m"} 900.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 5.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1.5
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.1",model_name="m"} 3.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf",model_name="m"} 6.0
process_open_fds 20
"""
HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "step_tokens": "vllm:iteration_tokens_total",
}


@pytest.mark.parametrize("names", [None, READER.names], ids=["whole", "filtered"])
def test_the_engine_s_own_page_is_read_whole(names):
    """The real exporter of our engine: every name the operator wants is there, and a filtered page has them all."""
    sample = parse_metrics(engine_page(names), 1.0)
    assert (sample.limits, sample.capacity, sample.revision) == (Limits(48, 1024), Limits(64, 2048), 7)
    assert (sample.running, sample.waiting, sample.waiting_prompt_tokens, sample.kv_usage) == (5, 2, 300, 0.5)
    assert (sample.preemptions, sample.generation_tokens) == (3, 7)
    assert (sample.digest, sample.cache_problem) == (DIGEST, CACHE_PROBLEM)
    assert sample.weights_seconds == 0.5
    assert (sample.peer_weights, sample.source_weights) == (6, 2)
    assert (sample.loading_read_bytes, sample.loading_total_bytes, sample.loading_seconds) == (3, 4, 2.0)
    for histogram in (sample.ttft, sample.tpot, sample.itl, sample.step_tokens):
        assert histogram.count == 1
        assert histogram.total > 0
    names = {line.partition("{")[0] for line in engine_page(READER.names).splitlines() if line[0] != "#"}
    assert set(READER.names) - {PLUGIN_INFO} == names


def test_a_vllm_page_is_read_without_what_only_we_export():
    sample = parse_metrics(VLLM_PAGE, 7.0)
    assert (sample.time, sample.running, sample.waiting, sample.kv_usage) == (7.0, 7, 3, 0.75)
    assert sample.preemptions == 5
    assert sample.ttft == Histogram((0.1, float("inf")), (5.0, 10.0), 1.5)
    assert sample.itl == Histogram()
    assert (sample.limits, sample.capacity, sample.revision, sample.waiting_prompt_tokens) == (None, None, None, None)


INFO = 'inflight_plugin_info{version="0.2.0",vllm_version="0.40.0",state="STATE",reason="REASON"} 1.0\n'


def test_the_plugin_says_why_it_does_not_change_a_server():
    unknown = INFO.replace("STATE", "unsupported").replace("REASON", 'no \\"max_num_active_reqs\\" in vLLM')
    known = INFO.replace("STATE", "active").replace("REASON", "")
    assert parse_metrics(VLLM_PAGE + unknown, 0.0).plugin_problem == 'no "max_num_active_reqs" in vLLM'
    assert parse_metrics(VLLM_PAGE + known, 0.0).plugin_problem == ""
    assert parse_metrics(VLLM_PAGE, 0.0).plugin_problem == ""
    assert len(parse_metrics(VLLM_PAGE + unknown.replace("no ", "n" * 5000), 0.0).plugin_problem) <= 300


def test_a_version_of_the_model_is_read_and_nothing_else_that_a_page_says():
    line = VLLM_PAGE + 'inflight_model_info{model_name="m",digest="DIGEST"} 1.0\n'
    assert parse_metrics(line.replace("DIGEST", "sha256:" + "a" * 64), 0.0).digest == "sha256:" + "a" * 64
    for wrong in ("", "latest", "sha256:" + "a" * 65, 'sha256:ab\\"'):
        assert parse_metrics(line.replace("DIGEST", wrong), 0.0).digest == ""


def test_a_page_says_why_the_model_cache_was_not_used():
    line = VLLM_PAGE + 'inflight_model_cache_info{model_name="m",reason="REASON"} 1.0\n'
    assert parse_metrics(line.replace("REASON", 'no \\"x\\"'), 0.0).cache_problem == 'no "x"'
    assert parse_metrics(VLLM_PAGE, 0.0).cache_problem == ""
    assert parse_metrics(line.replace("REASON", "r" * 5000), 0.0).cache_problem == ""


COST = CostModel(5.5e-3, 15e-6, 30e-6, 0.045e-6, 1.05e-9, 2e-9)
COST_PAGE = """
inflight_step_cost_seconds{model_name="m",term="step"} 0.0055
inflight_step_cost_seconds{model_name="m",term="decode_sequence"} 1.5e-05
inflight_step_cost_seconds{model_name="m",term="prefill_token"} 3e-05
inflight_step_cost_seconds{model_name="m",term="decode_kv_token"} 4.5e-08
inflight_step_cost_seconds{model_name="m",term="prefill_context_token"} 1.05e-09
inflight_step_cost_seconds{model_name="m",term="copied_token"} 2e-09
inflight_step_cost_error_ratio{model_name="m"} 0.03
inflight_step_cost_steps{model_name="m"} 4096.0
inflight_arrived_requests_total{model_name="m"} 120.0
inflight_arrived_prompt_tokens_total{model_name="m"} 24000.0
inflight_arrived_prompt_tokens_squared_total{model_name="m"} 1e+20
vllm:prompt_tokens_total{model_name="m"} 23000.0
vllm:prefix_cache_queries_total{model_name="m"} 23000.0
vllm:prefix_cache_hits_total{model_name="m"} 9000.0
inflight_output_tokens_mean{model_name="m"} 211.5
inflight_output_tokens_second_moment{model_name="m"} 90000.0
inflight_kv_cache_tokens{model_name="m"} 400000.0
"""


def test_the_cost_model_and_the_demand_of_an_engine_are_read():
    sample = parse_metrics(VLLM_PAGE + COST_PAGE, 0.0)
    assert (sample.cost, sample.cost_error, sample.cost_steps) == (COST, 0.03, 4096)
    assert (sample.arrived, sample.arrived_tokens, sample.arrived_squares) == (120, 24_000, 1e20)
    assert (sample.prompt_tokens, sample.prefix_queries, sample.prefix_hits) == (23_000, 23_000, 9_000)
    assert (sample.output_mean, sample.output_square, sample.kv_tokens) == (211.5, 90_000, 400_000)


def test_requests_refused_for_want_of_capacity_are_counted():
    line = 'inflight_admission_rejections_total{{model_name="m",reason="{}"}} {}\n'
    counts = {
        "queue_full": 3,
        "class_queue_full": 5,
        "queue_tokens": 7,
        "shed": 11,
        "draining": 100,
        "never_fits": 1000,
    }
    page = "".join(line.format(*one) for one in counts.items())
    assert parse_metrics(VLLM_PAGE + page, 0.0).refused == 26


def test_a_counter_with_a_fraction_counts_what_is_whole():
    page = "inflight_arrived_requests_total 1e-300\ninflight_arrived_prompt_tokens_total 7.5\n"
    refused = 'inflight_admission_rejections_total{reason="queue_full"} 0.5\n'
    sample = parse_metrics(VLLM_PAGE + page + refused, 0.0)
    assert (sample.arrived, sample.arrived_tokens, sample.refused) == (0, 7, 0)


def test_a_page_without_a_cost_model_reports_none():
    sample = parse_metrics(VLLM_PAGE, 0.0)
    assert (sample.cost, sample.cost_error, sample.cost_steps, sample.kv_tokens) == (None, None, 0, None)
    assert (sample.arrived, sample.arrived_tokens, sample.arrived_squares) == (0, 0, 0)
    assert (sample.output_mean, sample.output_square) == (None, None)


def test_a_curve_is_read_in_the_order_of_its_tokens():
    curve = 'inflight_step_cost_curve_seconds{tokens="512",model_name="m"} 0.5\n'
    curve += 'inflight_step_cost_curve_seconds{model_name="m",tokens="1.0"} 0.02\n'
    sample = parse_metrics(VLLM_PAGE + COST_PAGE + curve, 0.0)
    assert sample.cost == replace(COST, curve=((1.0, 0.02), (512.0, 0.5)))


def test_a_cost_model_by_which_some_step_takes_no_time_is_not_taken():
    nothing = re.sub(r"(inflight_step_cost_seconds{[^}]*}) .*", r"\1 0", COST_PAGE)
    assert parse_metrics(VLLM_PAGE + nothing, 0.0).cost is None
    curve = 'inflight_step_cost_curve_seconds{tokens="1"} 0.02\ninflight_step_cost_curve_seconds{tokens="9"} '
    assert parse_metrics(VLLM_PAGE + nothing + curve + "0.03\n", 0.0).cost is not None
    assert parse_metrics(VLLM_PAGE + nothing + curve + "0\n", 0.0).cost is None


CURVE = "inflight_step_cost_curve_seconds"


@pytest.mark.parametrize(
    "more",
    [
        'inflight_step_cost_seconds{term="step"} NaN',
        'inflight_step_cost_seconds{term="decode_kv_token"} -1e-9',
        'inflight_step_cost_seconds{term="prefill_token"} +Inf',
        'inflight_step_cost_seconds{term="prefill_token"} 1e9',
        f'{CURVE}{{tokens="-4"}} 0.1',
        f'{CURVE}{{tokens="0"}} 0.1',
        f'{CURVE}{{tokens="NaN"}} 0.1',
        f'{CURVE}{{tokens="inf"}} 0.1',
        f'{CURVE}{{tokens="few"}} 0.1',
        f'{CURVE}{{tokens="4"}} -0.1',
        f'{CURVE}{{tokens="4"}} 0.1\n{CURVE}{{tokens="4.0"}} 0.1',
        "\n".join(f'{CURVE}{{tokens="{tokens}"}} 0.1' for tokens in range(1, MAX_CURVE + 2)),
    ],
)
def test_a_cost_model_that_no_engine_has_counts_as_not_reported(more):
    sample = parse_metrics(f"{VLLM_PAGE}{COST_PAGE}{more}\n", 0.0)
    assert sample.cost is None
    assert (sample.running, sample.kv_tokens) == (7, 400_000)


@pytest.mark.parametrize("term", ["step", "prefill_token", "decode_kv_token"])
def test_a_cost_model_with_a_missing_term_counts_as_not_reported(term):
    lines = [line for line in COST_PAGE.splitlines() if f'term="{term}"' not in line]
    assert parse_metrics(VLLM_PAGE + "\n".join(lines), 0.0).cost is None


def test_a_model_by_which_a_step_takes_no_time_counts_as_not_reported():
    page = "".join(
        f'inflight_step_cost_seconds{{term="{term}"}} 0\n'
        for term in ("step", "decode_sequence", "prefill_token", "decode_kv_token", "prefill_context_token")
    )
    assert parse_metrics(VLLM_PAGE + page, 0.0).cost is None


@pytest.mark.parametrize("value", ["-1", "NaN", "+Inf", "1e300"])
def test_means_and_sizes_that_no_engine_has_count_as_not_reported(value):
    names = "inflight_output_tokens_mean", "inflight_output_tokens_second_moment", "inflight_kv_cache_tokens"
    more = "inflight_step_cost_error_ratio", "inflight_step_cost_steps"
    sample = parse_metrics(VLLM_PAGE + "".join(f"{name} {value}\n" for name in (*names, *more)), 0.0)
    assert (sample.output_mean, sample.output_square, sample.kv_tokens) == (None, None, None)
    assert (sample.cost_error, sample.cost_steps) == (None, 0)


def test_engines_with_the_same_cost_model_share_it():
    first, second = (parse_metrics(VLLM_PAGE + COST_PAGE, time) for time in (0.0, 1.0))
    assert first.cost is second.cost


def test_the_size_of_vllm_s_kv_cache_is_read_from_its_configuration():
    config = 'vllm:cache_config_info{{block_size="16",cache_dtype="auto",engine="{}",num_gpu_blocks="{}"}} 1.0\n'
    assert parse_metrics(VLLM_PAGE + config.format(0, 1000) + config.format(1, 500), 0.0).kv_tokens == 24_000
    assert parse_metrics(VLLM_PAGE + config.format(0, "None"), 0.0).kv_tokens is None


def reference(text):
    """The fields of a sample as prometheus_client's parser reads the page, summed and maxed as `parse_metrics` says."""
    values, buckets, unknown = defaultdict(list), defaultdict(lambda: defaultdict(float)), set()
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples:
            if not math.isfinite(value):
                unknown.add(name)
            elif name.endswith("_bucket"):
                buckets[name][float(labels["le"])] += value
            else:
                values[name].append(value)

    def histogram(name):
        if {f"{name}_bucket", f"{name}_sum"} & unknown:
            return Histogram()
        found = sorted(buckets[f"{name}_bucket"].items())
        return Histogram(tuple(b for b, _ in found), [c for _, c in found], sum(values[f"{name}_sum"]))

    def largest(name):
        return int(max(values[name])) if values[name] else None

    def limits(kind):
        pair = largest(f"inflight_max_num_seqs{kind}"), largest(f"inflight_max_num_batched_tokens{kind}")
        return Limits(*pair) if all(pair) else None

    prompt_tokens = values["inflight_waiting_prompt_tokens"]
    return {
        "running": int(sum(values["vllm:num_requests_running"])),
        "waiting": int(sum(values["vllm:num_requests_waiting"])),
        "kv_usage": max(values["vllm:kv_cache_usage_perc"], default=None),
        "preemptions": sum(values["vllm:num_preemptions_total"]),
        "generation_tokens": sum(values["vllm:generation_tokens_total"]),
        "waiting_prompt_tokens": int(sum(prompt_tokens)) if prompt_tokens else None,
        "prompt_tokens": sum(values["vllm:prompt_tokens_total"]),
        "arrived": sum(values["inflight_arrived_requests_total"]),
        "arrived_squares": sum(values["inflight_arrived_prompt_tokens_squared_total"]),
        "prefix_hits": sum(values["vllm:prefix_cache_hits_total"]),
        "output_mean": max(values["inflight_output_tokens_mean"], default=None),
        "kv_tokens": largest("inflight_kv_cache_tokens"),
        "limits": limits(""),
        "capacity": limits("_capacity"),
        "revision": largest("inflight_runtime_config_revision"),
        **{field: histogram(name) for field, name in HISTOGRAMS.items()},
    }


ODD_LABELS = ["m", "", 'le="1"', ',le="', "a\\", "} 5", " # ", "{", '\n"', "\\n", "é", "a,b=c"]
ODD_NUMBERS = ["NaN", "+Inf", "-Inf", "nan", "inf"]


def line(style, name, number, **labels):
    """Draws a line for a sample, in any of the ways that the format allows."""
    extra = {key: style.choice(ODD_LABELS) for key in ("model_name", "engine", "tile", "lex") if style.random() < 0.3}
    pairs = [*labels.items(), *extra.items()]
    style.shuffle(pairs)
    escaped = [(k, v.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")) for k, v in pairs]
    space = style.choice(["", "", "", " ", "\t"])
    inside = f"{space},{space}".join(f'{k}{space}={space}"{v}"' for k, v in escaped) + style.choice(["", ","])
    label_set = f"{{{space}{inside if pairs else ''}{space}}}" if pairs or style.random() < 0.5 else ""
    stamp = style.choice(["", "", " 1712345678901", " -5"])
    return f"{space}{name}{label_set}{style.choice([' ', '  '])}{number}{stamp}{space}"


def written(style, number):
    return style.choice([str(number), f"{float(number)}", f"{number:e}", f"+{number}", f"{number}.000", f"{number}E0"])


@st.composite
def pages(draw):
    style = draw(st.randoms(use_true_random=True))
    counts = st.lists(st.integers(0, 5000).map(lambda number: written(style, number)) | st.sampled_from(ODD_NUMBERS))
    page = [line(style, "vllm:num_requests_running", draw(st.integers(0, 5000)))]
    for name in READER.names:
        if name == "vllm:kv_cache_usage_perc":
            page += [line(style, name, share) for share in draw(st.lists(st.floats(0, 1), max_size=2))]
        elif not name.endswith(("_bucket", "_sum")):
            page += [line(style, name, number) for number in draw(counts)[:3] if float(number) != 0]
    for name in HISTOGRAMS.values():
        edges = [*sorted(draw(st.sets(st.floats(0.001, 1e6), max_size=5))), math.inf]
        for _ in range(draw(st.integers(0, 2))):
            heights = sorted(draw(st.lists(st.integers(0, 10**6), min_size=len(edges), max_size=len(edges))))
            for edge, height in zip(edges, heights, strict=True):
                le = "+Inf" if edge == math.inf else repr(edge)
                page.append(line(style, f"{name}_bucket", written(style, height), le=le))
            page.append(line(style, f"{name}_sum", style.choice([12.5, 1e-3, "NaN"])))
            page.append(line(style, f"{name}_count", heights[-1]))
    page += ["# EOF", "", "# HELP vllm:num_requests_running 5", "# TYPE x gauge", "process_open_fds 3"]
    page += ['vllm:num_requests_running_other{a="b"} 7', 'x{a="\\nvllm:num_requests_running 9"} 1']
    style.shuffle(page)
    return "\n".join(page) + style.choice(["", "\n"])


@given(pages())
def test_a_page_is_read_as_prometheus_client_reads_it(page):
    sample = parse_metrics(page, 1.0)
    for field, value in reference(page).items():
        if isinstance(value, Histogram):
            mine = getattr(sample, field)
            assert (mine.bounds, mine.counts) == (value.bounds, value.counts)
            assert mine.total == pytest.approx(value.total)
        else:
            assert getattr(sample, field) == value, field


def test_line_ends_exemplars_and_time_stamps_are_tolerated():
    page = (
        'vllm:num_requests_running{model_name="m"} 3 1712345678901\r\n'
        'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 7 # {trace_id="x 5"} 0.67 1520879607.789\r\n'
        "vllm:time_to_first_token_seconds_sum 1.5e0 1712345678901\r\n"
        "# EOF"
    )
    sample = parse_metrics(page, 0.0)
    assert sample.running == 3
    assert sample.ttft == Histogram((math.inf,), (7.0,), 1.5)


@pytest.mark.parametrize("page", ["", "<html>502</html>", "process_open_fds 20\n", "vllm:num_requests_running NaN"])
def test_a_page_of_something_else_is_refused_by_name(page):
    with pytest.raises(PageError, match="vllm:num_requests_running is missing"):
        parse_metrics(page, 0.0)


@pytest.mark.parametrize(
    "line",
    [
        'vllm:num_requests_running{model_name="m"} many',
        'vllm:num_requests_running{model_name="m} 5',
        "vllm:num_requests_running{model_name=m} 5",
        "vllm:num_requests_running",
        "vllm:num_requests_running 1_000",
        "vllm:num_requests_running ١",
        "vllm:num_requests_running 5 and more",
        f"vllm:num_requests_running {'x' * 10_000}",
        'vllm:inter_token_latency_seconds_bucket{model_name="m"} 5',
        'vllm:inter_token_latency_seconds_bucket{le="a few"} 5',
    ],
)
def test_a_broken_page_is_refused(line):
    with pytest.raises(PageError, match="not Prometheus text") as raised:
        parse_metrics(f"{VLLM_PAGE}\n{line}\n", 0.0)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("value", ["+Inf", "NaN", "0", "-4", "48.5", "65537", "1e18"])
def test_limits_that_no_engine_can_have_count_as_not_reported(value):
    page = f"{VLLM_PAGE}\ninflight_max_num_seqs {value}\ninflight_max_num_batched_tokens 2048\n"
    capacity = "inflight_max_num_seqs_capacity 64\ninflight_max_num_batched_tokens_capacity 1048577\n"
    sample = parse_metrics(page + capacity, 0.0)
    assert (sample.limits, sample.capacity) == (None, None)
    assert sample.running == 7


@pytest.mark.parametrize("value", ["9.3e18", "-1", "NaN", "1.5"])
def test_a_revision_that_no_operator_gave_counts_as_not_reported(value):
    sample = parse_metrics(f"{VLLM_PAGE}\ninflight_runtime_config_revision {value}\n", 0.0)
    assert sample.revision is None
    assert sample.running == 7


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_waiting -1",
        "vllm:num_requests_waiting 1e300",
        "vllm:generation_tokens_total -5",
        "inflight_arrived_requests_total -1",
        "inflight_arrived_prompt_tokens_total 1e17",
        "inflight_arrived_prompt_tokens_squared_total 1e25",
        "vllm:kv_cache_usage_perc 1.5",
        "vllm:kv_cache_usage_perc -0.1",
        "vllm:inter_token_latency_seconds_sum -0.1",
        'vllm:inter_token_latency_seconds_bucket{le="+Inf"} -1',
        'vllm:inter_token_latency_seconds_bucket{le="1"} 5',
        'vllm:inter_token_latency_seconds_bucket{le="NaN"} 5',
        'vllm:time_to_first_token_seconds_bucket{le="0.05"} 6',
    ],
)
def test_a_number_that_no_engine_counts_to_makes_the_page_an_error(line):
    with pytest.raises(PageError, match=line.partition("{")[0].partition(" ")[0].removesuffix("_bucket")):
        parse_metrics(f"{VLLM_PAGE}\n{line}\n", 0.0)


def test_a_histogram_with_a_number_that_is_not_finite_counts_as_empty():
    sample = parse_metrics(f"{VLLM_PAGE}\nvllm:time_to_first_token_seconds_sum NaN\n", 0.0)
    assert sample.ttft == Histogram()


def test_the_size_of_what_is_read_is_bounded():
    bucket = "vllm:inter_token_latency_seconds_bucket"
    many = "\n".join(f'{bucket}{{le="{edge}"}} 1' for edge in (*range(MAX_BUCKETS), "+Inf"))
    with pytest.raises(PageError, match="buckets"):
        parse_metrics(f"{VLLM_PAGE}\n{many}\n", 0.0)
    with pytest.raises(PageError, match="lines"):
        parse_metrics(VLLM_PAGE + "vllm:num_requests_running 1\n" * MAX_LINES, 0.0)


def test_histograms_of_all_engines_share_their_bounds():
    first, second = parse_metrics(engine_page(), 0.0), parse_metrics(engine_page(observations=5), 1.0)
    assert first.ttft.bounds is second.ttft.bounds
    assert first.itl.bounds is second.itl.bounds
    assert first.tpot.bounds is second.tpot.bounds
