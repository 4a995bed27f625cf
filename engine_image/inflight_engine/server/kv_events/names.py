"""Names of a prompt's blocks for the relay of a gateway, which match those in events."""

from __future__ import annotations

from base64 import b64encode

import numpy as np

from inflight_engine.cache.prefix import block_hashes, root_hash
from inflight_engine.request import Scheduling
from inflight_engine.server.kv_events.wire import short

MOST_NAMED = 4096
"""Most blocks of a prompt whose names a relay gets: 32 KiB, of 65,536 tokens in blocks of 16."""


def note(prompt_token_ids: list[int], num_tokens: int, block_size: int, scheduling: Scheduling) -> bytes:
    """Return the value of a progress comment `:b`: tokens of a block, tokens of all prompts of the request, and the
    hashes of the first one's full blocks as events have them, 8 bytes each, little endian, in base64; empty without a
    full block."""
    token_ids = np.array(prompt_token_ids[: MOST_NAMED * block_size], np.int32)
    hashes = block_hashes(token_ids, block_size, root_hash(scheduling.tenant, scheduling.cache_salt))
    if not hashes:
        return b""
    named = np.array(short(b"".join(hashes)), "<u8").tobytes()
    return b"%d %d %b" % (block_size, num_tokens, b64encode(named))
