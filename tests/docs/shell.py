"""Commands in shell blocks, checked against the programs that they name."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import click

from docs.generate.parsers import PARSERS, flags_of, subcommands
from inflight_kubectl.cli import cli
from tests.docs.blocks import PROJECT, VALUES

OTHERS = {
    "base64",
    "cd",
    "cosign",
    "curl",
    "cut",
    "docker",
    "export",
    "git",
    "kill",
    "openssl",
    "pip",
    "sleep",
    "smg",
    "tar",
    "tools/bench/gpu.sh",
    "unzip",
    "vllm",
}
"""Programs that are not looked into."""
FOLDERS = ("examples/", "helm/", "simulator/", "engine_image/", "operator/", "bench/")
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_FLAG = re.compile(r"--[a-z][-a-z0-9]*")


def commands(text):
    """Words of every simple command, in order; those in $(...) too."""
    found = []
    pending = ""
    for line in text.replace("\\\n", " ").splitlines():
        pending += line + "\n"
        inner = [match[1] for match in _SUBSTITUTION.finditer(pending)]
        lexer = shlex.shlex(_SUBSTITUTION.sub("SUBSTITUTED", pending), posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quote goes on in the next line
            continue
        pending = ""
        for one in inner:
            found += commands(one)
        found += _simple(words)
    assert not pending, f"an open quote: {pending}"
    return found


def _simple(words):
    parts = [[]]
    skip = False
    for word in words:
        if set(word) <= set("|&;"):
            parts.append([])
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        else:
            parts[-1].append(word)
    stripped = [_without_assignments(part) for part in parts]
    return [part for part in stripped if part]


def _without_assignments(words):
    return words[1:] and _without_assignments(words[1:]) if words and _ASSIGNMENT.match(words[0]) else words


def problems(words):
    """Problems of a command, as sentences."""
    program, *rest = words
    program = program.removeprefix(".venv/bin/")
    missing = [word for word in rest if word.startswith(FOLDERS) and not (PROJECT / word.split(":")[0]).exists()]
    found = [f"{word} does not exist" for word in missing if "*" not in word]
    if program in PARSERS:
        return found + _argparse_problems(PARSERS[program](), rest)
    if program == "inflight" or (program == "kubectl" and rest[:1] == ["inflight"]):
        return found + _click_problems(cli, rest[program == "kubectl" :])
    check = {"make": _make_problems, "kubectl": _kubectl_problems, "helm": _helm_problems, "python": _python_problems}
    if program in check:
        return found + check[program](rest)
    return found if program in OTHERS else [*found, f"unknown program {program}"]


def _flags(words):
    return [match[0] for word in words if (match := _FLAG.match(word))]


def _argparse_problems(parser, words):
    known = flags_of(parser)
    inner = subcommands(parser)
    if inner and words and not words[0].startswith("-"):
        if words[0] not in inner:
            return [f"{parser.prog} has no command {words[0]}"]
        return _argparse_problems(inner[words[0]], words[1:])
    return [f"{parser.prog} has no flag {flag}" for flag in _flags(words) if flag not in known]


def _click_problems(command, words):
    context = click.Context(command)
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        return [f"no command {words[0]}"] if inner is None else _click_problems(inner, words[1:])
    known = {flag for option in command.get_params(context) for flag in (*option.opts, *option.secondary_opts)}
    return [f"{command.name} has no flag {flag}" for flag in _flags(words) if flag not in known]


def _make_problems(words):
    targets = set(re.findall(r"^([a-z0-9-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    asked = [word for word in words if not word.startswith("-") and "=" not in word]
    return [f"make has no target {word}" for word in asked if word not in targets]


@cache
def _help(*words):
    program = Path(sys.executable).with_name(words[0])
    path = str(program) if program.exists() else shutil.which(words[0])
    return subprocess.run([path, *words[1:]], capture_output=True, text=True, check=False, timeout=60).stdout


def _kubectl_problems(words):
    command = next(word for index, word in enumerate(words) if word[0] != "-" and words[index - 1 : index] != ["-n"])
    at = words.index(command)
    named = words[at : at + 3] if words[at : at + 2] == ["create", "secret"] else [command]
    known = set(_FLAG.findall(_help("kubectl", *named, "--help") + _help("kubectl", "options")))
    before = words[: words.index("--")] if "--" in words else words
    return [f"kubectl {command} has no flag {flag}" for flag in _flags(before) if flag not in known]


def _helm_problems(words):
    known = set(_FLAG.findall(_help("helm", words[0], "--help")))
    found = [f"helm {words[0]} has no flag {flag}" for flag in _flags(words) if flag not in known]
    settings = [words[index + 1] for index, word in enumerate(words) if word in ("--set", "--set-string")]
    return found + [f"the chart has no value {name}" for name in settings if not _is_value(name.split("=")[0])]


def _is_value(name):
    value = VALUES
    for key in name.split("."):
        if not isinstance(value, dict) or (value and key not in value):
            return False
        value = value.get(key, {})
    return True


def _python_problems(words):
    if words[:1] != ["-m"] or words[1] in ("pytest", "dynamo.indexer"):
        return []
    return [] if importlib.util.find_spec(words[1]) else [f"no module {words[1]}"]
