"""Rules for arguments that are not one JSON object: their values follow the schemas of their parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from inflight_engine.formats.format import Tagged
from inflight_engine.formats.kinds import LIST_REFUSED, OBJECT_REFUSED, Schema, Values, required_of
from inflight_engine.formats.rules import GrammarText
from inflight_engine.formats.strings import count_of, plain_string
from inflight_engine.formats.values import GEMMA_QUOTE, MAX_DEPTH, json_types

_NO_STRING = r"/(?s:\s*([-0-9\[{].*|(true|false|null|True|False|None)\s*))/"
"""Text that is read as JSON where a parameter takes more than strings."""


def tagged_arguments(text: GrammarText, part: Tagged, schema: Schema, name: str, *, strict: bool) -> str:
    """Arguments between tags: strings as they are, other values as JSON.

    Args:
        schema: of all parameters.
        name: of the function.
        strict: what cannot be enforced is refused; otherwise it is left out.

    Raises:
        UnenforceableError: it is refused.
        ValueError: the grammar is too long.
    """
    values = Values(text, schema, name, strict=strict)
    known: dict[int, tuple[str, str]] = {}
    written = []
    for key, each, required in values.parameters():
        target = values.target(each)
        found = known.get(target) or _tagged_value(values, part, each, f".properties.{key}")
        if target:
            known[target] = found
        choices = []
        for value, is_string in zip(found, ("true", "false"), strict=True):
            if value:
                opening = part.value_open.replace("{string}", is_string)
                choices.append(
                    f"{text.literal(part.key_open + key + part.key_close + opening + part.before_value)} {value}"
                )
        argument = text.rule(f"({' | '.join(choices)}) {text.literal(part.after)}")
        written.append(argument if required else f"{argument}?")
    return " ".join(written)


def _tagged_value(values: Values, part: Tagged, schema: Schema, place: str) -> tuple[str, str]:
    """Rules for a string and for another value, with what follows them; empty: it is none."""
    text, end = values.text, part.after_value + part.value_close
    types = json_types(schema, text.types)
    if types and "string" not in types:
        return "", text.rule(f"{text.json(schema, strict=values.strict)} {text.literal(end)}")
    strings, others = [], []
    kinds = values.alternatives(schema, place)
    if not types:  # read as a string
        kinds = [(kind, each) if kind == "string" else ("", {}) for kind, each in kinds]
    mixed = any(kind not in ("", "string") for kind, _ in kinds)
    also = f" & ~{_NO_STRING}" if mixed and "{string}" not in part.value_open else ""
    for kind, each in kinds:
        if kind not in ("", "string"):
            others.append({"type": kind, **each})
        elif "enum" in each:
            strings += [f"{text.literal(value)} {text.literal(end)}" for value in each["enum"]]
        else:
            strings.append(plain_string(values, each, end, part.value_close, place, also))
    json_rule = ""
    if others:
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        made = text.json(
            {**definitions, **(others[0] if len(others) == 1 else {"anyOf": others})}, strict=values.strict
        )
        json_rule = text.rule(f"{made} {text.literal(end)}")
    return text.rule(" | ".join(strings)) if strings else "", json_rule


@dataclass(frozen=True, slots=True)
class Notation:
    """How a family of models writes arguments that are not JSON.

    Attributes:
        words: of true, false and null, in this order.
        equals: between the name of an argument and its value.
        comma: between arguments and items.
        colon: between a key and its value.
        quote: writes a string.
        key: writes a key.
        string: a rule for a string of a schema at a place.
        any_key: an expression for any key.
    """

    words: tuple[str, str, str]
    equals: str
    comma: str
    colon: str
    quote: Callable[[str], str]
    key: Callable[[str], str]
    string: Callable[[Values, Schema, str], str]
    any_key: str


def _json_string(values: Values, part: Schema, _place: str) -> str:
    return values.text.json({"type": "string", **part}, strict=values.strict)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _gemma_string(values: Values, part: Schema, place: str) -> str:
    text = values.text
    return text.rule(f"{text.literal(GEMMA_QUOTE)} {plain_string(values, part, GEMMA_QUOTE, GEMMA_QUOTE, place)}")


def _gemma_quoted(text: str) -> str:
    return GEMMA_QUOTE + text + GEMMA_QUOTE


def _gemma_key(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else _gemma_quoted(text)


PYTHON = Notation(("True", "False", "None"), "=", ", ", ": ", _quoted, _quoted, _json_string, "STRING")
GEMMA = Notation(("true", "false", "null"), ":", ",", ":", _gemma_quoted, _gemma_key, _gemma_string, r"/\w+/")


class _Written:
    """Rules for values in a notation."""

    def __init__(self, values: Values, notation: Notation) -> None:
        self._values = values
        self._notation = notation
        self._text = values.text
        self._names: dict[int, str] = {}
        self._depth = 0

    def arguments(self) -> str:
        """All arguments of the function."""
        notation = self._notation
        key = notation.key if notation.equals == notation.colon else str
        return self._members(self._values.parameters(), key, notation.equals, "")

    def _members(
        self, members: Iterable[tuple[str, Schema, bool]], key: Callable[[str], str], equals: str, place: str
    ) -> str:
        """Members with separators between them, required ones first."""
        ordered = sorted(members, key=lambda each: not each[2])
        made = [
            (
                self._text.rule(
                    f"{self._text.literal(key(name) + equals)} {self._value(each, f'{place}.properties.{name}')}"
                ),
                must,
            )
            for name, each, must in ordered
        ]
        separator = self._text.literal(self._notation.comma)
        # From the last on: the list from each member on, after an earlier one and as the first.
        first = later = ""
        for member, must in reversed(made):
            alone = f"{member} {later}".strip()
            if must:
                first, later = alone, f"{separator} {alone}"
            else:
                first = self._text.rule(f"{alone} | {first}") if first else f"({alone})?"
                later = self._text.rule(f"({separator} {member})? {later}")
        return first

    def _value(self, schema: Schema, place: str) -> str:
        if self._depth >= MAX_DEPTH:
            self._values.refuse(place, f"a depth of more than {MAX_DEPTH}")
            return self._any("any")
        self._depth += 1
        written = self._rule_of(schema, place)
        self._depth -= 1
        return written

    def _rule_of(self, schema: Schema, place: str) -> str:
        target = self._values.target(schema)
        if not target:
            return self._text.rule(
                " | ".join(self._kind(*each, place) for each in self._values.alternatives(schema, place))
            )
        if target not in self._names:
            # Named before it is written: it may refer to itself.
            name = self._names[target] = f"d{next(self._text.numbers)}"
            self._text.add(
                name, " | ".join(self._kind(*each, place) for each in self._values.alternatives(schema, place))
            )
        return self._names[target]

    def _kind(self, kind: str, part: Schema, place: str) -> str:
        text = self._text
        if "enum" in part:
            return " | ".join(text.literal(self._literal(value)) for value in part["enum"])
        match kind:
            case "string":
                return self._notation.string(self._values, part, place)
            case "integer" | "number":
                return text.json({"type": kind, **part}, strict=self._values.strict)
            case "boolean":
                return f"{text.literal(self._notation.words[0])} | {text.literal(self._notation.words[1])}"
            case "null":
                return text.literal(self._notation.words[2])
            case "array":
                return self._list(part, place)
            case "object":
                return self._object(part, place)
            case _:
                return self._any("any")

    def _list(self, part: Schema, place: str) -> str:
        self._values.refuse_any(part, LIST_REFUSED, place)
        items, least, most = part.get("items"), count_of(part, "minItems") or 0, count_of(part, "maxItems")
        if items is False or most == 0:
            return '"[" "]"'
        if isinstance(items, list):
            self._values.refuse(place, "items")  # of draft 7, one for each place
        item = self._value(items, f"{place}.items") if isinstance(items, dict) else self._any("any")
        times = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        more = f"({self._text.literal(self._notation.comma)} {item}){times}"
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'

    def _object(self, part: Schema, place: str) -> str:
        self._values.refuse_any(part, OBJECT_REFUSED, place)
        named, others = part.get("properties"), part.get("additionalProperties")
        notation, required = self._notation, required_of(part)
        if isinstance(named, dict):
            for each in required - named.keys():
                self._values.refuse(place, f"required: {each!r}")
            members = [(key, each if isinstance(each, dict) else {}, key in required) for key, each in named.items()]
            return f'"{{" {self._members(members, notation.key, notation.colon, place)} "}}"'
        if required:
            self._values.refuse(place, "required")
        if others is False:
            return '"{" "}"'
        if not isinstance(others, dict):
            return self._any("any_object")
        value = self._value(others, f"{place}.additionalProperties")
        return self._object_of(value)

    def _object_of(self, value: str) -> str:
        key, comma = (
            f"{self._notation.any_key} {self._text.literal(self._notation.colon)}",
            self._text.literal(self._notation.comma),
        )
        return f'"{{" ({key} {value} ({comma} {key} {value})*)? "}}"'

    def _any(self, name: str) -> str:
        """A rule for any value, or any object."""
        if not self._text.has("any"):
            comma = self._text.literal(self._notation.comma)
            words = " | ".join(self._text.literal(each) for each in self._notation.words)
            string = self._notation.string(self._values, {}, "")
            self._text.add("any_object", self._object_of("any"))
            self._text.add("any", f'{string} | NUMBER | {words} | any_object | "[" (any ({comma} any)*)? "]"')
        return name

    def _literal(self, value: Any) -> str:
        """A value as it is written."""
        notation = self._notation
        match value:
            case bool() | None:
                return notation.words[(True, False, None).index(value)]
            case str():
                return notation.quote(value)
            case list():
                return f"[{notation.comma.join(map(self._literal, value))}]"
            case dict():
                members = (notation.key(key) + notation.colon + self._literal(each) for key, each in value.items())
                return f"{{{notation.comma.join(members)}}}"
            case _:
                return json.dumps(value)


def written_arguments(text: GrammarText, notation: Notation, schema: Schema, name: str, *, strict: bool) -> str:
    """Arguments in a notation of their own. Other arguments, and errors, as of `tagged_arguments`."""
    return _Written(Values(text, schema, name, strict=strict), notation).arguments()
