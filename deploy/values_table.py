"""The table of the chart's values in helm/inflight/README.md.

Names, defaults and descriptions are those of values.yaml, types those of values.schema.json.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from operator import getitem
from typing import Any

import yaml

from tools import generated
from tools.testbed.helm import CHART

README = CHART / "README.md"
BEGIN, END = "<!-- values -->\n", "<!-- /values -->\n"
_KEY = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z]\w*):")


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the chart.

    Attributes:
        path: its name, with dots.
        description: the comment above it.
        default: default in values.yaml; None for a group of values.
        type: type in the schema, in words.
    """

    path: str
    description: str
    default: Any
    type: str


def descriptions() -> dict[str, str]:
    """The comment above each key of values.yaml, by the path of the key, in order."""
    found: dict[str, str] = {}
    above: list[str] = []
    parents: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            above.append(stripped.removeprefix("#").strip())
            continue
        if (key := _KEY.match(line)) is not None:
            parents = [*parents[: len(key["indent"]) // 2], key["name"]]
            if above:
                found[".".join(parents)] = " ".join(above)
        above = []
    return found


def load_schema() -> dict[str, Any]:
    """Returns the content of values.schema.json."""
    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return schema


def schema_of(path: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a value, without references.

    Raises:
        KeyError: the schema does not have the value.
    """
    node = schema
    for name in path.split("."):
        node = _resolved(node["properties"][name], schema)
    return node


def _resolved(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    return {**reduce(getitem, node["$ref"].removeprefix("#/").split("/"), schema), **node}


def type_in_words(node: dict[str, Any], schema: dict[str, Any]) -> str:
    """Values permitted by a schema, such as `integer, 1 to 60`."""
    node = _resolved(node, schema)
    if "enum" in node:
        return ", ".join(f'`"{choice}"`' for choice in node["enum"])
    if "anyOf" in node:
        return " or ".join(type_in_words(one, schema) for one in node["anyOf"])
    kind = node["type"] if isinstance(node["type"], str) else " or ".join(node["type"])
    match kind:
        case "array":
            return f"list of {type_in_words(node['items'], schema)}s"
        case "object" if isinstance(node.get("additionalProperties"), dict):
            return f"map of {type_in_words(node['additionalProperties'], schema)}s"
    if "minimum" in node and "maximum" in node:
        return f"{kind}, {node['minimum']} to {node['maximum']}"
    return f"{kind}, at least {node['minimum']}" if "minimum" in node else kind


def values() -> list[Value]:
    """All values in the order of values.yaml, groups before their members."""
    schema, found = load_schema(), list[Value]()
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    described = {path: text for path, text in descriptions().items() if not _in_a_map(path, schema)}
    groups = {path.rpartition(".")[0] for path in described}
    for path, text in described.items():
        if path in groups:
            found.append(Value(path, text, None, "group"))
        else:
            found.append(
                Value(
                    path,
                    text,
                    reduce(getitem, path.split("."), defaults),
                    type_in_words(schema_of(path, schema), schema),
                )
            )
    return found


def _in_a_map(path: str, schema: dict[str, Any]) -> bool:
    """Returns whether a path is an entry of a value that is a map, such as a label."""
    parents = accumulate(path.split(".")[:-1], "{}.{}".format)
    return any("properties" not in schema_of(parent, schema) for parent in parents)


def table() -> str:
    """The values as a Markdown table."""
    rows = ["| value | type | default | description |", "|---|---|---|---|"]
    for value in values():
        written = "" if value.type == "group" else f"`{json.dumps(value.default)}`"
        cells = (f"`{value.path}`", value.type, written, value.description)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def readme() -> str:
    """The chart's README with the table as it should be."""
    before, _, rest = README.read_text().partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    sys.exit(generated.run("deploy.values_table", __doc__, {README: readme()}))
