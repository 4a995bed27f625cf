"""The chart rendered by Helm."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from inflight_base.manifest import Manifest

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm" / "inflight"
PRODUCTION_VALUES = CHART / "values-production.yaml"
RELEASE = "inflight"
NAMESPACE = "inflight-system"


class HelmError(Exception):
    """Helm is missing, or rejected the values; the message has its error."""


def rendered(*flags: str) -> list[Manifest]:
    """The objects of the chart, hooks included, for release `inflight` in namespace `inflight-system`.

    Args:
        flags: further flags of `helm template`, such as `--set replicas=2`.

    Raises:
        HelmError: Helm is missing or failed.
    """
    beside = Path(sys.executable).with_name("helm")
    program = str(beside) if beside.exists() else shutil.which("helm")
    if program is None:
        raise HelmError("helm is missing: install this project's `dev` extra, or helm itself")
    command = [program, "template", RELEASE, str(CHART), "--namespace", NAMESPACE, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(done.stderr.strip())
    return [one for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]  # ten times as fast
