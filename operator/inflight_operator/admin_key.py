"""The operator's own key, from which the admin token of each service is derived: so the operator need not read the
Secrets of services, and one key rotates all tokens."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import secrets
from dataclasses import dataclass, field
from typing import Any, Protocol

from inflight_operator.apply.kube import KubeApiError

logger = logging.getLogger(__name__)

KEY_SECRET_NAME = "inflight-operator-key"
KEY_BYTES = 32
FIRST_EPOCH = "1"
REFRESH_SECONDS = 60.0

Manifest = dict[str, Any]


class AdminKeyError(Exception):
    """The Secret does not hold a key; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class AdminKey:
    """Attributes:
    key: at least `KEY_BYTES` random bytes.
    epoch: part of each token; another one makes all tokens anew.
    """

    key: bytes = field(repr=False)
    epoch: str

    def token(self, service_uid: str) -> str:
        """The admin token of a service: base64url of HMAC-SHA256 (RFC 2104), without padding."""
        digest = hmac.digest(self.key, f"{service_uid}/{self.epoch}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class SecretApi(Protocol):
    """What is needed of `KubeApi`."""

    async def get_or_create(self, manifest: Manifest) -> Manifest: ...


class LiveAdminKey:
    """The key in a Secret with the fields `key` and `epoch`, which is created when it is missing.

    A Secret that was deleted is created again with the key in use: engines go on with the tokens they have. To rotate
    the tokens, change `epoch` or `key` in the Secret.
    """

    def __init__(self, api: SecretApi, namespace: str, name: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._key: AdminKey | None = None

    @property
    def current(self) -> AdminKey:
        """As read last; `refresh` must have succeeded once."""
        if self._key is None:
            raise RuntimeError("the operator's key was not read yet")
        return self._key

    async def refresh(self) -> None:
        """Reads the Secret.

        Raises:
            KubeApiError: the API server refused.
            AdminKeyError: the Secret cannot be used. The key read before stays in use.
        """
        wanted = self._key or AdminKey(secrets.token_bytes(KEY_BYTES), FIRST_EPOCH)
        live = await self._api.get_or_create(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": self._name, "namespace": self._namespace},
                "type": "Opaque",
                "data": {"key": _encoded(wanted.key), "epoch": _encoded(wanted.epoch.encode())},
            }
        )
        key = _read(live)
        if self._key not in (None, key):
            logger.info("the key in Secret %s/%s changed: all tokens are made anew", self._namespace, self._name)
        self._key = key

    async def run(self) -> None:
        """Refreshes now and then until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self.refresh()
            except (KubeApiError, AdminKeyError) as error:
                logger.warning("the operator's key stays as it is: %s", error)


def _read(secret: Manifest) -> AdminKey:
    where = f"Secret {secret['metadata']['namespace']}/{secret['metadata']['name']}"
    data = secret.get("data") or {}
    try:
        key, epoch = (base64.b64decode(data.get(name, ""), validate=True) for name in ("key", "epoch"))
        text = epoch.decode().strip()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise AdminKeyError(f"{where}: {error}") from error
    if len(key) < KEY_BYTES:
        raise AdminKeyError(f"{where}: data.key has {len(key)} bytes, at least {KEY_BYTES} are needed")
    if not text:
        raise AdminKeyError(f"{where}: data.epoch is missing")
    return AdminKey(key, text)


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
