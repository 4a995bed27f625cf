"""Builds the CPU kernels with the package; all other metadata is in pyproject.toml."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

KERNELS = Path(__file__).parent / "engine_image" / "kernels" / "build.py"


class BuildWithKernels(build_py):
    """In the source tree, so that an editable installation has them too. Without a compiler the engine computes with
    torch alone."""

    def run(self) -> None:
        spec = importlib.util.spec_from_file_location("kernels_build", KERNELS)
        assert spec is not None
        assert spec.loader is not None
        kernels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kernels)
        try:
            kernels.build()
        except kernels.NoCompilerError as error:
            self.warn(f"the CPU kernels are not built: {error}")
        super().run()


class PlatformDistribution(Distribution):
    """Holds machine code, so a wheel of it is for one platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithKernels}, distclass=PlatformDistribution)
