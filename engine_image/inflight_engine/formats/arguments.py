"""Rules for arguments that are not one JSON object: their values follow the schemas of their parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inflight_engine.formats.format import Tagged
from inflight_engine.formats.rules import GrammarText
from inflight_engine.formats.schemas import referred
from inflight_engine.formats.values import GEMMA_QUOTE, MAX_DEPTH, json_types, parameters_of, type_of

Schema = Mapping[str, Any]

_DATE = r"[0-9]{4}-(?:(?:0[13578]|1[02])-31|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8]))"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"(?:{_DATE})T{_TIME}",
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
}
"""Formats of strings (RFC 3339, 4122 and 2673, years of 29 February aside), as regular expressions."""

_EVERY = frozenset(("not", "if", "then", "else", "dependentSchemas", "$dynamicRef", "allOf"))
_STRING = frozenset(("pattern", "minLength", "maxLength", "format"))
_NUMBER = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_LIST_REFUSED = frozenset(
    ("uniqueItems", "contains", "minContains", "maxContains", "prefixItems", "additionalItems", "unevaluatedItems")
)
_OBJECT_REFUSED = frozenset(
    ("patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired", "dependencies")
)
_OBJECT = frozenset(("properties", "required", "additionalProperties")) | _OBJECT_REFUSED
_ASSERTIONS = (
    frozenset(("type", "enum", "const", "$ref", "anyOf", "oneOf", "items", "minItems", "maxItems"))
    | (_EVERY | _STRING | _NUMBER | _LIST_REFUSED | _OBJECT)
)  # fmt: skip
"""Keywords that say something about values."""

_OF_KIND = {
    "string": _STRING,
    "number": _NUMBER,
    "integer": _NUMBER,
    "array": _LIST_REFUSED | {"items", "minItems", "maxItems"},
    "object": _OBJECT,
}

_LOOK = 1024
"""Characters that looking at a schema counts as: definitions that refer to each other twice are met 2^n times."""

_NO_STRING = r"/(?s:\s*([-0-9\[{].*|(true|false|null|True|False|None)\s*))/"
"""Text that is read as JSON where a parameter takes more than strings."""


class UnenforceableError(ValueError):
    """A keyword of a strict function's schema that its calls cannot be bound to. `place`: in the schema."""

    def __init__(self, name: str, place: str, keyword: str) -> None:
        super().__init__(f"{keyword} cannot be enforced in this model's format of calls")
        self.name = name
        self.place = place


