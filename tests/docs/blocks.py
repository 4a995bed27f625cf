"""The blocks of code in the documentation, and what kind of YAML a block is."""

import yaml

from inflight_operator.api.crd import crd
from tools.code_blocks import blocks_of
from tools.localcluster.layout import REPOSITORY as PROJECT

PAGES = [
    PROJECT / "README.md",
    PROJECT / "CHANGELOG.md",
    PROJECT / "CONTRIBUTING.md",
    PROJECT / "helm" / "inflight" / "README.md",
    *sorted((PROJECT / "docs").rglob("*.md")),
]

BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def in_language(*languages):
    return [block for block in BLOCKS if block.language in languages]


SPEC = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
VALUES = yaml.safe_load((PROJECT / "helm" / "inflight" / "values.yaml").read_text())


def is_part_of_spec(part, schema=SPEC):
    """Returns whether each key of a mapping is a field of the CRD."""
    if isinstance(part, list):
        return all(is_part_of_spec(one, schema.get("items", {})) for one in part)
    if not isinstance(part, dict) or "properties" not in schema or schema.get("x-kubernetes-preserve-unknown-fields"):
        return True
    return all(key in schema["properties"] and is_part_of_spec(part[key], schema["properties"][key]) for key in part)


def is_part_of_values(part, values=VALUES):
    """Returns whether each key of a mapping is a value of the chart."""
    if not isinstance(part, dict) or not isinstance(values, dict) or not values:
        return True
    return all(key in values and is_part_of_values(part[key], values[key]) for key in part)


def service_of(document):
    """The InferenceService that a YAML document is, or that it is a part of; None for other documents."""
    if "apiVersion" in document:
        return document if document["apiVersion"].startswith("inflight.dev/") else None
    spec = document["spec"] if set(document) == {"spec"} else document
    if not is_part_of_spec(spec):
        return None
    return {
        "apiVersion": "inflight.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "part"},
        "spec": {"model": {"source": "builtin://smollm2"}, **spec},
    }


def services():
    """InferenceServices in the documentation, whole or completed from a part, with their places."""
    documents = [(block, one) for block in in_language("yaml") for one in yaml.safe_load_all(block.text)]
    return [(block.where, service) for block, one in documents if (service := service_of(one)) is not None]
