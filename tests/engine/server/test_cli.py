"""The command line: flags, the configuration file, exit statuses."""

import argparse
import json
import shlex
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock, call

import msgspec
import pytest

from inflight_engine import cli
from inflight_engine.server.settings.flags import EXAMPLE, add_serve_flags, read_config
from inflight_engine.server.settings.kv_events import KVEventsConfig
from inflight_engine.server.settings.tracing import TracingConfig
from inflight_settings.engine import EngineConfig
from inflight_settings.flag_types import size
from inflight_settings.scheduling import ServiceClass
from tests.engine.models.remote.store_server import store_server


def parse(*argv):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_serve_flags(parser)
    return read_config(parser, argv)


def run(*argv):
    return subprocess.run(
        [sys.executable, "-m", "inflight_engine.cli", *argv], capture_output=True, text=True, timeout=120, check=False
    )


def test_defaults_are_those_of_the_engine_configuration():
    config = parse("builtin://smollm2")
    assert config.engine == EngineConfig("builtin://smollm2")
    assert (config.served_model_name, config.port, config.generation_config) == ("smollm2", 8000, "auto")
    assert (config.admin_port, config.serving_metrics, config.trust_tenant_header) == (None, True, False)
    assert (config.tenant_key_file, parse("m", "--tenant-key-file", "k").tenant_key_file) == (None, Path("k"))
    assert (config.max_queued_requests, config.queue_timeout, config.request_timeout) == (512, 60, 600)
    assert (config.drain_delay, config.drain_timeout) == (0, 120)


@pytest.mark.parametrize(
    ("model", "name"),
    [("org/Name-1B", "Name-1B"), ("hf://org/Name", "Name"), ("/models/x/", "x"), ("builtin://smollm2", "smollm2")],
)
def test_served_name_is_the_last_part_of_the_model(model, name):
    assert parse(model).served_model_name == name


def test_kv_cache_events_are_read_as_vllm_reads_them_and_the_engine_process_is_told(tmp_path):
    assert (parse("m").kv_events, parse("m").engine.block_events) == (None, False)
    fields = {"enable_kv_cache_events": True, "replay_endpoint": "tcp://*:5558", "topic": "kv"}
    (tmp_path / "config.yaml").write_text(json.dumps({"model": "m", "kv-events-config": fields}))
    for config in (parse("m", "--kv-events-config", json.dumps(fields)), parse(f"--config={tmp_path}/config.yaml")):
        assert config.kv_events == KVEventsConfig(True, replay_endpoint="tcp://*:5558", topic="kv")
        assert config.engine.block_events


def test_wrong_kv_cache_events_are_wrong_usage(capsys):
    with pytest.raises(SystemExit) as exited:
        parse("m", "--kv-events-config", '{"endpoints": 1}')
    assert exited.value.code == 2
    assert "--kv-events-config is not JSON" in capsys.readouterr().err


