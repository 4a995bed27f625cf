"""The command line: flags, the configuration file, exit statuses."""

import argparse
import json
import shlex
import socket
import subprocess
import sys
from importlib.metadata import version

import pytest

from inflight_engine.cli import main
from inflight_engine.config import EngineConfig
from inflight_engine.server.config_file import parse_with_file
from inflight_engine.server.serve_flags import EXAMPLE, add_serve_flags, server_config, size


def parse(*argv):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_serve_flags(parser)
    return server_config(parse_with_file(parser, argv))


def run(*argv):
    return subprocess.run(
        [sys.executable, "-m", "inflight_engine.cli", *argv], capture_output=True, text=True, timeout=60, check=False
    )


def test_defaults_are_those_of_the_engine_configuration():
    config = parse("builtin://smollm2")
    assert config.engine == EngineConfig("builtin://smollm2")
    assert (config.served_model_name, config.port) == ("smollm2", 8000)


@pytest.mark.parametrize(
    ("model", "name"),
    [("org/Name-1B", "Name-1B"), ("hf://org/Name", "Name"), ("/models/x/", "x"), ("builtin://smollm2", "smollm2")],
)
def test_served_name_is_the_last_part_of_the_model(model, name):
    assert parse(model).served_model_name == name


def test_every_flag_reaches_the_configuration():
    config = parse(
        *shlex.split(
            "m --host ::1 --port 9 --served-model-name n --revision r --device cpu --dtype float32 --max-model-len 7 "
            "--max-num-seqs 3 --max-num-batched-tokens 5 --block-size 8 --kv-cache-memory 2Gi --seed 4 "
            "--kv-headroom 0.1 "
            "--limits-file l --max-queued-requests 6 --max-queued-tokens 77 --queue-timeout 1.5 --request-timeout 2.5 "
            "--drain-delay 3 --drain-timeout 4 --log-level debug"
        )
    )
    assert config.engine == EngineConfig(
        "m", "r", "float32", "cpu", 7, 3, 5, 8, kv_cache_memory=2 * 2**30, kv_headroom=0.1, seed=4
    )
    assert (config.host, config.port, config.served_model_name, str(config.limits_file)) == ("::1", 9, "n", "l")
    assert (config.bounds.max_requests, config.bounds.max_tokens) == (6, 77)
    assert (config.queue_timeout, config.request_timeout) == (1.5, 2.5)
    assert (config.drain_delay, config.drain_timeout, config.log_level) == (3, 4, "debug")


@pytest.mark.parametrize("write", [json.dumps, lambda fields: "".join(f"{k}: {v}\n" for k, v in fields.items())])
def test_file_fields_are_flags_and_a_flag_wins(tmp_path, write):
    path = tmp_path / "engine.yaml"
    path.write_text(write({"model": "from-file", "max-num-seqs": 3, "block_size": 32, "num_kv_blocks": 9, "seed": 1}))
    config = parse("--config", str(path), "--seed", "2", "--kv-cache-memory=1Mi")
    assert config.engine == EngineConfig(
        "from-file", max_num_seqs=3, block_size=32, seed=2, kv_cache_memory=2**20, num_kv_blocks=None
    )
    assert parse("other", "--config", str(path)).engine.model == "other"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("max_seqs: 3", "unknown field 'max_seqs'"),
        ("config: x", "unknown field 'config'"),
        ("- a", "must hold fields"),
        ("a: [", "neither YAML nor JSON"),
        ("max-num-seqs: [1]", "max-num-seqs must be one value"),
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
        ("serve m --num-kv-blocks 3 --kv-cache-memory 1Gi", "not allowed with"),
        ("serve m --config /no/such/file", "cannot be read"),
        ("serve m --max-num 3", "unrecognized arguments"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_is_wrong(capsys, arguments, says):
    with pytest.raises(SystemExit) as exit_:
        main(arguments.split())
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err


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
        ("inflight_engine.cli", "fastapi pydantic numpy asyncio transformers torch"),
        ("inflight_engine.server.run, inflight_engine.models.tokenizer", "transformers torch"),
    ],
)
def test_what_is_not_imported(module, never):
    code = f"import sys, {module}; print([m for m in {never.split()} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == "[]\n"


def test_port_in_use_is_one_sentence_and_exit_1():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run("serve", "builtin://smollm2", "--host", "127.0.0.1", "--port", str(taken.getsockname()[1]))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("error: cannot listen on 127.0.0.1 port")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["/no/such/model", "builtin://nothing", "s3://bucket/model"])
def test_model_that_does_not_exist_is_one_sentence_and_exit_1(model):
    ended = run("serve", model, "--host", "127.0.0.1", "--port", "0")
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 1
    assert last.startswith("error: ")
    assert model in last
    assert "Traceback" not in ended.stderr
