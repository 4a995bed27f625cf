"""The own single node, brought up and taken down."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.localcluster import probe
from tools.localcluster.errors import ClusterError
from tools.localcluster.files import remove_tree, write_json, write_whole
from tools.localcluster.images import base_image, dockerfiles
from tools.localcluster.images.dockerfiles import Image
from tools.localcluster.images.image_store import CONTAINERD_SOCKET, PAUSE_IMAGE, ImageStore
from tools.localcluster.layout import RUNTIME, Layout
from tools.localcluster.locking import exclusive
from tools.localcluster.node import certificates, host, leftovers, preflight, settings
from tools.localcluster.node.plane import ApiPlane
from tools.localcluster.node.settings import NODE_NAME, Settings
from tools.localcluster.process import Processes, Program, tail
from tools.localcluster.programs import coredns, gobuild, goparts, kubectl_program, node_programs, packages
from tools.localcluster.programs.gobuild import BuildPlan
from tools.localcluster.progress import Progress, step

STOP_ORDER = (
    "kubelet",
    "kube-proxy",
    "kube-scheduler",
    "kube-controller-manager",
    "kube-apiserver",
    "etcd",
    "buildkitd",
    "containerd",
)


class OwnNode:
    """The node of one cache folder."""

    def __init__(self, layout: Layout, progress: Progress) -> None:
        self.layout = layout
        self.progress = progress
        self.processes = Processes(layout)
        self.kubeconfig = layout.kubeconfig

    @property
    def lock(self) -> Path:
        return self.layout.locks / "cluster"

    def up(self, image_names: Sequence[str] = ()) -> dict[str, str]:
        """Bring the cluster up, whatever state it is in; build the images `image_names` meanwhile.

        Returns the references of the images by name.

        Raises ClusterError with one sentence (and a log's last lines, where a component failed).
        """
        with exclusive(self.lock, "bringing the cluster up or down", self.progress):
            started = time.monotonic()
            preflight.check(self.layout, node_runs=bool(self.processes.running("kubelet")))
            plan = BuildPlan(goparts.NODE_PARTS, self.layout, self.progress)
            try:
                references = self._assemble(plan, image_names)
            finally:
                plan.close()
            gobuild.drop_caches(self.layout, self.progress)
            self.progress(
                f"cluster is up after {time.monotonic() - started:.1f} s: KUBECONFIG={self.layout.kubeconfig}"
            )
            return references

    def _assemble(self, plan: BuildPlan, image_names: Sequence[str]) -> dict[str, str]:
        packages.ensure(self.progress)
        if not self.processes.running("containerd") and not leftovers.shims():
            leftovers.sweep(self.layout)
        is_new = settings.load(self.layout.cluster) is None
        chosen = settings.load_or_choose(self.layout.cluster)
        RUNTIME.mkdir(mode=0o711, exist_ok=True)
        write_whole(RUNTIME / "owner", f"{self.layout.root}\n")
        host.set_up(chosen.network, self.layout)
        store = ImageStore(self.layout, chosen, self.processes)
        plane = self._prepare(chosen)
        with ThreadPoolExecutor(4) as pool:
            root_file_system = pool.submit(base_image.ensure_root_file_system, self.layout, self.progress)
            containerd_ready = pool.submit(self._start_containerd, plan, store, is_new)
            pods_can_start = pool.submit(self._import_pod_images, plan, store, containerd_ready)
            built = pool.submit(self._build_images, plan, store, containerd_ready, root_file_system, image_names)
            try:
                self._start_control_plane(plan, plane)
                pods_can_start.result()
                self._start_node(plane)
                self._wait_for_cluster(chosen)
            except BaseException:
                plan.close()  # what the other threads wait for does not come any more
                raise
            if not built.done():
                self.progress("the cluster is ready; waiting for images")
            return built.result()

    def _prepare(self, chosen: Settings) -> ApiPlane:
        """Write keys, kubeconfigs and configurations."""
        plane = ApiPlane(self.layout.cluster, chosen, with_node=True)
        leaves = (
            *certificates.control_plane_leaves(plane.certificate_addresses),
            *certificates.node_leaves(NODE_NAME, plane.address),
        )
        certificates.ensure(plane.pki, leaves)
        for user in ("controller-manager", "scheduler", "kubelet", "kube-proxy"):
            certificates.write_kubeconfig(plane.pki, user, plane.server)
        resolver = node_programs.resolver_configuration(_host_resolver().read_text())
        write_whole(plane.folder / "resolv.conf", resolver)
        return plane

    def _start_containerd(self, plan: BuildPlan, store: ImageStore, is_new: bool) -> None:
        plan.folder(goparts.CONTAINERD)
        plan.folder(goparts.CNI)
        with step(self.progress, "starting containerd"):
            store.start_containerd()
            if is_new and store.remove_containers():
                # A cluster that was not taken down in order left containers in the database: forget them all.
                self.processes.stop("containerd")
                leftovers.sweep(self.layout)
                store.forget_pods()
                store.start_containerd()

    def _import_pod_images(self, plan: BuildPlan, store: ImageStore, containerd_ready: Future[None]) -> None:
        containerd_ready.result()
        present = store.image_names()
        pause, dns_server = plan.folder(goparts.PAUSE), plan.folder(goparts.COREDNS)
        if PAUSE_IMAGE not in present:
            store.import_binary(PAUSE_IMAGE, pause / "pause", user="65535:65535")
        if coredns_image() not in present:
            store.import_binary(coredns_image(), dns_server / "coredns")

    def _build_images(
        self,
        plan: BuildPlan,
        store: ImageStore,
        containerd_ready: Future[None],
        root_file_system: Future[Path],
        image_names: Sequence[str],
    ) -> dict[str, str]:
        root_file_system.result()
        plan.folder(goparts.BUILDKIT)
        containerd_ready.result()
        store.start_buildkit()
        base_image.ensure(store, self.progress)
        return {name: dockerfiles.build_in_store(store, dockerfiles.named(name), self.progress) for name in image_names}

    def _start_control_plane(self, plan: BuildPlan, plane: ApiPlane) -> None:
        etcd_binary = plan.folder(goparts.ETCD) / "etcd"
        apiserver_binary = plan.folder(goparts.APISERVER) / "kube-apiserver"
        with step(self.progress, "starting etcd and the API server"):
            plane.start_etcd(self.processes, etcd_binary)
            plane.start_apiserver(self.processes, apiserver_binary)
        binaries, ports = plan.folder(goparts.NODE), plane.settings.ports
        with step(self.progress, "starting controller manager and scheduler"):
            self.processes.ensure(plane.controller_manager(binaries / "kube-controller-manager"))
            self.processes.ensure(plane.scheduler(binaries / "kube-scheduler"))
            self._wait_healthy("kube-controller-manager", f"https://127.0.0.1:{ports.controller_manager}/healthz")
            self._wait_healthy("kube-scheduler", f"https://127.0.0.1:{ports.scheduler}/healthz")

    def _wait_healthy(self, name: str, url: str) -> None:
        context = probe.loopback_context() if url.startswith("https") else None
        self.processes.wait_ready(name, lambda: probe.answers_ok(url, context), 60)

    def _start_node(self, plane: ApiPlane) -> None:
        ports, binaries = plane.settings.ports, gobuild.folder_of(goparts.NODE, self.layout)
        proxy_file, kubelet_file = plane.folder / "kube-proxy.json", plane.folder / "kubelet.json"
        proxy_text = write_json(proxy_file, node_programs.kube_proxy_configuration(plane))
        kubelet_text = write_json(kubelet_file, node_programs.kubelet_configuration(plane, CONTAINERD_SOCKET))
        with step(self.progress, "starting kubelet and kube-proxy"):
            self.processes.ensure(node_programs.kubelet(binaries / "kubelet", plane, kubelet_file), kubelet_text)
            self.processes.ensure(Program.of(binaries / "kube-proxy", f"--config={proxy_file}"), proxy_text)
            self._wait_healthy("kubelet", f"http://127.0.0.1:{ports.kubelet_health}/healthz")
            self._wait_healthy("kube-proxy", f"http://127.0.0.1:{ports.proxy_health}/healthz")

    def _wait_for_cluster(self, chosen: Settings) -> None:
        upstream = "nameserver" in (self.layout.cluster / "resolv.conf").read_text()
        objects = coredns.manifests(chosen.network, coredns_image(), upstream)
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=listed)
        since = self.processes.started_at("kubelet")  # what an earlier kubelet reported does not count
        self._wait("Ready node", lambda: self._node_is_ready(since), 120)
        name = "kubernetes.default.svc.cluster.local"
        self._wait("answer from the cluster's DNS", lambda: probe.resolves(chosen.network.dns_service, name), 120)

    def _wait(self, goal: str, is_done: Callable[[], bool], timeout_seconds: float) -> None:
        with step(self.progress, f"waiting for {goal}"):
            deadline = time.monotonic() + timeout_seconds
            while not is_done():
                if time.monotonic() > deadline:
                    pods = self.kubectl("get", "pods", "-A", "-o", "wide")
                    log = self.processes.log("kubelet")
                    raise ClusterError(
                        f"no {goal} after {timeout_seconds:.0f} s; look at the pods\n{pods}"
                        f"and at {log}, which ends with:\n{tail(log)}"
                    )
                time.sleep(0.1)

    def _node_is_ready(self, since: datetime.datetime) -> bool:
        node = self.kubectl("get", "node", NODE_NAME, "--ignore-not-found", "-o", "json")
        return bool(node) and is_ready(json.loads(node), since)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        return kubectl_program.run(self.layout.kubeconfig, arguments, text)

    def require_store(self) -> ImageStore:
        """The store of the running node. Raises ClusterError where it does not run."""
        chosen = settings.load(self.layout.cluster)
        if not (chosen and self.processes.running("containerd") and self.processes.running("buildkitd")):
            raise ClusterError("the local cluster does not run: `python -m tools.localcluster up` first")
        return ImageStore(self.layout, chosen, self.processes)

    def build(self, image: Image) -> str:
        """Build `image` into the running node's store; its reference."""
        store = self.require_store()
        base_image.ensure(store, self.progress)
        return dockerfiles.build_in_store(store, image, self.progress)

    def stop_api_server(self) -> None:
        """End the API server at once; all else goes on."""
        self.processes.stop("kube-apiserver", grace_seconds=1)

    def start_api_server(self) -> None:
        """Start the API server again and wait until it is ready. Does nothing where it runs."""
        chosen = settings.load(self.layout.cluster)
        if not chosen:
            raise ClusterError("the local cluster does not run: `python -m tools.localcluster up` first")
        plane = self._prepare(chosen)
        plane.start_apiserver(self.processes, gobuild.folder_of(goparts.APISERVER, self.layout) / "kube-apiserver")

    def down(self, *, purge: bool = False) -> None:
        """Stop everything and put the host back as it was. Programs and images stay, unless `purge`."""
        with exclusive(self.lock, "bringing the cluster up or down", self.progress):
            preflight.check_may_take_down(self.layout)
            with step(self.progress, "taking the cluster down"):
                self._take_down()
            if purge:
                with step(self.progress, f"deleting {self.layout.root}"):
                    remove_tree(self.layout.root)

    def _take_down(self) -> None:
        chosen = settings.load(self.layout.cluster)
        control, stores = STOP_ORDER[:-2], STOP_ORDER[-2:]
        for name in control:
            # The data is thrown away: nothing is gained by waiting for open watches to end.
            self.processes.stop(name, grace_seconds=1)
        if chosen and self.processes.running("containerd"):
            store = ImageStore(self.layout, chosen, self.processes)
            store.remove_containers()
            store.remove_replaced()
        for name in stores:
            self.processes.stop(name)
        leftovers.sweep(self.layout)
        host.tear_down(chosen.network if chosen else None, self.layout)
        if chosen:
            ImageStore(self.layout, chosen, self.processes).forget_pods()
        leftovers.forget_cluster(self.layout)

    def status(self) -> list[str]:
        """Returns a line for each component, and the API's table of nodes and pods."""
        lines = []
        for name in reversed(STOP_ORDER):
            record = self.processes.running(name)
            lines.append(f"{name:<24} {f'running, pid {record.pid}' if record else 'not running'}")
        if self.processes.running("kube-apiserver"):
            lines.append(self.kubectl("get", "nodes,pods", "-A", "-o", "wide").rstrip())
        return lines


def is_ready(node: Mapping[str, Any], since: datetime.datetime) -> bool:
    """Returns whether a Node object says Ready, in a report that the kubelet made at or after `since`."""
    for condition in node.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready":
            heartbeat = datetime.datetime.fromisoformat(condition["lastHeartbeatTime"])
            return bool(condition["status"] == "True" and heartbeat >= since)
    return False


def coredns_image() -> str:
    """Name of the CoreDNS image, with a tag that changes when what it is built from does."""
    return f"{coredns.IMAGE_NAME}:{goparts.fingerprint(goparts.COREDNS)}"


def _host_resolver() -> Path:
    # systemd-resolved shows programs a server on loopback; the real ones are in its own file.
    behind_resolved = Path("/run/systemd/resolve/resolv.conf")
    return behind_resolved if behind_resolved.exists() else Path("/etc/resolv.conf")
