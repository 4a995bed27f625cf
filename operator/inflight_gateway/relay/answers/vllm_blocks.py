"""Names of a prompt's blocks as vLLM has them in its KV cache events.

Source: `vllm/v1/core/kv_cache_utils.py` and `vllm/utils/hashing.py` of vLLM 0.32, with the default algorithm `sha256`
and the seed `PYTHONHASHSEED=0`, which the operator sets. Adapters (LoRA) and images are part of vLLM's hashes and not
of these: prompts with them have no names that its events tell.
"""

from __future__ import annotations

import pickle
from base64 import b64encode
from hashlib import sha256

import msgspec

from inflight_gateway.types import MOST_NAMED, NAME_BYTES

_SEED = "0"

_ids = msgspec.json.Decoder(list[int])


def note(prompt_ids: bytes, size: int, salt: str) -> bytes:
    """Returns the note `b` of progress frames for a prompt; empty where it has no full block.

    Args:
        prompt_ids: token ids, as `1,2,3`.
        size: tokens of a block.
        salt: the request's `cache_salt`; empty: none.

    Raises:
        ValueError: the ids are no numbers.
    """
    ids = tuple(_ids.decode(b"[%b]" % prompt_ids))
    names = bytearray()
    parent, keys = _hash(_SEED), (salt,) if salt else None
    for start in range(0, min(len(ids) // size, MOST_NAMED) * size, size):
        parent = _hash((parent, ids[start : start + size], keys))
        names += parent[: -NAME_BYTES - 1 : -1]
        keys = None
    return b"b %d %d %b" % (size, len(ids), b64encode(names)) if names else b""


def _hash(value: object) -> bytes:
    return sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()
