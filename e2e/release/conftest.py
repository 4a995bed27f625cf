import pytest

from e2e.scenarios.conftest import namespace, pytest_collection_modifyitems
from tools.localcluster import ensure_up
from tools.measure.report import say
from tools.testbed.registry import local_registry

__all__ = ["namespace", "pytest_collection_modifyitems"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """The address of a registry that the local cluster's node can pull from; the cluster runs, with no chart."""
    ensure_up(say)
    with local_registry(tmp_path_factory.mktemp("registry"), say) as address:
        yield f"{address}/team"
