"""The checks and measurements for GPUs, small, on the CPU: the same code, so that it cannot rot."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inflight_engine.execution import build
from inflight_engine.execution.attention import BACKENDS
from inflight_engine.models.linear import LinearMaker
from inflight_engine.request import SamplingParams
from tests.engine.execution.fp8_backend import emulate_fp8
from tools.bench.engine.in_process import Generated
from tools.bench.gpu import __main__ as gpu
from tools.bench.gpu import first, report
from tools.bench.gpu.correctness import Check, Checks
from tools.bench.gpu.draws import MOST_EXCESS, excess, probabilities
from tools.bench.gpu.first import Item
from tools.bench.gpu.idle import busy_share
from tools.bench.gpu.part import run
from tools.bench.gpu.quantized import product_check
from tools.bench.gpu.reference import SMALL, distances
from tools.bench.gpu.shapes import LLAMA, QWEN, TINY, RandomWeights, parameter_shapes
from tools.bench.gpu.workload import nano
from tools.measure.report import markdown


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    return Checks(tmp_path_factory.mktemp("gpu"), "cpu", SMALL)


def test_every_check_holds_on_a_cpu_or_says_why_it_cannot_be_had(checks):
    found = {check.name: check for check in checks.run()}
    assert [check for check in found.values() if check.ok is False] == []
    for backend in BACKENDS:
        on_cpu = backend.name in ("cpu-native", "torch-sdpa")
        assert found[f"attention {backend.name}"].ok is not None or not on_cpu
    assert found["attention triton"] == Check(
        "attention triton", None, "attention_backend triton: triton cannot be used: it needs a GPU"
    )
    assert found["attention torch-sdpa"].ok
    for name in (
        "mixed steps, each waited for",
        "swapped to host memory and back",
        "prefixes found in the cache",
        "a sliding window",
        "penalties and biases",
        "log-probabilities",
        "draws, top_p 0.7",
        "draws, a seed alone as in a batch",
        "one rank of tensor parallelism",
        "a checkpoint in 4 bits",
        "a checkpoint in float8",
        "products with weights in 4 bits: right",
        "products with weights in float8: right",
    ):
        assert found[name].ok
    assert found["products with weights in 4 bits: speed"].detail == "speeds are those of a GPU"


def test_a_way_to_compute_that_breaks_is_wrong_and_holds_up_no_other(checks, monkeypatch):
    def generate(prompts=None, steps_between=0, **options):
        if "kv_cache_dtype" in options or options.get("attention_backend") == "triton":
            raise ValueError("no such thing here")
        if options or steps_between:
            raise RuntimeError("an illegal\nmemory access")
        return Generated([[0] * SMALL.output_tokens] * len(SMALL.prompt_lengths))

    def engine(**options):
        raise RuntimeError("an illegal\nmemory access")

    monkeypatch.setattr(checks, "_generate", generate)
    monkeypatch.setattr(checks, "_engine", engine)
    found = {check.name: check for check in checks.run()}
    broken = Check("eager", False, "RuntimeError: an illegal memory access")
    assert found["eager"] == broken
    for name in ("mixed steps", "penalties and biases", "draws", "one rank of tensor parallelism"):
        assert found[name].detail == broken.detail
    assert found["swapped to host memory and back"].detail == broken.detail
    assert found["attention flash-attn-3"].detail == broken.detail
    assert found["attention triton"] == Check("attention triton", None, "no such thing here")
    assert found["keys and values in fp8"].ok is None
    assert found["batch-invariant: alone as in a batch, bit for bit"].ok is False


@pytest.mark.parametrize("are_right", [True, False])
def test_fp8_holds_with_calibrated_scales_and_not_with_wrong_ones(checks, monkeypatch, are_right):
    emulate_fp8(monkeypatch)
    generate, calibrate = checks._generate, build.calibrate
    monkeypatch.setattr(checks, "_generate", lambda **options: generate(attention_backend="torch-sdpa", **options))
    if not are_right:
        monkeypatch.setattr(build, "calibrate", lambda model, spec: calibrate(model, spec) / 8)
    short = checks._prompts[:6]
    monkeypatch.setattr(checks, "_prompts", short)
    monkeypatch.setattr(checks, "_lengths", checks._lengths[: len(short)])
    found = checks._fp8(Generated([[]] * len(short)))
    assert found.ok == are_right, found.detail


def test_without_the_first_tokens_nothing_else_is_checked(checks, monkeypatch):
    def generate(prompts=None, **options):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(checks, "_generate", generate)
    assert list(checks.run()) == [Check("greedy, as transformers", False, "RuntimeError: no kernel")]


def test_a_wrong_token_is_seen(checks):
    prompt = [1, 2, 3, 4, 5]
    ids = torch.tensor([prompt])
    best = int(checks._model(ids).logits[0, -1].argmax())
    assert distances(checks._model, prompt, [best])[0] == 0
    assert distances(checks._model, prompt, [(best + 1) % 1024])[0] > 0.125


@pytest.mark.parametrize("bits", [4, 8])
def test_products_that_are_two_percent_off_are_seen(monkeypatch, bits):
    make = LinearMaker.make
    monkeypatch.setattr(LinearMaker, "make", lambda *arguments: lambda x: 1.02 * make(*arguments)(x))
    right, _ = product_check("cpu", bits)
    assert not right


def test_penalties_that_are_left_out_are_seen(checks):
    prompt = [1, 2, 3, 4, 5]
    plain = checks._engine().generate([prompt], [8]).outputs[0]
    penalised = SamplingParams(max_tokens=1, presence_penalty=6.0, logit_bias=((plain[0], 3.0),))
    assert distances(checks._model, prompt, [plain[0]] * 3, penalised).max() > 0.125
    output = checks._engine().generate([prompt], [8], sampling=[penalised]).outputs[0]
    assert distances(checks._model, prompt, output, penalised).max() < 0.125


def test_draws_of_another_distribution_are_seen():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5000, generator=generator)
    for sampling in (
        SamplingParams(max_tokens=1, temperature=1.0),
        SamplingParams(max_tokens=1, temperature=0.3, top_k=50),
        SamplingParams(max_tokens=1, temperature=0.3, top_p=0.8, min_p=0.01),
    ):
        right = probabilities(logits, sampling)
        drawn = right.multinomial(2048, replacement=True, generator=generator).tolist()
        assert excess(drawn, right) < MOST_EXCESS
        warmer = (right**0.7) / (right**0.7).sum()
        drawn = warmer.multinomial(2048, replacement=True, generator=generator).tolist()
        assert excess(drawn, right) > MOST_EXCESS
    half = right * (torch.arange(len(right)) % 2 == 0)
    assert excess((half / half.sum()).multinomial(2048, replacement=True).tolist(), right) > MOST_EXCESS
    outside = int((right == 0).nonzero()[0])
    assert excess([outside], right) == float("inf")


def test_an_engine_is_measured_with_a_shape_and_random_weights(tmp_path):
    figures = run("speed.measure", "tiny", "cpu", "small", tmp_path)
    assert figures["continuous"] > 0
    assert min(figures["prefill"], figures["decode_1"], figures["decode_3"], figures["decode_3_bandwidth"]) > 0
    assert "| prefill |" in "\n".join(markdown(report.speed_rows("tiny", {"inflight": figures})))


ABSENT = ("fastapi", "gguf", "httpx", "huggingface_hub", "jinja2", "prometheus_client", "pydantic", "uvicorn", "yaml")
"""Packages that a machine with torch need not have."""
STAND_IN = Path(gpu.__file__).parent / "stand_in"


def run_apart(code, *, msgspec=True, **environment):
    """The JSON that a program prints last, which has `run` and the folder `place`, without packages that need not be
    there."""
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r}))\n"  # an import of None is an ImportError
        "import json, tempfile; from pathlib import Path; place = Path(tempfile.mkdtemp())\n"
        f"from tools.bench.gpu import __main__, first; from tools.bench.gpu.part import run\n{code}"
    )
    path = [*([] if msgspec else [str(STAND_IN)]), *sys.path]
    environment = {**os.environ, "PYTHONPATH": ":".join(path), **environment}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("msgspec", [True, False])
def test_this_engine_is_measured_with_torch_and_little_else(msgspec):
    figures = run_apart("print(json.dumps(run('speed.measure', 'tiny', 'cpu', 'small', place)))", msgspec=msgspec)
    assert "prefill_matrix" in figures


def test_items_import_what_a_machine_with_torch_has_and_say_what_is_missing():
    code = """
