"""A stand-in for the API server's store: a history of objects with growing resourceVersions, as events and lists."""

from dataclasses import dataclass, field

SERVICE = "inflight.dev/service"


def manifest(kind, name, uid, version, *, namespace="team", service="chat", **more):
    labels = {SERVICE: service} if kind != "InferenceService" else {}
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version), "labels": labels}
    if kind == "Pod":
        labels["pod-template-hash"] = "abc"
        metadata["ownerReferences"] = [
            {"kind": "ReplicaSet", "name": f"{service}-abc", "uid": "rs", "controller": True}
        ]
    return {"kind": kind, "metadata": metadata, **more}


@dataclass
class History:
    """One kind in one namespace. `now` holds what exists; `events` tells each change once."""

    kind: str
    version: int = 0
    now: dict = field(default_factory=dict)
    events: list = field(default_factory=list)

    def write(self, name):
        self.version += 1
        uid = self.now[name]["metadata"]["uid"] if name in self.now else f"{name}-{self.version}"
        self.now[name] = manifest(self.kind, name, uid, self.version, status={"phase": f"at {self.version}"})
        self.events.append(("MODIFIED", self.now[name]))

    def delete(self, name):
        if name in self.now:
            self.version += 1
            gone = self.now.pop(name)
            gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
            self.events.append(("DELETED", gone))

    def listed(self):
        return ("LIST", str(self.version), list(self.now.values()))
