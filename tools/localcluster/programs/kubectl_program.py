"""kubectl, from the Python environment that runs this or from PATH, against the chosen cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tools.localcluster.commands import installed, output
from tools.localcluster.errors import ClusterError


def binary() -> str:
    """Path of kubectl. Raises ClusterError where there is none."""
    return installed("kubectl")


def environment(kubeconfig: Path) -> dict[str, str]:
    """The environment with `kubeconfig` in force; proxies are not asked for the cluster's address.

    Raises ClusterError where the file is missing: kubectl would ask a server on localhost instead.
    """
    if not kubeconfig.is_file():
        raise ClusterError(
            f"there is no cluster: {kubeconfig} is missing; bring one up with `python -m tools.localcluster up`"
        )
    proxies = {"http_proxy", "https_proxy", "all_proxy"}
    kept = {key: value for key, value in os.environ.items() if key.lower() not in proxies}
    return kept | {"KUBECONFIG": str(kubeconfig)}


def run(kubeconfig: Path, arguments: Sequence[str], text: str | None = None, *, check: bool = True) -> str:
    """Output of kubectl; with `check`, raises ClusterError with its complaint when it fails."""
    failure = f"`kubectl {' '.join(arguments)}` failed: {{complaint}}"
    return output([binary(), *arguments], failure, text=text, env=environment(kubeconfig), check=check)


def replace_process(kubeconfig: Path, arguments: Sequence[str]) -> None:
    """Become kubectl: terminal, signals and exit code are its own. Does not return."""
    path = binary()
    os.execve(path, [path, *arguments], environment(kubeconfig))
