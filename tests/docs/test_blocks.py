"""Every block of code in the documentation says its language and holds what it says."""

import json
import re

import pytest
import yaml

from docs.generate.parsers import PARSERS, flags_of, subcommands
from inflight_operator.api.spec import InferenceServiceSpec
from tests.docs.blocks import BLOCKS, PAGES, PROJECT, in_language, is_part_of_values, service_of, services
from tests.docs.shell import commands, problems

LANGUAGES = {"bash", "console", "json", "mermaid", "python", "text", "yaml"}


def where(blocks):
    return [block.where for block in blocks]


def test_every_block_names_a_language_that_is_checked():
    assert {block.where for block in BLOCKS if block.language not in LANGUAGES} == set()
    assert len(in_language("bash")) > 30


@pytest.mark.parametrize("block", in_language("mermaid"), ids=where(in_language("mermaid")))
def test_a_diagram_says_what_it_shows_to_people_who_cannot_see_it(block):
    kind, title, *_ = block.text.splitlines()
    assert kind == "flowchart LR"
    assert title.startswith("    accTitle: ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_no_code_is_only_indented(page):
    outside = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\n    \S.*$", outside, re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_reuse_values_is_only_warned_of(page):
    paragraphs = re.split(r"\n\s*\n", page.read_text())
    naming = [" ".join(one.split()) for one in paragraphs if re.search(r"(?<!\w)--reuse-values", one)]
    assert [one for one in naming if "omits the defaults of new values" not in one] == []


@pytest.mark.parametrize("block", in_language("bash"), ids=where(in_language("bash")))
def test_programs_flags_and_files_of_shell_blocks_exist(block):
    assert [problem for words in commands(block.text) for problem in problems(words)] == []


@pytest.mark.parametrize("block", in_language("console"), ids=where(in_language("console")))
def test_commands_of_sessions_exist(block):
    typed = "\n".join(line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ "))
    assert [problem for words in commands(typed) for problem in problems(words)] == []


@pytest.mark.parametrize("block", in_language("yaml"), ids=where(in_language("yaml")))
def test_yaml_is_a_service_chart_values_an_engine_configuration_or_another_manifest(block):
    flags = {flag.lstrip("-") for flag in flags_of(subcommands(PARSERS["inflight-engine"]())["serve"])} | {"model"}
    for document in yaml.safe_load_all(block.text):
        known = (
            service_of(document) is not None
            or is_part_of_values(document)
            or set(document) <= flags
            or {"apiVersion", "kind", "metadata"} <= set(document)
            or set(document) == {"scaleTargetRef"}
        )
        assert known, f"neither fields of the resource nor values of the chart: {document}"


@pytest.mark.parametrize(("place", "service"), services(), ids=[place for place, _ in services()])
def test_the_operator_reads_every_service_in_the_documentation(place, service):
    InferenceServiceSpec.model_validate(service["spec"])


@pytest.mark.parametrize("block", in_language("json", "python"), ids=where(in_language("json", "python")))
def test_json_parses_and_python_compiles(block):
    if block.language == "json":
        json.loads(block.text)
    else:
        compile(block.text, block.where, "exec")


def test_a_wrong_flag_value_or_target_is_found():
    wrong = """
    make no-such-target && kubectl get pods --no-such-flag
    helm upgrade inflight helm/inflight --set no.such=value
    inflight-engine serve builtin://smollm2 --no-such-flag
    NAME=$(inflight-operator no-such-command) frobnicate examples/none.yaml
    """
    assert len([problem for words in commands(wrong) for problem in problems(words)]) == 7


def test_the_quickstart_shows_the_example_as_it_is():
    shown = next(block for block in in_language("yaml") if block.page == "docs/quickstart.md")
    assert (PROJECT / "examples" / "chat.yaml").read_text().endswith(shown.text)


@pytest.mark.parametrize("name", ["vllm", "kserve"])
def test_the_guides_of_migration_show_the_examples_as_they_are(name):
    shown = [block.text for block in in_language("yaml") if block.page == f"docs/guides/migrate-from-{name}.md"]
    assert (PROJECT / "examples" / f"migrated-from-{name}.yaml").read_text().endswith(shown[1])
