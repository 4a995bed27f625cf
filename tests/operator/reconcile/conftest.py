import pytest

from tests.operator.reconcile.world import World


@pytest.fixture
def world():
    return World()
