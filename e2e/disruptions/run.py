"""Runs one phase under traffic, and restores the initial state in all cases."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from e2e.disruptions.load import traffic
from e2e.disruptions.phases import Phase
from e2e.disruptions.stage import Stage, node_problem
from e2e.disruptions.verdict import Outcome, judge
from tools.localcluster import ClusterError

LEAD_SECONDS = 4.0
"""Seconds of traffic before the disruption."""


class NotRestoredError(Exception):
    """A phase could not bring the cluster back to its initial state; the message says why."""


def run_phase(phase: Phase, stage: Stage, seconds: float) -> Outcome:
    """The outcome of one phase with at least `seconds` of traffic.

    Raises:
        NotRestoredError: the cluster is not as it was.
        ClusterError: the traffic could not be sent.
    """
    if phase.from_node and (problem := node_problem()):
        return Outcome(phase.name, skipped=True, note=problem)
    if phase.of_gateway and not stage.gateway:
        return Outcome(phase.name, skipped=True, note="it needs --gateway: a service behind the gateway")
    steps, trouble, state = phase.run(stage), "", "stopped"
    stage.begin()
    stage.say(f"{phase.name}: {phase.about}")
    with ExitStack() as way_back:
        way_back.callback(restore, phase, stage)
        next(steps)
        continued_before = stage.continued()
        with traffic(stage.service, phase.name, stage.say, image=stage.image) as load:
            began = time.monotonic()
            try:
                time.sleep(LEAD_SECONDS)
                next(steps, None)
                time.sleep(max(0.0, began + seconds - time.monotonic()))
                state = stage.note or "through"
            except (ClusterError, TimeoutError, RuntimeError, LookupError) as error:
                state = trouble = str(error)
            finally:
                stage.say(f"  {state}; back to the start")
                way_back.close()
            sent = load.end()
    # Counters of a gateway pod that was replaced begin anew.
    continued = max(0, stage.continued() - continued_before)
    seconds = time.monotonic() - began
    return judge(phase.name, sent, seconds, blow=stage.blow, note=stage.note, trouble=trouble, continued=continued)


def restore(phase: Phase, stage: Stage) -> None:
    """Undo the phase and wait until the service is as at the start. Ctrl-C does not stop this.

    Raises:
        NotRestoredError: it could not be done.
    """
    with _undisturbed():
        try:
            stage.way_back.close()
            stage.settle()
        except (ClusterError, TimeoutError) as error:
            raise NotRestoredError(f"after {phase.name} the cluster is not as it was: {error}") from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM, in the programs that are started meanwhile too."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
