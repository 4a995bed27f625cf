"""JSON encoding and decoding of the decisions' values, driven by type annotations: a field added to a dataclass is
recorded without a change here.

Consecutive rounds share many inputs: immutable values are the same objects, and an object that was written before is
written as its number. Values that get a number are dataclasses, pydantic models, manifests, bytes and tuples of any
length (but empty ones), in the order in which they end; none of them is a number in JSON, so a number in the place of
one is a reference.

| type | JSON |
|---|---|
| dataclass, named tuple | list of its fields, in their order |
| pydantic model | object of the fields that were set |
| `dict[str, Any]`, `Any` | as it is |
| tuple, frozenset, sequence | list; a frozenset sorted |
| mapping | object; list of pairs where keys are no strings |
| bytes | string, hexadecimal: equal parts of two values have equal text, independent of the bytes before |
| datetime | string, ISO 8601 |
| enum | its value |
| one of several types, not all of them numbers and strings | list of the position of the type and its value |

Numbers are Python's dialect of JSON: `Infinity`, `-Infinity` and `NaN` are numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime
from enum import Enum
from functools import partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

Value = TypeVar("Value")
_SCALARS = (bool, int, float, str, NoneType)


class CodecError(ValueError):
    """A type that cannot be recorded, or JSON that is not of the type."""


@dataclasses.dataclass(slots=True, eq=False)
class _Entry:
    """A value that was written.

    Attributes:
        value: held, so that no other object can have its id.
        parts: the values with numbers in it.
    """

    number: int
    value: object
    parts: list[_Entry]


class Written:
    """Values that were written to one stream and may be referred to, by identity."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._count = 0
        self._parts: list[_Entry] = []

    def shared(self, value: object, write: Callable[[Any, Written], object]) -> object:
        """The number of `value`, or what `write` makes of it the first time."""
        entry = self._entries.get(id(value))
        if entry is not None:
            self._parts.append(entry)
            return entry.number
        around, self._parts = self._parts, []
        written = write(value, self)
        entry = self._entries[id(value)] = _Entry(self._count, value, self._parts)
        self._count += 1
        self._parts = around
        around.append(entry)
        return written

    def begin(self) -> None:
        """Starts the usage tracking for `forget`."""
        self._parts = []

    def forget(self) -> None:
        """Lets go of all values that were not written since `begin`, as such or in others."""
        kept: dict[int, _Entry] = {}
        rest = self._parts
        while rest:
            entry = rest.pop()
            if id(entry.value) not in kept:
                kept[id(entry.value)] = entry
                rest.extend(entry.parts)
        self._entries = kept


