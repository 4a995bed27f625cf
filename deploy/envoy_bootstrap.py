"""Envoy's bootstrap in the chart, as `inflight-gateway envoy-config` prints it."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout

from inflight_gateway import cli
from tools import generated
from tools.testbed.helm import CHART

FILE = CHART / "files" / "envoy.json"

NODE = "gateway"
"""The name of the pod is on Envoy's command line, which overrides this."""


def bootstrap() -> str:
    """The file as JSON."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        cli.main(["envoy-config", "--name", NODE])
    return printed.getvalue()


if __name__ == "__main__":
    sys.exit(generated.run("deploy.envoy_bootstrap", __doc__, {FILE: bootstrap()}))
