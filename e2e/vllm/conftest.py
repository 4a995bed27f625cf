import pytest

from e2e.scenarios.conftest import client_image, namespace, pytest_collection_modifyitems
from e2e.vllm import image
from tools.localcluster.progress import to_stdout

__all__ = ["client_image", "namespace", "pytest_collection_modifyitems"]


@pytest.fixture(scope="session")
def vllm_image(client_image):
    """The image of vLLM in the local cluster: minutes when it is made, seconds when it is there."""
    return image.ensure(to_stdout())
