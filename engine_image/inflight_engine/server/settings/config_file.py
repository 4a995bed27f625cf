"""The configuration file of `inflight-engine serve`: its fields are the flags' names, with dashes or underscores."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from inflight_engine.server.settings.flag_rules import wrong_combination
from inflight_engine.server.settings.scheduling_flags import AppendClass

_EXCLUSIVE = ({"num_kv_blocks", "kv_cache_memory"},)
"""Flags of which one excludes the others: one on the command line also outdoes another in the file."""


def parse_with_file(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """`argv`, with the fields of its `--config` file where it has no flag. Wrong usage exits with status 2."""
    flags = parser.parse_args(argv)
    if flags.config is not None:
        # argparse does not overwrite existing attributes of a namespace: those that are still None were not given.
        given = vars(parser.parse_args(argv, argparse.Namespace(**dict.fromkeys(vars(flags)))))
        names = {name for name, value in given.items() if value is not None}
        try:
            arguments = file_arguments(flags.config, _fields(parser), names)
        except ValueError as error:
            parser.error(str(error))
        flags = parser.parse_args([*arguments, *argv])
    problem = wrong_combination(flags)
    if problem is not None:
        parser.error(problem)
    return flags


def _fields(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Fields permitted in a file, by name."""
    # argparse has no public list of a parser's arguments.
    actions = {_field(action): action for action in parser._actions}
    return {name: action for name, action in actions.items() if name not in ("config", "help")}


def _field(action: argparse.Action) -> str:
    return action.option_strings[-1].lstrip("-").replace("-", "_") if action.option_strings else action.dest


def file_arguments(path: Path, known: Mapping[str, argparse.Action], given: set[str]) -> list[str]:
    """The file as command-line arguments, to be parsed (and checked) before those of the command line.

    Args:
        known: the fields that exist.
        given: where the flags on the command line are stored; they win. For a repeatable flag, values on the command
            line replace those of the file.

    Raises:
        ValueError: not readable, not a mapping, or with an unknown field; the message names it.
    """
    # YAML is a superset of JSON. Imported here: most starts have no file.
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ValueError(f"configuration file {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(
            f"configuration file {path} is neither YAML nor JSON: {' '.join(str(error).split())}"
        ) from None
    if content is None:  # only comments
        return []
    if not isinstance(content, dict):
        raise ValueError(f"configuration file {path} must hold fields, as in `max-num-seqs: 64`")
    arguments = []
    overridden = given.union(*(group for group in _EXCLUSIVE if group & given))
    for field, value in content.items():
        action = known.get(str(field).replace("-", "_"))
        if action is None:
            raise ValueError(f"configuration file {path} has an unknown field {field!r}")
        if value is None or action.dest in overridden:
            continue
        try:
            arguments += _arguments(action, value)
        except ValueError as error:
            raise ValueError(f"configuration file {path}: {field} {error}, not {value!r}") from None
    return arguments


def _arguments(action: argparse.Action, value: object) -> list[str]:
    """One field.

    Raises:
        ValueError: the value has the wrong type; the message names the expected one.
    """
    if not action.option_strings:
        positional = _one(value)
        if positional.startswith("-"):
            raise ValueError("must be one value that does not begin with a dash")
        return [positional]
    flag = action.option_strings[-1]
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return [flag] if value else []
    if isinstance(action, AppendClass) and isinstance(value, list):
        return [f"{flag}={_one(item)}" for item in value]
    return [f"{flag}={_one(value)}"]


def _one(value: object) -> str:
    if isinstance(value, dict | list | bool):
        raise ValueError("must be one value")
    return str(value)
