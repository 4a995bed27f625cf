"""Who may read the metrics: clients with a token of the cluster whose account may get /metrics, as the API server says.

The same rule as that of kube-rbac-proxy and of controller-runtime's filter for metrics, so that the same roles fit:
https://github.com/kubernetes-sigs/controller-runtime/blob/main/pkg/metrics/filters/filters.go
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from hashlib import sha256
from threading import BoundedSemaphore, Lock
from time import monotonic

from kubernetes.aio import client

from inflight_base.kube.client import KubeApi
from inflight_base.kube.errors import KubeApiError
from inflight_base.manifest import Manifest

logger = logging.getLogger(__name__)

KEPT_SECONDS = {True: 60.0, False: 30.0}
"""Seconds for which a decision holds, by whether it lets the client in."""

KEPT = 128
"""Most decisions of either kind that are kept. Tokens that are refused take no place of those that are let in."""

REVIEW_SECONDS = 5.0
"""Longest time of a call to the API server, and of the wait of a client for the reviews of others."""

WAITING = 16
"""Most clients of either kind that wait for reviews, each in a thread."""

REFUSED_SECONDS = 0.1
"""Shortest time of a review that lets nobody in: one takes 5 ms of CPU time, and a flood of wrong tokens must not slow
the event loop, nor the API server."""

MAX_TOKEN = 16_384
"""Most characters of a token: one of the API server has about a thousand."""


class Verdict(Enum):
    """The answer to a client, as a status of HTTP."""

    ALLOWED = "200 OK"
    UNKNOWN = "401 Unauthorized"
    FORBIDDEN = "403 Forbidden"
    UNDECIDED = "503 Service Unavailable"


async def review(api: KubeApi, token: str) -> Verdict:
    """Asks the API server whose token it is, and whether that account may get /metrics.

    Raises:
        KubeApiError: the API server does not say.
    """
    told = await _told(api, "authentication.k8s.io/v1", "TokenReview", {"token": token})
    if not told.get("authenticated"):
        return Verdict.UNKNOWN
    user = told.get("user") or {}
    asked = {
        "user": user.get("username", ""),
        "uid": user.get("uid", ""),
        "groups": user.get("groups") or [],
        "extra": user.get("extra") or {},
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }
    told = await _told(api, "authorization.k8s.io/v1", "SubjectAccessReview", asked)
    return Verdict.ALLOWED if told.get("allowed") else Verdict.FORBIDDEN


async def _told(api: KubeApi, api_version: str, kind: str, spec: Manifest) -> Manifest:
    answer = await api.create({"apiVersion": api_version, "kind": kind, "metadata": {}, "spec": spec})
    return answer.get("status") or {}


def reviewer(configuration: client.Configuration) -> Callable[[str], Verdict]:
    """Returns `review` for threads without an event loop, each with a connection of its own."""

    async def connected(token: str) -> Verdict:
        verdict = Verdict.UNDECIDED
        try:
            async with client.ApiClient(configuration) as api_client:
                verdict = await review(KubeApi(api_client, timeout_seconds=REVIEW_SECONDS), token)
        finally:
            if verdict is not Verdict.ALLOWED:
                await asyncio.sleep(REFUSED_SECONDS)
        return verdict

    return lambda token: asyncio.run(connected(token))


class Access:
    """Decides about clients, from any thread. One token at a time is reviewed of clients that were let in last time,
    with this token or from this address, and one of all others, for whose flood the former do not wait. Tokens rotate:
    that of a service account is replaced each hour or so.

    Args:
        review: decides about a token.
        clock: seconds.
    """

    def __init__(self, review: Callable[[str], Verdict], clock: Callable[[], float] = monotonic) -> None:
        self._review = review
        self._clock = clock
        self._reviewing = {True: Lock(), False: Lock()}
        self._waiting = {True: BoundedSemaphore(WAITING), False: BoundedSemaphore(WAITING)}
        self._addresses: dict[str, None] = {}
        """Addresses of clients that were let in, the latest at the end."""
        self._keeping = Lock()
        self._kept: dict[bool, dict[bytes, tuple[Verdict, float]]] = {True: {}, False: {}}

    def verdict(self, authorization: str, address: str) -> Verdict:
        """Decides about the client at an address by its header Authorization; empty without one."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not 0 < len(token) <= MAX_TOKEN:
            return Verdict.UNKNOWN
        name = sha256(token.encode("latin-1", "replace")).digest()
        found = self._found(name)
        if found is not None:
            return found
        known = name in self._kept[True] or address in self._addresses
        if not self._waiting[known].acquire(blocking=False):
            return Verdict.UNDECIDED
        try:
            if not self._reviewing[known].acquire(timeout=REVIEW_SECONDS):
                return Verdict.UNDECIDED
            try:
                return self._found(name) or self._decided(name, token, address)
            finally:
                self._reviewing[known].release()
        finally:
            self._waiting[known].release()

    def _found(self, name: bytes) -> Verdict | None:
        now = self._clock()
        for kept in self._kept.values():
            verdict, until = kept.get(name, (None, 0.0))
            if now < until:
                return verdict
        return None

    def _decided(self, name: bytes, token: str, address: str) -> Verdict:
        try:
            verdict = self._review(token)
        except KubeApiError as error:
            logger.warning("a client of /metrics gets 503: %s", error)
            return Verdict.UNDECIDED
        let_in = verdict is Verdict.ALLOWED
        with self._keeping:
            for each in self._kept.values():
                each.pop(name, None)
            kept = self._kept[let_in]
            if len(kept) >= KEPT:
                del kept[next(iter(kept))]
            kept[name] = verdict, self._clock() + KEPT_SECONDS[let_in]
            if let_in:
                self._addresses.pop(address, None)
                if len(self._addresses) >= KEPT:
                    del self._addresses[next(iter(self._addresses))]
                self._addresses[address] = None
        return verdict
