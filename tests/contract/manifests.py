"""Manifests the contract tests share."""


def service_manifest(namespace, spec, name="chat"):
    return {
        "apiVersion": "inflight.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }
