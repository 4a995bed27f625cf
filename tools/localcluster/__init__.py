"""A real Kubernetes on one machine, for development, the demo and the tests: `python -m tools.localcluster --help`."""

from tools.localcluster.api import (
    build_image,
    ensure_up,
    inference_pool_crd,
    kubeconfig_path,
    kubectl,
    prometheus,
    promtool,
)
from tools.localcluster.errors import ClusterError
from tools.localcluster.throwaway import apiserver_only

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
