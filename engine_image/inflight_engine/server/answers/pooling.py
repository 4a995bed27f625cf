"""Answers made of pooled prompts: embeddings in OpenAI's JSON, scores and ranks in vLLM's."""

from __future__ import annotations

import time
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from inflight_engine.server.answers.writer import AnswerFormat
from inflight_engine.server.requests.call import Call
from inflight_engine.server.requests.choice_text import Piece
from inflight_engine.server.requests.generation import Generation

Vector = npt.NDArray[np.float32]


def vector_of(choice: Generation, *, dimensions: int | None = None, normalized: bool = True) -> Vector:
    """The vector of a choice's prompt, float32: its first `dimensions` numbers, with the length one if asked for."""
    vector = np.frombuffer(choice.pooled, "<f4")[:dimensions]
    length = float(np.linalg.norm(vector))
    return (vector / np.float32(length)).astype(np.float32) if normalized and length > 0 else vector


class PoolingAnswer(AnswerFormat):
    """Never a stream."""

    def __init__(self, call: Call, model: str, request_id: str) -> None:
        self._call = call
        self._model = model
        self._id = request_id

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        tokens = self._call.num_prompt_tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return msgspec.json.encode({**self._content(), "model": self._model, "usage": usage})

    def first(self) -> bytes:
        return b""

    def piece(self, choice: Generation, piece: Piece) -> bytes:
        return b""

    def last(self, choice: Generation, piece: Piece) -> bytes:
        return b""

    def end(self) -> bytes:
        return b""

    @abstractmethod
    def _content(self) -> dict[str, Any]:
        """Fields of the answer besides `model` and `usage`."""

    def _list(self, prefix: str, data: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"id": f"{prefix}-{self._id}", "object": "list", "created": int(time.time()), "data": data}


class EmbeddingAnswer(PoolingAnswer):
    """Vectors as lists of numbers, or as the base64 of float32 in little-endian order."""

    def __init__(
        self,
        call: Call,
        model: str,
        request_id: str,
        encoding: Literal["float", "base64"],
        dimensions: int | None,
        *,
        normalized: bool,
    ) -> None:
        super().__init__(call, model, request_id)
        self._encoding = encoding
        self._dimensions = dimensions
        self._normalized = normalized

    def _content(self) -> dict[str, Any]:
        data = [
            {"object": "embedding", "index": choice.request.index, "embedding": self._written(choice)}
            for choice in self._call.choices
        ]
        return self._list("embd", data)

    def _written(self, choice: Generation) -> list[float] | str:
        vector = vector_of(choice, dimensions=self._dimensions, normalized=self._normalized)
        return vector.tolist() if self._encoding == "float" else b64encode(vector.tobytes()).decode()


class ScoreAnswer(PoolingAnswer):
    """Cosines of the angles between the vectors of two sides."""

    def __init__(self, call: Call, model: str, request_id: str, num_first: int) -> None:
        super().__init__(call, model, request_id)
        self._num_first = num_first

    def _content(self) -> dict[str, Any]:
        scores = cosines(self._call.choices, self._num_first)
        return self._list("score", [{"index": i, "object": "score", "score": each} for i, each in enumerate(scores)])


class RerankAnswer(PoolingAnswer):
    """Documents, the best first; equal ones in the order of the request."""

    def __init__(self, call: Call, model: str, request_id: str, documents: Sequence[str], top_n: int) -> None:
        super().__init__(call, model, request_id)
        self._documents = documents
        self._top_n = top_n

    def _content(self) -> dict[str, Any]:
        scores = cosines(self._call.choices, 1)
        best = sorted(range(len(scores)), key=lambda index: -scores[index])[: self._top_n or None]
        results = [
            {"index": index, "document": {"text": self._documents[index]}, "relevance_score": scores[index]}
            for index in best
        ]
        return {"id": f"rerank-{self._id}", "results": results}


def cosines(choices: Sequence[Generation], num_first: int) -> list[float]:
    """Scores of the pairs of a call whose first choices are one side: one for each of the other side."""
    vectors = [vector_of(choice) for choice in choices]
    one, other = vectors[:num_first], vectors[num_first:]
    if num_first == 1:
        one *= len(other)
    return [float(np.dot(a, b)) for a, b in zip(one, other, strict=True)]
