"""Stands in for msgspec on a machine without it, so that an engine runs in one process: structs as data classes. It
encodes nothing."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, dataclass_transform


@dataclass_transform()
class Struct:
    """Makes a data class of each subclass."""

    def __init_subclass__(cls, *, frozen: bool = False, eq: bool = True, **_options: Any) -> None:
        for name, default in list(vars(cls).items()):
            if name in cls.__annotations__ and isinstance(default, dict | list):
                setattr(cls, name, dataclasses.field(default_factory=default.copy))
        dataclasses.dataclass(frozen=frozen, eq=eq)(cls)


class DecodeError(Exception): ...


class _Unavailable:
    """Can be made and subscribed, as modules do when they are imported."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None: ...

    def __class_getitem__(cls, _item: Any) -> type[_Unavailable]:
        return cls


Meta = _Unavailable
json = msgpack = SimpleNamespace(Encoder=_Unavailable, Decoder=_Unavailable, encode=None, decode=None)
structs = SimpleNamespace(replace=dataclasses.replace)
