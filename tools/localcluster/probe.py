"""Readiness questions to the components, by the addresses that Kubernetes' own deployments probe."""

from __future__ import annotations

import http.client
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path


def client_context(pki: Path, user: str, authority: str = "ca") -> ssl.SSLContext:
    """TLS as `user`, trusting `authority`; names of files in the folder `pki` without their suffix."""
    context = ssl.create_default_context(cafile=str(pki / f"{authority}.crt"))
    context.load_cert_chain(pki / f"{user}.crt", pki / f"{user}.key")
    return context


def loopback_context() -> ssl.SSLContext:
    """TLS to a component that signed its own certificate, for a health question on loopback only."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def answers_ok(url: str, context: ssl.SSLContext | None = None, timeout_seconds: float = 2.0) -> bool:
    """Whether a GET of `url` answers 200 in time. Proxies of the environment are not asked."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=timeout_seconds) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, http.client.HTTPException):
        return False


def succeeds(command: Sequence[str], timeout_seconds: float = 10.0) -> bool:
    """Whether `command` ends with 0 in time."""
    try:
        return subprocess.run(list(command), capture_output=True, check=False, timeout=timeout_seconds).returncode == 0
    except subprocess.TimeoutExpired:
        return False
