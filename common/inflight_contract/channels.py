"""Channels: one connection for the events of all streams of a gateway's process at an engine (docs/engine.md)."""

from __future__ import annotations

from struct import Struct
from typing import Final

CHANNEL_PATH: Final = "/inflight/channel"
"""A POST opens a channel: its answer has frames with events until the channel ends, its body commands."""

CHANNEL_HEADER: Final = "X-Inflight-Channel"
"""Name of a new channel, of 32 hexadecimal digits that nobody can guess. In a request for a stream `NAME NUMBER`, with
a number from 1 on that the channel has not had. In an answer with progress frames that number, where its events come in
the channel; 0: they do not, and the engine has channels."""

FRAME: Final = Struct("!II")
"""Number of a stream, and length of the part of its events that follows. Length 0: the stream has ended; of stream 0:
the channel lives."""

COMMAND: Final = Struct("!II")
"""Number of a stream, and whether the engine may send its events (1) or has to wait (0), as it has at first."""

MAX_FRAME_BYTES: Final = 64 * 2**10
"""Most bytes of a part: events of others come between those of a long one."""
