"""Compile the CPU kernels: every .cpp of this folder, once for each kind of CPU, into a library for each.

    python engine_image/kernels/build.py [--out FOLDER] [--tests] [--machine NAME]

Needs nothing but Python and a C++17 compiler: $CXX where that is set, else c++, g++ or clang++. Without one it exits
with status 3. For another machine than this one, name it and set $CXX to a compiler for it:

    CXX=aarch64-linux-gnu-g++ python engine_image/kernels/build.py --machine aarch64 --out FOLDER
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "inflight_engine" / "native" / "lib"
TESTS = HERE.parents[1] / "tests" / "engine" / "native"

COMMON = [
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-fno-math-errno"),
    *("-fno-trapping-math", "-ffp-contract=fast", "-Wall", "-Wextra", "-Wno-psabi"),
    # What GCC 12 says of its own intrinsics; clang does not know it.
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-unknown-warning-option"),
]
LINK = ["-shared", "-pthread", "-static-libgcc", "-static-libstdc++", "-Wl,--no-undefined"]
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=512"]
# By name, as in libinflight-NAME.so. `native/library.py` knows which CPU can run which.
X86_VARIANTS = {
    "amx": [*AVX512, "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
    "avx512bf16": [*AVX512, "-mavx512bf16"],
    **{"avx512": AVX512, "avx2": AVX2, "generic": []},
}
ARM_VARIANTS = {"bf16mmla": ["-march=armv8.2-a+bf16+i8mm"], "generic": []}
# A variant that differs from another by these instructions alone shares its objects of sources that do not know them.
EXTENDS = {
    "amx": ("avx512", "__AMX_"),
    "avx512bf16": ("avx512", "__AVX512BF16__"),
    "bf16mmla": ("generic", "__ARM_FEATURE_MATMUL_INT8"),
}
# What `amx` computes, on any CPU with AVX2 and slowly: for tests only.
X86_TEST_VARIANTS = {"amxemulated": [*AVX2, "-DINFLIGHT_EMULATE_TILES", f"-I{TESTS}"]}
OTHER_VARIANTS: dict[str, list[str]] = {"generic": []}
# By what the machine calls itself (`uname -m`).
VARIANTS = {"x86_64": X86_VARIANTS, "AMD64": X86_VARIANTS, "aarch64": ARM_VARIANTS, "arm64": ARM_VARIANTS}
TEST_VARIANTS = {"x86_64": X86_TEST_VARIANTS, "AMD64": X86_TEST_VARIANTS}


class NoCompilerError(Exception):
    """There is no C++ compiler on the path, or not the one that is asked for."""


def compiler() -> list[str]:
    """The beginning of its command line: CXX may hold a launcher or options too."""
    asked = shlex.split(os.environ.get("CXX", ""))
    for command in [asked] if asked else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    if asked:
        raise NoCompilerError(f"CXX is {asked[0]}, which is not on the path")
    raise NoCompilerError("no C++ compiler: set CXX, or install g++ or clang++")


def text(source: Path) -> str:
    """Return the text of a source and of all headers of this folder that it includes."""
    files = [source]
    for path in files:
        included = (HERE / name for name in re.findall(r'#include "(.+)"', path.read_text(encoding="utf-8")))
        files += [header for header in included if header not in files]
    return "".join(path.read_text(encoding="utf-8") for path in files)


def compiled_for(variant: str, source_text: str) -> str:
    """The variant whose object of a source this one takes: itself, or the one that it extends."""
    base, macro = EXTENDS.get(variant, (variant, ""))
    return base if macro not in source_text else variant


def build(out: Path = OUT, tests: bool = False, machine: str = platform.machine()) -> list[Path]:
    """Make the libraries that are older than a source, those for tests too with `tests`; gives those it made.

    Args:
        machine: what the compiler makes them for.

    Raises:
        NoCompilerError: there is none.
        subprocess.CalledProcessError: the compiler refused; what it said is on standard error.
    """
    sources = sorted(HERE.glob("*.cpp"))
    newest = max(path.stat().st_mtime for path in [*sources, *HERE.glob("*.h"), *TESTS.glob("*.h"), Path(__file__)])
    variants = VARIANTS.get(machine, OTHER_VARIANTS) | (TEST_VARIANTS.get(machine, {}) if tests else {})
    libraries = {name: out / f"libinflight-{name}.so" for name in variants}
    stale = [name for name, path in libraries.items() if not path.exists() or path.stat().st_mtime < newest]
    if not stale:
        return []
    cxx = compiler()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as folder, ThreadPoolExecutor(os.cpu_count()) as pool:

        def compile_one(job: tuple[str, Path]) -> str:
            variant, source = job
            made = f"{folder}/{variant}-{source.stem}.o"
            subprocess.run([*cxx, *COMMON, *variants[variant], "-c", str(source), "-o", made], check=True)
            return made

        texts = {source: text(source) for source in sources}
        parts = {name: [(compiled_for(name, texts[source]), source) for source in sources] for name in stale}
        jobs = sorted({job for of_variant in parts.values() for job in of_variant})
        objects = dict(zip(jobs, pool.map(compile_one, jobs), strict=True))
        for variant in stale:
            made = f"{folder}/{variant}.so"
            subprocess.run([*cxx, *(objects[job] for job in parts[variant]), *LINK, "-o", made], check=True)
            # A process that has the old library open keeps it.
            Path(made).replace(libraries[variant])
    return [libraries[name] for name in stale]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compile the CPU kernels.")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the libraries")
    parser.add_argument("--tests", action="store_true", help="the variants that only tests use too")
    parser.add_argument("--machine", default=platform.machine(), help="what $CXX compiles for (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.machine != platform.machine() and arguments.out == OUT:
        parser.error("--machine is not this one: name another folder with --out")
    try:
        made = build(arguments.out, arguments.tests, arguments.machine)
    except NoCompilerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except subprocess.CalledProcessError as error:
        return error.returncode
    print("\n".join(map(str, made)) or "up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
