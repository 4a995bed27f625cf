"""Names of engines that drain: only their service's engines believe them, for a while."""

import pytest

from inflight_contract.kv_blocks import MOST_SOURCE_BYTES, KVSource, read_source, source_of

SOURCE = KVSource("[fd00::7]:8001", "11111111-2222-3333-4444-555555555555")
NAME = source_of(SOURCE, "identity", b"token", 1000.0)


def read(name=NAME, identity="identity", pod="another", token=b"token", now=1001.0):
    return read_source(name, identity, pod, token, now)


def test_a_name_stands_for_its_engine():
    assert read() == SOURCE
    assert len(NAME) < MOST_SOURCE_BYTES
    assert NAME.isascii()
    assert not set('"\\') & set(NAME)


@pytest.mark.parametrize(
    "changes",
    [
        {"token": b"other"},
        {"identity": "other"},
        {"pod": SOURCE.pod},
        {"now": 1301.0},
        {"now": 699.0},
        {"name": NAME.replace("::7", "::8")},
        {"name": NAME.replace("1000", "1200")},
        {"name": NAME[:-1]},
        {"name": ""},
        {"name": "a b c"},
        {"name": "\ud800"},
    ],
    ids=str,
)
def test_others_are_not_believed(changes):
    assert read(**changes) is None
