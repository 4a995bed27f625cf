"""HTTP paths: paths of engines that clients reach through the gateway, and paths of the picker for relays."""

from __future__ import annotations

from posixpath import normpath
from urllib.parse import unquote

_OWN = frozenset({"/metrics", "/ready", "/v1/runtime_config", "/admin"})
"""Paths for the operator, Prometheus and Kubernetes, which reach engines directly."""

PUBLIC = r"/v1/(chat/completions|completions|generate|models|models/.+)|/tokenize|/detokenize|/version"
"""Paths that Envoy forwards while no picker responds, as a regular expression (RE2)."""


GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/generate"})
"""Paths whose responses cost tokens, and are continued."""

FINISHED = "/v1/finished"
RETRIED = "/v1/retried"
"""Paths of the relays' reports, on the picker's socket."""


def is_hidden(path: str) -> bool:
    """Returns whether clients of the gateway may not reach this path: an internal path, or a generation path that the
    gateway would not recognize and thus not count. `path`: the path as sent, with its query."""
    sent = path.partition("?")[0]
    plain = normpath("/" + unquote(sent).partition("?")[0].lstrip("/"))
    return plain in _OWN or plain.startswith("/admin/") or ("%" in sent and plain in GENERATING)
