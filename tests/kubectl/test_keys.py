"""`keys`: the content of the Secret, and that the gateway reads it correctly."""

import base64
import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from inflight_gateway.tenants.keys import parse
from inflight_kubectl.access.api_keys import DEFAULT_SECRET, authorization, new_key, stored_keys
from inflight_kubectl.access.cluster import Cluster, Target, candidates
from inflight_kubectl.access.resources import Service
from inflight_kubectl.cli import cli
from inflight_kubectl.flag_types import DurationType
from inflight_kubectl.output import Problem
from tests.kubectl.fake_api import FakeApi
from tests.kubectl.objects import NOW, body

PROJECT = Path(__file__).parents[2]
SECRET = "/api/v1/namespaces/default/secrets/chat-keys"


def behind(name="chat", secret="chat-keys", **gateway):
    auth = {"auth": {"apiKeysSecret": secret}} if secret else {}
    return body(name, spec={"gateway": {"enabled": True, **auth, **gateway}})


@pytest.fixture
def api(monkeypatch):
    """The API server of all commands, with the service chat."""
    server = FakeApi(behind())
    monkeypatch.setattr(Target, "connect", lambda self: server.target())
    return server


def run(*words, code=0):
    done = CliRunner().invoke(cli, ["keys", *words])
    assert done.exit_code == code, done.output
    return done


def data(api):
    return {key_id: base64.b64decode(value) for key_id, value in api.objects[SECRET]["data"].items()}


def test_a_key_goes_to_standard_output_alone_and_its_hash_to_the_secret(api):
    done = run("create", "chat", "--tenant", "acme")
    key = done.stdout.strip()
    assert re.fullmatch(r"ifk_[A-Za-z0-9_-]{43}", key)
    assert "Secret chat-keys (created) stores only its hash" in done.stderr
    ((key_id, value),) = data(api).items()
    assert json.loads(value) == {"tenant": "acme", "sha256": hashlib.sha256(key.encode()).hexdigest()}
    assert key not in json.dumps(api.objects)
    assert key_id.startswith("acme-")


def test_the_gateway_reads_what_the_plugin_writes(api):
    key = run("create", "chat", "--tenant", "acme", "--expires", "90d").stdout.strip()
    found = parse(data(api)).find(key)
    assert found.tenant == "acme"
    assert abs(found.expires - (datetime.now(UTC) + timedelta(days=90)).timestamp()) < 60


def test_a_second_key_leaves_the_first_in_force(api):
    first = run("create", "chat", "--tenant", "acme").stdout.strip()
    done = run("create", "chat", "--tenant", "acme")
    assert "(updated)" in done.stderr
    table = parse(data(api))
    assert table.find(first)
    assert table.find(done.stdout.strip())


def test_a_secret_that_appears_in_the_meantime_is_updated(api, monkeypatch):
    run("create", "chat", "--tenant", "acme")
    get = Cluster.get
    monkeypatch.setattr(Cluster, "get", lambda self, path: None if path == SECRET else get(self, path))
    run("create", "chat", "--tenant", "acme")
    assert len(data(api)) == 2


def test_json_has_the_key_and_its_id(api):
    made = json.loads(run("create", "chat", "--tenant", "acme", "--json").stdout)
    assert set(made) == {"id", "tenant", "key", "expires", "secret"}
    assert data(api).keys() == {made["id"]}


def test_a_tenant_without_an_entry_and_a_service_without_the_gateway_are_noted(api):
    api.objects.update(FakeApi(behind(tenants=[{"name": "acme"}])).objects)
    assert "spec.gateway.tenants does not name other" in run("create", "chat", "--tenant", "other").stderr
    assert "note" not in run("create", "chat", "--tenant", "acme").stderr
    api.objects.update(FakeApi(behind(enabled=False)).objects)
    assert "is not behind the gateway" in run("create", "chat", "--tenant", "acme").stderr


def test_a_service_that_names_no_secret_gets_the_command_that_sets_one(api):
    api.objects.update(FakeApi(behind(secret=None)).objects)
    said = run("create", "chat", "--tenant", "acme", code=1).stderr
    patch = json.loads(re.search(r"-p '(.*)'", said)[1])
    assert patch == {"spec": {"gateway": {"enabled": True, "auth": {"apiKeysSecret": DEFAULT_SECRET}}}}
    assert SECRET not in api.objects


@pytest.mark.parametrize("name", ["", "a b", "-a", "a\nb", "x" * 64, "ä"])
def test_names_that_no_header_can_carry_are_refused(api, name):
    assert "is no name of a tenant" in run("create", "chat", "--tenant", name, code=2).stderr


def test_forbidden_says_what_to_do(api):
    api.forbidden.add(SECRET)
    assert "Ask an administrator for this permission" in run("create", "chat", "--tenant", "acme", code=1).stderr


