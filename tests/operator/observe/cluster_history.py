"""Objects as the API server returns them."""

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
