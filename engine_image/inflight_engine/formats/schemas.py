"""JSON schemas as the engine writes answers of them: with bounded white space, and nothing that they do not name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

WHITE_SPACE = r" |\r?\n( {0,64}|\t{0,16})"
"""White space of JSON as serializers write it, in one line or indented. What has no bound small models repeat up to
`max_tokens`."""

MAX_BYTES = 512 * 1024
"""Length of a grammar, in characters."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames")

_COMBINED = frozenset(("allOf", "anyOf", "oneOf", "$ref"))
"""With one of them alone a schema is that of its parts."""

_NEVER_CLOSED = frozenset(("not", "if", "then", "else", "contains", "dependentSchemas", "$dynamicRef", "enum", "const"))

_OWN = frozenset(
    (*_MAPS[:2], *_NEVER_CLOSED, "prefixItems", *_SINGLE, "required", "minProperties", "maxProperties", "minItems")
)
"""Keywords that together with one of `_COMBINED` may ask for more than either names."""

_MORE_PROPERTIES = frozenset(("additionalProperties", "unevaluatedProperties", "propertyNames", "minProperties"))
_MORE_PROPERTIES |= {"dependentRequired", "dependencies"}
"""Keywords for properties that are not named."""

_SCALARS = ("null", "boolean", "string", "number", "integer")


