"""Keys in Secrets that the operator creates if missing and reads periodically: its own, from which the admin token of
each service is derived, and the key that it shares with the gateway."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import secrets
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from inflight_base.kube.client import KubeApi
from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest import Manifest
from inflight_base.manifest.keys import ServiceKey
from inflight_base.signing import derived, tenant_key

logger = logging.getLogger(__name__)

KEY_SECRET_NAME = "inflight-operator-key"
COMMON_GATEWAY_KEY_SECRET_NAME = "inflight-gateway-key"
"""Name of the Secret with the gateway's key up to release 0.2, the same for all releases in a namespace."""

OF_INFLIGHT = {"app.kubernetes.io/managed-by": "inflight"}
"""Label of the Secrets with keys; those that release 0.2 made have none."""

KEY_BYTES = 32
"""Minimum number of bytes of a key: as many as SHA-256 has."""

REFRESH_SECONDS = 60.0

Key = TypeVar("Key")


class UnusableKeyError(Exception):
    """A Secret contains no valid key; the message says why."""


class LiveKey(Generic[Key]):
    """A deleted Secret is created again with the key in use: derived keys stay valid.

    A subclass defines the fields of its Secret and their meaning.
    """

    what: ClassVar[str]
    """Name of the key in log lines."""

    def __init__(self, api: KubeApi, namespace: str, name: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._key: Key | None = None
        self._data: dict[str, str] | None = None

    @abstractmethod
    def fresh(self) -> dict[str, bytes]:
        """Returns the fields of a Secret with a new random key."""

    @abstractmethod
    def read(self, fields: Mapping[str, bytes]) -> Key:
        """Reads the key from the fields of a Secret.

        Raises:
            UnusableKeyError: there is no valid key.
            UnicodeDecodeError: a text field is not valid text.
        """

    async def first(self) -> dict[str, str]:
        """Returns the data of the Secret to make where there is none, with a new key."""
        return {name: base64.b64encode(value).decode() for name, value in self.fresh().items()}

    @property
    def current(self) -> Key:
        """The last value read; `refresh` must have succeeded once."""
        if self._key is None:
            raise RuntimeError(f"{self.what} was not read yet")
        return self._key

    async def refresh(self) -> None:
        """Reads the Secret.

        Raises:
            KubeApiError: the API server refused.
            UnusableKeyError: the Secret cannot be used. The key read before stays in use.
        """
        data = self._data or await self.first()
        live = await self._api.get_or_create(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": self._name, "namespace": self._namespace, "labels": OF_INFLIGHT},
                "type": "Opaque",
                "data": data,
            }
        )
        key = self._read(live)
        if self._key not in (None, key):
            logger.info("%s in Secret %s/%s changed", self.what, self._namespace, self._name)
        self._key, self._data = key, live["data"]

    async def run(self) -> None:
        """Refreshes periodically until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self.refresh()
            except (KubeApiError, UnusableKeyError) as error:
                logger.warning("%s stays as it is: %s", self.what, error)

    def _read(self, secret: Manifest) -> Key:
        data: dict[str, str] = secret.get("data") or {}
        try:
            return self.read({name: base64.b64decode(value, validate=True) for name, value in data.items()})
        except (binascii.Error, UnicodeDecodeError, UnusableKeyError) as error:
            raise UnusableKeyError(f"Secret {self._namespace}/{secret['metadata']['name']}: {error}") from error


def long_enough(key: bytes) -> bytes:
    """Returns the key unchanged.

    Raises:
        UnusableKeyError: it is too short.
    """
    if len(key) < KEY_BYTES:
        raise UnusableKeyError(f"data.key has {len(key)} bytes, at least {KEY_BYTES} are needed")
    return key


@dataclass(frozen=True, slots=True)
class AdminKey:
    """The operator's key. The admin token of each service is derived from it: the operator does not need to read the
    Secrets of services, and one key rotates all tokens.

    Attributes:
        key: at least `KEY_BYTES` random bytes.
        epoch: part of each token; a new epoch replaces all tokens.
    """

    key: bytes = field(repr=False)
    epoch: str

    def token(self, service_uid: str) -> str:
        """Returns the admin token of a service."""
        return derived(self.key, f"{service_uid}/{self.epoch}")


class LiveAdminKey(LiveKey[AdminKey]):
    """The key in a Secret with the fields `key` and `epoch`. To rotate the tokens, change one of them in the Secret:
    all tokens are derived again."""

    what = "the operator's key"

    def fresh(self) -> dict[str, bytes]:
        return {"key": secrets.token_bytes(KEY_BYTES), "epoch": b"1"}

    def read(self, fields: Mapping[str, bytes]) -> AdminKey:
        key, epoch = long_enough(fields.get("key", b"")), fields.get("epoch", b"").decode().strip()
        if not epoch:
            raise UnusableKeyError("data.epoch is missing")
        return AdminKey(key, epoch)


@dataclass(frozen=True, slots=True)
class GatewayKey:
    """The key of gateway and operator. The tenant keys of each service are derived from it: the gateway signs requests
    with them, and engines verify it. The operator signs its watches of the gateway's state.

    Attributes:
        previous: the key before a rotation: it stays valid.
    """

    key: bytes = field(repr=False)
    previous: bytes | None = field(default=None, repr=False)

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The current and the previous key."""
        return (self.key,) if self.previous is None else (self.key, self.previous)

    def tenant_keys(self, service: ServiceKey, uid: str) -> tuple[str, ...]:
        """Returns the tenant keys, current and previous, of the service with this uid."""
        return tuple(tenant_key(key, service, uid) for key in self.keys)


class LiveGatewayKey(LiveKey[GatewayKey]):
    """The key in a Secret with the fields `key` and, after a rotation, `previous`, which the gateway's pods mount. Both
    sides strip white space around them."""

    what = "the gateway's key"

    async def first(self) -> dict[str, str]:
        """Returns the data of the Secret that all releases of a namespace shared up to release 0.2, where there is one:
        gateway pods and engines know its key. Otherwise, and if that key is unusable, a new key."""
        if self._name != COMMON_GATEWAY_KEY_SECRET_NAME:
            common = await self._api.get("Secret", self._namespace, COMMON_GATEWAY_KEY_SECRET_NAME)
            if common is not None and OF_INFLIGHT.items().isdisjoint((common["metadata"].get("labels") or {}).items()):
                try:
                    self._read(common)
                except UnusableKeyError as error:
                    where = f"{self._namespace}/{self._name}"
                    logger.warning("Secret %s gets a new key, none is taken over: %s", where, error)
                else:
                    return dict(common["data"])
        return await super().first()

    def fresh(self) -> dict[str, bytes]:
        """Returns the fields of a Secret with a new printable key: random bytes may begin or end with white space."""
        return {"key": secrets.token_urlsafe(KEY_BYTES).encode()}

    def read(self, fields: Mapping[str, bytes]) -> GatewayKey:
        previous = fields.get("previous", b"").strip()
        return GatewayKey(long_enough(fields.get("key", b"").strip()), previous or None)
