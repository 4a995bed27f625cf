import pytest

from tools.localcluster import kubectl
from tools.measure.report import say
from tools.testbed.install import install
from tools.testbed.namespaces import create_namespace
from tools.testbed.service import Service

CPU = {"accelerator": {"count": 0}, "model": {"source": "builtin://smollm2"}}


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session", autouse=True)
def client_image():
    """The local cluster with the chart installed, and the image that clients run from. Seconds when it is there."""
    return install(say)


@pytest.fixture(scope="module")
def namespace(request):
    """A namespace of the test file's own. Its deletion is not awaited: the next file's tests start meanwhile."""
    name = "e2e-" + request.module.__name__.rpartition("test_")[2].replace("_", "-")
    create_namespace(name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def manifest(name, namespace, **spec):
    """An InferenceService on the CPU; `spec` replaces top-level fields."""
    return Service(name, namespace).manifest(CPU | spec)


def apply(name, namespace, **spec):
    """Apply it and return a handle."""
    service = Service(name, namespace)
    service.apply(CPU | spec)
    return service
