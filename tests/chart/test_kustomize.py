"""The manifest for kustomize on a real API server."""

import copy
from pathlib import Path

import pytest

from tests.contract.definitions import established

KUSTOMIZE = Path(__file__).parents[2] / "deploy" / "kustomize"
SYSTEM = "inflight-system"

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def applied(kubectl):
    """The base as a user applies it; gone afterwards, but for the namespace, which nothing here could delete."""
    done = kubectl.run("apply", "--server-side", "-k", str(KUSTOMIZE / "base"))
    assert done.returncode == 0, done.stderr
    established(kubectl, "inferenceservices.inflight.dev")
    yield done
    kubectl.ok("delete", "--wait=false", "-f", str(KUSTOMIZE / "base" / "inflight.yaml"))


def test_it_is_applied_without_a_warning_and_a_second_time_without_a_change(applied, kubectl):
    assert "warning" not in applied.stderr.lower(), applied.stderr
    assert kubectl.run("diff", "--server-side", "-k", str(KUSTOMIZE / "base")).returncode == 0


def test_services_can_be_applied_and_the_operators_pods_are_admitted_under_restricted(applied, kubectl):
    example = Path(__file__).parents[2] / "examples" / "chat.yaml"
    assert "created (server dry run)" in kubectl.ok("apply", "--dry-run=server", "-f", str(example))
    deployment = kubectl.json("get", "deployment", "inflight-operator", "-n", SYSTEM)
    template = copy.deepcopy(deployment["spec"]["template"])
    template["metadata"] = {"name": "probe", "labels": template["metadata"]["labels"]}
    admitted = kubectl.create(
        {"apiVersion": "v1", "kind": "Pod", **template}, flags=["--dry-run=server", "--namespace", SYSTEM]
    )
    assert admitted.returncode == 0, admitted.stderr


def test_the_overlay_is_accepted_over_it(applied, kubectl):
    flags = ("--server-side", "--dry-run=server")
    assert "inflight-operator" in kubectl.ok("apply", *flags, "-k", str(KUSTOMIZE / "registry"))
