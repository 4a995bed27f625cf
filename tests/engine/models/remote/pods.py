"""Pods that share weights: the real endpoint of each, over TCP, with a fake engine behind it; and faults in between."""

import asyncio
import json
import threading
from contextlib import contextmanager
from contextvars import ContextVar

import uvicorn

from inflight_contract import admin_signature
from inflight_engine.models.remote.cache import ModelCache
from inflight_engine.models.remote.peers import Peers
from inflight_engine.models.remote.sharing import SharedBlocks
from inflight_engine.models.remote.snapshot import take_snapshot
from inflight_settings.engine import EngineConfig
from tests.engine.server.fake_engine import connected, server_config

TOKEN = "token"
GENEROUS = 100 << 20

_serving: ContextVar[str] = ContextVar("pod that answers", default="")


class Pod:
    """A pod with a model cache.

    Attributes:
        address: where its relay listens; what passes it may be changed by `fault`.
        fault: takes the bytes of an answer and returns what is sent, None to hang from there on; they are split into
            the head and the rest.
        asked: the lines with method and path of the requests that came.
        peers: the peers of its engine.
    """

    def __init__(self, name, cache, peers_file):
        self.name, self.cache, self.fault, self.asked = name, cache, None, []
        self.peers = Peers(peers_file)
        self.peers._own = name


class Cluster:
    """Pods by name. `url`: of the model's source."""

    def __init__(self, folder, url):
        self.folder, self.url, self.pods = folder, url, {}
        self._file = folder / "peers.json"
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def add(self, name, *, ready=True, cache=None, named=True, classes=()):
        """Start a pod. Args: cache: name of the folder that it may share with others; named: in the file of peers."""
        pod = Pod(name, ModelCache(self.folder / (cache or name), GENEROUS), self._file)
        self.run(self._serve(pod, ready, classes))
        self.pods[name] = pod
        self.name(*[each for each in self.pods if named or each != name])
        return pod

    def name(self, *names, **addresses):
        """Write the file of peers."""
        self._file.write_text(json.dumps({**{each: self.pods[each].address for each in names}, **addresses}))
        for pod in self.pods.values():
            pod.peers._looked = float("-inf")

    def open(self, pod):
        """Open the model as the pod's engine does: `(store, file)`."""
        snapshot = take_snapshot(self.url, pod.cache, pod.peers)
        return snapshot.store, snapshot.shards[0]

    def close(self):
        self.run(self._cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _cancel(self):
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, pod, ready, classes):
        engine = EngineConfig("fake", model_cache="folder", model_cache_size=1, peers_file="file", classes=classes)
        pod.service, pod.engine, app = await connected(server_config(engine=engine), load=ready)
        snapshot = await asyncio.to_thread(take_snapshot, self.url, pod.cache)
        pod.service.shared_blocks = SharedBlocks(snapshot)

        async def as_pod(scope, receive, send):
            _serving.set(pod.name)
            await app(scope, receive, send)

        server = uvicorn.Server(uvicorn.Config(as_pod, port=0, lifespan="off", log_config=None, access_log=False))
        pod.task = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(0.005)
        behind = server.servers[0].sockets[0].getsockname()[1]
        relay = await asyncio.start_server(lambda *ends: self._relay(pod, behind, *ends), "127.0.0.1", 0)
        pod.address = f"127.0.0.1:{relay.sockets[0].getsockname()[1]}"

    async def _relay(self, pod, behind, reader, writer):
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            pod.asked.append(request.split(b" HTTP/")[0].decode())
            from_pod, to_pod = await asyncio.open_connection("127.0.0.1", behind)
            to_pod.write(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            answer = await from_pod.read()
            to_pod.close()
            if pod.fault is not None:
                answer = pod.fault(*answer.partition(b"\r\n\r\n")[::2])
            if answer is None:
                await asyncio.sleep(30)
            else:
                writer.write(answer)
                await writer.drain()
        finally:
            writer.close()


@contextmanager
def cluster(folder, url, monkeypatch):
    """The environment's variable with the uid is of the process: here each pod has its own."""
    monkeypatch.setenv("INFLIGHT_ADMIN_TOKEN", TOKEN)
    real = admin_signature.check_target
    monkeypatch.setattr(
        admin_signature, "check_target", lambda credentials, own, now: real(credentials, _serving.get(), now)
    )
    found = Cluster(folder, url)
    try:
        yield found
    finally:
        found.close()
