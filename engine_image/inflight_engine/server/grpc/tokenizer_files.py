"""The tokenizer as files, for clients that tokenize."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec
from smg_grpc_proto.generated import common_pb2

if TYPE_CHECKING:
    from inflight_engine.models.tokens.tokenizer import Tokenizer  # imports the tokenizers library

CHUNK_BYTES = 64 * 2**10


def archive(tokenizer: Tokenizer) -> bytes:
    """A ZIP archive of tokenizer.json, tokenizer_config.json with the chat template, and what of config.json a client
    reads. Equal tokenizers have equal archives. Takes tenths of a second."""
    config = {"model_type": tokenizer.model_text.model_type, "eos_token_id": [*tokenizer.eos_token_ids]}
    files = {
        "tokenizer.json": tokenizer.serialized().encode(),
        "tokenizer_config.json": msgspec.json.encode(dict(tokenizer.settings)),
        "config.json": msgspec.json.encode(config),
    }
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return written.getvalue()


def chunks(packed: bytes) -> Iterator[common_pb2.GetTokenizerChunk]:
    """The archive in pieces; the last one has its digest."""
    for begin in range(0, len(packed), CHUNK_BYTES):
        last = begin + CHUNK_BYTES >= len(packed)
        yield common_pb2.GetTokenizerChunk(
            data=packed[begin : begin + CHUNK_BYTES], sha256=sha256(packed).hexdigest() if last else ""
        )
