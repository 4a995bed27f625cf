"""The operator's key, from which the admin token of each service is derived: the operator does not need to read the
Secrets of services, and one key rotates all tokens."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from inflight_base.signing import derived
from inflight_operator.keys.live_key import KEY_BYTES, LiveKey, UnusableKeyError, long_enough

KEY_SECRET_NAME = "inflight-operator-key"


@dataclass(frozen=True, slots=True)
class AdminKey:
    """Attributes:
    key: at least `KEY_BYTES` random bytes.
    epoch: part of each token; a new epoch replaces all tokens.
    """

    key: bytes = field(repr=False)
    epoch: str

    def token(self, service_uid: str) -> str:
        """The admin token of a service."""
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
