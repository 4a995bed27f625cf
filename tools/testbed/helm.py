"""helm, from the Python environment that runs this or from PATH, against the chosen cluster."""

from __future__ import annotations

import subprocess

from tools.localcluster import ClusterError, kubeconfig_path
from tools.localcluster.installed import installed
from tools.localcluster.kubectl_program import environment


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
