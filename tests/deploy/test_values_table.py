"""Every value of the chart is in values.yaml, in the schema and in the table, each time the same."""

import json

import pytest

from deploy import values_table
from deploy.values_table import descriptions, load_schema, schema_of, type_in_words, values
from tools.testbed.helm import CHART

NOT_OURS = {"global"}  # Helm's own


def paths_of_schema():
    """Values that the schema knows, down to what values.yaml describes."""
    schema, described = load_schema(), {value.path for value in values()}

    def walk(node, path):
        for name in node.get("properties", {}):
            below = f"{path}.{name}" if path else name
            if below in NOT_OURS:
                continue
            yield below
            child = schema_of(below, schema)
            if any(one.startswith(f"{below}.") for one in described):
                yield from walk(child, below)

    return set(walk(schema, ""))


def test_the_table_in_the_readme_is_up_to_date():
    assert values_table.README.read_text() == values_table.readme(), "run `python -m deploy.values_table --write`"


def test_values_schema_and_table_have_the_same_values():
    described = {value.path for value in values()}
    assert described <= set(descriptions())
    assert paths_of_schema() == described
    rows = [line for line in values_table.README.read_text().splitlines() if line.startswith("| `")]
    assert {row.split("`")[1] for row in rows} == described


def test_every_default_is_of_the_type_in_the_schema():
    types = {
        str: {"string"},
        bool: {"boolean"},
        int: {"integer", "number"},
        float: {"number"},
        list: {"array"},
        dict: {"object"},
    }
    for value in values():
        if value.type == "group":
            continue
        schema = schema_of(value.path, load_schema())
        choices = schema.get("anyOf", [schema])
        assert any(
            value.default in one["enum"] if "enum" in one else one["type"] in types[type(value.default)]
            for one in choices
        ), value.path


def test_every_description_is_a_sentence():
    for path, text in descriptions().items():
        assert text[0].isupper(), path
        assert text.endswith("."), path


def test_entries_of_a_map_are_no_values_of_their_own(monkeypatch):
    described = {**descriptions(), "podLabels.team": "A label."}
    monkeypatch.setattr(values_table, "descriptions", lambda: described)
    assert "podLabels.team" not in {value.path for value in values()}


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"type": "boolean"}, "boolean"),
        ({"type": "integer", "minimum": 1, "maximum": 60}, "integer, 1 to 60"),
        ({"type": "integer", "minimum": 0}, "integer, at least 0"),
        ({"enum": ["A", "B"]}, '`"A"`, `"B"`'),
        ({"type": "array", "items": {"$ref": "#/definitions/name"}}, "list of strings"),
        ({"$ref": "#/definitions/text"}, "map of strings"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "integer or string"),
    ],
)
def test_types_are_named_in_words(node, words):
    assert type_in_words(node, load_schema()) == words


def test_every_value_is_required_so_that_a_release_that_reuses_older_values_is_refused():
    schema = load_schema()
    for group in ["", *(value.path for value in values() if value.type == "group")]:
        node = schema_of(group, schema) if group else schema
        members = set(node["properties"]) - NOT_OURS
        assert set(node["required"]) == members, group


def test_the_schema_is_written_as_json_that_helm_reads():
    assert json.loads((CHART / "values.schema.json").read_text())["$schema"].startswith(
        "http://json-schema.org/draft-07"
    )
