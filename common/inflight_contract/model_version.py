"""Version of a model, which the operator tells the pods of a rollout in a file."""

from __future__ import annotations

DIGESTS_FILE = "digests.json"
"""The file: a JSON object of digests by rollout, beside that of `--limits-file`. It may be missing."""

_RANDOM = 5
"""Letters that Kubernetes adds to the end of a pod's name."""


def rollout_of(pod: str) -> str:
    """Returns the name of the rollout that a pod belongs to: that of its ReplicaSet, or the part of it that Kubernetes
    keeps in the name of a pod. Args: pod: name."""
    return pod[:-_RANDOM].rstrip("-")
