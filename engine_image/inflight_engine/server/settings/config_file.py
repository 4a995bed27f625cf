"""The configuration file of `inflight-engine serve`: its fields are the flags' names, with dashes or underscores."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from inflight_settings.engine import EngineConfig
from inflight_settings.server import ServerSettings
from inflight_settings.setting import Setting, settings_of


def with_file(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """`argv`, with the fields of its `--config` file where it has no flag. Wrong usage exits with status 2."""
    given = parser.parse_args(argv)
    if given.config is None:
        return given
    try:
        arguments = file_arguments(given.config, set(vars(given)))
    except ValueError as error:
        parser.error(str(error))
    return argparse.Namespace(**{**vars(parser.parse_args(arguments)), **vars(given)})


def file_arguments(path: Path, given: set[str]) -> list[str]:
    """The file as command-line arguments.

    Args:
        given: settings that the command line decides. So it does for settings that one of them excludes, and for all
            values of a repeatable flag.

    Raises:
        ValueError: the file cannot be read, has no fields, or an unknown one; the message names it.
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
    settings = settings_of(ServerSettings) | settings_of(EngineConfig)
    names = {each.flag.replace("-", "_"): name for name, each in settings.items()} | {"model": "model"}
    excluded = {settings[name].exclusive for name in given & settings.keys()} - {None}
    arguments = []
    for field, value in content.items():
        name = names.get(str(field).replace("-", "_"))
        if name is None:
            raise ValueError(f"configuration file {path} has an unknown field {field!r}")
        setting = settings.get(name)
        if value is None or name in given or (setting is not None and setting.exclusive in excluded):
            continue
        try:
            arguments += _model(value) if setting is None else _flags(setting, value)
        except ValueError as error:
            raise ValueError(f"configuration file {path}: {field} {error}, not {value!r}") from None
    return arguments


def _model(value: object) -> list[str]:
    if _one(value).startswith("-"):
        raise ValueError("must be one value that does not begin with a dash")
    return [_one(value)]


def _flags(setting: Setting, value: object) -> list[str]:
    """The flag of one field, or several.

    Raises:
        ValueError: the value has the wrong type; the message names the expected one.
    """
    if setting.kind is bool:
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return [f"--{setting.flag}"] if value else []
    if setting.kind is tuple and isinstance(value, list):
        return [f"--{setting.flag}={json.dumps([_one(each) for each in value])}"]
    if setting.metavar == "JSON" and isinstance(value, dict):
        return [f"--{setting.flag}={json.dumps(value)}"]
    values = value if setting.parse is not None and isinstance(value, list) else [value]
    return [f"--{setting.flag}={_one(each)}" for each in values]


def _one(value: object) -> str:
    if isinstance(value, dict | list | bool):
        raise ValueError("must be one value")
    return str(value)