import importlib, msgspec
assert "stand_in" in msgspec.__file__
found = {}
for item in first.ITEMS:
    module, name = item.function.split(".")
    assert callable(getattr(importlib.import_module(f"tools.bench.gpu.{module}"), name))
for function in ("server.killed", "speed.out_of_memory", "kernels.check", "speed.eager"):
    found[function] = run(function, "tiny", "cpu", "small", place / function)
print(json.dumps(found))
"""
    found = run_apart(code, msgspec=False)
    assert found["server.killed"]["missing"].startswith("the server needs fastapi, uvicorn, pydantic, ")
    assert found["server.killed"]["missing"].endswith("msgspec")
    assert found["speed.out_of_memory"] == {"missing": "only the memory of a GPU is used up"}
    assert "kernels run on a GPU" in found["kernels.check"]["missing"]
    assert found["speed.eager"]["ok"]


def test_kernels_alone_are_right_and_a_wrong_one_is_seen():
    code = """
from tools.bench.gpu import kernels
from inflight_engine.models.ops import TorchOps
kernels.FILTERS = {"all three": kernels.FILTERS["all three"]}
whole = run("kernels.check", "tiny", "cpu", "small", place)
silu_mul, TorchOps.silu_mul = TorchOps.silu_mul, lambda self, x: 1.02 * silu_mul(self, x)
kernels._attention = kernels._sampler = lambda *arguments: ()
print(json.dumps([whole, run("kernels.check", "tiny", "cpu", "small", place)]))
"""
    whole, broken = run_apart(code, msgspec=False, TRITON_INTERPRET="1")
    assert whole["ok"]
    assert {"rotary", "prefill", "decode", "sampler, all three"} < set(whole["kernels"])
    assert (broken["ok"], broken["detail"]) == (False, "5 kernels, wrong: silu_mul")


def test_numbers_of_kernels_are_compared_and_each_time_is_a_line(tmp_path):
    lines = tmp_path / "tiles.jsonl"
    code = f"print(json.dumps(run('tiles.sweep', {str(lines)!r}, 'cpu', 'small', place)))"
    assert "kernels run on a GPU" in run_apart(code)["missing"]
    found = run_apart(code, TRITON_INTERPRET="1")
    assert (found["failed_cases"], found["left_out"]) == (0, "none")
    cases = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(cases) == found["cases"]
    kinds = {"4 bits", "dequantize 4 bits", "few rows", "prefill", "decode", "logits", "sampling"}
    assert {case["what"] for case in cases} == kinds
    assert max(case["error"] for case in cases if case["what"] != "sampling") < 0.005
    assert len({(case["what"], case["size"], case["variant"]) for case in cases}) == len(cases)


def test_cases_are_compiled_before_without_a_gpu(tmp_path):
    cache = tmp_path / "cache"
    code = "from tools.bench.gpu import tiles; print(json.dumps(tiles.compile_share(90, 'small', 0, 9)))"
    assert run_apart(code, TRITON_CACHE_DIR=str(cache)) == 0
    names = {file.stem for file in cache.rglob("*.cubin")}
    assert names >= {"int4_matmul_kernel", "few_rows_kernel", "prefill_kernel", "decode_kernel"}


def test_the_fastest_numbers_are_beside_those_in_force(tmp_path):
    lines = tmp_path / "tiles.jsonl"
    times = {"in force: 64 keys": {"us": 20.0}, "32 keys": {"us": 10.0}, "128 keys": {"failed": "shared memory"}}
    cases = [{"what": "decode", "size": "1 of 200 tokens", "variant": name} | time for name, time in times.items()]
    lines.write_text("".join(json.dumps(case) + "\n" for case in cases))
    assert report.tile_rows(lines)[1:] == [["decode", "1 of 200 tokens", "20.0 us", "10.0 us: 32 keys"]]
    assert gpu.main(["tiles", "--device", "cpu", "--size", "small", "--out", str(tmp_path)]) == 0
    assert "kernels run on a GPU" in (tmp_path / "tiles.md").read_text()


def test_streams_go_on_when_the_engine_process_is_killed(tmp_path):
    found = run("server.killed", "", "cpu", "small", tmp_path)
    assert found["ok"]
    assert found["seconds_without_tokens"] > found["before"]


def test_all_tokens_come_over_http_too(tmp_path):
    found = run("server.served", "tiny", "cpu", "small", tmp_path)
    assert found["ttft_p50"] <= found["ttft_p95"]
    row = report.speed_rows("tiny", {"inflight": {"failed": "elsewhere"}, "over HTTP": found})[-1]
    assert row[0] == "the same over HTTP, streamed"
    assert "TTFT" in row[2]


def test_profiles_have_the_largest_operators_and_the_time_of_the_host(tmp_path):
    found = run("speed.profiles", "tiny", "cpu", "small", tmp_path)
    assert 0 < found["decode at 3, busy"] < 1
    assert found["prefill, host_us"] > 0
    assert 0 < len(found["decode at 1, kernels"]) <= 15


def test_a_way_to_compute_is_held_against_the_reference(tmp_path):
    assert run("correctness.way", "mixed", "cpu", "small", tmp_path)["ok"]


def test_an_item_that_crashes_or_hangs_costs_itself_alone(tmp_path):
    pid = tmp_path / "pid"
    items = (
        Item("crash", 20, "first.machine", under=("sh", "-c", "kill -SEGV $$")),
        Item("hang", 1, "first.machine", under=("sh", "-c", f"sleep 100 & echo $! > {pid}; wait")),
        Item("missing", 20, "first.machine", under=("no-such-checker",)),
        Item("raises", 60, "speed.measure", "no such shape"),
        Item("works", 60, "first.machine"),
    )
    lines = tmp_path / "first.jsonl"
    told = []

    def say(line):
        told.append(line)
        assert len(lines.read_text().splitlines()) == len(told), "the result is written before the next item begins"

    rows, results, held = first.run("cpu", "small", tmp_path / "parts", lines, say, items)
    assert not held
    assert results["crash"] == {"failed": "its process ended with exit code -11"}
    assert results["hang"] == {"failed": "it took more than 1 s"}
    assert results["missing"] == {"missing": "no-such-checker is not installed"}
    assert results["raises"] == {"failed": "KeyError: 'no such shape'"}
    assert results["works"]["flops_per_second"] > 0
    assert [row[1] for row in rows[1:]] == ["failed", "failed", "missing", "failed", "ok"]
    assert [json.loads(line)["item"] for line in lines.read_text().splitlines()] == [item.name for item in items]
    assert not Path(f"/proc/{pid.read_text().strip()}").exists(), "nothing that it started runs on"


def test_all_items_together_take_less_than_eight_minutes():
    assert sum(item.seconds for item in first.ITEMS) < 8 * 60


def test_the_script_lists_its_stages():
    script = Path(gpu.__file__).parents[1] / "gpu.sh"
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run([script, "--help"], capture_output=True, text=True, env=environment, check=True)
    for stages in ("first", "correctness", "qwen, llama", "tiles"):
        assert f"\n{stages} " in done.stdout


def test_an_engine_that_is_not_here_or_fails_is_in_the_table(tmp_path):
    missing = run("peers.vllm", "tiny", "cpu", "small", tmp_path)
    failed = run("speed.measure", "no such shape", "cpu", "small", tmp_path)
    assert "cannot be imported here" in missing["missing"]
    assert failed == {"failed": "KeyError: 'no such shape'"}
    assert report.speed_rows("tiny", {"inflight": failed, "vllm": missing})[1:] == [
        ["inflight", "failed", "KeyError: 'no such shape'"],
        ["vllm", "not here", missing["missing"]],
    ]


def test_a_wrong_check_fails_the_stage_and_is_in_its_files(tmp_path, monkeypatch, capsys):
    class Stub:
        def __init__(self, folder, device, scale): ...

        def run(self):
            yield Check("greedy", False, "off by one")
            yield Check("fp8", None, "no such device")

    monkeypatch.setattr(gpu, "Checks", Stub)
    assert gpu.main(["correctness", "--device", "cpu", "--out", str(tmp_path)]) == 1
    assert "NOT everything held" in capsys.readouterr().out
    assert [check["ok"] for check in json.loads((tmp_path / "correctness.json").read_text())["results"]] == [
        False,
        None,
    ]
    assert "| greedy | WRONG | off by one |" in (tmp_path / "correctness.md").read_text()


def test_the_workload_is_that_of_nano_vllm():
    workload = nano()
    assert workload == nano()
    assert len(workload.prompts) == 256
    assert min(map(len, workload.prompts)) >= 100
    assert max(*map(len, workload.prompts), *workload.output_tokens) <= 1024
    # What random.seed(0) gives first to that program: a length, then as many tokens.
    assert (len(workload.prompts[0]), workload.prompts[0][0]) == (964, 6311)


def test_parameters_add_up_to_the_models_that_they_are_named_after():
    def total(config):
        return sum(torch.Size(shape).numel() for shape in parameter_shapes(config).values())

    assert total(QWEN) == 596_049_920
    assert total(LLAMA) == 8_030_261_248


def test_random_weights_have_the_shapes_of_the_configuration_and_norms_at_one():
    weights = RandomWeights(TINY, "cpu")
    assert weights.get("model.norm.weight").tolist() == [1.0] * 64
    query = weights.get("model.layers.1.self_attn.q_proj.weight")
    assert (query.shape, query.dtype) == ((64, 64), torch.bfloat16)
    assert 0.01 < query.float().std() < 0.03
    assert weights.get("model.embed_tokens.weight", 0, range(8, 24)).shape == (16, 64)
    with pytest.raises(ValueError, match="no tensor lm_head"):
        weights.get("lm_head.weight")


def test_busy_time_counts_overlapping_kernels_once():
    assert busy_share([(0, 2), (1, 3), (6, 10), (7, 8)]) == 0.7
    with pytest.raises(ValueError, match="no kernel"):
        busy_share([])
