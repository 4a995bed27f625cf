"""Command-line flags of settings.

A flag that is not given leaves no attribute in the namespace: then a file decides, or the default of the dataclass.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from inflight_settings.flag_types import above_zero, number, size
from inflight_settings.setting import Setting, settings_of

_METAVARS: dict[object, str] = {"seconds": "SECONDS", "bytes": "SIZE", int: "N", Path: "FILE"}


class AppendNamed(argparse.Action):
    """Each use adds a value; their names are distinct."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        earlier = getattr(namespace, self.dest, ())
        if any(each.name == values.name for each in earlier):
            raise argparse.ArgumentError(self, f"there are two classes named {values.name}")
        setattr(namespace, self.dest, (*earlier, values))


class Several(argparse.Action):
    """Takes one or more texts, or a JSON list of them, as vLLM does."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        given = values
        if len(values) == 1 and values[0].startswith("["):
            try:
                given = json.loads(values[0])
            except ValueError:
                given = None
            if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
                raise argparse.ArgumentError(self, f"{values[0]} is not a JSON list of texts")
        setattr(namespace, self.dest, tuple(given))


def add_flags(parser: argparse.ArgumentParser, owner: type) -> None:
    """The flags of a dataclass."""
    groups: dict[str | None, argparse._ActionsContainer] = {None: parser}
    for name, setting in settings_of(owner).items():
        if setting.exclusive not in groups:
            groups[setting.exclusive] = parser.add_mutually_exclusive_group()
        add_flag(groups[setting.exclusive], name, setting)


def add_flag(parser: argparse._ActionsContainer, name: str, setting: Setting) -> None:
    """The flag of one setting; `name`: attribute of the namespace."""
    default = "" if setting.default in (None, "", ()) or setting.parse else f" (default: {written(setting.default)})"
    how: dict[str, Any] = {
        "help": setting.help + default,
        "type": parser_of(setting),
        "choices": setting.choices or None,
        "metavar": setting.metavar or _METAVARS.get(setting.unit or setting.kind),
        "action": AppendNamed if setting.parse else "store",
    }
    if setting.kind is tuple:
        how |= {"type": str, "nargs": "+", "action": Several}
    if setting.kind is bool:
        how = {"help": setting.help, "action": "store_false" if setting.default else "store_true"}
    parser.add_argument(f"--{setting.flag}", dest=name, default=argparse.SUPPRESS, **how)


def parser_of(setting: Setting) -> Callable[[str], Any]:
    """Parser of a value that raises `argparse.ArgumentTypeError`."""
    least, most = -math.inf if setting.ge is None else setting.ge, math.inf if setting.le is None else setting.le
    if setting.parse is not None:
        return setting.parse
    if setting.unit == "bytes":
        return partial(size, least=int(least))
    if setting.gt is not None:
        return above_zero(most)
    return number(setting.kind, least, most) if setting.kind in (int, float) else setting.kind


def written(value: Any) -> str:
    """A default as it may be given."""
    if isinstance(value, tuple):
        return " ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def chosen(owner: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass among `given`."""
    return {each.name: given[each.name] for each in fields(owner) if each.name in given}