def test_every_flag_reaches_the_configuration():
    config = parse(
        *shlex.split(
            "m --host ::1 --port 9 --admin-port 10 --no-serving-metrics --trust-tenant-header --generation-config none "
            "--chat-template t.jinja "
            "--served-model-name n --revision r --device cpu --dtype float32 --max-model-len 7 "
            "--max-num-seqs 3 --max-num-batched-tokens 5 --block-size 8 --kv-cache-memory 2Gi --seed 4 "
            "--kv-headroom 0.1 "
            "--limits-file l --max-queued-requests 6 --max-queued-tokens 77 --queue-timeout 1.5 --request-timeout 2.5 "
            "--drain-delay 3 --drain-timeout 4 --log-level debug --scheduling-policy priority --priority-aging 2.5 "
            "--service-class a:weight=4,priority=-5,ttft=0.5,tpot=0.05,max_queued=100,shed_after=2,request_timeout=9 "
            "--service-class b-2 "
            "--ttft-target 0.7 --ttft-per-1k-tokens 0.06 --late-share 0.2 --shed-after 8 "
            "--preemption swap --preemption-victim longest_first --swap-space 1Gi --no-prefix-caching --record r.gz "
            "--quantization int8 --attention-backend triton --tensor-parallel-size 2 --enforce-eager "
            "--no-async-scheduling --batch-invariant --num-threads 6 --kv-cache-dtype fp8 --gpu-memory-utilization 0.8"
            " --log-format json --enable-access-log --disable-access-log-for-endpoints /health,/v1/models "
            "--otlp-traces-endpoint http://collector:4318 --traces-sampling-ratio 0.25"
        )
    )
    assert config.engine == EngineConfig(
        "m",
        revision="r",
        dtype="float32",
        quantization="int8",
        device="cpu",
        attention_backend="triton",
        tensor_parallel_size=2,
        enforce_eager=True,
        async_scheduling=False,
        batch_invariant=True,
        num_threads=6,
        kv_cache_dtype="fp8",
        gpu_memory_utilization=0.8,
        max_model_len=7,
        max_num_seqs=3,
        max_num_batched_tokens=5,
        block_size=8,
        kv_cache_memory=2 * 2**30,
        kv_headroom=0.1,
        policy="priority",
        priority_aging=2.5,
        ttft_target=0.7,
        ttft_per_1k_tokens=0.06,
        late_share=0.2,
        late_wait=0.75,
        request_timeout=2.5,
        classes=(ServiceClass("a", 4.0, -5, 0.5, 0.05, 100, 2.0, 9.0), ServiceClass("b-2")),
        preemption="swap",
        preemption_victim="longest_first",
        swap_space=2**30,
        prefix_caching=False,
        record="r.gz",
        seed=4,
        log_level="debug",
        log_format="json",
    )
    assert (config.host, config.port, config.served_model_name, str(config.limits_file)) == ("::1", 9, "n", "l")
    assert (config.admin_port, config.serving_metrics, config.trust_tenant_header) == (10, False, True)
    assert (config.generation_config, config.chat_template) == ("none", Path("t.jinja"))
    assert (config.max_queued_requests, config.max_queued_tokens) == (6, 77)
    assert (config.shed_after, config.queue_timeout, config.request_timeout) == (8, 1.5, 2.5)
    assert (config.drain_delay, config.drain_timeout) == (3, 4)
    assert config.access_log == {"/health", "/v1/models"}
    assert config.tracing == TracingConfig("http://collector:4318/v1/traces", 0.25)


@pytest.mark.parametrize(("flags", "seconds"), [("", 30.0), ("--queue-timeout 8", 4.0)])
def test_late_requests_get_more_picks_from_half_of_the_queue_timeout_on(flags, seconds):
    assert parse("m", *shlex.split(flags)).engine.late_wait == seconds


@pytest.mark.parametrize(
    ("flags", "policy"),
    [
        ("", "fcfs"),
        ("--ttft-target 0.5", "deadline"),
        ("--service-class a --service-class b:ttft=0.5", "deadline"),
        ("--service-class a:tpot=0.05", "fcfs"),
        ("--ttft-target 0.5 --scheduling-policy fcfs", "fcfs"),
        ("--scheduling-policy deadline", "deadline"),
    ],
)
def test_the_policy_is_deadline_where_there_is_a_ttft_target_unless_another_is_named(flags, policy):
    assert parse("m", *shlex.split(flags)).engine.policy == policy


@pytest.mark.parametrize("write", [json.dumps, lambda fields: "".join(f"{k}: {v}\n" for k, v in fields.items())])
def test_file_fields_are_flags_and_a_flag_wins(tmp_path, write):
    path = tmp_path / "engine.yaml"
    path.write_text(write({"model": "from-file", "max-num-seqs": 3, "block_size": 32, "num_kv_blocks": 9, "seed": 1}))
    config = parse("--config", str(path), "--seed", "2", "--kv-cache-memory=1Mi")
    assert config.engine == EngineConfig(
        "from-file", max_num_seqs=3, block_size=32, seed=2, kv_cache_memory=2**20, num_kv_blocks=None
    )
    assert parse("other", "--config", str(path)).engine.model == "other"


