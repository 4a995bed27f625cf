"""The command line."""

from __future__ import annotations

import json

import pytest

from inflight_gateway import cli


def test_envoys_configuration_is_json(tmp_path, capsys):
    assert cli.main(["envoy-config", "--run-dir", str(tmp_path)]) == 0
    config = json.loads(capsys.readouterr().out)
    assert config["admin"]["address"]["pipe"]["path"] == f"{tmp_path}/admin.sock"
    file = tmp_path / "envoy.json"
    assert cli.main(["envoy-config", "--run-dir", str(tmp_path), "--output", str(file)]) == 0
    assert json.loads(file.read_text()) == config


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--relays", "0"], "is not a whole number from 1"),
        (["--requests-per-second", "-1"], "is not a whole number"),
        (["--memory", "1"], "is not a whole number of MiB"),
        (["--allowed-origin", "chat.example"], "is not * or an origin"),
        (["--allowed-origin", "https://*.example"], "is not * or an origin"),
        (["--allowed-origin", "https://a.example,https://b.example"], "is not * or an origin"),
        (["--idle-timeout", "never"], "is not a number of seconds"),
        (["--jwks-uri", "http://issuer/keys"], "is not https://"),
        (["--jwks-file", "a", "--jwks-uri", "https://issuer/keys"], "not allowed with"),
        (["--jwt-issuer", "me"], "needs --jwks-file or --jwks-uri"),
        (["--jwks-file", "keys.json"], "--jwt-issuer needs"),
        (["--tls-dir", "."], "--tls-dir needs --output"),
        (["--port", "0"], "--port 0 needs --tls-dir"),
    ],
)
def test_wrong_flags_of_envoys_configuration_are_refused_with_a_sentence(flags, why, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["envoy-config", *flags])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("command", ["picker", "relay", "envoy-config"])
def test_help_names_a_default_for_each_value(command, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert "example, on a laptop" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags",
    [
        *(["--http-port", "x"], ["--drain-min", "nan"], ["--peers", "name"], ["--drain-max", "1e9"]),
        *(["--ext-proc-port", "20000"], ["--ext-proc-port", "20255"]),
    ],
)
def test_wrong_flags_are_refused_with_a_sentence(flags, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["picker", *flags])
    assert ended.value.code == 2
    assert " is not " in capsys.readouterr().err


def test_a_picker_that_cannot_start_says_why_in_one_line(tmp_path, capsys):
    code = cli.main(["picker", "--static", str(tmp_path / "none.yaml"), "--http-port", "0"])
    assert code == 1
    error = capsys.readouterr().err
    assert "none.yaml" in error
    assert "Traceback" not in error
