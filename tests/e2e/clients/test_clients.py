"""Clients of others against an engine and a gateway: suites that install in seconds. `make e2e-clients` runs all."""

import pytest

from e2e.clients.run import run, servers
from e2e.clients.suites import SUITES

QUICK = ("llm-comply", "openai", "anthropic", "dynamo")

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    with servers(tmp_path_factory.mktemp("servers") / "all") as urls:
        yield urls


@pytest.mark.parametrize(
    ("suite", "way"),
    [
        pytest.param(suite, way, id=f"{suite.name} {way}")
        for suite in SUITES
        if suite.name in QUICK
        for way in suite.ways
    ],
)
def test_clients_get_what_they_expect(suite, way, urls, tmp_path):
    results = run(suite, way, urls, tmp_path)
    assert results.faults() == []
