"""Blocks of keys and values that one engine of a service reads from another.

- An engine names itself by a `source_of`, which is signed with the admin token: so no client can have an engine connect
  anywhere else. While it drains relays get it, and pass it on, as it is, with the answer that another engine continues;
  at any time a router that has this engine compute a prompt for another one.
- `POST PATH` on the admin port, signed, has as its body the hashes of consecutive blocks, 16 bytes each and at most
  `MOST_BLOCKS`. Status 200 has the blocks, as far as this engine has the leading ones: first a checksum of 8 bytes for
  each, then their bytes. `model_blocks.SIGNATURE_HEADER` has `content_proof` of the hex SHA-256 of the checksums, as
  the answer may come from anywhere.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256

from inflight_contract.admin_signature import MAX_SKEW_SECONDS

HAND_OVER_HEADER = "X-Inflight-Hand-Over"
"""From a relay, `1`: after the first token, the answer goes on at another engine, which reads this one's keys and
values."""

PATH = "/admin/kv-blocks"
MOST_BLOCKS = 1024

MOST_SOURCE_BYTES = 512
"""Longest `source_of`."""


@dataclass(frozen=True, slots=True)
class KVSource:
    """An engine that may have blocks. Attributes: address: `IP:PORT` of its admin port. pod: uid."""

    address: str
    pod: str


def source_of(source: KVSource, identity: str, token: bytes, now: float) -> str:
    """Returns the name of an engine for relays: words of visible ASCII characters.

    Args:
        identity: what its keys and values depend on beside tokens.
        token: the admin token.
        now: Unix time, in seconds.
    """
    words = f"{source.address} {source.pod} {identity} {int(now)}"
    return f"{words} {_mac(words, token)}"


def read_source(text: str, identity: str, own_pod: str, token: bytes, now: float) -> KVSource | None:
    """Returns the engine that a `source_of` names; None: it is not signed with this token, old, this pod itself, or has
    other keys and values. Args: as of `source_of`."""
    words, _, mac = text.rpartition(" ")
    if not hmac.compare_digest(_mac(words, token).encode(), mac.encode(errors="surrogatepass")):
        return None
    address, pod, theirs, made = words.split(" ")
    if theirs != identity or pod == own_pod or abs(now - int(made)) > MAX_SKEW_SECONDS:
        return None
    return KVSource(address, pod)


def _mac(words: str, token: bytes) -> str:
    return hmac.new(token, f"kv source\n{words}".encode(errors="surrogatepass"), sha256).hexdigest()
