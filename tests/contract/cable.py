"""A connection to the test API server that a test can cut and mend."""

import asyncio
from urllib.parse import urlsplit

import yaml


class Cable:
    """A TCP connection to the API server that a test can cut and mend."""

    def __init__(self, kubeconfig):
        self._writers, self.port = set(), 0
        self.lead_to(kubeconfig)

    def lead_to(self, kubeconfig):
        """New connections go to the API server of this kubeconfig."""
        server = urlsplit(yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
        self._target = (server.hostname, server.port)

    async def mend(self):
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self):
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self, reader, writer):
        upstream_reader, upstream = await asyncio.open_connection(*self._target)
        self._writers |= {writer, upstream}
        await asyncio.gather(self._copy(reader, upstream), self._copy(upstream_reader, writer))

    @staticmethod
    async def _copy(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


def to_port(kubeconfig, path, port, user=None):
    """A kubeconfig at `path` as `kubeconfig`, with another port; with the credentials of `user`, if given."""
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    if user is not None:
        config["users"][0]["user"] = user
    path.write_text(yaml.safe_dump(config))
    return path


async def cable_to(kubeconfig, path, user=None):
    """A kubeconfig at `path` as `kubeconfig`, over a cable; with the credentials of `user`, if given."""
    cable = Cable(kubeconfig)
    await cable.mend()
    to_port(kubeconfig, path, cable.port, user)
    return cable


async def account_over_cable(kubectl, namespace, tmp_path):
    """A kubeconfig with the token of the namespace's account, and the cable that it goes over."""
    token = kubectl.ok("create", "token", "default", "-n", namespace).strip()
    path = tmp_path / "gateway.kubeconfig"
    return path, await cable_to(kubectl.kubeconfig, path, {"token": token})
