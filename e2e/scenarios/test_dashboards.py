"""Under load every query of every panel of the chart's dashboards returns data, from a real Prometheus."""

import time
from contextlib import ExitStack

import pytest

from dashboards.live import stage
from dashboards.live.answers import ask, load
from dashboards.live.grafana import Window
from dashboards.live.monitors import watching
from e2e.scenarios.conftest import apply
from e2e.traffic.pod import driver_pod

SCRAPE_SECONDS = 1.0
LONGEST_SECONDS = 100
LIGHT = ("--clients=8", "--rate=2", "--requests=100000", "--seconds=300", "--prompt-words=30", "--max-tokens=16")
HEAVY = ("--clients=40", "--requests=100000", "--seconds=20", "--prompt-words=60", "--max-tokens=48")
HEAVY_AFTER_SECONDS = 8
"""The cost of steps is fitted first. The overload that follows preempts, swaps, rejects, scales and tunes."""


@pytest.fixture(scope="module")
def answers(namespace, client_image):
    """Of each dashboard, as soon as all have data, or after `LONGEST_SECONDS` of load."""
    service = apply("seen", namespace, **stage.BUSY)
    service.wait("Ready", lambda view: view.ready, seconds=180)
    with ExitStack() as running:
        prometheus = running.enter_context(watching(SCRAPE_SECONDS, [namespace]))
        running.enter_context(driver_pod(service, "light", list(LIGHT), image=client_image))
        begun = round(time.time())
        time.sleep(HEAVY_AFTER_SECONDS)
        running.enter_context(driver_pod(service, "heavy", list(HEAVY), image=client_image))
        while True:
            window = Window(begun, round(time.time()), SCRAPE_SECONDS)
            found = {name: ask(prometheus, one, window, wanted(service)) for name, one in load().items()}
            if time.time() > begun + LONGEST_SECONDS or not any(one.problems for one in found.values()):
                break
            time.sleep(3)
        assert not prometheus.targets_down()
        return found


def wanted(service):
    return {"namespace": service.namespace, "service": service.name}


@pytest.mark.parametrize("name", sorted(load()))
def test_every_query_of_every_panel_returns_data_under_load(answers, name):
    assert not answers[name].problems, "\n".join(map(str, answers[name].problems))
    assert answers[name].answers
