"""The installed chart checks itself, and an upgrade keeps what it serves."""

from e2e.scenarios.conftest import apply
from tools.testbed.helm import CHART, OPERATOR_NAMESPACE, RELEASE, helm
from tools.testbed.service import is_ready


def test_helm_test_passes():
    output = helm("test", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--timeout", "2m")
    assert "Phase:          Succeeded" in output


def test_an_upgrade_of_the_chart_restarts_no_engine(namespace):
    service = apply("kept", namespace)
    service.wait("Ready", is_ready, seconds=180)
    before = service.pods()
    options = ("--namespace", OPERATOR_NAMESPACE, "--reuse-values", "--wait", "--timeout", "2m")
    helm("upgrade", RELEASE, str(CHART), *options, "--set", "podLabels.upgraded=yes")
    service.wait("Ready", is_ready, seconds=60)
    assert service.pods() == before
    helm("rollback", RELEASE, *options[:2], "--wait")
    assert service.pods() == before
