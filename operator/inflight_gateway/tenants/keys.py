"""API keys of a service, as its Secret has them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from inflight_base.manifest.api_keys import read_entry

log = logging.getLogger(__name__)

MAX_KEY_CHARACTERS = 512
"""Longest key; longer values are refused unhashed, so that a wrong key costs the same whatever its length."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key. Attributes: key_id: name of its entry, which is no secret. expires: Unix time; None: never."""

    key_id: str
    tenant: str
    expires: float | None


@dataclass(frozen=True, slots=True)
class KeyTable:
    """The keys of one Secret.

    Attributes:
        by_digest: SHA-256 of a key (32 bytes) -> the key.
        tenants: names that the keys have.
        malformed: ids of invalid entries, with the reason.
    """

    by_digest: Mapping[bytes, ApiKey]
    tenants: frozenset[str]
    malformed: Mapping[str, str]

    def find(self, key: str) -> ApiKey | None:
        """Returns the entry of a key; None for a wrong one.

        It takes one hash and one lookup, whether the key is right or wrong and however many keys there are. The lookup
        compares hashes: its duration reveals nothing about a key.
        """
        if len(key) > MAX_KEY_CHARACTERS:
            return None
        return self.by_digest.get(hashlib.sha256(key.encode(errors="backslashreplace")).digest())


def parse(data: Mapping[str, bytes]) -> KeyTable:
    """Reads the keys in a Secret's decoded `data`. Malformed entries are left out; the others stay valid."""
    by_digest: dict[bytes, ApiKey] = {}
    malformed: dict[str, str] = {}
    for key_id in sorted(data):
        try:
            tenant, digest, expires = read_entry(data[key_id])
        except ValueError as error:
            malformed[key_id] = str(error)
            continue
        if digest in by_digest:
            malformed[key_id] = f"has the same key as entry {by_digest[digest].key_id}"
            continue
        by_digest[digest] = ApiKey(key_id, tenant, None if expires is None else expires.timestamp())
    return KeyTable(by_digest, frozenset(one.tenant for one in by_digest.values()), malformed)


class KeyTables:
    """The parsed Secrets. An update of a Secret takes effect at the next request."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Mapping[str, bytes], KeyTable]] = {}

    def table(self, namespace: str, name: str, data: Mapping[str, bytes] | None) -> KeyTable | None:
        """Returns the keys of a Secret; None without `data`.

        Args:
            data: entries from the catalog; None: the Secret does not exist, or was not read yet.
        """
        if data is None:
            self._known.pop((namespace, name), None)
            return None
        known = self._known.get((namespace, name))
        if known is not None and (known[0] is data or known[0] == data):
            return known[1]
        table = parse(data)
        self._known[namespace, name] = data, table
        for key_id, reason in table.malformed.items():
            log.warning("Secret %s/%s: entry %r is ignored: it %s", namespace, name, key_id, reason)
        return table

    @property
    def malformed(self) -> int:
        """Number of ignored entries, over all Secrets."""
        return sum(len(table.malformed) for _, table in self._known.values())
