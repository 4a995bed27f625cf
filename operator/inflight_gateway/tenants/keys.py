"""API keys of services, as their Secrets have them, and their check."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from inflight_base.manifest.api_keys import read_entry
from inflight_base.manifest.keys import ObjectKey
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.tenants import answers
from inflight_gateway.types import Refusal, ServiceConfig

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
        malformed: ids of invalid entries, with the reason.
    """

    by_digest: Mapping[bytes, ApiKey]
    malformed: Mapping[str, str]

    def find(self, key: str) -> ApiKey | None:
        """Returns the entry of a key; None for a wrong one."""
        digest = digest_of(key)
        return None if digest is None else self.by_digest.get(digest)


def digest_of(key: str) -> bytes | None:
    """Returns the SHA-256 of a key, 32 bytes; None for one that is too long to be valid.

    Tables are searched by it: one hash and one lookup, whether the key is right or wrong and however many keys there
    are. The lookup compares hashes, so its duration reveals nothing about a key.
    """
    if len(key) > MAX_KEY_CHARACTERS:
        return None
    return hashlib.sha256(key.encode(errors="backslashreplace")).digest()


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
    return KeyTable(by_digest, malformed)


class KeyTables:
    """The keys of all Secrets of a catalog, read when a Secret changes.

    Attributes:
        malformed: ignored entries, over all Secrets.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.malformed = 0
        self._catalog = catalog
        self._tables: dict[ObjectKey, KeyTable] = {}
        self._secrets: dict[bytes, dict[ObjectKey, None]] = {}
        """Digest of a key -> the Secrets that have it."""
        catalog.subscribe(self._changed)
        self._changed(Change(secrets=catalog.secret_refs()))

    def table(self, secret: ObjectKey) -> KeyTable | None:
        """Returns the keys of a Secret; None: it does not exist, or was not read yet."""
        return self._tables.get(secret)

    def secrets_with(self, digest: bytes) -> Collection[ObjectKey]:
        """Returns the Secrets that have a key with this digest."""
        return self._secrets.get(digest, ())

    def check(self, key: str, config: ServiceConfig, now: float) -> ApiKey | Refusal:
        """Checks a key at a service with API keys.

        Args:
            key: from `presented_key`; empty: the client sent none.
            now: Unix time, in seconds.

        Returns:
            The key's entry; 401 for a missing, wrong or expired key; 503 while the service's Secret is not known.
        """
        table = self._table(config)
        if table is None:
            return answers.no_keys(config)
        if not key:
            return answers.no_key()
        found = table.find(key)
        if found is None:
            return answers.wrong_key()
        if found.expires is not None and now >= found.expires:
            return answers.expired_key(found.key_id)
        return found

    def _table(self, config: ServiceConfig) -> KeyTable | None:
        name = config.api_keys_secret
        return None if name is None else self._tables.get(ObjectKey(config.key.namespace, name))

    def _changed(self, change: Change) -> None:
        for secret in change.secrets:
            before = self._tables.pop(secret, _EMPTY)
            data = self._catalog.secret(secret)
            table = _EMPTY if data is None else parse(data)
            if data is not None:
                self._tables[secret] = table
            self.malformed += len(table.malformed) - len(before.malformed)
            for digest in before.by_digest.keys() - table.by_digest.keys():
                self._secrets[digest].pop(secret)
                if not self._secrets[digest]:
                    del self._secrets[digest]
            for digest in table.by_digest.keys() - before.by_digest.keys():
                self._secrets.setdefault(digest, {})[secret] = None
            for key_id, reason in table.malformed.items():
                if before.malformed.get(key_id) != reason:
                    log.warning("Secret %s: entry %r is ignored: it %s", secret, key_id, reason)


_EMPTY = KeyTable({}, {})


def presented_key(headers: Mapping[str, str]) -> str:
    """Returns the API key of a request: the Bearer token of `Authorization` (RFC 6750), else the header `api-key`
    (Azure) or `x-api-key` (Anthropic); empty without one. Args: headers: with names in lower case."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return headers.get("api-key", "").strip() or headers.get("x-api-key", "").strip()
