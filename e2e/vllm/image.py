"""The image of vLLM for the CPU on the local cluster's own node: `python -m e2e.vllm.image`.

One layer on the base image's file system, made of the environment that the benchmarks run vLLM in: nothing is installed
twice, and containerd keeps the unpacked files alone. What a CPU never loads stays out, as in the engine's image.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from engine_image.image_drop_unlinked import UNUSED_FOLDERS, linked_libraries, unused_files
from tools.bench.engine.peers import installed, named
from tools.localcluster import ClusterError, own_store
from tools.localcluster.commands import output
from tools.localcluster.images import base_image, oci_archive
from tools.localcluster.images.image_store import ImageStore
from tools.localcluster.images.oci_archive import ImageConfig
from tools.localcluster.progress import Progress, step, to_stdout
from tools.signals import exit_code

NAME = "localhost/vllm-cpu"
ROOT = "/opt/vllm"
_WITHOUT = ("triton", "pip")
"""Packages that serving a text model on a CPU does not import."""
_OPENMP = "libiomp5.so"


def ensure(progress: Progress) -> str:
    """Has the image in the node's store; returns its reference. Its former versions go.

    Raises:
        ClusterError: there is no own node, or it does not run.
        tools.bench.engine.peers.InstallError: vLLM cannot be installed.
    """
    store = own_store(progress)
    (peer,) = named("vllm")
    venv = installed(peer, store.layout.root / "bench", progress)
    reference = f"{NAME}:{_fingerprint(venv)}"
    present = {name for name in store.image_names() if name.startswith(f"{NAME}:")}
    if reference not in present:
        _import(store, venv, reference, progress)
    store.remove_images(present - {reference})
    return reference


def _fingerprint(venv: Path) -> str:
    """Changes with what is installed, and with how the image is made."""
    made_from = (venv.parent / "installed.txt").read_bytes() + Path(__file__).read_bytes()
    return hashlib.sha256(made_from).hexdigest()[:12]


def _import(store: ImageStore, venv: Path, reference: str, progress: Progress) -> None:
    root_file_system = base_image.ensure_root_file_system(store.layout, progress)
    layer, archive = store.layout.downloads / "vllm.layer.tar", store.layout.downloads / "vllm.tar"
    try:
        with step(progress, f"making {reference} of {venv}"):
            write_layer(layer, venv)
            oci_archive.write(archive, reference, [root_file_system, layer], configuration())
        layer.unlink()
        with step(progress, f"importing {reference}, {archive.stat().st_size / 1e9:.1f} GB"):
            store.import_archive(archive, keep_layers=False)
    finally:
        layer.unlink(missing_ok=True)
        archive.unlink(missing_ok=True)


def configuration() -> ImageConfig:
    """Runs `vllm` as the official image does; all that it writes goes to /tmp."""
    return ImageConfig(
        entrypoint=("vllm", "serve"),
        environment={
            "PATH": f"{ROOT}/bin:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": "/tmp",
            "XDG_CACHE_HOME": "/tmp/cache",
            "XDG_CONFIG_HOME": "/tmp/config",
            "HF_HUB_OFFLINE": "1",
            "LD_LIBRARY_PATH": f"{ROOT}/lib",
            "LD_PRELOAD": f"{ROOT}/lib/{_OPENMP}",
            # Pods share the cores: none has any of them alone.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONUNBUFFERED": "1",
        },
        user="65532:65532",
    )


def write_layer(path: Path, venv: Path) -> None:
    """Writes the environment as a layer that runs with the base image's Python."""
    (site_packages,) = venv.glob("lib/python3*/site-packages")
    with tarfile.open(path, "w") as tar:
        oci_archive.add(tar, f"{ROOT}/pyvenv.cfg", b"home = /usr/bin\ninclude-system-site-packages = false\n")
        script = (venv / "bin" / "vllm").read_bytes().partition(b"\n")[2]
        oci_archive.add(tar, f"{ROOT}/bin/vllm", f"#!{ROOT}/bin/python3\n".encode() + script, 0o755)
        link = tarfile.TarInfo(f"{ROOT}/bin/python3".lstrip("/"))
        link.type, link.linkname = tarfile.SYMTYPE, "/usr/bin/python3"
        tar.addfile(link)
        for library in (venv / "lib" / _OPENMP, _numa(site_packages)):
            tar.add(library.resolve(), f"{ROOT}/lib/{library.name}", filter=_of_root)
        for file in kept_files(site_packages):
            tar.add(file, f"{ROOT}/{file.relative_to(venv)}", recursive=False, filter=_of_root)


def _numa(site_packages: Path) -> Path:
    """The library of this machine that vLLM's kernels link beside those of the base image and of torch."""
    kernels = next(site_packages.glob("vllm/_C*.so"))
    found = re.search(r"libnuma\.so\.1 => (/\S+)", output(["ldd", str(kernels)]))
    if found is None:
        raise ClusterError(f"{kernels.name} needs libnuma.so.1; on Debian: apt-get install libnuma1")
    return Path(found[1])


def kept_files(site_packages: Path) -> Iterator[Path]:
    """Files of the environment that a CPU may load."""
    unused = set(unused_files(site_packages, linked_libraries(site_packages)))
    folders = [site_packages / name for name in _WITHOUT]
    folders += [folder for pattern in UNUSED_FOLDERS for folder in site_packages.glob(pattern)]
    for file in sorted(site_packages.rglob("*")):
        if file.is_file() and file not in unused and not any(file.is_relative_to(folder) for folder in folders):
            yield file


def _of_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode |= 0o444
    return info


def main() -> int:
    """Exit 0 when the image is there, 1 with a sentence when not."""

    def make() -> int:
        print(ensure(to_stdout()))
        return 0

    return exit_code(make, ClusterError, stopped="stopped; the same command begins again")


if __name__ == "__main__":
    sys.exit(main())
