"""A stand-in for a cluster, for unit tests of the live view. `test_terminal.py` runs it against a real API server."""

from datetime import UTC, datetime

from inflight_kubectl.engines.engine_metrics import Figures
from inflight_kubectl.engines.feed import View
from inflight_kubectl.output import Problem
from tests.kubectl.objects import service


class Source:
    """Stands in for `top.source.Source`: shows the values that a test passes to `show`, `away` and `pods_are`."""

    def __init__(self, services=(), scope="default"):
        self.context = "test"
        self.scope = scope
        self.retries = 0
        self._services = tuple(services)
        self._pods = []
        self._figures = Figures(
            running=6,
            waiting=1,
            kv=0.4,
            tokens_per_s=120.4,
            max_num_seqs=169,
            max_num_batched_tokens=1342,
            ttft_p95=0.3,
        )
        self._changed = None
        self.reads = 0
        self.closed = False

    def follow(self, changed):
        self._changed = changed
        return self

    def start(self):
        self.show(*self._services)

    def stop(self):
        pass

    def retry(self):
        self.retries += 1

    def show(self, *services):
        self._services = services
        self._changed(View(services, datetime.now(UTC)))

    def away(self, problem="the API server does not answer: connection refused"):
        self._changed(View(self._services, datetime.now(UTC), problem))

    def pods_are(self, pods):
        self._pods = pods

    def pods(self, service):
        if isinstance(self._pods, Problem):
            raise self._pods
        return self._pods

    def events(self, service, pods):
        return []

    def gateway(self, service):
        return None

    def tiers(self, service, pods):
        return None

    def reader(self):
        return self

    def read(self, pods):
        self.reads += 1
        return {pod.name: self._figures for pod in pods if pod.serves}

    def close(self):
        self.closed = True


def fleet(count):
    return [service(f"svc-{number:03}") for number in range(count)]
