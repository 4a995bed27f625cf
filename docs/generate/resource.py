"""The reference of the InferenceService: every field of the CRD, with type, default, validation and description."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from docs.generate.markdown import GENERATED, cell, code, prose, table
from inflight_operator.api.crd import crd

Schema = dict[str, Any]

INTRODUCTION = """\
# InferenceService

`apiVersion: inflight.dev/v1alpha1`, `kind: InferenceService`, short name `ifsvc`, namespaced. `kubectl explain
ifsvc.spec --recursive` prints the same from a cluster. The [guide](../services.md) explains how the fields work
together.

The API server refuses a value that a rule below forbids, and a field that is not listed.

"""

_HEADER = ("field", "type", "default", "description")
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} entries",
}


def page() -> str:
    """The whole page."""
    version = crd()["spec"]["versions"][0]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    columns = [[code(one["name"]), cell(one["description"])] for one in version["additionalPrinterColumns"]]
    sections = [text for name in ("spec", "status") for text in _sections(name, properties[name])]
    return (
        GENERATED
        + INTRODUCTION
        + "Columns of `kubectl get ifsvc`:\n\n"
        + table(("column", "meaning"), columns)
        + "".join(sections)
    )


def _sections(path: str, schema: Schema) -> Iterator[str]:
    """A section for an object and for each object below it, parents first."""
    parts = [f"\n## {path}\n\n"]
    if "description" in schema:
        parts.append(prose(schema["description"]) + "\n\n")
    required = schema.get("required", ())
    parts.append(
        table(_HEADER, [_row(path, name, one, name in required) for name, one in schema["properties"].items()])
    )
    rules = [rule["message"] for rule in schema.get("x-kubernetes-validations", ())]
    if rules:
        parts.append("\nRules:\n\n" + "".join(f"- {prose(rule)}\n" for rule in rules))
    yield "".join(parts)
    for name, field in schema["properties"].items():
        inner, suffix = _inner(field)
        if "properties" in inner:
            yield from _sections(f"{path}.{name}{suffix}", inner)


def _inner(schema: Schema) -> tuple[Schema, str]:
    """Returns the schema of a field, of its items or of the values under its keys, and the end of its path."""
    if isinstance(schema.get("items"), dict):
        return schema["items"], "[]"
    if isinstance(schema.get("additionalProperties"), dict):
        return schema["additionalProperties"], "{}"
    return schema, ""


def _row(path: str, name: str, schema: Schema, required: bool) -> list[str]:
    inner, suffix = _inner(schema)
    shown = code(name)
    if "properties" in inner:
        anchor = "".join(letter for letter in f"{path}.{name}{suffix}".lower() if letter.isalnum())
        shown = f"[{shown}](#{anchor})"
    default = "required" if required else _default(schema)
    sentences = [cell(schema.get("description", "")), *_validation(schema, inner)]
    return [shown, _type(schema, inner), default, " ".join(one for one in sentences if one)]


def _default(schema: Schema) -> str:
    if "default" not in schema or schema["default"] in ({}, []):
        return ""
    value = schema["default"]
    return cell(code(value if isinstance(value, str) and value else json.dumps(value)))


def _type(schema: Schema, inner: Schema) -> str:
    plain = "integer or string" if inner.get("x-kubernetes-int-or-string") else str(inner.get("type", "any"))
    if isinstance(schema.get("items"), dict):
        return f"list of {plain}"
    return f"map of {plain}" if inner is not schema else plain


def _validation(schema: Schema, inner: Schema) -> list[str]:
    """Sentences for bounds and rules; those of an object are in its own section."""
    holders = [("", schema)] if inner is schema or "properties" in inner else [("", schema), ("each ", inner)]
    bounds = [
        each + text.format(f"{holder[key]:,}")
        for each, holder in holders
        for key, text in _BOUNDS.items()
        if key in holder
    ]
    sentences = []
    for _, holder in holders:
        if "enum" in holder:
            sentences.append("One of " + ", ".join(code(str(choice)) for choice in holder["enum"]) + ".")
        if "pattern" in holder:
            sentences.append("Matches " + cell(code(holder["pattern"])) + ".")
    if bounds:
        sentences.append((text := ", ".join(bounds))[0].upper() + text[1:] + ".")
    if "properties" not in schema:
        rules = [rule["message"] for _, holder in holders for rule in holder.get("x-kubernetes-validations", ())]
        sentences += [cell(f"Rule: {rule}.") for rule in rules]
    return sentences
