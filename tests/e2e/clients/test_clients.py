"""Clients of others against an engine and a gateway: suites that install in seconds. `make e2e-clients` runs all."""

import pytest

from e2e.clients.run import run, servers
from e2e.clients.suites import SUITES, WAYS

QUICK = ("llm-comply", "openai", "anthropic")

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    with servers(tmp_path_factory.mktemp("servers") / "all", pair=False) as urls:
        yield urls


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("suite", [each for each in SUITES if each.name in QUICK], ids=lambda suite: suite.name)
def test_clients_get_what_they_expect(suite, way, urls, tmp_path):
    results = run(suite, way, urls, tmp_path)
    assert results.faults() == []
