"""A registry on this machine's loopback address, which forgets everything when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.localcluster import layout, probe
from tools.localcluster.files import write_json
from tools.localcluster.layout import Layout
from tools.localcluster.node import addresses
from tools.localcluster.process import Processes, Program
from tools.localcluster.programs import gobuild, goparts
from tools.localcluster.progress import Progress


@contextmanager
def local_registry(folder: Path, progress: Progress) -> Iterator[str]:
    """Start `distribution` with its storage and log below `folder`; yields its address, HOST:PORT. Built on first use.

    Raises:
        ClusterError: it could not be built, or did not start.
    """
    binary = gobuild.ensure_part(goparts.REGISTRY, layout.current(), progress) / "registry"
    address = f"127.0.0.1:{addresses.find_free_port()}"
    configuration = {
        "version": 0.1,
        "log": {"accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "http": {"addr": address},
    }
    text = write_json(folder / "registry.yaml", configuration)  # JSON is YAML
    processes = Processes(Layout(folder))
    try:
        processes.ensure(Program.of(binary, "serve", str(folder / "registry.yaml"), OTEL_TRACES_EXPORTER="none"), text)
        processes.wait_ready(binary.name, lambda: probe.answers_ok(f"http://{address}/v2/"), 30)
        yield address
    finally:
        processes.stop(binary.name, grace_seconds=2)
