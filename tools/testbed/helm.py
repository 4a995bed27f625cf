"""helm, from the Python environment that runs this or from PATH, against the chosen cluster."""

from __future__ import annotations

import subprocess

from e2e.cluster import ClusterError, kubeconfig_path
from e2e.cluster.installed import installed
from e2e.cluster.kubectl_program import environment


def binary() -> str:
    """Path of helm. Raises ClusterError where there is none."""
    return installed("helm")


def helm(*arguments: str) -> str:
    """Output of helm.

    Raises:
        ClusterError: it failed; the message has its complaint.
    """
    done = subprocess.run(
        [binary(), *arguments], capture_output=True, text=True, check=False, env=environment(kubeconfig_path())
    )
    if done.returncode:
        raise ClusterError(f"`helm {' '.join(arguments)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
