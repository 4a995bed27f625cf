"""The page of vLLM's endpoints, fields and flags says what the engine does."""

from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from docs.generate.parsers import PARSERS, flags_of, subcommands
from docs.generate.vllm import DIFFERENT, REPLACED, REPLACED_ENDPOINTS, bodies, served, taken_fields
from docs.generate.vllm_names import kept, read
from inflight_engine.server.bodies.fields import WITHOUT_EFFECT
from tests.engine.server.fake_engine import connected, server_config

NAMES = kept()
SOURCE = Path.home() / ".cache/inflight/bench" / f"vllm-{NAMES.version.rpartition('.')[0]}" / "vllm"
SERVE = subcommands(PARSERS["inflight-engine"]())["serve"]
PATHS = [path for path in NAMES.fields if path in bodies()]


def refuses(path, field, value="no meaning"):
    """Each type of the path's bodies names the field in an error that refuses it."""
    kinds = ("extra_forbidden", "unsupported_parameter")
    for model in bodies()[path]:
        try:
            model.model_validate({field: value})
        except ValidationError as found:
            errors = [each["loc"] for each in found.errors() if each["type"] in kinds]
        else:
            errors = []
        if (field,) not in errors:
            return False
    return True


@pytest.mark.skipif(not SOURCE.exists(), reason=f"{SOURCE} is not there: docs/vllm-plugin.md has the command")
def test_the_names_are_those_of_vllms_source():
    assert read(SOURCE) == NAMES


def test_the_paths_are_those_that_both_have():
    assert {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"} <= {*PATHS}


@pytest.mark.parametrize("path", PATHS)
def test_a_field_that_is_not_taken_is_accepted_with_null_and_its_default(path):
    for field in {*NAMES.fields[path]} - {*taken_fields()[path]}:
        for value in (None, WITHOUT_EFFECT.get(field)):
            assert not refuses(path, field, value), (field, value)
    assert refuses(path, "unknown", None)


async def test_an_endpoint_is_served_or_not_found():
    _, _, app = await connected(server_config(enable_tokenizer_info_endpoint=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as http:
        for endpoint in NAMES.endpoints:
            method, path = endpoint.split(" ")
            if method != "WEBSOCKET":
                status = (await http.request(method, path)).status_code
                assert (status != 404) == (endpoint in served()), endpoint


@pytest.mark.parametrize("path", PATHS)
def test_a_field_is_refused_by_its_name_or_taken(path):
    taken = taken_fields()[path]
    for field in NAMES.fields[path]:
        assert refuses(path, field) == (field not in taken), field


def test_flags_that_are_not_ours_end_the_start_with_their_name(capsys):
    for flag in {*NAMES.flags} - flags_of(SERVE):
        with pytest.raises(SystemExit) as ended:
            SERVE.parse_args(["builtin://smollm2", f"{flag}=1"])
        assert ended.value.code == 2
        assert flag in capsys.readouterr().err, flag


def test_remarks_are_on_names_of_vllm():
    assert {*REPLACED_ENDPOINTS} <= {*NAMES.endpoints} - served()
    assert {*REPLACED} <= {*NAMES.flags} - flags_of(SERVE)
    assert {*DIFFERENT} <= {*NAMES.flags} & flags_of(SERVE)


def test_settings_in_place_of_a_flag_exist():
    words = " ".join(REPLACED.values()).replace("`", " ").split()
    assert {word for word in words if word.startswith("--")} <= flags_of(SERVE)
