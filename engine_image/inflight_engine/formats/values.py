"""Arguments in the notations of models, read as they arrive and written as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from inflight_engine.formats.source import Mismatch, Reading, Source, possible_start

Out: TypeAlias = Callable[[str], None]
"""Takes JSON as it is known: of all the text that was read."""

MAX_DEPTH = 64
_MAX_SCALAR = 4096
_MAX_KEY = 1024
_WINDOW = 1024
"""Characters that are searched at once: where each of many ends is found soon, the rest of a long text is not searched
again for those that it lacks."""

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_SCALAR = re.compile(r"[-+.\w]*")
_BARE = re.compile(r"[^,{}\[\]<\"]*")
_BARE_KEY = re.compile(r"[^:,{}\[\]<]*")
_IDENTIFIER = re.compile(r"\w*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": "true", "false": "false", "null": "null"}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null", **_WORDS}
_PYTHON_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "v": "\v", "\n": ""}
GEMMA_QUOTE = '<|"|>'


def quoted(text: str) -> str:
    """The inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_text(source: Source) -> Reading[str]:
    """Read a JSON string; returns its value."""
    written: list[str] = []
    yield from json_string(source, written.append)
    value = str(json.loads("".join(written)))
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        raise Mismatch from None
    return value


def json_string(source: Source, out: Out) -> Reading[None]:
    """Read a JSON string, as it is written."""
    yield from source.expect('"')
    out('"')
    while True:
        found = _PLAIN.match(source.text, source.at)
        assert found is not None
        if found.end() > source.at:
            source.at = found.end()
            out(found.group())
        char = yield from source.peek()
        if char == '"':
            source.at += 1
            out('"')
            return
        if char == "\\":
            out((yield from _json_escape(source)))
        elif char < " ":  # a control character, or the end
            raise Mismatch
        # Otherwise more of the plain text arrived.


def _json_escape(source: Source) -> Reading[str]:
    for length in (2, 6):
        while len(source.text) < source.at + length and not source.ended:
            yield
        found = _ESCAPE.fullmatch(source.text, source.at, source.at + length)
        if found is not None:
            source.at = found.end()
            return found.group()
        source.short = len(source.text) < source.at + length
        if length == 2 and source.text[source.at : source.at + 2] != "\\u":
            break
    raise Mismatch


def json_value(source: Source, out: Out, depth: int = 0) -> Reading[None]:
    """Read a JSON value, as it is written."""
    char = yield from source.peek()
    if char == '"':
        yield from json_string(source, out)
    elif char == "{":
        yield from _collection(source, out, _BRACES, _BRACES, _json_member, depth, spaces=True)
    elif char == "[":
        yield from _collection(source, out, _BRACKETS, _BRACKETS, json_value, depth, spaces=True)
    else:
        out(_scalar((yield from source.matching(_SCALAR, _MAX_SCALAR)), _WORDS))


def _json_member(source: Source, out: Out, depth: int) -> Reading[None]:
    yield from json_string(source, out)
    yield from _spaces(source, out)
    yield from source.expect(":")
    out(":")
    yield from _spaces(source, out)
    yield from json_value(source, out, depth)


def _spaces(source: Source, out: Out) -> Reading[None]:
    while (char := (yield from source.peek())) and char in " \t\n\r":
        source.at += 1
        out(char)


def _scalar(text: str, words: dict[str, str]) -> str:
    if text in words:
        return words[text]
    if _NUMBER.fullmatch(text):
        return text
    raise Mismatch


_BRACES, _BRACKETS = ("{", "}"), ("[", "]")

Item: TypeAlias = Callable[[Source, Out, int], Reading[None]]


