"""Fixtures with an Envoy alone."""

import pytest

from tests.gateway.proxy.edge import Edge


@pytest.fixture
async def edge(tmp_path):
    """Not started."""
    edge = Edge(tmp_path)
    yield edge
    await edge.stop()
