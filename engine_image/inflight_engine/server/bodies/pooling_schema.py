"""Bodies of the endpoints that answer with vectors or scores: embeddings, score and rerank, in vLLM's names."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from inflight_contract.errors import bad_request
from inflight_engine.server.bodies.fields import (
    Continuation,
    PlainText,
    Prompt,
    SchedulingFields,
    TokenIdList,
    TruncationFields,
)
from inflight_engine.server.bodies.unions import prompt_form

MAX_INPUTS = 2048
"""OpenAI's limit."""

Text = str
Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]


class PoolingFields(SchedulingFields, TruncationFields):
    """Body of every endpoint that pools prompts. As in vLLM, truncation keeps the first tokens. Nothing of such an
    answer is kept, so with `inflight_continuation` another replica computes it again."""

    keeps_end: ClassVar[bool] = False

    model: str | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    inflight_continuation: Continuation | None = None

    @abstractmethod
    def prompts(self) -> dict[str, Prompt]:
        """The prompts by their places in the body.

        Raises:
            ApiError: 400, they do not go together.
        """


class EmbeddingRequest(PoolingFields):
    """Body of /v1/embeddings. `dimensions`: how many of the first numbers of each vector. `add_special_tokens` (default
    true): as for a completion. `use_activation` (default as the model says): vectors have the length one."""

    input: Annotated[
        Annotated[str, Tag("text")]
        | Annotated[TokenIdList, Field(min_length=1), Tag("token_ids")]
        | Annotated[Texts, Tag("texts")]
        | Annotated[list[TokenIdList], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("lists")],
        Discriminator(prompt_form),
    ]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    add_special_tokens: bool | None = None
    use_activation: bool | None = None

    def prompts(self) -> dict[str, Prompt]:
        special = self.add_special_tokens is not False
        if isinstance(self.input, str):
            return {"input": PlainText(self.input, special)}
        token_ids = [item for item in self.input if isinstance(item, int)]
        if token_ids:
            return {"input": token_ids}
        several = [item for item in self.input if not isinstance(item, int)]
        return {f"input.{index}": self._prompt(item, special=special) for index, item in enumerate(several)}

    @staticmethod
    def _prompt(item: str | list[int], *, special: bool) -> Prompt:
        return PlainText(item, special) if isinstance(item, str) else item


_PAIRS = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))


class ScoreRequest(PoolingFields):
    """Body of /score: one text and several, or as many and as many, under any of vLLM's pairs of names."""

    queries: Text | Texts | None = None
    documents: Text | Texts | None = None
    items: Text | Texts | None = None
    text_1: Text | Texts | None = None
    text_2: Text | Texts | None = None
    data_1: Text | Texts | None = None
    data_2: Text | Texts | None = None

    def prompts(self) -> dict[str, Prompt]:
        (first, one), (second, other) = self._sides()
        if len(one) not in (1, len(other)):
            raise bad_request(f"{first}: must hold one text, or as many as {second}, {len(other)}", first)
        return {f"{name}.{i}": PlainText(text) for name, texts in self._sides() for i, text in enumerate(texts)}

    def num_first(self) -> int:
        """Number of texts on the first side."""
        return len(self._sides()[0][1])

    def _sides(self) -> list[tuple[str, list[str]]]:
        names = {name for pair in _PAIRS for name in pair}
        given = {name for name in names if getattr(self, name) is not None}
        pair = next((pair for pair in _PAIRS if given == set(pair)), None)
        if pair is None:
            known = ", ".join(" and ".join(each) for each in _PAIRS)
            raise bad_request(f"text_1: needs exactly one pair of {known}", "text_1")
        return [(name, _listed(getattr(self, name))) for name in pair]


class RerankRequest(PoolingFields):
    """Body of /rerank. `top_n`: how many of the best documents; 0: all."""

    query: str
    documents: str | Texts
    top_n: Annotated[int, Field(ge=0)] | None = None

    def texts(self) -> list[str]:
        """The documents."""
        return _listed(self.documents)

    def prompts(self) -> dict[str, Prompt]:
        documents: dict[str, Prompt] = {f"documents.{i}": PlainText(text) for i, text in enumerate(self.texts())}
        return {"query": PlainText(self.query), **documents}


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
