"""Generated JSON schemas against the built-in model: `python -m tests.engine.schemas --count 1000`.

Schemas are drawn over the keywords that llguidance supports, one in ten also with one that it does not. Each is sent as
`response_format` with `strict: true`. A schema is refused with 400 exactly where it has a keyword that is not
supported, and an answer that ends with `stop`, as most do, is valid by jsonschema, which the command needs:
`pip install "jsonschema[format-nongpl]"`.
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
UNSUPPORTED: tuple[dict[str, Any], ...] = (
    {"not": {"type": "null"}},
    {"if": {"type": "string"}, "then": {"minLength": 1}},
    {"type": "array", "uniqueItems": True},
    {"type": "array", "contains": {"type": "integer"}},
    {"type": "object", "propertyNames": {"maxLength": 3}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"type": "string", "pattern": "^(?=a)b"},
)


def string(rng: random.Random) -> dict[str, Any]:
    least = rng.randrange(4)
    return {"type": "string"} | rng.choice(
        [
            {"maxLength": rng.randrange(1, 9)},
            {"minLength": least, "maxLength": least + rng.randrange(6)},
            {"pattern": rng.choice(["^[a-z]{2,5}$", "^(ab|cd)+x?$", "^\\d{1,3}-[A-F]$"])},
            {"format": rng.choice(FORMATS)},
        ]
    )


def number(rng: random.Random) -> dict[str, Any]:
    kind, least = rng.choice(["integer", "number"]), rng.randrange(-50, 50)
    bounds = [
        {"minimum": least, "maximum": least + rng.randrange(1, 900)},
        {"exclusiveMinimum": least, "exclusiveMaximum": least + rng.randrange(2, 90)},
    ]
    return {"type": kind, **rng.choice(bounds)} | ({"multipleOf": 1} if rng.random() < 0.2 else {})


def schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema of supported keywords whose values have no more than `depth` levels."""
    kinds = ["string", "number", "boolean", "null", "enum", "const"]
    match rng.choice(kinds + ["object", "array", "tuple", "anyOf", "oneOf", "allOf", "map", "$ref"] * (depth > 0)):
        case "string":
            return string(rng)
        case "number":
            return number(rng)
        case "boolean":
            return {"type": rng.choice(["boolean", ["boolean", "null"]])}
        case "null":
            return {"type": "null"}
        case "enum":
            return {"enum": rng.sample(["a", 1, None, True, "b c", 2.5, [1], {"k": "v"}], rng.randrange(1, 5))}
        case "const":
            return {"const": rng.choice(["x", 3, {"k": [1]}, None])}
        case "object":
            names = [f"p{i}" for i in range(rng.randrange(1, 4))]
            return {
                "type": "object",
                "properties": {name: schema(rng, depth - 1) for name in names},
                "required": [name for name in names if rng.random() < 0.7],
                **rng.choice([{"additionalProperties": False}, {}, {"additionalProperties": DIGIT}]),
            }
        case "map":
            return {
                "type": "object",
                "patternProperties": {"^k[0-9]$": schema(rng, depth - 1)},
                "additionalProperties": False,
                **rng.choice([{}, {"maxProperties": 2}, {"minProperties": 1, "maxProperties": 2}]),
            }
        case "array":
            return {"type": "array", "items": schema(rng, depth - 1), "minItems": rng.randrange(2), "maxItems": 3}
        case "tuple":
            parts = [schema(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
            return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
        case "anyOf":
            return {"anyOf": [schema(rng, depth - 1), schema(rng, depth - 1)]}
        case "oneOf":
            return {"oneOf": [number(rng), string(rng), {"type": "null"}]}
        case "allOf":
            return {"allOf": [{"type": "integer", "minimum": rng.randrange(9)}, {"type": "integer", "maximum": 99}]}
    return {"$ref": "#/$defs/part"}


def drawn(seed: int) -> tuple[dict[str, Any], bool]:
    """A schema, and whether all of its keywords are supported."""
    rng = random.Random(seed)
    properties = {"value": schema(rng)}
    supported = rng.random() < 0.9
    if not supported:
        properties["other"] = rng.choice(UNSUPPORTED)
    root = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {**root, "$defs": {"part": schema(rng, 0)}}, supported


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

    counts: Counter[str] = Counter()
    faults = []

    def one(number: int) -> None:
        asked, supported = drawn(number)
        end, text = ask(url, asked, number)
        counts[end] += 1
        validator = Draft202012Validator(asked, format_checker=Draft202012Validator.FORMAT_CHECKER)
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