def _collection(
    source: Source,
    out: Out,
    brackets: tuple[str, str],
    written: tuple[str, str],
    item: Item,
    depth: int,
    *,
    spaces: bool,
) -> Reading[None]:
    """Read items between brackets, separated by commas.

    Args:
        brackets: that are read.
        written: that are passed on.
        spaces: white space is passed on as it was read; otherwise a space after each comma.
    """
    if depth >= MAX_DEPTH:
        raise Mismatch
    begin, end = brackets
    yield from source.expect(begin)
    out(written[0])
    first = True
    while True:
        yield from _spaces(source, out if spaces else _drop)
        if (yield from source.accept(end)):
            # JSON has no comma before a closing bracket.
            if spaces and not first:
                raise Mismatch
            break
        if not first and not spaces:
            out(", ")
        yield from item(source, out, depth + 1)
        first = False
        yield from _spaces(source, out if spaces else _drop)
        if (yield from source.accept(",")):
            if spaces:
                out(",")
            continue
        yield from source.expect(end)
        break
    out(written[1])


def _drop(_text: str) -> None:
    pass


def python_value(source: Source, out: Out, depth: int = 0) -> Reading[None]:
    """Read a literal of Python."""
    char = yield from source.peek()
    if char in ("'", '"'):
        yield from _python_string(source, out)
    elif char == "{":
        yield from _collection(source, out, _BRACES, _BRACES, _python_member, depth, spaces=False)
    elif char == "[":
        yield from _collection(source, out, _BRACKETS, _BRACKETS, python_value, depth, spaces=False)
    else:
        out(_scalar((yield from source.matching(_SCALAR, _MAX_SCALAR)), _PYTHON_WORDS))


def _python_member(source: Source, out: Out, depth: int) -> Reading[None]:
    yield from _python_string(source, out)
    yield from source.space()
    yield from source.expect(":")
    out(": ")
    yield from source.space()
    yield from python_value(source, out, depth)


def _python_string(source: Source, out: Out) -> Reading[None]:
    quote = yield from source.peek()
    if quote not in ("'", '"'):
        raise Mismatch
    source.at += 1
    out('"')
    plain = re.compile(rf"[^{quote}\\\n]*")
    while True:
        found = plain.match(source.text, source.at)
        assert found is not None
        if found.end() > source.at:
            source.at = found.end()
            out(quoted(found.group()))
        char = yield from source.peek()
        if char == quote:
            source.at += 1
            out('"')
            return
        if char == "\\":
            out(quoted((yield from _python_escape(source))))
        elif char in ("", "\n"):
            raise Mismatch


def _python_escape(source: Source) -> Reading[str]:
    source.at += 1
    char = yield from source.peek()
    source.at += len(char)
    if char in _PYTHON_ESCAPES:
        return _PYTHON_ESCAPES[char]
    length = {"x": 2, "u": 4, "U": 8}.get(char)
    if length is None:
        return char if char in "'\"\\" else "\\" + char
    while len(source.text) < source.at + length and not source.ended:
        yield
    digits = source.text[source.at : source.at + length]
    source.at += len(digits)
    try:
        decoded = chr(int(digits, 16))
        decoded.encode()
    except (ValueError, OverflowError):
        raise Mismatch from None
    return decoded


def python_arguments(source: Source, out: Out) -> Reading[None]:
    """Read keyword arguments, after their opening parenthesis, with the closing one."""

    def argument(source: Source, out: Out, depth: int) -> Reading[None]:
        name = yield from source.matching(_IDENTIFIER, _MAX_KEY)
        yield from source.space()
        yield from source.expect("=")
        yield from source.space()
        if not name:
            raise Mismatch
        out(f'"{name}": ')
        yield from python_value(source, out, depth)

    out("{")
    yield from _collection(source, out, ("", ")"), ("", "}"), argument, 0, spaces=False)


def gemma_value(source: Source, out: Out, depth: int = 0) -> Reading[None]:
    """Read a value in Gemma's notation."""
    if (yield from source.accept(GEMMA_QUOTE)):
        out('"')
        yield from text_until(source, (GEMMA_QUOTE,), lambda text: out(quoted(text)))
        yield from source.expect(GEMMA_QUOTE)
        out('"')
        return
    char = yield from source.peek()
    if char == '"':
        yield from json_string(source, out)
    elif char == "{":
        yield from _collection(source, out, _BRACES, _BRACES, _gemma_member, depth, spaces=False)
    elif char == "[":
        yield from _collection(source, out, _BRACKETS, _BRACKETS, gemma_value, depth, spaces=False)
    else:
        bare = (yield from source.matching(_BARE, _MAX_SCALAR)).strip()
        try:
            out(_scalar(bare, _WORDS))
        except Mismatch:
            if not bare:
                raise
            out(f'"{quoted(bare)}"')


