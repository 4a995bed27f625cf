"""Names for the content of KV blocks: equal names mean equal tokens from the start of the sequence on, of one tenant.

Each block's hash covers its tokens and the hash of the block before it, as in vLLM's and SGLang's prefix caches, so
one look-up a block finds the longest known prefix. BLAKE2b (RFC 7693) with 16 bytes: a prompt cannot be crafted to
collide with another one.
"""

from __future__ import annotations

from hashlib import blake2b

from inflight_engine.block_events import HASH_SIZE
from inflight_engine.request import Request, TokenIds

_LENGTH_SIZE = 8


def root_hash(tenant: str, salt: str) -> bytes:
    """Return the hash that a first block is chained to. It differs for any two tenants, and for any two salts of a
    tenant.

    Returns:
        16 bytes.
    """
    # The tenant's length goes first: ("ab", "c") must not be ("a", "bc"). JSON can bring lone surrogates.
    name = tenant.encode("utf-8", "surrogatepass")
    root = blake2b(digest_size=HASH_SIZE, person=b"prefix root")
    root.update(len(name).to_bytes(_LENGTH_SIZE, "little"))
    root.update(name)
    root.update(salt.encode("utf-8", "surrogatepass"))
    return root.digest()


def block_hashes(token_ids: TokenIds, block_size: int, parent: bytes) -> list[bytes]:
    """Return the chained hashes of the full blocks of a sequence, or of its continuation.

    Args:
        token_ids: int32 [num_tokens], starting at a block boundary; a last block that is not full is left out.
        parent: hash of the block before, or `root_hash` for the start of a sequence.

    Returns:
        num_tokens // block_size hashes of 16 bytes.
    """
    content = memoryview(token_ids.astype("<i4", copy=False).tobytes())
    size = block_size * 4
    hashes: list[bytes] = []
    for start in range(0, len(content) - size + 1, size):
        block = blake2b(parent, digest_size=HASH_SIZE)
        block.update(content[start : start + size])
        parent = block.digest()
        hashes.append(parent)
    return hashes


def hash_blocks(request: Request, num_tokens: int, block_size: int) -> None:
    """Extend `block_hashes` to all full blocks of the request's first `num_tokens` tokens, where it shares blocks."""
    if not shares_blocks(request):
        return
    hashed = len(request.block_hashes)
    parent = request.block_hashes[-1] if hashed else root_of(request)
    tokens = request.token_ids[hashed * block_size : num_tokens]
    request.block_hashes += block_hashes(tokens, block_size, parent)


def root_of(request: Request) -> bytes:
    """Return the `root_hash` of a request's blocks."""
    return root_hash(request.scheduling.tenant, request.scheduling.cache_salt)


def shares_blocks(request: Request) -> bool:
    """Tell whether a request may find blocks with computed tokens, and leaves its own to be found. What is found would
    leave out prompt tokens whose log-probabilities are asked for. Blocks that only such a request could find would
    take the place of others in the prefix cache."""
    return request.sampling.prompt_logprobs is None