@pytest.mark.parametrize("content", ["", "# max-num-seqs: 3\n", "---\n", "{}"])
def test_file_without_fields_changes_nothing(tmp_path, content):
    (tmp_path / "c.yaml").write_text(content)
    assert parse("m", "--config", str(tmp_path / "c.yaml")).engine == EngineConfig("m")


def test_classes_and_switches_in_a_file_and_those_of_the_command_line_stand_instead(tmp_path):
    path = tmp_path / "engine.yaml"
    path.write_text("model: m\nservice-class: ['a:weight=4', b]\nno-prefix-caching: true\nswap_space: 1Gi\n")
    engine = parse("--config", str(path), "--preemption=swap").engine
    assert engine.classes == (ServiceClass("a", 4.0), ServiceClass("b"))
    assert not engine.prefix_caching
    assert parse("--config", str(path), "--service-class=a").engine.classes == (ServiceClass("a"),)
    path.write_text("model: m\nservice_class: c\nno_prefix_caching: false\n")
    engine = parse("--config", str(path)).engine
    assert (engine.classes, engine.prefix_caching) == ((ServiceClass("c"),), True)


def test_configuration_with_classes_reaches_the_engine_process():
    config = parse("m", "--service-class", "a:weight=1e-3,ttft=0.5").engine
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("max_seqs: 3", "unknown field 'max_seqs'"),
        ("config: x", "unknown field 'config'"),
        ("- a", "must hold fields"),
        ("a: [", "neither YAML nor JSON"),
        ("max-num-seqs: [1]", "max-num-seqs must be one value"),
        ("no-prefix-caching: 1", "no-prefix-caching must be true or false"),
        ("prefix-caching: true", "unknown field 'prefix-caching'"),
        ("classes: a", "unknown field 'classes'"),
        ("service-class: [a, [b]]", "service-class must be one value"),
        ("service-class: [a, a]", "there are two classes named a"),
        ("preemption: swap", "--preemption swap needs host memory"),
        ("max-num-seqs: 0", "must be at least 1"),
        ("num-kv-blocks: 1\nkv-cache-memory: 1Gi", "not allowed with"),
    ],
)
def test_wrong_file_is_wrong_usage_with_the_field(tmp_path, capsys, content, says):
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(SystemExit) as exit_:
        parse("m", "--config", str(tmp_path / "c.yaml"))
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("model", ["--port=3", "-h", "--", "-1"])
def test_model_in_a_file_is_no_flag(tmp_path, capsys, model):
    (tmp_path / "c.yaml").write_text(f"model: {model}")
    with pytest.raises(SystemExit) as exit_:
        parse("--config", str(tmp_path / "c.yaml"))
    assert exit_.value.code == 2
    assert "model must be one value that does not begin with a dash" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "required"),
        ("server", "invalid choice"),
        ("serve", "MODEL is missing"),
        ("serve m --max-num-seqs 0", "--max-num-seqs: must be at least 1"),
        ("serve m --max-num-seqs x", "'x' is not an integer"),
        ("serve m --port 70000", "between 0 and 65535"),
        ("serve m --dtype int4", "invalid choice"),
        ("serve m --kv-cache-memory lots", "is not a size"),
        ("serve m --queue-timeout 0", "must be at least"),
        ("serve m --no-serving-metrics", "needs --admin-port"),
        ("serve m --port 8000 --admin-port 8000", "both 8000"),
        ("serve m --trust-tenant-header --tenant-key-file k", "exclude each other"),
        ("serve m --admin-port 65536", "must be between"),
        ("serve m --num-kv-blocks 3 --kv-cache-memory 1Gi", "not allowed with"),
        ("serve m --config /no/such/file", "cannot be read"),
        ("serve m --max-num 3", "unrecognized arguments"),
        ("serve m --scheduling-policy lifo", "invalid choice"),
        ("serve m --preemption-victim x", "invalid choice"),
        ("serve m --priority-aging 0", "must be between"),
        ("serve m --ttft-target 0", "must be between"),
        ("serve m --ttft-per-1k-tokens -0.1", "must be between"),
        ("serve m --ttft-per-1k-tokens 61", "must be between"),
        ("serve m --late-share 0", "must be between"),
        ("serve m --late-share 1.1", "must be between"),
        ("serve m --shed-after 0", "must be"),
        ("serve m --service-class a:shed_after=0", "class a: shed_after must be a number above 0"),
        ("serve m --swap-space lots", "is not a size"),
        ("serve m --preemption swap", "--preemption swap needs host memory: give --swap-space"),
        ("serve m --preemption swap --swap-space 0", "--preemption swap needs host memory"),
        ("serve m --model-cache /models", "--model-cache needs a size, and the size a folder"),
        ("serve m --model-cache-size 1Gi", "--model-cache needs a size, and the size a folder"),
        ("serve m --peers-file p.json", "--peers-file needs a folder that peers read: give --model-cache"),
        ("serve m --peers-tpot 0.05", "--peers-tpot is for engines that peers read from: give --peers-file"),
        ("serve m --disk-space 1Gi --disk-path /kv", "--disk-space needs host memory and a folder"),
        ("serve m --disk-space 1Gi --swap-space 1Gi", "--disk-space needs host memory and a folder"),
        ("serve m --disk-space 1Gi --swap-space 1Gi --disk-path /kv --no-prefix-caching", "needs the prefix cache"),
        ("serve m --disk-space 1Gi --swap-space 1Gi --disk-path /kv --preemption recompute", "needs the prefix cache"),
        ("serve m --service-class a --service-class a:weight=2", "there are two classes named a"),
        ("serve m --service-class A", "'A' is not the name of a class"),
        ("serve m --service-class a-", "'a-' is not the name of a class"),
        (f"serve m --service-class {'a' * 64}", "is not the name of a class"),
        ("serve m --service-class a:", "class a: '' is not one of weight="),
        ("serve m --service-class a:weight", "class a: 'weight' is not one of weight="),
        ("serve m --service-class a:speed=1", "class a: 'speed=1' is not one of"),
        ("serve m --service-class a:weight=0", "class a: weight must be a number above 0"),
        ("serve m --service-class a:weight=nan", "class a: weight must be a number above 0"),
        ("serve m --service-class a:weight=1,weight=2", "class a: weight is given twice"),
        ("serve m --service-class a:priority=101", "class a: priority must be between -100 and 100"),
        ("serve m --service-class a:ttft=1s", "class a: ttft must be a number above 0"),
        ("serve m --service-class a:max_queued=0", "class a: max_queued must be at least 1"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_is_wrong(monkeypatch, capsys, arguments, says):
    process = Mock()
    monkeypatch.setattr(cli, "EngineProcess", lambda: process)
    monkeypatch.setattr(cli.signal, "signal", lambda number, handler: None)
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments.split())
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err
    assert process.mock_calls == ([call.kill()] if arguments.split()[:1] == ["serve"] else [])


