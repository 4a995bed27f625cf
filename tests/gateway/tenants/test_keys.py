import hashlib
import json
import logging

from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.tenants.keys import KeyTables, parse


def entry(key="ifk_right", tenant="acme", **more):
    return json.dumps({"tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest(), **more}).encode()


def test_a_key_is_found_by_its_hash_and_a_wrong_one_is_not():
    table = parse({"k1": entry("a"), "k2": entry("b", "other")})
    assert (table.find("a").key_id, table.find("b").tenant) == ("k1", "other")
    assert table.find("c") is None
    assert table.find("") is None
    assert table.tenants == {"acme", "other"}


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


def test_malformed_entries_are_logged_by_id_and_never_by_value(caplog):
    with caplog.at_level(logging.WARNING):
        tables = KeyTables()
        data = {"bad": b'{"tenant": "acme", "sha256": "ifk_a-key-in-clear-text"}'}
        tables.table("ns", "keys", data)
        tables.table("ns", "keys", data)
    assert len(caplog.records) == 1
    assert "entry 'bad'" in caplog.text
    assert "clear-text" not in caplog.text
    assert tables.malformed == 1


def test_an_update_of_the_secret_rotates_keys_at_once():
    tables = KeyTables()
    assert tables.table("ns", "keys", {"k1": entry("old")}).find("old")
    both = tables.table("ns", "keys", {"k1": entry("old"), "k2": entry("new")})
    assert both.find("old")
    assert both.find("new")
    assert tables.table("ns", "keys", {"k2": entry("new")}).find("old") is None
    assert tables.table("ns", "keys", None) is None


def test_equal_data_is_parsed_once():
    tables = KeyTables()
    assert tables.table("ns", "keys", {"k": entry()}) is tables.table("ns", "keys", {"k": entry()})


@given(st.text(), st.dictionaries(st.text(), st.binary()))
def test_no_key_and_no_entry_raises(key, data):
    parse(data).find(key)


def test_lone_surrogates_and_endless_keys_are_wrong_keys():
    table = parse({"k": entry()})
    assert table.find("\ud800") is None
    assert table.find("x" * 10_000_000) is None