def for_llguidance(schema: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema of a part of the values, for llguidance.

    Args:
        options: of llguidance, over which the `x-guidance` of the schema wins.
    """
    given = schema.get("x-guidance", {})
    if not isinstance(given, dict):
        return dict(schema)  # which llguidance refuses
    given = {**options, **given}
    if given.get("whitespace_flexible", True):
        given = {"whitespace_pattern": WHITE_SPACE, **given}
    return {**_closed(schema, strict=not given.get("lenient")), "x-guidance": given}


def parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas directly in a schema, with their paths in it."""
    for keyword, value in schema.items():
        if keyword in _SINGLE and isinstance(value, dict):
            yield keyword, value
        elif keyword in _MAPS and isinstance(value, dict):
            yield from ((f"{keyword}.{name}", part) for name, part in value.items() if isinstance(part, dict))
        elif keyword in _LISTS and isinstance(value, list):
            yield from ((f"{keyword}.{i}", part) for i, part in enumerate(value) if isinstance(part, dict))


def moves_references(schema: Mapping[str, Any]) -> bool:
    """Parts of a schema may have identifiers of their own: `#/` in them is not its root."""
    text = json.dumps(schema)
    return text.count('"$id": ') > ("$id" in schema) or ("draft-04" in text and '"id": ' in text)


def _closed(schema: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """Forbid properties and items that no part of a schema names, where no other part may ask for them."""
    text = json.dumps(schema)
    root: dict[str, Any] = json.loads(text)
    # A longer one will be refused, and this would take long.
    if len(text) > MAX_BYTES or moves_references(schema):
        return root
    every: dict[int, dict[str, Any]] = {}
    mixed, waiting = [], [root]
    while waiting:
        part = waiting.pop()
        if id(part) in every:
            continue
        every[id(part)] = part
        target = referred(root, part)
        if target is None and "$ref" in part:
            return root  # nobody knows which part this combines with another
        if _is_mixed(part, strict=strict):
            mixed.append(part)
        waiting += parts_and_target(part, target)
    kept = _reached(root, mixed)
    for part in every.values():
        if id(part) in kept or not (_COMBINED | _NEVER_CLOSED).isdisjoint(part):
            continue
        if _names_all_properties(part):
            part["additionalProperties"] = False
        if _names_all_items(part):
            part["items"] = False
    return root


def _is_mixed(part: Mapping[str, Any], *, strict: bool) -> bool:
    """A value has to follow several parts of it at once, or just one of them."""
    if not _NEVER_CLOSED.isdisjoint(part):
        return True
    combined = _COMBINED.intersection(part)
    if not combined:
        return False
    alternatives = part.get("oneOf")
    return (
        len(combined) > 1
        or not _OWN.isdisjoint(part)
        or (isinstance(part.get("allOf"), list) and len(part["allOf"]) > 1)
        or (strict and isinstance(alternatives, list) and not _differ(alternatives))
    )


def _reached(root: dict[str, Any], mixed: list[dict[str, Any]]) -> set[int]:
    """Identities of these parts and of all that is in them, references followed."""
    reached: set[int] = set()
    waiting = list(mixed)
    while waiting:
        part = waiting.pop()
        if id(part) in reached:
            continue
        reached.add(id(part))
        waiting += parts_and_target(part, referred(root, part), definitions=False)
    return reached


def parts_and_target(part: Mapping[str, Any], target: object, *, definitions: bool = True) -> list[dict[str, Any]]:
    """The schemas in a part and the one that it refers to. `definitions`: those that it only states too."""
    found = [each for path, each in parts(part) if definitions or not path.startswith(("$defs.", "definitions."))]
    return [*found, target] if isinstance(target, dict) else found


def referred(root: Mapping[str, Any], part: Mapping[str, Any]) -> Any:
    """Return the value that a part refers to; None: none, or none that has a path in this document."""
    reference = part.get("$ref")
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    target: Any = root
    try:
        for name in unquote(reference).split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            target = target[int(name) if isinstance(target, list) else name]
    except (LookupError, TypeError, ValueError):
        return None
    return target


def circle(schema: Mapping[str, Any]) -> list[str]:
    """Returns references of a schema that lead, each to the next one, back to the first, by `$ref` and `allOf` alone:
    they say nothing about values. Empty: there are none."""
    begun, ended = set[int](), set[int]()
    waiting: list[Mapping[str, Any]] = [schema]
    while waiting:
        start = waiting.pop()
        if id(start) in begun:
            continue
        begun.add(id(start))
        waiting += [part for _, part in parts(start)]
        # By identity: the reference that led to a part, and what is left of those that hold with it.
        way = {id(start): ("", _held(schema, start))}
        while way:
            here = next(reversed(way))
            left = way[here][1]
            if not left:
                ended.add(here)
                del way[here]
                continue
            reference, part = left.pop()
            if id(part) in way:
                round_trip = [*way].index(id(part)) + 1
                return [name for name in (*(name for name, _ in [*way.values()][round_trip:]), reference) if name]
            if id(part) not in ended:
                way[id(part)] = reference, _held(schema, part)
    return []


def _held(root: Mapping[str, Any], part: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the schemas that each value of a part has to follow, with the reference to each; empty: it is in
    `allOf`."""
    every, target = part.get("allOf"), referred(root, part)
    held: list[tuple[str, Mapping[str, Any]]] = []
    if isinstance(every, list):
        held += [("", each) for each in every if isinstance(each, dict)]
    if isinstance(target, dict):
        held.append((part["$ref"], target))
    return held


def _differ(alternatives: Sequence[object]) -> bool:
    """At most one of them is of lists or objects, or each of these requires a property with a value of its own."""
    values: dict[str, set[str]] = {}
    count = 0
    for alternative in alternatives:
        part = alternative if isinstance(alternative, dict) else {}
        properties, kind = part.get("properties"), part.get("type")
        if isinstance(kind, str) and kind in _SCALARS:
            continue
        count += 1
        for name in _required(part):
            stated = properties.get(name) if isinstance(properties, dict) else None
            if isinstance(stated, dict) and "const" in stated:
                values.setdefault(name, set()).add(json.dumps(stated["const"], sort_keys=True))
    return count < 2 or any(len(each) == count for each in values.values())


def _required(part: Mapping[str, Any]) -> set[str]:
    stated = part.get("required")
    return {name for name in stated if isinstance(name, str)} if isinstance(stated, list) else set()


def _names_all_properties(part: Mapping[str, Any]) -> bool:
    named = part.get("properties")
    return isinstance(named, dict) and _required(part) <= named.keys() and _MORE_PROPERTIES.isdisjoint(part)


def _names_all_items(part: Mapping[str, Any]) -> bool:
    named, least = part.get("prefixItems"), part.get("minItems", 0)
    return (
        isinstance(named, list)
        and isinstance(least, int)
        and least <= len(named)
        and not any(each in part for each in ("items", "additionalItems", "unevaluatedItems"))
    )
