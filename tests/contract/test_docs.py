"""A real API server accepts every InferenceService in the documentation, whole or completed from a part."""

import pytest
import yaml

from tests.docs.blocks import services

pytestmark = pytest.mark.contract


@pytest.mark.parametrize(("place", "service"), services(), ids=[place for place, _ in services()])
def test_a_service_of_the_documentation_is_accepted(kubectl, place, service):
    manifest = yaml.safe_dump(service)
    flags = ("--dry-run=server", "--validate=strict", "-n", "default")
    accepted = kubectl.run("create", *flags, "-f", "-", stdin=manifest)
    assert accepted.returncode == 0, f"{place}: {accepted.stderr}"
