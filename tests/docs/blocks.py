"""The blocks of code in the documentation, and what kind of YAML a block is."""

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from inflight_operator.api.crd import crd

PROJECT = Path(__file__).parents[2]
PAGES = [
    PROJECT / "README.md",
    PROJECT / "CHANGELOG.md",
    PROJECT / "CONTRIBUTING.md",
    PROJECT / "helm" / "inflight" / "README.md",
    *sorted((PROJECT / "docs").rglob("*.md")),
]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_NOTE = re.compile(r"<!-- test: (.*) -->\n$")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        note: of a comment `<!-- test: NOTE -->` on the line before it.
    """

    page: str
    line: int
    language: str
    text: str
    note: str

    @property
    def where(self):
        return f"{self.page}:{self.line}"


def blocks_of(path):
    content = path.read_text()
    found = []
    for match in _FENCE.finditer(content):
        before = content[: match.start()]
        note = _NOTE.search(before)
        indent = len(match["indent"])
        text = "".join(line[indent:] for line in match["text"].splitlines(keepends=True))
        name = str(path.relative_to(PROJECT))
        found.append(Block(name, before.count("\n") + 1, match["language"], text, note[1] if note else ""))
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def in_language(*languages):
    return [block for block in BLOCKS if block.language in languages]


SPEC = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
VALUES = yaml.safe_load((PROJECT / "helm" / "inflight" / "values.yaml").read_text())


def is_part_of_spec(part, schema=SPEC):
    """Whether each key of a mapping is a field of the CRD."""
    if isinstance(part, list):
        return all(is_part_of_spec(one, schema.get("items", {})) for one in part)
    if not isinstance(part, dict) or "properties" not in schema or schema.get("x-kubernetes-preserve-unknown-fields"):
        return True
    return all(key in schema["properties"] and is_part_of_spec(part[key], schema["properties"][key]) for key in part)


def is_part_of_values(part, values=VALUES):
    """Whether each key of a mapping is a value of the chart."""
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
