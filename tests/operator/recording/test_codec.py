"""Any frozen dataclass goes to JSON and back by its annotations, and an object is written once."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import pytest

from inflight_operator.reconcile.memory import Memory
from inflight_operator.reconcile.plan import Plan
from inflight_operator.reconcile.snapshot import Snapshot
from inflight_operator.recording.codec import Codec, CodecError, Read, Written


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
class Other:
    number: int


@dataclass(frozen=True, slots=True)
class Everything:
    text: str = "é\ud800"
    number: float | int | str = 1.0
    infinite: float = float("inf")
    kind: Literal["a", "b"] = "a"
    color: Color = Color.RED
    raw: bytes = b"\x00\xff"
    at: datetime = datetime(2026, 11, 20, 10, 0, 0, 123456, tzinfo=UTC)
    leaf: Leaf = Leaf("outer", Leaf("inner"))
    either: Leaf | Other | None = Other(3)
    neither: Leaf | Other | None = None
    pair: tuple[float, int] = (1.5, 2)
    pairs: tuple[tuple[float, int], ...] = ((1.5, 2), (2.5, 3))
    leaves: tuple[Leaf, ...] = (Leaf("a"),)
    empty: tuple[Leaf, ...] = ()
    point: Point = field(default_factory=lambda: Point(0.5, 1))
    names: frozenset[str] = frozenset({"b", "a"})
    manifest: dict[str, Any] = field(default_factory=lambda: {"spec": {"replicas": 1, "list": [1, "2", None]}})
    by_name: Mapping[str, Leaf] = field(default_factory=lambda: {"z": Leaf("z"), "a": Leaf("a")})
    by_pair: Mapping[tuple[str, str], float] = field(default_factory=lambda: {("a", "b"): 1.0})
    counts: Sequence[float] = (1.0, 2.0)


def there_and_back(codec, value):
    return codec.read(json.loads(json.dumps(codec.write(value, Written()))), Read())


def test_every_kind_of_value_comes_back_equal_and_of_its_type():
    codec, value = Codec(Everything), Everything()
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
    assert there_and_back(Codec(Counts), Counts([1.0, 2.0])).values == array("d", [1.0, 2.0])


@dataclass(frozen=True, slots=True)
class Several:
    items: tuple[Leaf, ...]
    blob: bytes
    manifest: dict[str, Any]


def test_an_object_is_written_once_and_read_as_one():
    codec, known, read = Codec(Several), Written(), Read()
    leaf, blob, manifest = Leaf("long " * 20), b"x" * 100, {"kind": "Deployment"}
    first = codec.read(codec.write(Several((leaf, leaf), blob, manifest), known), read)
    assert first.items[0] is first.items[1]
    text = json.dumps(codec.write(Several((leaf,), blob, manifest), known))
    assert len(text) < 20
    second = codec.read(json.loads(text), read)
    assert second.items[0] is first.items[0]
    assert second.manifest is first.manifest


def test_what_is_out_of_use_is_let_go_of_and_what_is_part_of_something_in_use_is_not():
    codec, known, read = Codec(Several), Written(), Read()
    old, kept = Leaf("old"), Leaf("kept", Leaf("part of it"))

    def write(*leaves):
        known.begin()
        text = json.dumps(codec.write(Several(leaves, b"", {}), known))
        return codec.read(json.loads(text), read), text

    write(old, kept)
    write(kept)
    known.forget()
    again, text = write(kept.rest, old)
    assert again.items == (kept.rest, old)
    assert "part of it" not in text
    assert "old" in text


def test_all_that_decisions_take_and_give_can_be_written():
    for of in (Snapshot, Memory, Plan):
        Codec(of)


@dataclass(frozen=True)
class Impossible:
    call: Callable[[], int]


def test_a_type_that_cannot_be_recorded_is_named():
    with pytest.raises(CodecError, match=r"Callable.* cannot be recorded"):
        Codec(Impossible)


@pytest.mark.parametrize("written", [[1], {"a": 1}, 7, ["x"] * 30, ["x"] * 20, None])
def test_json_of_another_type_is_an_error(written):
    with pytest.raises(CodecError):
        Codec(Everything).read(written, Read())


@pytest.mark.parametrize("name", [field.name for field in fields(Everything)])
@pytest.mark.parametrize("wrong", [3.5, "?", [1], [[1, 2]], {"?": []}, None, True])
def test_a_wrong_field_is_an_error_or_a_value_and_nothing_else(name, wrong):
    codec = Codec(Everything)
    written = codec.write(Everything(), Written())
    written[[field.name for field in fields(Everything)].index(name)] = wrong
    with suppress(CodecError):
        codec.read(written, Read())
