"""Under load every query of every panel of the chart's dashboards returns data, from a real Prometheus."""

import sys
import time

import pytest

from dashboards.live import stage
from dashboards.live.answers import ask, load
from dashboards.live.grafana import Window
from dashboards.live.monitors import watching
from e2e.scenarios.conftest import apply
from e2e.traffic.pod import driver_pod

SCRAPE_SECONDS = 1.0
LONGEST_SECONDS = 100
TRAFFIC = ("--clients=48", "--requests=100000", "--seconds=300", "--prompt-words=60", "--max-tokens=48")


@pytest.fixture(scope="module")
def answers(namespace, client_image):
    """Of each dashboard, as soon as all have data, or after `LONGEST_SECONDS` of load."""
    service = apply("seen", namespace, **stage.BUSY)
    service.wait("Ready", lambda view: view.ready, seconds=180)
    wanted = {"namespace": namespace, "service": service.name}
    dashboards = load()
    with (
        watching(SCRAPE_SECONDS, [namespace]) as prometheus,
        driver_pod(service, "load", list(TRAFFIC), image=client_image),
    ):
        begun, found = time.time(), {}
        while time.time() < begun + LONGEST_SECONDS:
            time.sleep(3)
            window = Window(begun, time.time(), SCRAPE_SECONDS)
            try:
                found = {name: ask(prometheus, dashboard, window, wanted) for name, dashboard in dashboards.items()}
            except ValueError:
                continue  # a variable without values: nothing has been scraped yet
            if not any(one.problems for one in found.values()):
                break
        print(f"asked after {time.time() - begun:.0f} s of load", file=sys.stderr)
        assert not prometheus.targets_down()
        return found


@pytest.mark.parametrize("name", sorted(load()))
def test_every_query_of_every_panel_returns_data_under_load(answers, name):
    assert not answers[name].problems, "\n".join(map(str, answers[name].problems))
    assert answers[name].answers
