"""HTTP paths: which ones clients of the gateway reach, and who answers them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

_READ, _WRITE = frozenset({"GET", "HEAD"}), frozenset({"POST"})

MODELS = "/v1/models"
"""Path of the list of models; the path of one model has its id behind it."""

HEALTH = frozenset({"/health", "/ping"})
"""Paths of the gateway's health, by vLLM's names."""

MESSAGES = "/v1/messages"
"""Path of Anthropic Messages."""


class Answers(Enum):
    """Who answers a path. GENERATION: an engine, at the cost of tokens: such requests may be held, and are continued.
    GATEWAY: the gateway itself. ENGINE: an engine that is ready, at once; nothing is generated."""

    GENERATION = 1
    GATEWAY = 2
    ENGINE = 3


class Api(Enum):
    """Forms of bodies, streams and errors. OPENAI: of chat and completions. RESPONSES: OpenAI Responses. MESSAGES:
    Anthropic Messages. POOLING: OpenAI's embeddings, and scores of texts; no token is generated."""

    OPENAI = 1
    RESPONSES = 2
    MESSAGES = 3
    POOLING = 4


@dataclass(frozen=True, slots=True)
class Path:
    """A path that clients may reach. Attributes: methods: of HTTP; others get status 405."""

    answers: Answers
    methods: frozenset[str]
    api: Api = Api.OPENAI


_MODEL = Path(Answers.GATEWAY, _READ)
_GENERATION = Path(Answers.GENERATION, _WRITE)
_POOLING = Path(Answers.GENERATION, _WRITE, Api.POOLING)

PATHS = {
    "/v1/chat/completions": _GENERATION,
    "/v1/completions": _GENERATION,
    "/v1/generate": _GENERATION,
    "/v1/responses": Path(Answers.GENERATION, _WRITE, Api.RESPONSES),
    MESSAGES: Path(Answers.GENERATION, _WRITE, Api.MESSAGES),
    "/v1/embeddings": _POOLING,
    "/score": _POOLING,
    "/v1/score": _POOLING,
    "/rerank": _POOLING,
    "/v1/rerank": _POOLING,
    "/v2/rerank": _POOLING,
    MODELS: _MODEL,
    **dict.fromkeys(HEALTH, Path(Answers.GATEWAY, _READ)),
    f"{MESSAGES}/count_tokens": Path(Answers.ENGINE, _WRITE, Api.MESSAGES),
    "/tokenize": Path(Answers.ENGINE, _WRITE),
    "/detokenize": Path(Answers.ENGINE, _WRITE),
    "/version": Path(Answers.ENGINE, _READ),
    "/tokenizer_info": Path(Answers.ENGINE, _READ),
}
"""All paths that clients reach, besides those of single models. Paths of engines for the operator, Prometheus and
Kubernetes, such as /metrics and /admin, are not among them."""

GENERATING = frozenset(name for name, path in PATHS.items() if path.answers is Answers.GENERATION)
"""Paths whose responses cost tokens."""


def path_of(target: str) -> Path | None:
    """Returns the path that a request is for; None: status 404.

    Paths are compared as they were sent, because an engine may read another spelling (`//`, `%2F`, `..`) as a path that
    is counted or hidden.

    Args:
        target: the path as sent, with its query.
    """
    sent = target.partition("?")[0]
    if len(sent) > len(MODELS) + 1 and sent.startswith(f"{MODELS}/"):
        return _MODEL
    return PATHS.get(sent)


def api_of(path: str) -> Api:
    """Returns the form of a path's bodies. Args: path: without its query."""
    known = PATHS.get(path)
    return Api.OPENAI if known is None else known.api
