"""A stand-in for an API server: objects by path, lists, merge patches, and status 403 where a test says so."""

from inflight_kubectl.access.api_problems import refusal
from inflight_kubectl.access.cluster import Cluster, Target


class FakeApi:
    """Stands in for `Connection`.

    Attributes:
        objects: path -> object.
        forbidden: paths that the caller may not use.
        calls: method and path of each call.
    """

    def __init__(self, *services, namespace="default"):
        self.context, self.namespace, self.host = "test", namespace, "https://test"
        self.objects = {self._services(one): one for one in services}
        self.forbidden = set()
        self.calls = []

    @staticmethod
    def _services(one):
        meta = one["metadata"]
        return f"/apis/inflight.dev/v1alpha1/namespaces/{meta['namespace']}/inferenceservices/{meta['name']}"

    def request(self, method, path, *, query=None, body=None, content_type="", seconds=0):
        self.calls.append((method, path))
        if path in self.forbidden:
            raise refusal(403, b'{"message": "you may not"}', path, "test")
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                raise refusal(409, b'{"reason": "AlreadyExists", "message": "exists"}', path, "test")
            self.objects[path] = body
            return body
        if method == "GET" and path not in self.objects and path.rpartition("/")[2] in ("inferenceservices", "pods"):
            return {"items": [one for name, one in self.objects.items() if name.rpartition("/")[0] == path]}
        if path not in self.objects:
            raise refusal(404, b'{"message": "not found", "details": {"name": "x"}}', path, "test")
        if method == "PATCH":
            merge(self.objects[path], body)
        return self.objects[path]

    def target(self):
        """Returns a `Target` whose `connect` reaches this server."""
        return Cluster(self, Target())


def merge(target, patch):
    """Applies a JSON merge patch (RFC 7386)."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            merge(target.setdefault(name, {}), value)
        else:
            target[name] = value
