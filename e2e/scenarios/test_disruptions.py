"""The most important disruptions under traffic; `make e2e-disruptions` runs them all."""

import pytest

from e2e.disruptions import table
from e2e.disruptions.phases import IN_MAKE_TEST, PHASES
from e2e.disruptions.run import run_phase
from e2e.disruptions.stage import Stage
from tools.localcluster import kubectl
from tools.measure.report import say
from tools.testbed.service import Service

TRAFFIC_SECONDS = 12


@pytest.fixture(scope="module")
def stage(namespace, client_image):
    stage = Stage(Service("chat", namespace), client_image, say)
    stage.settle()
    yield stage
    kubectl("-n", namespace, "delete", "inferenceservice", "chat", "--wait=false")


@pytest.mark.parametrize("name", IN_MAKE_TEST)
def test_only_requests_on_a_killed_pod_are_lost_and_those_with_an_error_in_time(stage, name):
    outcome = run_phase(PHASES[name], stage, TRAFFIC_SECONDS)
    if outcome.skipped:
        pytest.skip(outcome.note)
    assert outcome.problems == (), table.text([outcome])
