"""The configuration file of `inflight-engine serve`: its fields are the flags' names, with dashes or underscores."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

_EXCLUSIVE = ({"num_kv_blocks", "kv_cache_memory"},)
"""Flags of which one excludes the others: one on the command line also outdoes another in the file."""


def parse_with_file(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """`argv`, with the fields of its `--config` file where it has no flag. Wrong usage exits with status 2."""
    flags = parser.parse_args(argv)
    if flags.config is None:
        return flags
    # argparse leaves alone what a namespace already has: what is still unset afterwards was not given.
    unset = object()
    given = vars(parser.parse_args(argv, argparse.Namespace(**dict.fromkeys(vars(flags), unset))))
    names = {name for name, value in given.items() if value is not unset and value is not None}
    try:
        arguments = file_arguments(flags.config, set(vars(flags)) - {"config"}, names)
    except ValueError as error:
        parser.error(str(error))
    return parser.parse_args([*arguments, *argv])


def file_arguments(path: Path, known: set[str], given: set[str]) -> list[str]:
    """The file as command-line arguments, to be parsed (and checked) before those of the command line.

    Args:
        known: the fields that exist.
        given: names of the flags on the command line; they win.

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
    if not isinstance(content, dict):
        raise ValueError(f"configuration file {path} must hold fields, as in `max-num-seqs: 64`")
    arguments = []
    overridden = given.union(*(group for group in _EXCLUSIVE if group & given))
    for field, value in content.items():
        name = str(field).replace("-", "_")
        if name not in known:
            raise ValueError(f"configuration file {path} has an unknown field {field!r}")
        if value is None or name in overridden:
            continue
        if isinstance(value, dict | list | bool):
            raise ValueError(f"configuration file {path}: {field} must be one value, not {value!r}")
        arguments.append(str(value) if name == "model" else f"--{name.replace('_', '-')}={value}")
    return arguments
