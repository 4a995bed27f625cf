"""The content of a recording: a header, and rounds as msgpack.

The header is `{"recording": "inflight-operator decisions", "version": ..., "started": ..., "types": ...}`. `version` is
the operator's; `types` has the names of the fields of each dataclass and named tuple in the file.

The message of a round is the list `[snapshot, memory, plan]`. A dataclass is a map of its fields, a pydantic model a
map of the fields that were set.
"""

from __future__ import annotations

from array import array
from importlib.metadata import version
from typing import Any

import msgspec
from msgspec import inspect
from pydantic import BaseModel

from inflight_operator.observe.history import Packed
from inflight_operator.reconcile.memory import Memory
from inflight_operator.reconcile.plan import Plan
from inflight_operator.reconcile.snapshot import Snapshot

KIND = "inflight-operator decisions"
VERSION = version("inflight")

Inputs = tuple[Snapshot, Memory, Plan]
"""Inputs and output of `decide`."""


class CodecError(ValueError):
    """A type that cannot be recorded, or a message that is not of the type."""


class RoundCodec:
    """Encodes and decodes rounds by their type annotations: a field added to a dataclass is recorded without a change
    here.

    Attributes:
        types: names of the fields of each dataclass and named tuple, by its full name.
        optional: those of a dataclass that a recording may lack: an earlier build did not have them.

    Raises:
        CodecError: a part of the type cannot be recorded; the message names it.
    """

    def __init__(self, of: Any = Inputs) -> None:
        self.types: dict[str, list[str]] = {}
        self.optional: dict[str, set[str]] = {}
        try:
            self._check(inspect.type_info(of))
        except TypeError as error:
            raise CodecError(f"{of} cannot be recorded: {error}") from error
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
        self._decoder = msgspec.msgpack.Decoder(of, dec_hook=_made)

    def encode(self, value: Any) -> bytes:
        return self._encoder.encode(value)

    def decode(self, message: bytes) -> Any:
        """
        Raises:
            CodecError: it is not of this type.
        """
        try:
            return self._decoder.decode(message)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CodecError(str(error)) from error

    def _check(self, one: inspect.Type) -> None:
        """Adds the fields of a type and of all types in it to `types`."""
        if isinstance(one, inspect.CustomType) and not issubclass(one.cls, BaseModel | Packed):
            raise CodecError(f"{one.cls.__module__}.{one.cls.__qualname__} cannot be recorded")
        if isinstance(one, inspect.DataclassType | inspect.NamedTupleType):
            name = f"{one.cls.__module__}.{one.cls.__qualname__}"
            if name not in self.types:
                self.types[name] = [field.name for field in one.fields]
                if isinstance(one, inspect.DataclassType):
                    self.optional[name] = {field.name for field in one.fields if not field.required}
                for field in one.fields:
                    self._check(field.type)
            return
        for part in msgspec.structs.astuple(one):
            for inner in part if isinstance(part, tuple) else (part,):
                if isinstance(inner, inspect.Type):
                    self._check(inner)


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, Packed):
        # The file's own compression finds the snapshots of the round before, if these are not compressed.
        return value.rows
    raise CodecError(f"{type(value).__name__} cannot be recorded")


def _made(of: Any, written: Any) -> object:
    return Packed(written) if of is Packed else of.model_validate(written)
