"""The kubelet's probes of an engine: time until a hanging pod is unready, and until it is restarted.

All go to the serving port. `/ready` and `/health` are answered by the API process, which compares the engine process'
progress with the predicted time of a step (at least 5 s): a hanging engine process answers 503, a pod whose processes
all hang does not answer the probe.

An unanswered probe takes its whole timeout; the next one starts with the next tick of its period, or at once
when that has passed. With period P, timeout T and threshold N a pod that stops answering fails within
P + N * max(P, T), and one that answers 503 within N * P.
"""

from __future__ import annotations

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import HTTP_PORT_NAME

STARTUP_PERIOD_SECONDS = 2

KILL_GRACE_SECONDS = 2
"""From SIGTERM to SIGKILL after a failed liveness or start-up probe. The pod's own grace period is for requests that
still run to their end, of which a container that hangs has none. The kubelet waits two seconds at least."""


def engine_probes(startup_limit_seconds: int) -> Manifest:
    """`startupProbe`, `readinessProbe` and `livenessProbe` of the engine's container.

    Args:
        startup_limit_seconds: maximum load time of an engine. A loading engine is healthy, so only the start-up probe
            bounds that; the others begin when it has succeeded.
    """
    return {
        "startupProbe": {
            "httpGet": {"path": "/ready", "port": HTTP_PORT_NAME},
            "periodSeconds": STARTUP_PERIOD_SECONDS,
            "timeoutSeconds": 2,
            "failureThreshold": -(-startup_limit_seconds // STARTUP_PERIOD_SECONDS),
            "terminationGracePeriodSeconds": KILL_GRACE_SECONDS,
        },
        # Out of the endpoints within 4 s (1 + 3) without an answer, and 1 s after a 503. One probe with a long timeout
        # rather than three with a short one: an API process on a busy CPU that takes 1 or 2 s for each answer serves
        # on, and removing pods from an overloaded fleet makes the others slower.
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": HTTP_PORT_NAME},
            "periodSeconds": 1,
            "timeoutSeconds": 3,
            "failureThreshold": 1,
        },
        # Killed within 12 s without an answer: 2 + 4 * 2, and the grace. Only an API process that answers none of four
        # probes in a row, 8 s in all, is restarted for being slow. A hung engine process is replaced by the API process
        # 5 s after its step was overdue, with less loss than a restart of the pod: the fourth 503 comes 6 s after at
        # the earliest, and at the latest 8 s, so that the container is killed within 15 s (5 + 8, and the grace) where
        # that replacement does not happen.
        "livenessProbe": {
            "httpGet": {"path": "/health", "port": HTTP_PORT_NAME},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 4,
            "terminationGracePeriodSeconds": KILL_GRACE_SECONDS,
        },
    }