def test_model_that_looks_like_a_flag_is_a_model(monkeypatch):
    served = []
    monkeypatch.setattr(cli, "EngineProcess", Mock)
    monkeypatch.setattr(cli.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(cli, "serve", lambda config, process: served.append(config.engine.model) or 0)
    assert cli.main(["serve", "--", "--help"]) == 0
    assert served == ["--help"]


@pytest.mark.parametrize(
    ("text", "expected"), [("1024", 1024), ("2Gi", 2**31), ("1.5G", 1_500_000_000), ("512MiB", 2**29), ("3k", 3000)]
)
def test_sizes_are_kubernetes(text, expected):
    assert size(text) == expected


def test_version_and_help():
    assert run("--version").stdout == f"inflight-engine {version('inflight')}\n"
    shown = run("serve", "--help")
    assert shown.returncode == 0
    assert EXAMPLE in shown.stdout


@pytest.mark.parametrize(
    ("module", "never"),
    [
        # Before the engine process is started, nothing heavy; afterwards, never torch.
        ("inflight_engine.cli", "fastapi pydantic asyncio transformers torch"),
        (
            "inflight_engine.server.run, inflight_engine.models.tokens.tokenizer",
            "transformers torch opentelemetry.sdk requests",
        ),
    ],
)
def test_what_is_not_imported(module, never):
    code = f"import sys, {module}; print([m for m in {never.split()} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert shown.stdout == "[]\n"


STARTED = """
import sys
from inflight_engine import cli

class Process:
    def load(self, config):
        sys.exit(str([name for name in ("numpy", "fastapi", "torch") if name in sys.modules]))

    def kill(self):
        pass

cli.EngineProcess = Process
cli.main(["serve", "hf://a/b", "--host", "127.0.0.1", "--port", "0", "--limits-file", "limits.json"])
"""


def test_the_engine_process_gets_its_configuration_before_anything_heavy_is_imported():
    ended = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=120)
    assert ended.stderr.splitlines()[-1] == "[]"


