"""`python -m tools.bench.operator`: builds missing parts, then measures in a separate network namespace."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from tools.bench.operator import options
from tools.bench.operator.plane import PARTS
from tools.localcluster import ClusterError, layout
from tools.localcluster.programs import gobuild, packages
from tools.localcluster.progress import to_stdout


def main() -> NoReturn:
    """Builds missing parts; then the process becomes the measurement, with the same arguments."""
    options.parse(None)
    cache, progress = layout.current(), to_stdout()
    try:
        # Builds need the network, which is not there inside the namespace.
        for part in PARTS:
            gobuild.ensure_part(part, cache, progress)
        unshare = packages.require("unshare")
        packages.require("ip")
    except ClusterError as error:
        sys.exit(f"error: {error}")
    # Pod addresses, routes and ports are private to the namespace and end with its last process: nothing to undo.
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = [unshare, "--net", *user, sys.executable, "-m", "tools.bench.operator.measure", *sys.argv[1:]]
    os.execv(unshare, command)


if __name__ == "__main__":
    main()
