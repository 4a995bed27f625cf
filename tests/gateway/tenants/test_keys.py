import hashlib
import json
import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.tenants.keys import KeyTables, digest_of, parse, presented_key
from inflight_gateway.types import ServiceConfig


def entry(key="ifk_right", tenant="acme", **more):
    return json.dumps({"tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest(), **more}).encode()


def test_a_key_is_found_by_its_hash_and_a_wrong_one_is_not():
    table = parse({"k1": entry("a"), "k2": entry("b", "other")})
    assert (table.find("a").key_id, table.find("b").tenant) == ("k1", "other")
    assert table.find("c") is None
    assert table.find("") is None


def test_an_end_is_read_with_its_time_zone():
    assert parse({"k": entry(expires="1970-01-01T01:00:10+01:00")}).find("ifk_right").expires == 10.0
    assert parse({"k": entry(expires="1970-01-01T00:00:10Z")}).find("ifk_right").expires == 10.0


def test_malformed_entries_are_left_out_and_the_others_stay_valid():
    table = parse(
        {
            "good": entry(),
            "no-json": b"\xff\xfe{",
            "deep": b"[" * 100_000,
            "list": b"[]",
            "no-tenant": entry(tenant=""),
            "line-feed": entry(tenant="a\nb"),
            "no-hash": b'{"tenant": "acme", "sha256": "ifk_right"}',
            "never-ends": entry("x", expires="tomorrow"),
            "local-time": entry("y", expires="2030-01-01T00:00:00"),
            "twice": entry(),
        }
    )
    assert table.find("ifk_right").key_id == "good"
    assert len(table.by_digest) == 1
    assert set(table.malformed) == {
        "no-json",
        "deep",
        "list",
        "no-tenant",
        "line-feed",
        "no-hash",
        "never-ends",
        "local-time",
        "twice",
    }


NS = "team-a"
KEYS = ObjectKey(NS, "keys")
CHAT = ServiceConfig(ServiceKey(NS, "chat"), "uid", "m", api_keys_secret="keys")


def tables_of(**secrets):
    """A catalog with these Secrets, and its tables."""
    catalog = Catalog()
    catalog.update(secrets={ObjectKey(NS, name): data for name, data in secrets.items()})
    return catalog, KeyTables(catalog)


def test_malformed_entries_are_logged_by_id_and_never_by_value(caplog):
    data = {"bad": b'{"tenant": "acme", "sha256": "ifk_a-key-in-clear-text"}'}
    with caplog.at_level(logging.WARNING):
        catalog, tables = tables_of(keys=data)
        catalog.update(secrets={KEYS: {**data, "good": entry()}})
    assert len(caplog.records) == 1
    assert "entry 'bad'" in caplog.text
    assert "clear-text" not in caplog.text
    assert tables.malformed == 1


def test_an_update_of_the_secret_rotates_keys_at_once():
    catalog, tables = tables_of(keys={"k1": entry("old")})
    assert tables.check("old", CHAT, 0.0).key_id == "k1"
    catalog.update(secrets={KEYS: {"k1": entry("old"), "k2": entry("new")}})
    assert [tables.check(key, CHAT, 0.0).key_id for key in ("old", "new")] == ["k1", "k2"]
    catalog.update(secrets={KEYS: {"k2": entry("new")}})
    assert tables.check("old", CHAT, 0.0).status == 401
    assert not tables.secrets_with(digest_of("old"))
    catalog.update(secrets={KEYS: None})
    assert tables.check("new", CHAT, 0.0).status == 503


def test_a_key_is_hashed_once_and_found_among_the_secrets_of_all_services():
    _, tables = tables_of(**{f"keys-{n}": {"k": entry(f"key {n}"), "shared": entry("shared")} for n in range(5)})
    assert dict(tables.secrets_with(digest_of("key 3"))) == {ObjectKey(NS, "keys-3"): None}
    assert len(tables.secrets_with(digest_of("shared"))) == 5
    assert not tables.secrets_with(digest_of("wrong"))


def test_a_wrong_key_costs_the_same_however_many_services_have_malformed_keys():
    """The sum over all Secrets at each check took 30 ms at 1,000 services."""
    bad = {f"bad-{n}": b"x" for n in range(20)}
    _, tables = tables_of(keys={"k": entry()}, **{f"keys-{n}": bad for n in range(1000)})
    assert tables.malformed == 20_000
    begun = time.thread_time()
    for _ in range(1000):
        assert tables.check("wrong", CHAT, 0.0).status == 401
        assert tables.malformed == 20_000
    assert time.thread_time() - begun < 1.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.none() | st.dictionaries(st.sampled_from("xyz"), st.sampled_from([b"bad", entry("1"), entry("2")])),
        ),
        max_size=12,
    )
)
def test_index_and_count_are_those_of_the_secrets_that_there_are(changes):
    catalog, tables = tables_of()
    now = {}
    for name, data in changes:
        catalog.update(secrets={ObjectKey(NS, name): data})
        now[name] = {} if data is None else data
    parsed = {ObjectKey(NS, name): parse(data) for name, data in now.items()}
    assert tables.malformed == sum(len(table.malformed) for table in parsed.values())
    for key in "12":
        digest = digest_of(key)
        assert set(tables.secrets_with(digest)) == {ref for ref, table in parsed.items() if digest in table.by_digest}


@pytest.mark.parametrize("other", ["api-key", "x-api-key"])
def test_the_bearer_token_goes_before_the_other_headers(other):
    def key(authorization, given=""):
        return presented_key({"authorization": authorization, other: given})

    assert key("Bearer a", "b") == "a"
    assert key("bearer  a ") == "a"
    assert key("Token a", "b") == "b"
    assert key("Bearer ", " b ") == "b"
    assert key("") == presented_key({}) == ""


@given(st.text(), st.dictionaries(st.text(), st.binary()))
def test_no_key_and_no_entry_raises(key, data):
    parse(data).find(key)


def test_lone_surrogates_and_endless_keys_are_wrong_keys():
    table = parse({"k": entry()})
    assert table.find("\ud800") is None
    assert table.find("x" * 10_000_000) is None
