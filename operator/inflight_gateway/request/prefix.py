"""Hashes of a prompt's leading blocks: two requests with the first n hashes in common share these blocks in a prefix
cache.

The gateway has no tokenizer: blocks are of characters, and tokens are estimated. An engine's own blocks differ, but a
common prefix is common in both.

The relay, which has the body, computes the hashes of the text; the picker, which knows the tenant, makes them the
tenant's own.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

BYTES_PER_TOKEN = 4
"""Mean UTF-8 bytes of a token in English text and code, for vocabularies of 32k to 256k tokens."""

BLOCK_TOKENS = 64
"""Estimated tokens of a block: 4 of an engine's blocks of 16. Shorter common prefixes do not justify a pick."""

MAX_BLOCKS = 2048
"""Most blocks of a prompt that are hashed: 131,072 tokens. Common text of longer prompts beyond that is ignored."""

HASH_BYTES = 8
"""Bytes of the hash of a block."""

_TOKEN_BYTES = 4
"""Bytes of a token id, as hashed."""


def text_blocks(text: str, salt: str) -> bytes:
    """Returns the hashes of a prompt's canonical text. `salt`: engines share no blocks between different salts."""
    return _chain(text.encode("utf-8", "surrogatepass"), BLOCK_TOKENS * BYTES_PER_TOKEN, f"text\0{salt}")


def token_blocks(token_ids: Sequence[int], salt: str) -> bytes:
    """Returns the hashes of a prompt that is a list of token ids."""
    kept = array("I", [token & 0xFFFFFFFF for token in token_ids[: MAX_BLOCKS * BLOCK_TOKENS]])
    return _chain(kept.tobytes(), BLOCK_TOKENS * _TOKEN_BYTES, f"tokens\0{salt}")


def json_blocks(text: bytes, bytes_per_token: int, salt: str) -> bytes:
    """Returns the hashes of a prompt as JSON text."""
    return _chain(text, BLOCK_TOKENS * bytes_per_token, f"json\0{salt}")


def of_tenant(blocks: bytes, tenant: str) -> tuple[int, ...]:
    """Returns the hashes as numbers: equal ones of one tenant stay equal, different tenants share none."""
    return tuple(map(_tenant_key(tenant).__xor__, struct.unpack(f"<{len(blocks) // HASH_BYTES}Q", blocks)))


@lru_cache(maxsize=1024)
def _tenant_key(tenant: str) -> int:
    return int.from_bytes(blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest(), "little")


def estimated_tokens(text: str) -> int:
    """Returns the estimated tokens of a text; at least 1."""
    return max(1, len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def _chain(data: bytes, block_bytes: int, seed: str) -> bytes:
    """Returns hashes of whole blocks; each covers all text before it, so that equal hashes mean equal prefixes."""
    digest = blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()
    hashes = []
    for start in range(0, min(len(data) // block_bytes, MAX_BLOCKS) * block_bytes, block_bytes):
        digest = blake2b(data[start : start + block_bytes], digest_size=HASH_BYTES, key=digest).digest()
        hashes.append(digest)
    return b"".join(hashes)
