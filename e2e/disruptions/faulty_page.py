"""A faulty metrics page of one pod, for the operator alone.

The pod itself does not change. In its network namespace, connections from the operator's address are redirected to a
responder that runs there: it answers `/metrics` with the faulty page and passes all other requests on to the engine. So
the operator sees the fault at the address, port and pod that it scrapes, and clients and probes do not.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from e2e.disruptions import processes
from e2e.disruptions.stage import OPERATOR, Stage, system_pods
from tools.localcluster.commands import output
from tools.localcluster.programs import packages
from tools.testbed.pods import Pod

RESPONDER = Path(__file__).resolve().with_name("metrics_page.py")
TABLE = "inflight_disruption"
PORTS = {8000: 18000, 8001: 18001}
"""The engine's serving and admin port, and the responder's port for each."""

HOLD_SECONDS = 45
"""Duration of a fault: several scrapes of the operator, and more than its Lease."""

LIMIT = 16
"""A `max_num_seqs` that differs from the service's at its start."""


def redirect(table: str, operators: list[str], pod: str) -> str:
    """nftables script: new connections from `operators` go to the responder, those that are open are reset."""
    sources = ", ".join(operators)
    turned = "\n".join(
        f"    ip saddr {{ {sources} }} tcp dport {port} dnat to {pod}:{to}" for port, to in PORTS.items()
    )
    ports = ", ".join(map(str, PORTS))
    return f"""table ip {table} {{
  chain prerouting {{
    type nat hook prerouting priority dstnat
{turned}
  }}
  chain input {{
    type filter hook input priority filter
    ip saddr {{ {sources} }} tcp dport {{ {ports} }} reject with tcp reset
  }}
}}
"""


def faulty_page(page: str, stage: Stage) -> Iterator[None]:
    """The phase with `page` of `metrics_page.PAGES`."""
    yield
    victim, other = stage.ready_pods()[:2]
    operators = system_pods(OPERATOR)
    before = {pod.uid: pod.restarts for pod in operators}
    responder = _replace_page(page, stage, victim, operators)
    began = time.monotonic()
    # The operator must still change the limits of other pods meanwhile.
    stage.apply(tuning={"mode": "Auto", "maxNumSeqs": {"min": LIMIT, "max": LIMIT}})
    stage.wait(
        "the other pod's new limit",
        lambda: stage.service.runtime_config(other.name)["max_num_seqs"] == LIMIT,
        HOLD_SECONDS,
    )
    took = time.monotonic() - began
    time.sleep(max(0.0, HOLD_SECONDS - took))
    responder.terminate()
    pages = len(responder.communicate()[0].splitlines())
    stage.note = f"the page was asked for {pages} times; another pod's limit was changed within {took:.0f} s"
    if not pages:
        raise RuntimeError("the operator never asked for the page")
    if any(before.get(pod.uid) != pod.restarts for pod in system_pods(OPERATOR)):
        raise RuntimeError("the operator was restarted")


def _replace_page(page: str, stage: Stage, victim: Pod, operators: list[Pod]) -> subprocess.Popen[str]:
    """Start the responder, which says a line for each page that it sends, and redirect the operators to it."""
    # The pause process has the namespace for as long as the pod lives, whatever becomes of the engine.
    inside = ["nsenter", f"--net=/proc/{processes.pause_process(victim.uid)}/ns/net"]
    nft = [*inside, packages.require("nft")]
    ports = [f"{port}:{to}" for port, to in PORTS.items()]
    # Deleting the table fails where the pod is gone, and the table with it.
    stage.on_way_back(partial(subprocess.run, [*nft, "delete", "table", "ip", TABLE], capture_output=True, check=False))
    responder = subprocess.Popen(
        [*inside, sys.executable, str(RESPONDER), page, *ports], stdout=subprocess.PIPE, text=True
    )
    stage.on_way_back(responder.wait)
    stage.on_way_back(responder.terminate)
    if responder.stdout is None or responder.stdout.readline() != "ready\n":
        raise RuntimeError(f"the responder did not start: exit code {responder.wait()}")
    output([*nft, "-f", "-"], text=redirect(TABLE, [pod.address for pod in operators], victim.address))
    return responder
