"""A faulty metrics page of one pod, for the operator alone.

The pod itself does not change. In its network namespace, connections from the operator's address are redirected to a
responder that runs there: it answers `/metrics` with the faulty page and passes all other requests on to the engine. So
the operator sees the fault at the address, port and pod that it scrapes, and clients and probes do not.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

from e2e.disruptions import processes
from e2e.disruptions.phases.base import Phase
from e2e.disruptions.stage import OPERATOR, Stage, system_pods
from tools.localcluster import host, packages
from tools.testbed.pods import Pod

RESPONDER = Path(__file__).resolve().parents[1] / "metrics_page.py"
TABLE = "inflight_disruption"
PORTS = {8000: 18000, 8001: 18001}
"""The engine's serving and admin port, and the responder's port for each."""

HOLD_SECONDS = 45
"""Several scrapes of the operator, and longer than the duration of its Lease."""

LIMIT = 16
"""Another `max_num_seqs` than the service's at its start."""


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


class _MetricsPage(Phase):
    page: ClassVar[str]
    from_node = True

    def __init__(self) -> None:
        self._inside: list[str] = []
        self._responder: subprocess.Popen[str] | None = None

    def disturb(self, stage: Stage) -> None:
        victim, other = stage.ready_pods()[:2]
        before = {pod.uid: pod.restarts for pod in system_pods(OPERATOR)}
        self._replace_page(victim, system_pods(OPERATOR))
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
        pages = self._end_responder()
        stage.note = f"the page was asked for {pages} times; another pod's limit was changed within {took:.0f} s"
        if not pages:
            raise RuntimeError("the operator never asked for the page")
        if any(before.get(pod.uid) != pod.restarts for pod in system_pods(OPERATOR)):
            raise RuntimeError("the operator was restarted")

    def _replace_page(self, victim: Pod, operators: list[Pod]) -> None:
        # The pause process has the namespace for as long as the pod lives, whatever becomes of the engine.
        self._inside = ["nsenter", f"--net=/proc/{processes.pause_process(victim.uid)}/ns/net"]
        ports = [f"{port}:{to}" for port, to in PORTS.items()]
        command = [*self._inside, sys.executable, str(RESPONDER), self.page, *ports]
        self._responder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if self._responder.stdout is None or self._responder.stdout.readline() != "ready\n":
            raise RuntimeError(f"the responder did not start: exit code {self._responder.wait()}")
        script = redirect(TABLE, [pod.address for pod in operators], victim.address)
        host.run([*self._inside, packages.require("nft"), "-f", "-"], script)

    def _end_responder(self) -> int:
        """End it; returns the number of pages that it sent."""
        if self._responder is None:
            return 0
        self._responder.terminate()
        said, _ = self._responder.communicate()
        self._responder = None
        return len(said.splitlines())

    def restore(self, stage: Stage) -> None:
        self._end_responder()
        if self._inside:
            # Fails where the pod is gone, and the table with it.
            delete = [*self._inside, packages.require("nft"), "delete", "table", "ip", TABLE]
            subprocess.run(delete, capture_output=True, check=False)


class MetricsPageHangs(_MetricsPage):
    name = "metrics-page-hangs"
    about = "one pod accepts the operator's question for metrics and never answers"
    page = "hang"


class MetricsPageHuge(_MetricsPage):
    name = "metrics-page-huge"
    about = "one pod answers the operator's question for metrics with 100 MB"
    page = "huge"
