"""The generated CRD: up to date, and without parts of a JSON schema that a structural schema must not have."""

import re
from dataclasses import replace

import yaml

from inflight_operator.api.crd import FILES, PROJECT, crd, crd_yaml, main
from inflight_operator.api.engine.fields import OWN_FLAGS
from inflight_operator.render.plan import ModelCache
from tests.operator.render.services import EVERYTHING, SETTINGS, engine, make


def schemas(schema, path="spec"):
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from schemas(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from schemas(schema[key], f"{path}[]")


def root():
    return crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


def test_the_files_are_what_the_types_give():
    for file in FILES:
        assert (PROJECT / file).read_text() == crd_yaml(), (
            f"{file} is out of date: run `python -m inflight_operator.api.crd --write`"
        )


def test_printing_and_the_files_are_the_same(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out == crd_yaml()
    assert yaml.safe_load(crd_yaml()) == crd()


def test_every_field_of_the_spec_and_the_status_is_described():
    undescribed = [
        path
        for part in ("spec", "status")
        for path, schema in schemas(root()[part], part)
        if "description" not in schema and not path.endswith("[]")
    ]
    assert undescribed == []


def test_every_string_list_and_number_of_the_spec_is_bounded_so_that_cel_has_a_cost_limit():
    def bounded(schema):
        match schema.get("type"):
            case "string":
                return "maxLength" in schema or "enum" in schema
            case "array":
                return "maxItems" in schema
        return True

    assert [path for path, schema in schemas(root()["spec"]) if not bounded(schema)] == []


def test_nothing_of_json_schema_is_left_that_a_structural_schema_must_not_have():
    for path, schema in schemas(root()["spec"]):
        assert not {"$ref", "$defs", "title", "const", "examples", "propertyNames"} & schema.keys(), path
    assert "&id" not in crd_yaml()


def test_every_rule_has_a_sentence_that_names_a_field():
    names = re.compile(r"[a-z][A-Za-z0-9]*(\.[a-zA-Z0-9]+)+|replicas|environment variable|valueFrom|envFrom")
    for path, schema in schemas(root()["spec"]):
        for rule in schema.get("x-kubernetes-validations", ()):
            assert names.search(rule["message"]), (path, rule)


SLEEP = {"sleep": {"after": "5m"}}


def test_the_flags_extra_args_may_not_repeat_are_the_ones_the_operator_sets():
    own_fields = {name: value for name, value in EVERYTHING["engine"].items() if name != "extraArgs"}
    service = make(**{**EVERYTHING, "engine": own_fields, "gateway": {"enabled": True}, "scaling": SLEEP})
    settings = replace(
        SETTINGS, gateway_service="g.system.svc.cluster.local", model_cache=ModelCache("models", "", 2**30)
    )
    given = [service, make(model={"source": "s3://models/qwen", "peers": True})]
    commands = [engine(one, settings)["command"] for one in given]
    flags = {argument.removeprefix("--").partition("=")[0] for command in commands for argument in command[3:]}
    assert flags == {*OWN_FLAGS, "kv-events-config"}  # which extra_args may have instead of the field
