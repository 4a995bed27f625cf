"""Download of the scheduling record: the file up to a flush, while the engine continues to append."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import BinaryIO

from starlette.responses import StreamingResponse

from inflight_contract.errors import ApiError
from inflight_engine.messages import FlushRecord
from inflight_engine.server.engine.phase import Phase
from inflight_engine.server.engine.session import EngineSession

_CHUNK_BYTES = 1 << 18


async def flushed_record(session: EngineSession) -> tuple[BinaryIO, str]:
    """The record up to now, open for reading, and its name.

    Raises:
        ApiError: 404 recording is off, 500 the file cannot be read, 503 or 504 no engine to flush it.
    """
    if session.record is None:
        raise ApiError(
            404, "nothing is recorded: start the engine with --record FILE to have a record", code="not_recording"
        )
    if session.phase is not Phase.READY:
        raise session.not_ready()
    await session.calls.ask(FlushRecord)
    path = session.record
    try:
        return await asyncio.to_thread(path.open, "rb"), path.name
    except OSError as error:
        raise ApiError(500, f"the record {path} cannot be read: {error.strerror}", code="record_unreadable") from None


class RecordResponse(StreamingResponse):
    """Sends as many bytes as the file has now, and closes it."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        size = os.fstat(file.fileno()).st_size
        super().__init__(
            _read(file, size),
            media_type="application/gzip",
            headers={"content-length": str(size), "content-disposition": _attachment(name)},
        )


def _attachment(name: str) -> str:
    """RFC 6266; characters that a quoted string or a header cannot hold are replaced."""
    plain = "".join(character if character.isascii() and character.isprintable() else "_" for character in name)
    return 'attachment; filename="{}"'.format(plain.replace("\\", "_").replace('"', "_"))


async def _read(file: BinaryIO, size: int) -> AsyncIterator[bytes]:
    with file:
        while size > 0:
            chunk = await asyncio.to_thread(file.read, min(size, _CHUNK_BYTES))
            if not chunk:
                raise OSError("the record became shorter while it was sent")
            size -= len(chunk)
            yield chunk
