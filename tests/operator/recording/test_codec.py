"""Any frozen dataclass goes to a message and back by its annotations."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
import pytest

from inflight_operator.recording.codec import CodecError, RoundCodec

Value = TypeVar("Value")


class Color(StrEnum):
    RED = "red"


class Point(NamedTuple):
    x: float
    y: int


@dataclass(frozen=True, slots=True)
class Leaf:
    name: str
    rest: Leaf | None = None


@dataclass(frozen=True, slots=True)
class Everything:
    text: str = "é"
    number: float | int | str = 1.0
    infinite: float = float("inf")
    kind: Literal["a", "b"] = "a"
    color: Color = Color.RED
    raw: bytes = b"\x00\xff"
    at: datetime = datetime(2026, 11, 20, 10, 0, 0, 123456, tzinfo=UTC)
    leaf: Leaf = Leaf("outer", Leaf("inner"))
    neither: Leaf | None = None
    pair: tuple[float, int] = (1.5, 2)
    pairs: tuple[tuple[float, int], ...] = ((1.5, 2), (2.5, 3))
    leaves: tuple[Leaf, ...] = (Leaf("a"),)
    empty: tuple[Leaf, ...] = ()
    point: Point = field(default_factory=lambda: Point(0.5, 1))
    names: frozenset[str] = frozenset({"b", "a"})
    manifest: dict[str, Any] = field(default_factory=lambda: {"spec": {"replicas": 1, "list": [1, "2", None]}})
    by_name: Mapping[str, Leaf] = field(default_factory=lambda: {"z": Leaf("z"), "a": Leaf("a")})
    by_pair: Mapping[tuple[str, str], float] = field(default_factory=lambda: {("a", "b"): 1.0})
    counts: Sequence[float] = field(default_factory=lambda: [1.0, 2.0])


def there_and_back(codec, value):
    return codec.decode(codec.encode(value))


def test_every_kind_of_value_comes_back_equal_and_of_its_type():
    codec, value = RoundCodec(Everything), Everything()
    again = there_and_back(codec, value)
    assert again == value
    assert list(again.by_name) == ["z", "a"]
    assert type(again.color) is Color
    assert type(again.point) is Point
    assert type(again.number) is float
    assert hash(again.leaves)


@dataclass(frozen=True)
class Counts:
    values: Sequence[float]

    def __post_init__(self):
        object.__setattr__(self, "values", array("d", self.values))


def test_a_type_that_packs_its_values_packs_them_again():
    assert there_and_back(RoundCodec(Counts), Counts([1.0, 2.0])).values == array("d", [1.0, 2.0])


def test_the_fields_of_all_types_in_a_round_are_known():
    types = RoundCodec().types
    assert types["inflight_operator.reconcile.plan.Plan"][0] == "replicas"
    assert "inflight_operator.observe.metrics.Sample" in types


class Unknown:
    pass


@dataclass(frozen=True)
class Impossible(Generic[Value]):
    inner: tuple[Value, ...] | None


@pytest.mark.parametrize("of", [Callable[[], int], Unknown, complex, object, array])
def test_a_type_that_cannot_be_recorded_is_named(of):
    with pytest.raises(CodecError, match=r"(Callable|Unknown|complex|object|array) cannot be recorded"):
        RoundCodec(Impossible[of])


def test_a_value_of_an_unknown_type_is_an_error():
    with pytest.raises(CodecError, match="Unknown cannot be recorded"):
        RoundCodec(dict[str, Any]).encode({"a": Unknown()})


@pytest.mark.parametrize("written", [[1], {"number": []}, 7, ["x"] * 20, None])
def test_a_message_of_another_type_is_an_error(written):
    with pytest.raises(CodecError):
        RoundCodec(Everything).decode(msgspec.msgpack.encode(written))


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x81"])
def test_a_message_that_is_no_msgpack_is_an_error(message):
    with pytest.raises(CodecError):
        RoundCodec(Everything).decode(message)


@pytest.mark.parametrize("name", [field.name for field in fields(Everything)])
@pytest.mark.parametrize("wrong", [3.5, "?", [1], [[1, 2]], {"?": []}, None, True])
def test_a_wrong_field_is_an_error_or_a_value_and_nothing_else(name, wrong):
    codec = RoundCodec(Everything)
    written = msgspec.msgpack.decode(codec.encode(Everything()), strict=False)
    with suppress(CodecError):
        codec.decode(msgspec.msgpack.encode({**written, name: wrong}))