def test_port_in_use_is_one_sentence_and_exit_1():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run("serve", "builtin://smollm2", "--host", "127.0.0.1", "--port", str(taken.getsockname()[1]))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("error: cannot listen on 127.0.0.1 port")


def test_with_json_logs_the_last_line_is_json_too():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run("serve", "m", "--host", "127.0.0.1", "--port", port, "--log-format", "json")
    last = json.loads(ended.stderr.splitlines()[-1])
    assert ended.returncode == 1
    assert last["level"] == "CRITICAL"
    assert last["message"].startswith("cannot listen on 127.0.0.1 port")


@pytest.mark.parametrize("url", ["collector:4317", "grpc://collector:4317", "http://", "http://a b", "http://c:99999"])
def test_a_collector_without_an_http_url_is_refused(url, capsys):
    with pytest.raises(SystemExit):
        parse("m", "--otlp-traces-endpoint", url)
    assert "is not a URL such as http://collector:4318" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("http://c:4318?x=1", "http://c:4318/v1/traces?x=1"),
        ("http://c:4318/own?x=1", "http://c:4318/own?x=1"),
    ],
)
def test_the_path_of_traces_comes_before_a_query(url, endpoint):
    assert parse("m", "--otlp-traces-endpoint", url).tracing.endpoint == endpoint


@pytest.mark.parametrize(
    ("environment", "endpoint"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/base/"}, "http://c:4318/base/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/base?x=1"}, "http://c:4318/base/v1/traces?x=1"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/x", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, "http://t/x"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_opentelemetrys_variables_turn_traces_on_and_off(monkeypatch, environment, endpoint):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    tracing = parse("m").tracing
    assert (None if tracing is None else tracing.endpoint) == endpoint


def test_a_variable_without_a_usable_url_is_named(monkeypatch, capsys):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")
    with pytest.raises(SystemExit):
        parse("m")
    assert "$OTEL_EXPORTER_OTLP_ENDPOINT: 'collector:4317' is not a URL" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("model", ["/no/such/model", "builtin://nothing", "ftp://bucket/model"])
def test_model_that_does_not_exist_is_one_sentence_and_exit_1(model):
    ended = run("serve", model, "--host", "127.0.0.1", "--port", "0")
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 1
    assert last.startswith("error: ")
    assert model in last
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_store_without_the_model_is_one_sentence_and_exit_1_and_leaves_no_files(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with store_server() as store:
        ended = run("serve", f"{store.url}/nothing", "--host", "127.0.0.1", "--port", "0")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(f"error: model source {store.url}/nothing has no config.json; give")
    assert not list(tmp_path.glob("inflight-model-*"))