def _gemma_member(source: Source, out: Out, depth: int) -> Reading[None]:
    if (yield from source.accept(GEMMA_QUOTE)):
        parts: list[str] = []
        yield from text_until(source, (GEMMA_QUOTE,), parts.append)
        yield from source.expect(GEMMA_QUOTE)
        key = "".join(parts)
    else:
        key = (yield from source.matching(_BARE_KEY, _MAX_KEY)).strip()
    yield from source.space()
    yield from source.expect(":")
    yield from source.space()
    if not key:
        raise Mismatch
    out(f'"{quoted(key)}": ')
    yield from gemma_value(source, out, depth)


def gemma_arguments(source: Source, out: Out) -> Reading[None]:
    """Read arguments in Gemma's notation, after their opening brace, with the closing one."""
    out("{")
    yield from _collection(source, out, ("", "}"), ("", "}"), _gemma_member, 0, spaces=False)


def text_until(source: Source, ends: tuple[str, ...], out: Out, *, forget: bool = False) -> Reading[str]:
    """Read text up to one of `ends`, which is not read. Returns it; empty at the end of the text.

    Args:
        forget: what is passed on is not kept.
    """
    while True:
        if forget:
            source.forget()
        rest = source.text[source.at : source.at + _WINDOW]
        all_seen = source.at + len(rest) == len(source.text)
        ended = source.ended and all_seen
        found = min(((at, end) for end in ends if (at := rest.find(end)) >= 0), default=None)
        length = found[0] if found else len(rest) - (0 if ended else possible_start(rest, ends))
        if length:
            source.at += length
            out(rest[:length])
        if found or ended:
            source.short = found is None
            return found[1] if found else ""
        if all_seen:
            yield


def parameters_of(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Schemas of a function's parameters, each with the definitions that it may refer to.

    Args:
        schema: of all parameters.
    """
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: {**definitions, **(each if isinstance(each, dict) else {})} for name, each in properties.items()}


def _referred(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The definition that a schema refers to; empty: it refers to none."""
    path = schema.get("$ref")
    found: Any = definitions
    for step in path.removeprefix("#/").split("/") if isinstance(path, str) else ("",):
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def json_types(schema: Any, known: dict[int, set[str]] | None = None) -> set[str]:
    """JSON types that a schema permits at its top; empty: not known. `known`: those of definitions, by identity, which
    schemas that share them share."""
    return _types(schema, schema, {} if known is None else known, MAX_DEPTH) if isinstance(schema, dict) else set()


def _types(schema: Any, root: Mapping[str, Any], known: dict[int, set[str]], depth: int) -> set[str]:
    """Args: `known`: types of definitions; those of one that is being followed are not known."""
    if not isinstance(schema, dict) or not depth:
        return set()
    stated = schema.get("type")
    if isinstance(stated, str):
        return {stated}
    if isinstance(stated, list):
        return {each for each in stated if isinstance(each, str)}
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return {type_of(value) for value in values}
    if isinstance(schema.get("$ref"), str):
        target = _referred(schema, root)
        if target and id(target) not in known:
            known[id(target)] = set()
            known[id(target)] = _types(target, root, known, depth - 1)
        return known.get(id(target), set())
    several: list[Any] = next(
        (schema[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(key), list)), []
    )
    found = [_types(each, root, known, depth - 1) for each in several]
    return set().union(*found) if all(found) else set()


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def value_of(text: str, types: set[str]) -> str:
    """JSON of an argument that is written as text: JSON of one of these types, else a string. No types: any."""
    written = _PYTHON_WORDS.get(text.strip(), text.strip())
    try:
        kind = type_of(json.loads(written, parse_constant=_refuse))
    except (ValueError, RecursionError):
        kind = "string"
    wanted = not types or kind in types or (kind == "integer" and "number" in types)
    return written if kind != "string" and wanted else f'"{quoted(text)}"'
