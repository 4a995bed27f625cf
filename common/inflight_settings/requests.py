"""Bounds of requests that engine and gateway share."""

from __future__ import annotations

MAX_BODY_BYTES = 32 * 2**20
"""Longest body; requests with a longer one get status 413. A prompt of a million tokens as text is 4 MB, as a list of
ids 7 MB."""

MAX_N = 128
"""Most answers to a prompt (`n`): OpenAI's limit."""
