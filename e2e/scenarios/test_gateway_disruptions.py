"""The most important disruptions of a service behind the gateway; `make e2e-disruptions ARGS=--gateway` runs them
all."""

import pytest

from e2e.disruptions import table
from e2e.disruptions.phases import IN_MAKE_TEST_WITH_GATEWAY, PHASES
from e2e.disruptions.run import run_phase
from e2e.disruptions.stage import Stage
from e2e.scenarios.test_disruptions import TRAFFIC_SECONDS
from tools.localcluster import kubectl
from tools.measure.report import say
from tools.testbed.service import Service


@pytest.fixture(scope="module")
def stage(namespace, client_image):
    stage = Stage(Service("chat", namespace), client_image, say, gateway=True)
    stage.settle()
    yield stage
    kubectl("-n", namespace, "delete", "inferenceservice", "chat", "--wait=false")


@pytest.mark.parametrize("name", IN_MAKE_TEST_WITH_GATEWAY)
def test_only_requests_on_a_killed_gateway_pod_are_lost(stage, name):
    outcome = run_phase(PHASES[name], stage, TRAFFIC_SECONDS)
    if outcome.skipped:
        pytest.skip(outcome.note)
    say(table.text([outcome]))
    assert outcome.problems == (), table.text([outcome])
