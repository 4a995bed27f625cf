"""A setting: a field of a dataclass that states its default, help and bounds.

Flags, the configuration file, fields of the InferenceService and the reference pages are made from these fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Setting:
    """Statements of a field; the last four attributes follow from its declaration.

    Attributes:
        help: text for `--help`, without a default that can be printed. For a switch: what its flag does.
        ge, le, gt: bounds of a number; `gt` is 0.
        unit: unit of a number. Bytes may be written as quantities, such as 2Gi.
        metavar: placeholder of the value in `--help`, where the type implies none.
        exclusive: at most one of the settings with the same word may be given.
        parse: parser of a value with its own syntax. The flag is repeatable; its values have distinct names.
        flag: name of the flag without dashes: the field's name, with `no-` for a switch that is on by default.
        default: None or an empty string where another setting or the model decides, which `help` describes.
        kind: type of the value; `bool` for a switch, `tuple` for one or more texts.
        choices: names of the field's `Literal`; empty for other types.
    """

    help: str
    ge: float | None = None
    le: float | None = None
    gt: float | None = None
    unit: Literal["seconds", "bytes"] | None = None
    metavar: str | None = None
    exclusive: str | None = None
    parse: Callable[[str], Any] | None = None
    flag: str = ""
    default: Any = None
    kind: type = str
    choices: tuple[str, ...] = ()


def setting(default: Any, help: str, **stated: Any) -> Any:
    """A field of a dataclass; `stated`: as in `Setting`."""
    return field(default=default, metadata={"setting": Setting(help, **stated)})


@cache
def settings_of(owner: type) -> dict[str, Setting]:
    """Settings of a dataclass by field: its own ones, then inherited ones."""
    types = get_type_hints(owner)
    declared = sorted(fields(owner), key=lambda each: each.name not in owner.__annotations__)
    return {
        each.name: _resolved(each.metadata["setting"], each.name, types[each.name], each.default)
        for each in declared
        if "setting" in each.metadata
    }


def _resolved(stated: Setting, name: str, hint: Any, default: Any) -> Setting:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    (kind,) = (option for option in options if option is not NoneType)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    flag = stated.flag or ("no-" if default is True else "") + name.replace("_", "-")
    several = get_origin(kind) is tuple and stated.parse is None
    kind = str if choices else tuple if several else kind
    return replace(stated, flag=flag, default=default, kind=kind, choices=choices)