class _Values:
    """Values of one function's parameters.

    Args:
        root: schema of all parameters.
        name: of the function.
        strict: keywords that cannot be enforced raise UnenforceableError; otherwise these are left out.
    """

    def __init__(self, text: GrammarText, root: Schema, name: str, *, strict: bool) -> None:
        self.text = text
        self.root = root
        self.strict = strict
        self._name = name
        self.refuse_any(root, _EVERY | _OBJECT_REFUSED | {"$ref", "anyOf", "oneOf", "enum", "const"}, "")
        named = root.get("properties")
        for each in _required(root) - (named.keys() if isinstance(named, dict) else set()):
            self.refuse("", f"required: {each!r}")

    def parameters(self) -> list[tuple[str, Schema, bool]]:
        """Name, schema and whether it is required, of each parameter."""
        required = _required(self.root)
        return [(name, each, name in required) for name, each in parameters_of(self.root).items()]

    def refuse(self, place: str, keyword: str) -> None:
        if self.strict:
            raise UnenforceableError(self._name, place, keyword)

    def refuse_any(self, part: Schema, keywords: Collection[str], place: str) -> None:
        for keyword in part:
            if keyword in keywords and not (keyword in ("allOf", "uniqueItems") and not part[keyword]):
                self.refuse(place, keyword)

    def target(self, schema: Schema) -> int:
        """Identity of the definition whose values a schema has; 0: it says more than to refer to one."""
        says = schema.keys() & (_ASSERTIONS | {"x-guidance"})
        target = referred(self.root, schema) if says == {"$ref"} else None
        return id(target) if isinstance(target, dict) else 0

    def kinds(self, schema: Schema, place: str, depth: int = MAX_DEPTH) -> Iterator[tuple[str, dict[str, Any]]]:
        """JSON types that a schema permits, each with a schema of its values without references; no type: any."""
        self.text.charge(_LOOK)
        part = {keyword: value for keyword, value in schema.items() if keyword in _ASSERTIONS}
        several = part.get("allOf")
        inner: Any = None
        if "$ref" in part:
            inner = referred(self.root, {"$ref": part.pop("$ref")})
            if not isinstance(inner, dict) or not depth:
                self.refuse(place, "$ref")
                inner = {}
        elif isinstance(several, list) and len(several) == 1:
            inner = part.pop("allOf")[0]
        if isinstance(inner, dict):
            yield from self.kinds(self._merged(part, inner, place), place, depth - 1)
            return
        for keyword in ("anyOf", "oneOf"):
            alternatives = part.pop(keyword, None)
            if not isinstance(alternatives, list) or not depth:
                continue
            found = [(each, f"{place}.{keyword}.{i}") for i, each in enumerate(alternatives) if isinstance(each, dict)]
            every = [kind for each, at in found for kind in self.kinds(self._merged(part, each, at), at, depth - 1)]
            names = [name for name, _ in every]
            if keyword == "oneOf" and (len({*names}) < len(names) or "" in names or {"integer", "number"} <= {*names}):
                self.refuse(place, keyword)
            yield from every
            return
        yield from self._plain(part, place)

    def _merged(self, part: Schema, inner: Schema, place: str) -> dict[str, Any]:
        self.refuse_any({key: value for key, value in part.items() if inner.get(key, value) != value}, part, place)
        return {**part, **inner}

    def _plain(self, part: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Kinds of a schema that has no others in it that its value follows."""
        self.refuse_any(part, _EVERY, place)
        stated = part.get("type")
        types = [stated] if isinstance(stated, str) else stated if isinstance(stated, list) else []
        types = [each for each in types if isinstance(each, str)]
        values = [part["const"]] if "const" in part else part.get("enum")
        if isinstance(values, list):
            self.refuse_any(part, part.keys() - {"type", "enum", "const"}, place)
            self.text.charge(sum(len(each) if isinstance(each, str) else _LOOK for each in values))
            if types:
                values = [each for each in values if _is_of(type_of(each), types)]
            for kind in dict.fromkeys(map(type_of, values)):
                yield kind, {"enum": [each for each in values if type_of(each) == kind]}
        elif types:
            for kind in types:
                yield kind, {key: part[key] for key in part if key in _OF_KIND.get(kind, ())}
        else:
            # Keywords of one type say nothing of others, but are there for it.
            kind = next((each for each, own in _OF_KIND.items() if part and part.keys() <= own), "")
            if not kind:
                self.refuse_any(part, part, place)
            yield kind, part if kind else {}


def _required(schema: Schema) -> set[str]:
    stated = schema.get("required")
    return {each for each in stated if isinstance(each, str)} if isinstance(stated, list) else set()


def _is_of(kind: str, types: Collection[str]) -> bool:
    return kind in types or (kind == "integer" and "number" in types)


def _count(part: Schema, keyword: str) -> int | None:
    value = part.get(keyword)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _plain_string(values: _Values, part: Schema, end: str, close: str, place: str, also: str = "") -> str:
    """A rule for a string as it is, and what ends it.

    Args:
        close: text that ends it for the parser, contained in `end`.
        also: restricts the text further.
    """
    bounds = also
    least, most = _count(part, "minLength"), _count(part, "maxLength")
    if least or most is not None:
        bounds += f" & /(?s:.{{{least or 0},{'' if most is None else most}}})/"
    for regex in (_searched(part.get("pattern")), _FORMATS.get(str(part.get("format")))):
        if regex is not None:
            escaped = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", regex, flags=re.DOTALL)
            bounds += " & /(?:" + escaped.replace("\n", r"\n") + ")/"
    if part.get("format") is not None and part["format"] not in _FORMATS:
        values.refuse(place, "format")
    if bounds or close != end:
        bounds += " & ~/(?s:.*" + re.escape(close).replace("/", r"\/") + ".*)/"
    return values.text.text_up_to(end, bounds)


def _searched(pattern: object) -> str | None:
    """A regular expression for texts that a pattern is found in."""
    if not isinstance(pattern, str):
        return None
    found = []
    for each in _alternatives(pattern):
        begin = "" if each.startswith("^") else "(?s:.*)"
        anchored = re.search(r"(?<!\\)(?:\\\\)*\$$", each) is not None
        inside = each.removeprefix("^")
        found.append(f"{begin}(?:{inside[:-1] if anchored else inside}){'' if anchored else '(?s:.*)'}")
    return "|".join(found)


def _alternatives(pattern: str) -> list[str]:
    """The alternatives of a pattern at its top."""
    found, depth, in_class = [""], 0, False
    for piece in re.findall(r"\\.|.", pattern, flags=re.DOTALL):
        if piece == "|" and not depth and not in_class:
            found.append("")
            continue
        found[-1] += piece
        depth += 0 if in_class else (piece == "(") - (piece == ")")
        in_class = piece == "[" or (in_class and piece != "]")
    return found


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
    values = _Values(text, schema, name, strict=strict)
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


def _tagged_value(values: _Values, part: Tagged, schema: Schema, place: str) -> tuple[str, str]:
    """Rules for a string and for another value, with what follows them; empty: it is none."""
    text, end = values.text, part.after_value + part.value_close
    types = json_types(schema, text.types)
    if types and "string" not in types:
        return "", text.rule(f"{text.json(schema, strict=values.strict)} {text.literal(end)}")
    strings, others = [], []
    kinds = [*values.kinds(schema, place)]
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
            strings.append(_plain_string(values, each, end, part.value_close, place, also))
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
    string: Callable[[_Values, Schema, str], str]
    any_key: str


def _json_string(values: _Values, part: Schema, _place: str) -> str:
    return values.text.json({"type": "string", **part}, strict=values.strict)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _gemma_string(values: _Values, part: Schema, place: str) -> str:
    text = values.text
    return text.rule(f"{text.literal(GEMMA_QUOTE)} {_plain_string(values, part, GEMMA_QUOTE, GEMMA_QUOTE, place)}")


def _gemma_quoted(text: str) -> str:
    return GEMMA_QUOTE + text + GEMMA_QUOTE


def _gemma_key(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else _gemma_quoted(text)


PYTHON = Notation(("True", "False", "None"), "=", ", ", ": ", _quoted, _quoted, _json_string, "STRING")
GEMMA = Notation(("true", "false", "null"), ":", ",", ":", _gemma_quoted, _gemma_key, _gemma_string, r"/\w+/")


class _Written:
    """Rules for values in a notation."""

    def __init__(self, values: _Values, notation: Notation) -> None:
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
            return self._text.rule(" | ".join(self._kind(*each, place) for each in self._values.kinds(schema, place)))
        if target not in self._names:
            # Named before it is written: it may refer to itself.
            name = self._names[target] = f"d{next(self._text.numbers)}"
            self._text.add(name, " | ".join(self._kind(*each, place) for each in self._values.kinds(schema, place)))
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
        self._values.refuse_any(part, _LIST_REFUSED, place)
        items, least, most = part.get("items"), _count(part, "minItems") or 0, _count(part, "maxItems")
        if items is False or most == 0:
            return '"[" "]"'
        item = self._value(items, f"{place}.items") if isinstance(items, dict) else self._any("any")
        times = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        more = f"({self._text.literal(self._notation.comma)} {item}){times}"
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'

    def _object(self, part: Schema, place: str) -> str:
        self._values.refuse_any(part, _OBJECT_REFUSED, place)
        named, others = part.get("properties"), part.get("additionalProperties")
        notation, required = self._notation, _required(part)
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
    return _Written(_Values(text, schema, name, strict=strict), notation).arguments()
