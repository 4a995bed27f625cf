"""`make cluster` and `make dev`: cluster up, images built from the tree as it is, chart installed, changes rolled.

Safe to repeat: what has not changed is left alone. A change in an image's sources rolls the pods that run it.
"""

from __future__ import annotations

import argparse
import hashlib
import sys

from tools.localcluster import ClusterError, ensure_up, inference_pool_crd, kubeconfig_path, kubectl
from tools.localcluster.layout import REPOSITORY
from tools.localcluster.programs import inference_pools
from tools.localcluster.progress import Progress, step, to_stdout
from tools.signals import exit_code
from tools.testbed.helm import CHART, OPERATOR_NAMESPACE, RELEASE, helm

SHARED_SOURCES = ("pyproject.toml", "constraints.txt", ".dockerignore")
SHARED_FOLDER = "common"
SOURCE_ANNOTATION = "inflight.dev/source"


def source_hash(folder: str) -> str:
    """A hash of all that an image is built from: the program's folder and what the project's images share."""
    digest = hashlib.sha256()
    files = [REPOSITORY / name for name in SHARED_SOURCES]
    for part in (SHARED_FOLDER, folder):
        found = (path for path in (REPOSITORY / part).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        files += sorted(found)
    for path in files:
        digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def install(progress: Progress) -> str:
    """Installs everything that an InferenceService needs.

    Returns the operator image's reference: clients in pods run from it, as it has Python and httpx.

    Raises:
        ClusterError: a step failed; the message says which and why.
    """
    references = ensure_up(progress, ("engine", "operator", "envoy"))
    have_inference_pools(progress)
    with step(progress, "installing the chart"):
        forget_cut_release()
        helm_install(references["engine"], references["operator"], references["envoy"])
    roll_engines(source_hash("engine_image"), progress)
    return references["operator"]


def have_inference_pools(progress: Progress) -> None:
    """Install the CRD of InferencePools, before the operator, which looks for it at its start and then once a minute.

    A cluster that has the API keeps its own version, which another gateway may need.
    """
    if not kubectl("get", "crd", inference_pools.NAME, "--ignore-not-found", "-o", "name"):
        kubectl("create", "-f", str(inference_pool_crd(progress)))


def forget_cut_release() -> None:
    """Remove helm's record of an install or upgrade that was killed; helm refuses every further one until it is gone.

    What it had made is labelled as the release's, so that the next install takes it over.
    """
    cut = f"owner=helm,name={RELEASE},status in (pending-install,pending-upgrade,pending-rollback)"
    kubectl("-n", OPERATOR_NAMESPACE, "delete", "secret", "-l", cut)


def helm_install(engine: str, operator: str, envoy: str) -> None:
    """Install or upgrade the chart with these images and the gateway, and wait for both programs."""
    values = {
        "image.repository": operator.rpartition(":")[0],
        "image.tag": operator.rpartition(":")[2],
        "engine.image.repository": engine.rpartition(":")[0],
        "engine.image.tag": engine.rpartition(":")[2],
        "interval": "2",
        "gateway.enabled": "true",
        "gateway.extProcPort": "9002",
        "gateway.envoy.image.repository": envoy.rpartition(":")[0],
        "gateway.envoy.image.tag": envoy.rpartition(":")[2],
        **{f"gateway.{container}.resources.requests.cpu": "25m" for container in ("envoy", "relay", "picker")},
    }
    annotation = SOURCE_ANNOTATION.replace(".", r"\.")
    settings = [argument for name, value in values.items() for argument in ("--set", f"{name}={value}")]
    helm(
        "upgrade", "--install", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE,
        "--create-namespace", "--wait", "--timeout", "3m", *settings,
        "--set-string", f"podAnnotations.{annotation}={source_hash('operator')}",
        "--set-string", f"gateway.podAnnotations.{annotation}={source_hash('operator')}",
    )  # fmt: skip


def roll_engines(source: str, progress: Progress) -> None:
    """Restart engines that run an image of other sources, each service's as its rollout strategy says.

    The sources last rolled are an annotation of the operator's namespace, so that another checkout sees them too.
    """
    annotation = SOURCE_ANNOTATION.replace(".", r"\.")
    last = kubectl("get", "namespace", OPERATOR_NAMESPACE, "-o", f"jsonpath={{.metadata.annotations.{annotation}}}")
    if last == source:
        return
    engines = "app.kubernetes.io/managed-by=inflight,app.kubernetes.io/name=inflight-engine"
    columns = "custom-columns=:.metadata.namespace,:.metadata.name"
    listing = kubectl("get", "deployments", "-A", "-l", engines, "--no-headers", "-o", columns)
    for line in listing.splitlines():
        namespace, name = line.split()
        progress(f"rolling {namespace}/{name} to the new engine image")
        kubectl("-n", namespace, "rollout", "restart", f"deployment/{name}")
    kubectl("annotate", "namespace", OPERATOR_NAMESPACE, "--overwrite", f"{SOURCE_ANNOTATION}={source}")


def main() -> int:
    """Exit 0 when the cluster is ready for `kubectl apply`, 1 with a sentence when not."""
    argparse.ArgumentParser(prog="python -m tools.testbed.install", description=__doc__).parse_args()
    return exit_code(_install, ClusterError, stopped="stopped; the same command goes on where it was")


def _install() -> int:
    install(to_stdout())
    print(f"Ready: export KUBECONFIG={kubeconfig_path()} and kubectl apply -f examples/chat.yaml")
    return 0


if __name__ == "__main__":
    sys.exit(main())
