"""The library of CPU kernels: selection of its variant, and its threads."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from functools import cache
from pathlib import Path

import torch

log = logging.getLogger(__name__)

VARIANTS = ("amx", "avx512bf16", "avx512", "avx2", "bf16mmla", "generic")
"""Names of the compiled libraries, fastest first where the CPU is good at what each is for."""
EMULATED = "amxemulated"
"""Name of a library that computes the bits of `amx` on any CPU with AVX2, slowly: for tests, only used by name."""
ENVIRONMENT = "INFLIGHT_CPU_KERNELS"
"""Names a variant to use instead of the fastest one, or `off`."""

_UNITS = {
    "amx": "matrix tiles",
    "avx512bf16": "products of bfloat16 in 512 bits",
    "avx512": "512 bits",
    "avx2": "256 bits",
    "bf16mmla": "products of small matrices",
    "generic": "128 bits",
    EMULATED: "emulated matrix tiles",
}
_MEASURED = ("amx", "avx512bf16", "bf16mmla")
"""Variants whose use is decided by a measurement, as their instructions may be slow, or emulated by a hypervisor."""
_WORTHWHILE_GAIN = 1.3
"""Minimum speed-up by products in bfloat16, for which activations are rounded. In vectors it is 0.5 or 2, by CPU; in
tiles some 15."""

_FOLDER = Path(__file__).parent / "lib"
_AVX2 = {"avx2", "fma", "f16c", "bmi2"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
_X86 = {
    "amx": _AVX512 | {"amx_tile", "amx_bf16", "amx_int8"},
    "avx512bf16": _AVX512 | {"avx512_bf16"},
    "avx512": _AVX512,
    "avx2": _AVX2,
    "generic": set[str](),
    EMULATED: _AVX2,
}
_ARM = {"bf16mmla": {"asimdrdm", "atomics", "crc32", "bf16", "i8mm"}, "generic": set[str]()}
_FLAGS = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}
"""The CPU's flags that a variant needs, by machine; on others only `generic` is compiled."""


class KernelError(RuntimeError):
    """A kernel gave an error number."""


def runnable_variants() -> list[str]:
    """Return the variants that are compiled and that this CPU can run, fastest first."""
    return [name for name in VARIANTS if is_runnable(name)]


def is_runnable(variant: str) -> bool:
    """Return whether a variant is compiled and this CPU has its instructions."""
    needs = _FLAGS.get(platform.machine(), {"generic": set[str]()}).get(variant)
    fits = needs is not None and _cpu_flags() >= needs
    return fits and (_FOLDER / f"libinflight-{variant}.so").is_file()


def library() -> ctypes.CDLL | None:
    """Return the fastest variant that runs here; None where none is compiled, or the environment says `off`. ctypes
    releases the interpreter's lock during a call.

    Raises:
        ValueError: the environment names a variant that cannot run here.
    """
    return _loaded()[1]


def variant() -> str:
    """Return the name of the variant in use; `off`: none."""
    return _loaded()[0]


@cache
def _loaded() -> tuple[str, ctypes.CDLL | None]:
    """Return the name of the variant in use, and its library."""
    asked = os.environ.get(ENVIRONMENT, "")
    runnable = runnable_variants()
    if asked == "off":
        log.info("CPU kernels: off (%s)", ENVIRONMENT)
        return "off", None
    if asked and asked not in runnable and not (asked == EMULATED and is_runnable(EMULATED)):
        raise ValueError(
            f"{ENVIRONMENT} is {asked}, which cannot be used here; usable: {', '.join(['off', *runnable])}"
        )
    if not runnable:
        log.warning("CPU kernels: none compiled for this CPU, computing with torch alone; see engine_image/kernels")
        return "off", None
    for name in [asked] if asked else runnable:
        kernels = ctypes.CDLL(str(_FOLDER / f"libinflight-{name}.so"))
        kernels.inflight_bf16_gain.restype = ctypes.c_double
        refusal = kernels.inflight_tiles_enable()
        if refusal and asked:
            raise ValueError(f"{ENVIRONMENT} is {asked}, but the system refuses tiles: {os.strerror(refusal)}")
        if refusal:
            log.info("CPU kernels: not %s, the system refuses tiles: %s", name, os.strerror(refusal))
        elif asked or name not in _MEASURED or _gains_by_bf16(name, kernels):
            log.info("CPU kernels: %s (%s)", name, _UNITS[name])
            return name, kernels
    raise AssertionError("every CPU that runs a variant with conditions runs one without")


def _gains_by_bf16(name: str, kernels: ctypes.CDLL) -> bool:
    """Return whether products of bfloat16 are much faster here than those of float32. In vectors, they are twice as
    fast on AMD's Zen 4 and 5, and half as fast on Intel's server CPUs, where the instruction has one port and takes two
    cycles."""
    gain: float = kernels.inflight_bf16_gain()
    log.info("CPU kernels: products in bfloat16 by %s are %.1f times as fast as in float32", name, gain)
    return gain >= _WORTHWHILE_GAIN


def check(error: int, what: str) -> None:
    """Raises KernelError with the system's words where a kernel gave an error number."""
    if error:
        raise KernelError(f"{what}: {os.strerror(error)}")


def team() -> ctypes.c_void_p:
    """Return the threads that kernels compute with: as many as torch does, the caller's among them. All that compute
    with as many share them, so one kernel runs at a time. They stay until the process ends.

    Raises:
        KernelError: the threads cannot be started.
    """
    kernels = library()
    assert kernels is not None, "who asks for the team has the library"
    return _team(kernels, torch.get_num_threads())


@cache
def _team(kernels: ctypes.CDLL, size: int) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    check(kernels.inflight_team_new(size, ctypes.byref(made)), f"starting {size} CPU threads")
    return made


def _cpu_flags() -> set[str]:
    """Return the CPU's flags of /proc/cpuinfo; empty where there is no such file."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            for line in lines:
                if line.startswith(("flags", "Features")):  # of x86 and of Arm
                    return set(line.partition(":")[2].split())
    except OSError:
        pass
    return set()
