"""Which cluster is used: one the user names, else kind, else the own single node."""

from __future__ import annotations

import enum
import functools
import os
import shutil
import subprocess


class Choice(enum.Enum):
    """The three kinds of cluster, in the order of preference."""

    NAMED = "named"
    KIND = "kind"
    OWN_NODE = "own node"


def choose(kubeconfig: str | None, *, kind_is_there: bool, docker_answers: bool) -> Choice:
    """Returns the choice. `kubeconfig`: value of INFLIGHT_KUBECONFIG. A Docker client without a daemon counts as no
    Docker."""
    if kubeconfig:
        return Choice.NAMED
    return Choice.KIND if kind_is_there and docker_answers else Choice.OWN_NODE


def docker_answers() -> bool:
    """Returns whether a Docker daemon answers this user."""
    docker = shutil.which("docker")
    return docker is not None and _daemon_answers(docker)


@functools.cache
def _daemon_answers(docker: str) -> bool:
    # Cached: the choice holds for the life of this program, and every kubectl call depends on it.
    try:
        return subprocess.run([docker, "info"], capture_output=True, check=False, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def current() -> Choice:
    """The choice on this machine with this environment."""
    named = os.environ.get("INFLIGHT_KUBECONFIG")
    has_kind = shutil.which("kind") is not None
    return choose(named, kind_is_there=has_kind, docker_answers=not named and has_kind and docker_answers())
