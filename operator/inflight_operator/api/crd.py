"""Generates the CustomResourceDefinition from the API types.

`python -m inflight_operator.api.crd` prints it; with `--write`, it goes to `crds/` and into the chart.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from inflight_base.manifest.names import GROUP, KIND, LONGEST_NAME, PLURAL, VERSION
from inflight_operator.api.base import rule
from inflight_operator.api.disaggregation import NAME_RULE
from inflight_operator.api.spec import InferenceServiceSpec
from inflight_operator.api.status import InferenceServiceStatus
from inflight_operator.api.types import CATEGORY, SHORT_NAME, InferenceService

PROJECT = Path(__file__).resolve().parents[3]
FILES = (
    Path("crds") / f"{GROUP}_{PLURAL}.yaml",
    Path("helm") / "inflight" / "files" / "crd.yaml",
)
"""Where the generated CRD is kept, relative to the project's folder."""

_HEADER = "# Generated from operator/inflight_operator/api by `python -m inflight_operator.api.crd --write`.\n"

# Service names must be DNS-1035 labels.
_NAME_RULE = rule(
    f"self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && self.metadata.name.size() <= {LONGEST_NAME}",
    f"metadata.name must be at most {LONGEST_NAME} characters of a-z, 0-9 and -, and begin with a letter: it becomes"
    " the name of a Service",
)

_COLUMNS: tuple[tuple[str, str, str, str], ...] = (
    (
        "Ready",
        "string",
        '.status.conditions[?(@.type=="Ready")].status',
        "Whether the service takes requests, at zero replicas too.",
    ),
    ("Replicas", "integer", ".status.replicas", "Pods there are."),
    ("Queue", "integer", ".status.queue.waiting", "Requests waiting, at the gateway and in engines."),
    ("KV", "number", ".status.observed.kvUtilization", "Share of the KV cache in use, 0 to 1."),
    ("Limits", "string", ".status.limits.summary", "max_num_seqs/max_num_batched_tokens in force."),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', "Why the service is Ready or not."),
    ("Age", "date", ".metadata.creationTimestamp", "When it was made."),
)

_WIDE_COLUMNS = (
    ("Engine", "string", ".spec.engine.type", "Type of the engines."),
    ("Desired", "integer", ".status.desiredReplicas", "Replicas that the operator decided on."),
    ("Available", "integer", ".status.readyReplicas", "Pods that accept requests."),
    ("TTFT", "string", ".status.observed.ttftP95", "95th percentile of time to first token."),
    ("TPOT", "string", ".status.observed.tpotP95", "95th percentile of time per output token."),
    ("URL", "string", ".status.url", "Address inside the cluster."),
)
"""Columns of `kubectl get -o wide`."""


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition (apiextensions.k8s.io/v1)."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": [SHORT_NAME],
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _root_schema()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": type_, "jsonPath": path, "description": description}
                        for name, type_, path, description in _COLUMNS
                    ]
                    + [
                        {"name": name, "type": type_, "jsonPath": path, "description": description, "priority": 1}
                        for name, type_, path, description in _WIDE_COLUMNS
                    ],
                }
            ],
        },
    }


def crd_yaml() -> str:
    """The CRD as YAML; the same types give the same text."""
    return _HEADER + yaml.dump(crd(), Dumper=_PlainDumper, sort_keys=False, width=120, allow_unicode=True)


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """A model's JSON schema in the structural form the API server wants: no $ref, no title, defaults on parents."""
    schema = model.model_json_schema(by_alias=True)
    return _structural(schema, schema.get("$defs", {}))


def _root_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "description": " ".join((InferenceService.__doc__ or "").split()),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural_schema(InferenceServiceSpec),
            "status": structural_schema(InferenceServiceStatus),
        },
        "x-kubernetes-validations": [_NAME_RULE, NAME_RULE],
    }


def _structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    schema = _dereferenced(schema, definitions)
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
    if schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("additionalProperties") is False:
        schema.pop("additionalProperties", None)
    if "items" in schema:
        schema["items"] = _structural(schema["items"], definitions)
    if isinstance(schema.get("additionalProperties"), dict):
        schema["additionalProperties"] = _structural(schema["additionalProperties"], definitions)
    if "properties" in schema:
        required = schema.get("required", ())
        schema["properties"] = {
            name: _with_default(_structural(value, definitions), optional=name not in required)
            for name, value in schema["properties"].items()
        }
    return schema


def _dereferenced(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema with its reference inlined, without title, `$defs`, and the null of optional fields."""
    outer = {key: value for key, value in schema.items() if key not in ("title", "$defs", "$ref", "anyOf")}
    if "$ref" in schema:
        target = _dereferenced(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
        return {**target, **outer}
    if "anyOf" in schema and not schema.get("x-kubernetes-int-or-string"):
        (value,) = (choice for choice in schema["anyOf"] if choice != {"type": "null"})
        return {**_dereferenced(value, definitions), **outer}
    if "anyOf" in schema:
        outer["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return outer


def _with_default(schema: dict[str, Any], *, optional: bool) -> dict[str, Any]:
    """Adds the empty default to a parent; without it the API server fills in no defaults of its children.

    The API server checks a default against the parent's own CEL rules before it fills in the children, so rules that
    read defaulted fields belong to the spec itself.
    """
    if (
        optional
        and "default" not in schema
        and any("default" in child for child in schema.get("properties", {}).values())
    ):
        return {**schema, "default": {}}
    return {key: value for key, value in schema.items() if key != "default" or value is not None}


class _PlainDumper(yaml.SafeDumper):
    """YAML without anchors: what repeats is written out, as is usual in a CRD."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main(arguments: list[str] | None = None) -> int:
    """Prints the CRD, or writes it to every file that holds it."""
    parser = argparse.ArgumentParser(prog="python -m inflight_operator.api.crd", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write " + " and ".join(map(str, FILES)))
    if not parser.parse_args(arguments).write:
        sys.stdout.write(crd_yaml())
        return 0
    for file in FILES:
        (PROJECT / file).parent.mkdir(parents=True, exist_ok=True)
        (PROJECT / file).write_text(crd_yaml())
        print(f"wrote {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
