"""Makes a CPU image of an environment that holds the CUDA build of torch: drops what `import torch` does not load.

The CUDA build links its libraries at import, so those have to stay even where no GPU is. The rest of the wheels (the
cuDNN engines, cuSOLVER, profiler, headers, static libraries, device code) is only opened when a GPU is used. What is
linked is asked of the dynamic loader (`ldd`), not listed here, so the answer follows torch's version. In an environment
with the CPU build of torch only the headers and build tools go.

    python image_drop_unlinked.py /opt/inflight/lib/python3.11/site-packages
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# What `import torch` opens itself; everything else it needs is reached from these.
LINK_ROOTS = ("torch/_C*.so", "torch/lib/libtorch_python.so", "torch/lib/libtorch_global_deps.so")
# What serves building against torch or testing numpy, never running a model.
UNUSED_FOLDERS = ("torch/include", "torch/share", "torch/bin/protoc*", "numpy/_core/tests")
# Parts of torch itself that exist for CUDA and are opened on first use of a GPU.
LAZY_CUDA = re.compile(r"cuda|nvrtc|nvshmem")


def linked_libraries(site_packages: Path) -> set[Path]:
    """Real paths of every shared library that the loader maps for `import torch`; RuntimeError where one is missing."""
    roots = [path for pattern in LINK_ROOTS for path in site_packages.glob(pattern)]
    if not roots:
        raise RuntimeError(f"no torch under {site_packages}")
    linked: set[Path] = {root.resolve() for root in roots}
    for root in roots:
        listing = subprocess.run(["ldd", str(root)], check=True, capture_output=True, text=True).stdout
        if missing := re.findall(r"^\s*(\S+) => not found", listing, re.MULTILINE):
            raise RuntimeError(f"{root.name} needs {', '.join(missing)}, not found: the installed wheels do not fit")
        linked.update(Path(path).resolve() for path in re.findall(r"=> (/\S+)", listing))
    return linked


def unused_files(site_packages: Path, linked: set[Path]) -> Iterator[Path]:
    """Files of the NVIDIA wheels and of torch/lib that a process on a CPU never opens; licence texts stay."""
    for path in (site_packages / "nvidia").rglob("*"):
        if path.is_file() and path.resolve() not in linked and not path.name.lower().startswith("license"):
            yield path
    for path in (site_packages / "torch" / "lib").glob("*.so*"):
        if LAZY_CUDA.search(path.name) and path.resolve() not in linked:
            yield path


def drop(site_packages: Path) -> int:
    """Deletes the unused parts and returns how many bytes they took."""
    linked = linked_libraries(site_packages)
    freed = 0
    for path in list(unused_files(site_packages, linked)):
        freed += path.lstat().st_size
        path.unlink()
    for pattern in UNUSED_FOLDERS:
        for path in site_packages.glob(pattern):
            if path.is_dir():
                freed += sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
                shutil.rmtree(path)
            else:
                freed += path.lstat().st_size
                path.unlink()
    return freed


if __name__ == "__main__":
    print(f"dropped {drop(Path(sys.argv[1])) / 1e9:.2f} GB that a CPU never loads", flush=True)