def test_keys_are_listed_without_their_values(api):
    keys = [run("create", "chat", "--tenant", name).stdout.strip() for name in ("acme", "beta")]
    api.objects[SECRET]["data"]["broken"] = base64.b64encode(b"{").decode()
    shown = run("list").stdout
    assert [line.split()[1:3] for line in shown.splitlines()] == [
        ["TENANT", "STATE"],
        ["acme", "valid"],
        ["beta", "valid"],
        ["-", "malformed"],
    ]
    assert not any(key in shown for key in keys)
    listed = json.loads(run("list", "chat", "--json").stdout)["keys"]
    assert [one["state"] for one in listed] == ["valid", "valid", "malformed"]


def test_without_keys_the_list_says_how_to_make_one(api):
    assert "keys create SERVICE --tenant NAME" in run("list").stderr
    assert json.loads(run("list", "--json").stdout)["keys"] == []


def test_states_of_stored_keys():
    def stored(**entry):
        return {"k": base64.b64encode(json.dumps({"tenant": "a", "sha256": "0" * 64} | entry).encode()).decode()}

    assert stored_keys(stored(), NOW)[0].state == "valid"
    assert stored_keys(stored(expires="2026-05-04T12:00:00Z"), NOW)[0].state == "expired"
    assert stored_keys(stored(expires="2026-05-04T12:00:01Z"), NOW)[0].state == "valid"
    for wrong in ({"expires": "soon"}, {"expires": "2026-05-04T12:00:00"}, {"sha256": "00"}, {"tenant": 3}):
        assert stored_keys(stored(**wrong), NOW)[0].state == "malformed"
    assert stored_keys({"k": "not base64"}, NOW)[0].state == "malformed"


def test_a_revoked_key_is_gone_and_others_stay(api):
    first = json.loads(run("create", "chat", "--tenant", "acme", "--json").stdout)
    second = json.loads(run("create", "chat", "--tenant", "acme", "--json").stdout)
    assert f"Key {first['id']} is revoked for chat" in run("revoke", first["id"]).stderr
    table = parse(data(api))
    assert table.find(first["key"]) is None
    assert table.find(second["key"])


def test_an_unknown_key_id_is_answered_with_those_there_are(api):
    made = json.loads(run("create", "chat", "--tenant", "acme", "--json").stdout)
    said = run("revoke", "acme-0", code=1).stderr
    assert 'no API key "acme-0"' in said
    assert made["id"] in said


def test_a_key_id_in_two_secrets_asks_for_the_service(api):
    api.objects.update(FakeApi(behind("other", "other-keys")).objects)
    made = json.loads(run("create", "chat", "--tenant", "acme", "--json").stdout)
    api.objects[SECRET.replace("chat", "other")] = json.loads(json.dumps(api.objects[SECRET]))
    assert "Choose one with --service" in run("revoke", made["id"], code=1).stderr
    run("revoke", made["id"], "--service", "other")
    assert data(api)


def test_ids_are_completed(api):
    made = json.loads(run("create", "chat", "--tenant", "acme", "--json").stdout)
    assert candidates("keys", Target(), "ac") == [made["id"]]
    assert candidates("keys", Target(), "x") == []


def test_keys_are_random():
    assert len({new_key("a", None).key for _ in range(100)}) == 100


@pytest.mark.parametrize(("text", "seconds"), [("90d", 7_776_000.0), ("12h", 43_200.0), ("5m", 300.0)])
def test_lifetimes_are_in_days_hours_or_minutes(text, seconds):
    assert DurationType(60.0, 1e9).convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["90", "-1d", "0d", "99999d", "d", "9" * 30 + "d"])
def test_lifetimes_of_another_form_or_length_are_refused(text):
    with pytest.raises(click.UsageError):
        DurationType(60.0, 3660 * 86_400.0).convert(text, None, None)


@pytest.mark.parametrize("name", ["create", "list", "revoke"])
def test_every_command_of_keys_has_examples(name):
    assert "Examples:" in run(name, "--help").output


def test_requests_to_a_service_with_keys_need_one():
    with pytest.raises(Problem, match="asks for an API key"):
        authorization(Service.of(behind()), None)
    assert authorization(Service.of(behind()), "ifk_1") == {"authorization": "Bearer ifk_1"}
    assert authorization(Service.of(behind(secret=None)), None) == {}


def test_the_secret_of_examples_and_guides_is_one_that_the_gateway_may_read_by_default():
    values = yaml.safe_load((PROJECT / "helm/inflight/values.yaml").read_text())
    assert values["gateway"]["apiKeySecrets"] == [DEFAULT_SECRET]
    for folder in ("docs", "examples"):
        for page in (PROJECT / folder).rglob("*"):
            if page.suffix in (".md", ".yaml"):
                named = re.findall(r"apiKeysSecret: ([\w-]+)", page.read_text())
                assert set(named) <= {DEFAULT_SECRET}, page
