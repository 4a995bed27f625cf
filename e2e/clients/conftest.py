"""Where the server is, for suites: variables of the environment that `run` sets. No package of this repository."""

import os

import pytest


@pytest.fixture(scope="session")
def url():
    return os.environ["INFLIGHT_URL"]


@pytest.fixture(scope="session")
def model():
    return os.environ["INFLIGHT_MODEL"]
