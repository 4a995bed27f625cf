"""The changelog names every new value of the chart and every new field of the resource."""

import re
import tarfile
from pathlib import Path

import yaml

PROJECT = Path(__file__).parents[2]
CHART = PROJECT / "helm" / "inflight"
PREVIOUS = Path(__file__).with_name("previous") / "inflight-0.1.0.tgz"


def of_previous(name):
    with tarfile.open(PREVIOUS) as archive:
        return archive.extractfile(f"inflight/{name}").read().decode()


def value_paths(values, prefix=""):
    """Paths of all keys of a values file, groups included."""
    found = set()
    for key, value in values.items():
        found |= {prefix + key} | (value_paths(value, f"{prefix}{key}.") if isinstance(value, dict) else set())
    return found


def field_paths(schema, prefix=""):
    """Paths of all fields of a schema, those of list items and maps included."""
    found = set()
    for key, field in schema.get("properties", {}).items():
        found |= {prefix + key} | field_paths(field, f"{prefix}{key}.")
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        found |= field_paths(inner, prefix) if isinstance(inner, dict) else set()
    return found


def spec_paths(text):
    """Paths of the fields of `spec` in a CRD."""
    version = yaml.safe_load(text)["spec"]["versions"][0]
    return field_paths(version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec.")


def new_names(now, before):
    """New paths, without those whose parent is new."""
    new = now - before
    return {path for path in new if path.rpartition(".")[0] not in new}


def new_entries():
    """Names in backquotes in the changelog's entries since the previous chart, without `.*`."""
    entries, before, _ = (PROJECT / "CHANGELOG.md").read_text().partition("\n## [0.1.0]")
    assert before
    return {name.removesuffix(".*") for name in re.findall(r"`([\w.*]+)`", entries)}


def not_named(paths, names):
    """Paths of which neither the name nor a parent's is among the names."""
    return {path for path in paths if not any(path == name or path.startswith(f"{name}.") for name in names)}


def test_every_new_value_of_the_chart_is_in_the_changelog():
    before = value_paths(yaml.safe_load(of_previous("values.yaml")))
    new = new_names(value_paths(yaml.safe_load((CHART / "values.yaml").read_text())), before)
    assert {"networkPolicy", "engine.logs"} <= new
    assert not_named(new, new_entries()) == set()


def test_every_new_field_of_the_resource_is_in_the_changelog():
    new = new_names(spec_paths((CHART / "files" / "crd.yaml").read_text()), spec_paths(of_previous("files/crd.yaml")))
    assert {"spec.tuning.override", "spec.template.runtimeClassName"} <= new
    assert not_named(new, new_entries()) == set()


def test_a_missing_name_is_found():
    assert not_named({"spec.a.b", "c.d", "c.e"}, {"spec.a", "c.d", "c.e.f"}) == {"c.e"}
