"""Requirements of services on the cluster: accelerators, images and claims."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from inflight_base.manifest.names import MODEL_CONTAINER, PLUGIN_CONTAINER, SERVICE_LABEL
from inflight_base.manifest.units import parse_quantity
from inflight_kubectl.access.cluster import Cluster, Json
from inflight_kubectl.access.events import Event
from inflight_kubectl.access.operators import upgrade_command, upgrade_of_operator
from inflight_kubectl.access.resources import Service
from inflight_kubectl.doctor.installation import is_older
from inflight_kubectl.doctor.monitoring import PART
from inflight_kubectl.doctor.result import Result, fail, ok, warn

_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_INIT_IMAGES = {
    PLUGIN_CONTAINER: ("the operator's image, which brings the plugin for vLLM", "image"),
    MODEL_CONTAINER: ("Inflight's engine image, which has the built-in model", "engine.image"),
}
"""For the init containers of engine pods: their image, and the group of chart values that names it."""

_LATELY = timedelta(hours=1)
_IMAGE_VOLUMES_MINOR = 35
"""Minor version of Kubernetes from which on pods may mount images; before, only behind a feature gate."""
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def check_accelerators(cluster: Cluster) -> Iterator[Result]:
    """Checks that a node has each resource that services request."""
    services = cluster.services()
    nodes = cluster.list("/api/v1/nodes")["items"]
    needed: dict[str, list[Service]] = {}
    for service in services:
        accelerator = service.spec.get("accelerator") or {}
        if accelerator.get("count", 1):
            needed.setdefault(accelerator.get("resource", "nvidia.com/gpu"), []).append(service)
    if not needed:
        total = _allocatable(nodes, "nvidia.com/gpu")
        found = f"{total} nvidia.com/gpu on the nodes" if total else "no node has GPUs"
        yield ok("accelerators", f"{found}; no service asks for accelerators")
    for resource, users in sorted(needed.items()):
        total, first = _allocatable(nodes, resource), users[0]
        names = f"{first.namespace}/{first.name}" + (f" and {len(users) - 1} more" if len(users) > 1 else "")
        if total:
            yield ok("accelerators", f"{total} {resource} on the nodes, for {names}")
        elif resource == "nvidia.com/gpu":
            install = "helm install gpu-operator nvidia/gpu-operator -n gpu-operator --create-namespace"
            yield fail("accelerators", f"no node has {resource}, which {names} asks for", install)
        else:
            change = '{"spec":{"accelerator":{"count":0}}}'
            remedy = f"kubectl -n {first.namespace} patch ifsvc {first.name} --type merge -p '{change}'"
            yield fail("accelerators", f"no node has {resource}, which {names} asks for", remedy)


def check_images(cluster: Cluster) -> Iterator[Result]:
    """Checks for pods of engines and operator whose image cannot be pulled, now or within the last hour."""
    path = "/api/v1" if cluster.scope is None else f"/api/v1/namespaces/{cluster.scope}"
    pods = {one["metadata"]["name"]: one for one in cluster.list(f"{path}/pods", labelSelector=PART)["items"]}
    bad = [(pod, container) for pod in pods.values() if (container := _unpulled(pod))]
    for pod, container in bad:
        yield _pull_problem(cluster, pod, container)
    if bad:
        return
    events = [Event.of(one) for one in cluster.list(f"{path}/events", fieldSelector="reason=Failed")["items"]]
    since = datetime.now(UTC) - _LATELY
    lately = [
        one
        for one in events
        if one.about[1] in pods and "pull" in one.message.lower() and one.at is not None and one.at > since
    ]
    if lately:
        last = lately[-1]
        namespace = pods[last.about[1]]["metadata"]["namespace"]
        found = f"{last.about[1]} had its image at last, after: {last.message}"
        yield warn("images", found, f"kubectl -n {namespace} describe pod {last.about[1]}")
    else:
        yield ok("images", f"no image of {len(pods)} pods failed to be pulled")


def check_storage(cluster: Cluster) -> Iterator[Result]:
    """Checks the claims that services name, for a default StorageClass if a claim needs one, and for image volumes."""
    yield from _image_volumes(cluster)
    claims = sorted(
        {
            (service.namespace, service.model.removeprefix("pvc://").partition("/")[0])
            for service in cluster.services()
            if service.model.startswith("pvc://")
        }
    )
    if not claims:
        yield ok("storage", "no service names a claim")
    for namespace, name in claims:
        yield _claim(cluster, namespace, name)


def _image_volumes(cluster: Cluster) -> Iterator[Result]:
    users = [service for service in cluster.services() if service.model.startswith("oci://")]
    if not users:
        return
    found, first = cluster.list("/version"), users[0]
    version = f"Kubernetes {found.get('gitVersion', '?')}"
    if is_older(found, _IMAGE_VOLUMES_MINOR):
        what = f"{version} has no image volumes by default, which the model of {first.namespace}/{first.name} needs"
        remedy = f"upgrade the cluster to Kubernetes 1.{_IMAGE_VOLUMES_MINOR}, or use pvc:// in place of {first.model}"
        yield fail("image volumes", what, remedy)
    else:
        yield ok("image volumes", f"{version} has them")


def _claim(cluster: Cluster, namespace: str, name: str) -> Result:
    claim = cluster.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
    if claim is None:
        found = f"the claim {namespace}/{name} does not exist"
        return fail("storage", found, f"kubectl -n {namespace} apply -f CLAIM.yaml, with metadata.name {name}")
    if claim.get("status", {}).get("phase") == "Bound":
        return ok("storage", f"the claim {namespace}/{name} is bound")
    classes = cluster.list("/apis/storage.k8s.io/v1/storageclasses")["items"]
    wanted = claim["spec"].get("storageClassName")
    if not wanted and not any(_is_default(one) for one in classes):
        first = classes[0]["metadata"]["name"] if classes else "NAME"
        change = f'{{"metadata":{{"annotations":{{"{_DEFAULT_CLASS}":"true"}}}}}}'
        found = f"the claim {namespace}/{name} names no StorageClass, and there is no default one"
        return fail("storage", found, f"kubectl patch storageclass {first} -p '{change}'")
    return warn(
        "storage", f"the claim {namespace}/{name} is not bound yet", f"kubectl -n {namespace} describe pvc {name}"
    )


def _is_default(storage_class: Json) -> bool:
    return (storage_class["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"


def _allocatable(nodes: list[Json], resource: str) -> int:
    return sum(int(parse_quantity(node.get("status", {}).get("allocatable", {}).get(resource, 0))) for node in nodes)


def _unpulled(pod: Json) -> Json:
    """Returns the status of the container whose image cannot be pulled; empty if there is none."""
    status = pod.get("status", {})
    for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        if (container.get("state", {}).get("waiting") or {}).get("reason") in _IMAGE_REASONS:
            return dict(container)
    return {}


def _pull_problem(cluster: Cluster, pod: Json, container: Json) -> Result:
    waiting, name = container["state"]["waiting"], container.get("name")
    said = " ".join(str(waiting.get("message") or waiting["reason"]).split())
    what, value = _INIT_IMAGES.get(str(name), ("its image", "image"))
    service = (pod["metadata"].get("labels") or {}).get(SERVICE_LABEL)
    other = f"--set {value}.repository=REPOSITORY"
    if service is None:
        remedy = upgrade_command(pod, other)
    elif name in _INIT_IMAGES:
        remedy = upgrade_of_operator(cluster, other)
    else:
        change = '{"spec":{"engine":{"image":"REPOSITORY:TAG"}}}'
        remedy = f"kubectl -n {pod['metadata']['namespace']} patch ifsvc {service} --type merge -p '{change}'"
    return fail("images", f"{pod['metadata']['name']} cannot pull {what}: {said}", remedy)