class Read:
    """Values that were read from one stream, by number."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def shared(self, written: Any, read: Callable[[Any, Read], Any]) -> Any:
        if type(written) is int:
            try:
                return self._values[written]
            except IndexError:
                raise CodecError(f"value {written} is referred to before it was written") from None
        value = read(written, self)
        self._values.append(value)
        return value


@dataclasses.dataclass(slots=True)
class _Form:
    """How values of one type are written and read; None: JSON has them as they are."""

    write: Callable[[Any, Written], Any] | None = None
    read: Callable[[Any, Read], Any] | None = None


class Codec(Generic[Value]):
    """JSON of one type and of all types that it is made of.

    Attributes:
        fields: names of the fields of each dataclass and named tuple, by its full name: what a reader must agree on.

    Raises:
        CodecError: a part of the type cannot be recorded; the message names it.
    """

    def __init__(self, of: type[Value]) -> None:
        self.fields: dict[str, list[str]] = {}
        self._forms: dict[Any, _Form] = {}
        self._form = self._form_of(of)

    def write(self, value: Value, known: Written) -> object:
        """The value in a form for `json.dumps`."""
        return _writer(self._form)(value, known)

    def read(self, written: object, known: Read) -> Value:
        """
        Raises:
            CodecError: it is not of this type.
        """
        try:
            value: Value = _reader(self._form)(written, known)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise CodecError(str(error)) from error
        return value

    def _form_of(self, of: Any) -> _Form:
        form = self._forms.get(of)
        if form is None:
            form = self._forms[of] = _Form()  # now already: a type may contain itself
            made = self._make(of)
            form.write, form.read = made.write, made.read
        return form

    def _make(self, of: Any) -> _Form:
        origin, arguments = get_origin(of), get_args(of)
        if of in _SCALARS or of in (Any, object) or origin is Literal:
            return _Form()
        if origin in (Union, UnionType):
            return self._union(arguments)
        if (origin, arguments) == (dict, (str, Any)):
            return _shared(_Form())
        if origin is tuple and arguments[-1] is not Ellipsis:
            return self._fixed(tuple, arguments)
        if origin is not None and issubclass(origin, Mapping):
            return self._mapping(*arguments)
        if origin is not None and issubclass(origin, Set):
            return self._many(arguments[0], frozenset, sorted)
        if origin is tuple:
            return _shared_unless_empty(self._many(arguments[0], tuple, list))
        if origin is not None and issubclass(origin, Sequence):
            return self._many(arguments[0], list if origin is list else tuple, list)
        if not isinstance(of, type):
            raise CodecError(f"{of} cannot be recorded")
        if dataclasses.is_dataclass(of):
            return _shared(self._dataclass(of))
        if issubclass(of, BaseModel):
            return _shared(_model(of))
        if issubclass(of, Enum):
            return _Form(lambda value, known: value.value, lambda written, known: of(written))
        if issubclass(of, tuple) and hasattr(of, "_fields"):
            hints, names = get_type_hints(of), list(of._fields)
            self.fields[f"{of.__module__}.{of.__qualname__}"] = names
            return self._fixed(lambda values: of(*values), tuple(hints[name] for name in names))
        if of is bytes:
            return _shared(_Form(lambda value, known: value.hex(), lambda written, known: bytes.fromhex(written)))
        if of is datetime:
            return _Form(lambda value, known: value.isoformat(), lambda written, known: datetime.fromisoformat(written))
        raise CodecError(f"{of.__module__}.{of.__qualname__} cannot be recorded")

    def _dataclass(self, of: type) -> _Form:
        hints = get_type_hints(of)
        names = [field.name for field in dataclasses.fields(of) if field.init]
        self.fields[f"{of.__module__}.{of.__qualname__}"] = names
        forms = [self._form_of(hints[name]) for name in names]
        values_of = attrgetter(*names) if len(names) > 1 else partial(_values, names)
        # Decided at the first value: the form of a type that contains itself is filled after this.
        writers: list[tuple[int, Callable[[Any, Written], Any]]] | None = None
        readers: list[tuple[int, Callable[[Any, Read], Any]]] | None = None

        def write(value: Any, known: Written) -> Any:
            nonlocal writers
            if writers is None:
                writers = [(index, form.write) for index, form in enumerate(forms) if form.write is not None]
            values = list(values_of(value))
            for index, one in writers:
                values[index] = one(values[index], known)
            return values

        def read(written: Any, known: Read) -> Any:
            nonlocal readers
            if readers is None:
                readers = [(index, form.read) for index, form in enumerate(forms) if form.read is not None]
            if type(written) is not list or len(written) != len(names):
                raise CodecError(f"this is no {of.__name__}: {str(written)[:80]}")
            values = list(written)
            for index, one in readers:
                values[index] = one(values[index], known)
            return of(**dict(zip(names, values, strict=True)))

        return _Form(write, read)

    def _union(self, arguments: tuple[Any, ...]) -> _Form:
        forms = [(one, self._form_of(one)) for one in arguments if one is not NoneType]
        forms.sort(
            key=lambda pair: pair[0] in _SCALARS or get_origin(pair[0]) is Literal
        )  # those take whatever is left
        if all(one in _SCALARS or get_origin(one) is Literal for one, _ in forms):
            return _Form()
        if len(forms) == 1:
            form = forms[0][1]

            def write_one(value: Any, known: Written) -> Any:
                return None if value is None else _writer(form)(value, known)

            def read_one(written: Any, known: Read) -> Any:
                return None if written is None else _reader(form)(written, known)

            return _Form(write_one, read_one)

        def write(value: Any, known: Written) -> Any:
            if value is None:
                return None
            for position, (of, form) in enumerate(forms):
                if form.write is None or isinstance(value, get_origin(of) or of):
                    return [position, _writer(form)(value, known)]
            raise CodecError(f"{type(value).__name__} is none of {arguments}")

        def read(written: Any, known: Read) -> Any:
            if written is None:
                return None
            position, value = written
            return _reader(forms[position][1])(value, known)

        return _Form(write, read)

    def _fixed(self, make: Callable[[Any], Any], arguments: tuple[Any, ...]) -> _Form:
        forms = [self._form_of(one) for one in arguments]

        def write(value: Any, known: Written) -> Any:
            return [_writer(form)(one, known) for form, one in zip(forms, value, strict=True)]

        def read(written: Any, known: Read) -> Any:
            return make(_reader(form)(one, known) for form, one in zip(forms, written, strict=True))

        plain = all(
            form.write is None and not dataclasses.is_dataclass(one) for form, one in zip(forms, arguments, strict=True)
        )
        return _Form(None if plain else write, read)

    def _many(self, item: Any, make: Callable[[Any], Any], order: Callable[[Any], list[Any]]) -> _Form:
        form = self._form_of(item)

        def write(value: Any, known: Written) -> Any:
            values = order(value)
            return values if form.write is None else [form.write(one, known) for one in values]

        def read(written: Any, known: Read) -> Any:
            return make(written if form.read is None else (form.read(one, known) for one in written))

        return _Form(write, read)

    def _mapping(self, key: Any, item: Any) -> _Form:
        keys, items = self._form_of(key), self._form_of(item)

        def write(value: Any, known: Written) -> Any:
            if key is not str:
                return [[_writer(keys)(name, known), _writer(items)(one, known)] for name, one in value.items()]
            return (
                dict(value) if items.write is None else {name: items.write(one, known) for name, one in value.items()}
            )

        def read(written: Any, known: Read) -> Any:
            if key is not str:
                return {_reader(keys)(name, known): _reader(items)(one, known) for name, one in written}
            return written if items.read is None else {name: items.read(one, known) for name, one in written.items()}

        return _Form(write, read)


def _values(names: list[str], value: object) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in names)


def _writer(form: _Form) -> Callable[[Any, Written], Any]:
    return form.write or _as_it_is


def _reader(form: _Form) -> Callable[[Any, Read], Any]:
    return form.read or _as_it_is


def _as_it_is(value: Any, known: object) -> Any:
    return value


def _shared(form: _Form) -> _Form:
    write, read = _writer(form), _reader(form)
    return _Form(lambda value, known: known.shared(value, write), lambda written, known: known.shared(written, read))


def _shared_unless_empty(form: _Form) -> _Form:
    write, read = _writer(form), _reader(form)
    return _Form(
        lambda value, known: known.shared(value, write) if value else [],
        lambda written, known: known.shared(written, read) if written != [] else (),
    )


def _model(of: type[BaseModel]) -> _Form:
    return _Form(
        lambda value, known: value.model_dump(mode="json", by_alias=True, exclude_unset=True),
        lambda written, known: of.model_validate(written),
    )
