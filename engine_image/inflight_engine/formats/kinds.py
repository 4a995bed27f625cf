"""JSON types that a function's parameters permit, each with what is said of its values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from inflight_engine.formats.rules import GrammarText
from inflight_engine.formats.schemas import referred
from inflight_engine.formats.values import MAX_DEPTH, parameters_of, type_of

Schema = Mapping[str, Any]

_EVERY = frozenset(("not", "if", "then", "else", "dependentSchemas", "$dynamicRef", "allOf"))
_STRING = frozenset(("pattern", "minLength", "maxLength", "format"))
_NUMBER = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
LIST_REFUSED = frozenset(
    ("uniqueItems", "contains", "minContains", "maxContains", "prefixItems", "additionalItems", "unevaluatedItems")
)
OBJECT_REFUSED = frozenset(
    ("patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired", "dependencies")
)
_OBJECT = frozenset(("properties", "required", "additionalProperties")) | OBJECT_REFUSED
_ASSERTIONS = (
    frozenset(("type", "enum", "const", "$ref", "anyOf", "oneOf", "items", "minItems", "maxItems"))
    | (_EVERY | _STRING | _NUMBER | LIST_REFUSED | _OBJECT)
)  # fmt: skip
"""Keywords that say something about values."""

_OF_KIND = {
    "string": _STRING,
    "number": _NUMBER,
    "integer": _NUMBER,
    "array": LIST_REFUSED | {"items", "minItems", "maxItems"},
    "object": _OBJECT,
}

_LOOK = 1024
"""Characters that looking at a schema counts as: definitions that refer to each other twice are met 2^n times."""


class UnenforceableError(ValueError):
    """A part of a function's schema that its calls cannot be bound to. `place`: in the schema."""

    def __init__(self, name: str, place: str, keyword: str) -> None:
        super().__init__(f"{keyword} cannot be enforced in this model's format of calls")
        self.name = name
        self.place = place


class Values:
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
        self.refuse_any(root, _EVERY | OBJECT_REFUSED | {"$ref", "anyOf", "oneOf", "enum", "const"}, "")
        named = root.get("properties")
        for each in required_of(root) - (named.keys() if isinstance(named, dict) else set()):
            self.refuse("", f"required: {each!r}")

    def parameters(self) -> list[tuple[str, Schema, bool]]:
        """Name, schema and whether it is required, of each parameter."""
        required = required_of(self.root)
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

    def alternatives(self, schema: Schema, place: str) -> list[tuple[str, dict[str, Any]]]:
        """Return what `kinds` gives.

        Raises:
            UnenforceableError: nothing, strict or not: the argument could not be written.
        """
        found = [*self.kinds(schema, place)]
        if not found:
            raise UnenforceableError(self._name, place, "a schema that no value follows")
        return found

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


def required_of(schema: Schema) -> set[str]:
    stated = schema.get("required")
    return {each for each in stated if isinstance(each, str)} if isinstance(stated, list) else set()


def _is_of(kind: str, types: Collection[str]) -> bool:
    return kind in types or (kind == "integer" and "number" in types)
