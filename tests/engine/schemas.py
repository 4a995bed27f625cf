"""Generated JSON schemas against the built-in model: `python -m tests.engine.schemas --count 1000`.

Schemas are drawn over the keywords that llguidance supports, one in eight in draft 7, and one in ten also with one that
it does not. Each is sent as `response_format` with `strict: true`. A schema is refused with 400 exactly where it has
a keyword that is not supported, and an answer that ends with `stop`, as most do, is valid by jsonschema, which the
command needs: `pip install "jsonschema[format-nongpl]"`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.engine.server.real_server import RealServer

QUESTION = [{"role": "user", "content": "Describe something, in JSON."}]
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
LIST = {
    "type": "object",
    "properties": {"v": DIGIT, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]}},
    "required": ["v", "next"],
    "additionalProperties": False,
}
NAMED = "https://example.org/named"
REFERENCES = ("#/$defs/part", "#/$defs/list", "#anchored", NAMED)
UNSUPPORTED: tuple[dict[str, Any], ...] = (
    {"not": {"type": "null"}},
    {"if": {"type": "string"}, "then": {"minLength": 1}},
    {"type": "array", "uniqueItems": True},
    {"type": "array", "contains": {"type": "integer"}},
    {"type": "array", "prefixItems": [DIGIT], "unevaluatedItems": False},
    {"type": "object", "propertyNames": {"maxLength": 3}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}},
    {"type": "object", "properties": {"a": DIGIT}, "unevaluatedProperties": False},
    {"type": "string", "pattern": "^(?=a)b"},
    {"type": "string", "format": "color"},
    {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 9}]},
    {"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]},
    {"$dynamicRef": "#anchored"},
)


def string(rng: random.Random) -> dict[str, Any]:
    least = rng.randrange(4)
    return {"type": "string"} | rng.choice(
        [
            {"maxLength": rng.randrange(1, 9)},
            {"minLength": least, "maxLength": least + rng.randrange(6)},
            {"pattern": rng.choice(["^[a-z]{2,5}$", "^(ab|cd)+x?$", "^\\d{1,3}-[A-F]$"])},
            {"pattern": rng.choice(["^[a-z]+$", "[0-9]", "^x"]), "minLength": least, "maxLength": least + 4},
            {"format": rng.choice(FORMATS)},
            {"format": rng.choice(["email", "hostname", "ipv4", "uri"]), "minLength": 8, "maxLength": 12},
            {"format": rng.choice(["date", "date-time"]), "pattern": "^20"},
        ]
    )


def number(rng: random.Random) -> dict[str, Any]:
    kind, least = rng.choice(["integer", "number"]), rng.randrange(-50, 50)
    step = rng.choice([0, 0, 1, 2, 3, 7, 10] if kind == "integer" else [0, 0, 0.25, 0.5, 1, 3])
    bounds = [
        {"minimum": least, "maximum": least + step + rng.randrange(1, 900)},
        {"exclusiveMinimum": least, "exclusiveMaximum": least + step + rng.randrange(2, 90)},
    ]
    return {"type": kind, **rng.choice(bounds)} | ({"multipleOf": step} if step else {})


def objects(rng: random.Random, name: str, depth: int) -> dict[str, Any]:
    """Objects that have this property."""
    return {"type": "object", "properties": {name: schema(rng, depth)}, "required": [name]}


def schema(rng: random.Random, depth: int = 2) -> Any:
    """A schema of supported keywords whose values have no more than `depth` levels, those of references aside."""
    kinds = ["string", "number", "boolean", "null", "types", "enum", "const"]
    deep = ["object", "array", "tuple", "anyOf", "oneOf", "tagged", "allOf", "map", "$ref", "true"]
    match rng.choice(kinds + deep * (depth > 0)):
        case "string":
            return string(rng)
        case "number":
            return number(rng)
        case "boolean":
            return {"type": "boolean"}
        case "null":
            return {"type": "null"}
        case "types":
            types = rng.sample(["integer", "string", "null", "boolean"], 2)
            return {"type": types, "minimum": 3, "maximum": 90, "maxLength": 5}
        case "enum":
            return {"enum": rng.sample(["a", 1, None, True, "b c", 2.5, [1], {"k": "v"}], rng.randrange(1, 5))}
        case "const":
            return {"const": rng.choice(["x", 3, {"k": [1]}, None])}
        case "object":
            names = [f"p{i}" for i in range(rng.randrange(1, 4))]
            never = {"never": False} if rng.random() < 0.2 else {}
            return {
                "type": "object",
                "properties": {**never, **{name: schema(rng, depth - 1) for name in names}},
                "required": [name for name in names if rng.random() < 0.7],
                **rng.choice([{"additionalProperties": False}, {}, {"additionalProperties": DIGIT}]),
            }
        case "map":
            return {
                "type": "object",
                "patternProperties": {"^k[0-9]$": schema(rng, depth - 1)},
                "additionalProperties": rng.choice([False, DIGIT]),
                **rng.choice([{}, {"maxProperties": 2}, {"minProperties": 1, "maxProperties": 2}]),
            }
        case "array":
            return {"type": "array", "items": schema(rng, depth - 1), "minItems": rng.randrange(2), "maxItems": 3}
        case "tuple":
            parts = [schema(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
            tail = rng.choice([{"items": False}, {"items": schema(rng, 0), "maxItems": len(parts) + 2}])
            return {"type": "array", "prefixItems": parts, "minItems": rng.randrange(len(parts) + 1), **tail}
        case "anyOf":
            return {"anyOf": [schema(rng, depth - 1), schema(rng, depth - 1)]}
        case "oneOf":
            return {"oneOf": [number(rng), string(rng), {"type": "null"}]}
        case "tagged":
            parts = [objects(rng, "value", depth - 1) for _ in range(2)]
            for tag, part in zip("ab", parts, strict=True):
                part["properties"]["tag"], part["required"] = {"const": tag}, ["tag", "value"]
            return {"oneOf": parts}
        case "allOf":
            several = [
                [{"type": "integer", "minimum": rng.randrange(9)}, {"type": "integer", "maximum": 99}],
                [{"type": "string", "minLength": 2}, {"maxLength": 6, "pattern": "^[a-f]*$"}],
                [{"type": "array", "items": schema(rng, depth - 1)}, {"minItems": 1, "maxItems": 2}],
                [objects(rng, "a", 0), {**objects(rng, "b", 0), "maxProperties": 2}],
                [{"$ref": "#/$defs/part"}],
            ]
            return {"allOf": rng.choice(several)}
        case "true":
            return True
    return {"$ref": rng.choice(REFERENCES)}


def in_draft_7(part: Any) -> Any:
    """The same schema as draft 7 writes it."""
    if isinstance(part, list):
        return [in_draft_7(each) for each in part]
    if not isinstance(part, dict):
        return part.replace("$defs", "definitions") if isinstance(part, str) else part
    names = {"prefixItems": "items", "items": "additionalItems"} if "prefixItems" in part else {}
    return {{"$defs": "definitions", **names}.get(name, name): in_draft_7(value) for name, value in part.items()}


def drawn(seed: int) -> tuple[dict[str, Any], bool]:
    """A schema, and whether all of its keywords are supported."""
    rng = random.Random(seed)
    properties = {"value": schema(rng)}
    supported = rng.random() < 0.9
    if not supported:
        properties["other"] = rng.choice(UNSUPPORTED)
    parts = {"part": schema(rng, 0), "list": LIST}
    draft, anchor = "", {"$anchor": "anchored"}
    if supported and rng.random() < 0.125:
        draft, anchor = "http://json-schema.org/draft-07/schema#", {"$id": "#anchored"}
    # Only where they are referred to: the engine closes no objects of a schema with references of these kinds.
    for reference, name, identified in ((NAMED, "named", {"$id": NAMED}), ("#anchored", "anchored", anchor)):
        if reference in json.dumps(properties):
            parts[name] = identified | schema(rng, 0)
    root = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    root["$defs"] = parts
    return ({"$schema": draft, **in_draft_7(root)} if draft else root), supported


def ask(url: str, asked: dict[str, Any], seed: int) -> tuple[str, str]:
    """The reason of the end, or `refused`, or `error`; and the text."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": asked, "strict": True}}
    body = {"messages": QUESTION, "max_tokens": 150, "temperature": 1, "seed": seed, "response_format": form}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600)
    if answer.status_code != 200:
        return "refused" if answer.status_code == 400 else "error", answer.text
    (choice,) = answer.json()["choices"]
    return choice["finish_reason"], choice["message"]["content"]


def run(url: str, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """How often each end came, and the faults."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    counts: Counter[str] = Counter()
    faults = []

    def one(number: int) -> None:
        asked, supported = drawn(number)
        end, text = ask(url, asked, number)
        counts[end] += 1
        draft = validator_for(asked, Draft202012Validator)
        validator = draft(asked, format_checker=draft.FORMAT_CHECKER)
        invalid = end == "stop" and not validator.is_valid(json.loads(text))
        if invalid or end == "error" or (end == "refused") == supported:
            faults.append(f"seed {number}: {end}: {json.dumps(asked)}: {text}")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(seed, seed + count)))
    if counts["stop"] < count / 2:
        faults.append("fewer than half of the answers ended")
    return counts, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="number of schemas")
    parser.add_argument("--seed", type=int, default=0, help="of the first one; the others follow")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = RealServer(Path(folder), "--max-num-seqs", "16", "--max-model-len", "1024")
        try:
            counts, faults = run(server.wait_ready().url, options.count, options.seed)
        finally:
            server.close()
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())), f"faults {len(faults)}", sep="; ")
    print("\n".join(faults[:20]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
