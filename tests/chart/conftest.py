"""helm and kubectl as a user runs them, and for contract tests a real API server without the CRD."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.contract.api_server import ApiServer
from tests.contract.kubectl import Kubectl
from tools.localcluster.node.plane import apiserver_only
from tools.testbed.helm import binary

PROJECT = Path(__file__).parents[2]
CHART = PROJECT / "helm" / "inflight"


class Helm:
    def __init__(self, home, kubeconfig=None):
        self.environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
        self.flags = ["--kubeconfig", str(kubeconfig)] if kubeconfig else []

    def run(self, *arguments):
        return subprocess.run(
            [binary(), *self.flags, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env=self.environment,
            check=False,
        )

    def ok(self, *arguments):
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def template(self, *flags):
        return self.run("template", "prod", str(CHART), "--namespace", "inflight-system", *flags)

    def objects(self, *flags):
        """Rendered objects by kind and name; hooks included."""
        done = self.template(*flags)
        assert done.returncode == 0, done.stderr
        return {(o["kind"], o["metadata"]["name"]): o for o in yaml.load_all(done.stdout, yaml.CSafeLoader) if o}


class ManifestKubectl(Kubectl):
    """kubectl that also takes manifests as dicts."""

    def create(self, *manifests, flags=()):
        return self.run("create", *flags, "-f", "-", stdin=yaml.safe_dump_all(manifests))


@pytest.fixture(scope="session")
def helm(tmp_path_factory):
    return Helm(tmp_path_factory.mktemp("helm-home"))


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory):
    with apiserver_only(tmp_path_factory.mktemp("chart-apiserver")) as path:
        yield path


@pytest.fixture(scope="session")
def kubectl(kubeconfig):
    return ManifestKubectl(kubeconfig)


@pytest.fixture(scope="session")
def api_server(kubeconfig):
    server = ApiServer(kubeconfig)
    with server.http:
        yield server


@pytest.fixture(scope="session")
def cluster_helm(tmp_path_factory, kubeconfig):
    return Helm(tmp_path_factory.mktemp("cluster-helm-home"), kubeconfig)
