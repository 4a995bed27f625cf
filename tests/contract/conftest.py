"""A real kube-apiserver with the CRD installed, for the whole test session, and a namespace for each test."""

import secrets
from pathlib import Path

import pytest
import yaml
from kubernetes.aio import client

from inflight_base.kube.connect import load_configuration
from inflight_operator.apply.kube import OperatorApi
from tests.contract.api_server import ApiServer
from tests.contract.definitions import established
from tests.contract.kubectl import Kubectl
from tests.contract.manifests import service_manifest
from tools.localcluster.node.plane import apiserver_only

PROJECT = Path(__file__).parents[2]
CRD_FILE = PROJECT / "crds" / "inflight.dev_inferenceservices.yaml"


class ManifestKubectl(Kubectl):
    """kubectl that also takes manifests as dicts."""

    def apply(self, *manifests, dry_run=False):
        """`kubectl apply` of manifests; returns the finished process, refused or not."""
        flags = ["--dry-run=server"] if dry_run else []
        return self.run("apply", *flags, "-f", "-", stdin=yaml.safe_dump_all(manifests))

    def create(self, *manifests):
        done = self.apply(*manifests)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def kubectl(tmp_path_factory):
    with apiserver_only(tmp_path_factory.mktemp("apiserver")) as kubeconfig:
        kubectl = ManifestKubectl(kubeconfig)
        kubectl.ok("apply", "--server-side", "-f", str(CRD_FILE))
        established(kubectl, "inferenceservices.inflight.dev")
        yield kubectl


@pytest.fixture(scope="session")
def api_server(kubectl):
    server = ApiServer(kubectl.kubeconfig)
    with server.http:
        yield server


@pytest.fixture
def namespace(api_server):
    """A namespace that enforces Pod Security `restricted`, with the accounts that pods ask for."""
    name = f"test-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api_server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    for account in ("default", "runner"):
        metadata = {"name": account, "namespace": name}
        api_server.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    return name


@pytest.fixture
async def api(kubectl):
    async with client.ApiClient(await load_configuration(str(kubectl.kubeconfig))) as connected:
        yield OperatorApi(connected)


@pytest.fixture
def make(api_server, namespace):
    """Applies an InferenceService of a spec and returns it as the API server stored it."""

    def make(spec, name="chat"):
        return api_server.apply(service_manifest(namespace, spec, name))

    return make
