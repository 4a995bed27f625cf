import httpx
import pytest

from tests.engine.server.fake_engine import connected, server_config


class Fake:
    """A service with a fake engine, and an HTTP client of its application."""

    def __init__(self, service, engine, app):
        self.service, self.engine, self.app = service, engine, app
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine")

    async def post(self, path, **body):
        return await self.http.post(path, json=body)


@pytest.fixture
def make_fake():
    """Makes services with a fake engine; keyword arguments change the server's configuration."""

    async def make(*, load=True, **changes):
        return Fake(*await connected(server_config(**changes), load=load))

    return make
