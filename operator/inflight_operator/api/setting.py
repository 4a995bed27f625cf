"""Fields of the resource that are settings of the engine: defaults, bounds and choices are those of the setting."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import Field
from pydantic.alias_generators import to_camel

from inflight_operator.api.base import SpecModel
from inflight_operator.api.duration import duration_field
from inflight_settings.engine import EngineConfig
from inflight_settings.flags import written
from inflight_settings.server import ServerSettings
from inflight_settings.setting import Setting, settings_of

_SETTINGS = settings_of(ServerSettings) | settings_of(EngineConfig)


def setting_field(name: str, description: str, *, owner: type | None = None, **own: Any) -> Any:
    """Declares a field for a setting.

    Args:
        owner: dataclass that declares the setting; None: that of the engine process or of the API process.
        own: arguments of `Field` that the setting lacks, such as an upper bound if the engine has none.
    """
    setting = _setting(name, owner)
    stated = {"default": _default(setting), "ge": setting.ge, "le": setting.le, "description": description}
    return _with(setting, Field(**{**stated, **own}))


def setting_duration(
    name: str, field: str, description: str, bounds: tuple[str, str] | None = None, *, owner: type | None = None
) -> Any:
    """Declares a duration for a setting in seconds; the rest as in `duration_field`."""
    setting = _setting(name, owner)
    return _with(setting, duration_field(field, description, _default(setting), bounds))


@cache
def settings_in(model: type[SpecModel]) -> tuple[tuple[str, Setting], ...]:
    """The fields of a part of the spec that are settings."""
    return tuple(
        (name, each)
        for name, field in model.model_fields.items()
        for each in field.metadata
        if isinstance(each, Setting)
    )


def _setting(name: str, owner: type | None) -> Setting:
    return _SETTINGS[name] if owner is None else settings_of(owner)[name]


def _default(setting: Setting) -> Any:
    """The default as the resource writes it."""
    if setting.default is None or setting.kind is bool:
        return setting.default
    if setting.choices:
        return to_camel(setting.default)
    if setting.unit == "bytes":
        return str(setting.default)
    return f"{written(setting.default)}s" if setting.unit == "seconds" else setting.default


def _with(setting: Setting, field: Any) -> Any:
    field.metadata.append(setting)
    return field
