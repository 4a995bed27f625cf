"""Fields of the resource that are settings of the engine: they take defaults and bounds from the setting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field
from pydantic.alias_generators import to_camel, to_snake

from inflight_base.manifest.units import parse_duration, parse_quantity
from inflight_operator.api.base import SpecModel
from inflight_operator.api.duration import duration
from inflight_settings.setting import Setting, settings_of


def setting_field(owner: type, name: str, description: str, **own: Any) -> Any:
    """A field for a setting.

    Args:
        owner: the dataclass of the setting. name: the setting's name there.
        own: arguments of `Field` that the setting does not have, such as an upper bound where the engine has none.
    """
    setting = settings_of(owner)[name]
    default = setting.default
    if setting.choices and default is not None:
        default = to_camel(default)
    elif setting.unit == "bytes" and default is not None:
        default = str(default)
    stated = {"default": default, "ge": setting.ge, "le": setting.le, "description": description}
    return marked(Field(**{**stated, **own}), setting)


def setting_duration(owner: type, name: str, field: str, description: str, least, most) -> Any:
    ...
