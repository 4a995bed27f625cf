"""A real Kubernetes on one machine, for development, the demo and the tests: `python -m e2e.cluster --help`."""

from e2e.cluster.api import (
    build_image,
    ensure_up,
    inference_pool_crd,
    kubeconfig_path,
    kubectl,
    prometheus,
    promtool,
)
from e2e.cluster.errors import ClusterError
from e2e.cluster.throwaway import apiserver_only

__all__ = [
    "ClusterError",
    "apiserver_only",
    "build_image",
    "ensure_up",
    "inference_pool_crd",
    "kubeconfig_path",
    "kubectl",
    "prometheus",
    "promtool",
]
