"""The arithmetic of the comparison, and how it shows what is missing."""

import json
from dataclasses import asdict, replace

import pytest

from inflight_engine.grammars import sources
from tools.bench.engine.jobs import SCHEMAS, Job, make_prompts
from tools.bench.engine.report import Failure, Figure, Report, Result, number, ratio, shares, text
from tools.bench.engine.roofline import Ceilings, Costs, limit
from tools.bench.engine.rows import ROWS

COSTS = Costs(body_parameters=100, head_parameters=20, weight_bytes=2, kv_token_bytes=8, attention_flops=4)


def test_a_figure_is_the_median_with_its_spread():
    assert Figure.of([3.0, 1.0, 2.0]) == Figure(2.0, 1.0, 3.0, 3)
    assert str(Figure.of([101.0, 99.6, 250.4])) == "101 (99.6-250)"
    assert str(Figure.of([2.5])) == "2.50"
    with pytest.raises(ValueError, match="at least one run"):
        Figure.of([])


def test_a_ratio_says_how_many_times_better_ours_is_in_either_direction():
    assert ratio(Figure.of([300.0]), Figure.of([150.0]), more_is_better=True) == 2.0
    assert ratio(Figure.of([4.0]), Figure.of([24.0]), more_is_better=False) == 6.0
    assert ratio(Figure.of([4.0]), Failure("no"), more_is_better=True) is None
    assert ratio(None, Figure.of([4.0]), more_is_better=True) is None


def test_a_share_compares_each_engine_with_itself():
    free = Result("free", "tokens/s", True, Figure.of([200.0]), {"vLLM-CPU": Figure.of([100.0])})
    bound = Result("bound", "tokens/s", True, Figure.of([190.0]), {"vLLM-CPU": Figure.of([68.0])})
    assert shares(bound, free) == "share of free: Inflight 95.0%, vLLM-CPU 68.0%"
    assert shares(replace(bound, ours=Failure("no"), peers={}), free) == ""


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (1234.5, "1234"), (99.96, "100.0"), (12.34, "12.3"), (0.5, "0.50")]
)
def test_numbers_have_the_digits_that_were_measured(value, shown):
    assert number(value) == shown


def test_the_limit_of_one_decode_step_is_the_slower_of_reading_and_multiplying():
    # 2 sequences that look at 10 + 2 tokens each: 240 bytes of weights and 24 x 8 of keys and values.
    job = Job("decode", (10, 10), 4)
    memory = limit(job, COSTS, Ceilings(bytes_per_second=432, flops_per_second=1e9))
    assert (memory.seconds, memory.by) == (pytest.approx(4), "memory")
    # 2 x 2 x 120 for the matrices, 24 x 4 for attention.
    matrix = limit(job, COSTS, Ceilings(bytes_per_second=1e9, flops_per_second=576))
    assert (matrix.seconds, matrix.by) == (pytest.approx(4), "matrix")


def test_the_limit_of_a_generation_is_its_prompts_and_the_steps_after_the_first_token():
    ceilings = Ceilings(bytes_per_second=1e9, flops_per_second=1)
    prompt = 2 * (3 * 100 + 20) + 4 * (1 + 2 + 3)
    assert limit(Job("generate", (3,), 1), COSTS, ceilings).seconds == pytest.approx(prompt)
    step = 2 * 120 + 4 * (3 + 3 / 2)
    assert limit(Job("generate", (3,), 3), COSTS, ceilings).seconds == pytest.approx(prompt + 2 * step)


def test_costs_are_those_of_the_models_configuration(tmp_path):
    config = {
        "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 10, "vocab_size": 50,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    costs = Costs.of_folder(tmp_path)
    # Queries and output 8 x 8, keys and values 8 x 4, three of 8 x 10.
    assert costs.body_parameters == 2 * (2 * 64 + 2 * 32 + 3 * 80)
    assert costs.head_parameters == 400
    assert costs.kv_token_bytes == 2 * 2 * 2 * 2 * 2
    assert costs.attention_flops == 4 * 2 * 8


def test_every_engine_gets_the_same_prompts_and_no_two_begin_alike():
    job = Job("generate", (128,) * 32, 64)
    prompts = make_prompts(job, 49152)
    assert prompts == make_prompts(job, 49152)
    assert [len(prompt) for prompt in prompts] == [128] * 32
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 32
    assert min(map(min, prompts)) >= 100
    assert max(map(max, prompts)) < 49152


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_schemas_of_structured_answers_can_be_followed(schema):
    assert sources.check(sources.of_schema("schema", schema))


def test_tokens_a_second_count_what_the_row_says():
    row = {row.name: row for row in ROWS}
    assert row["short"].tokens_per_second(2.0) == 1024
    assert row["prefill"].tokens_per_second(2.0) == 512
    assert row["decode-8"].tokens_per_second(1.0) == 8 * row["decode-8"].job.output_tokens


@pytest.fixture
def report():
    failure = Failure("vLLM-CPU: its installation failed")
    results = (
        Result(
            "decode",
            "tokens/s",
            True,
            Figure.of([150.0]),
            {"vLLM-CPU": Figure.of([75.0])},
            200.0,
            "memory",
            one_core=Figure.of([100.0]),
        ),
        Result("prefill", "tokens/s", True, Figure.of([2500.0]), {"vLLM-CPU": failure}),
        Result("start to ready", "s", False, Failure("no port"), {"vLLM-CPU": failure}, note="from the command"),
    )
    return Report(("a machine",), ("an engine",), ("vLLM-CPU",), results)


def test_the_table_has_ratio_limit_and_share_and_a_reason_for_each_failure(report):
    lines = [line.split() for line in text(report).split("\n")]
    assert ["decode", "tokens/s", "150", "200", "(memory)", "75%", "100", "1.50x", "75.0", "2.00x"] in lines
    assert ["prefill", "tokens/s", "2500", "-", "-", "-", "-", "failed", "[1]", "-"] in lines
    assert ["start", "to", "ready", "[2]", "s", "failed", "[3]", "-", "-", "-", "-", "failed", "[1]", "-"] in lines
    for number_, reason in ((1, "vLLM-CPU: its installation failed"), (2, "from the command"), (3, "no port")):
        assert f"[{number_}] {reason}" in text(report)


def test_json_has_every_run_figure_and_reason(report):
    decode, prefill, _ = json.loads(json.dumps(asdict(report)))["results"]
    assert decode["ours"] == {"median": 150.0, "least": 150.0, "most": 150.0, "num_runs": 1}
    assert prefill["peers"]["vLLM-CPU"] == {"reason": "vLLM-CPU: its installation failed"}
