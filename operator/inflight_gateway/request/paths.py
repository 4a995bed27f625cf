"""Paths of HTTP: those of engines that clients reach through the gateway, and those of the picker for relays."""

from __future__ import annotations

from posixpath import normpath
from urllib.parse import unquote

_OWN = frozenset({"/metrics", "/ready", "/v1/runtime_config", "/admin"})
"""For the operator, Prometheus and Kubernetes: they reach engines directly."""

PUBLIC = r"/v1/(chat/completions|completions|generate|models|models/.+)|/tokenize|/detokenize|/version"
"""RE2. While no picker responds, Envoy forwards only these."""


GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/generate"})
"""Their responses cost tokens, and are continued."""

FINISHED = "/v1/finished"
RETRIED = "/v1/retried"
"""Relays' reports, on the picker's socket."""


def is_hidden(path: str) -> bool:
    """Whether clients of the gateway may not reach this path: an internal path, or a generation path that the gateway
    would not recognize and thus not count. `path`: as sent, with its query."""
    sent = path.partition("?")[0]
    plain = normpath("/" + unquote(sent).partition("?")[0].lstrip("/"))
    return plain in _OWN or plain.startswith("/admin/") or ("%" in sent and plain in GENERATING)
