"""Which of the engines' paths clients reach through the gateway."""

from __future__ import annotations

from posixpath import normpath
from urllib.parse import unquote

_OWN = frozenset({"/metrics", "/ready", "/v1/runtime_config", "/admin"})
"""For the operator, Prometheus and Kubernetes: they reach engines directly."""

PUBLIC = r"/v1/(chat/completions|completions|generate|models|models/.+)|/tokenize|/detokenize|/version"
"""RE2. While no picker answers, Envoy passes on these only."""


def is_internal(path: str) -> bool:
    """Whether clients of the gateway may not reach this path. `path`: as sent, with its query."""
    plain = normpath("/" + unquote(path.partition("?")[0]).partition("?")[0].lstrip("/"))
    return plain in _OWN or plain.startswith("/admin/")
