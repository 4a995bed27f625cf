"""Scans the manifests of the chart and the operator with checkov, which runs in a separate environment.

Five installations: the chart with default values, with the gateway, with production values and pinned images, the
manifest for kustomize, and the objects of engines. Checks that do not hold are annotations `checkov.io/skipN` with the
reason: those of operator and gateway are in the chart's `_helpers.tpl`, those of engines are below. An exception that
nothing needs is a fault too: each installation is scanned a second time without them.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from deploy.manifest import WITH_GATEWAY
from inflight_base.manifest import Manifest
from inflight_operator.api.types import InferenceService
from inflight_operator.render.plan import ChildPlan, Settings
from inflight_operator.render.service_children import render
from inflight_settings.limits import Limits, LimitsInForce
from tools.localcluster import ClusterError
from tools.localcluster.layout import REPOSITORY
from tools.testbed.helm import CHART, rendered

CHECKOV = "checkov==3.3.30"
CONSTRAINTS = REPOSITORY / "deploy" / "checkov.txt"
"""Pinned dependencies of checkov: `uv pip compile` of CHECKOV."""

KUSTOMIZE_FILE = REPOSITORY / "deploy" / "kustomize" / "base" / "inflight.yaml"

SKIP = "checkov.io/skip"
"""Begin of the annotations that are exceptions: `CHECK=reason`."""

_BARE = "bare-"
"""Prefix of the names of installations without their exceptions."""

_NO_CONNECTION = "error sending request"
"""Text of uv's errors about a server that could not be reached, and of no other error."""

_DIGEST = "sha256:" + "0" * 64

ENGINE_EXCEPTIONS = {
    "CKV_K8S_11": "A CPU limit throttles steps in bursts; the engine takes the cores that are idle, and its request"
    " bounds its share.",
    "CKV_K8S_13": "With accelerators, how much host memory loading takes depends on the model; template.resources sets"
    " a limit. Pods of Inflight's engine on CPU have one.",
    "CKV_K8S_15": "Releases have a tag of their own, and pulling gigabytes again would delay every start;"
    " engine.image.pullPolicy of the chart changes it.",
    "CKV_K8S_43": "The digest is that of the image in the user's registry; engine.image.digest of the chart sets it.",
}
"""Checks that engine pods do not pass, with the reasons."""

ENGINES = {
    "cpu": {"model": {"source": "builtin://smollm2"}, "accelerator": {"count": 0}},
    "gpu": {"model": {"source": "hf://Qwen/Qwen3-8B"}},
    "claim": {"model": {"source": "pvc://models/qwen3-8b"}},
    "vllm": {"model": {"source": "builtin://smollm2"}, "engine": {"type": "vllm"}},
    "custom": {"model": {"source": "pvc://models/llama"}, "engine": {"type": "custom", "image": "server:scan"}},
}
"""Specs whose objects are scanned."""


class ScanError(Exception):
    """checkov made no report; the message has its error."""


class OfflineError(ScanError):
    """checkov could not be installed without a network."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A failed check."""

    check: str
    name: str
    resource: str
    file: str

    def __str__(self) -> str:
        return f"{self.file}: {self.resource}: {self.check} {self.name}"


@dataclass(frozen=True, slots=True)
class Report:
    """checkov's findings, over all installations."""

    passed: int
    skipped: int
    failed: tuple[Finding, ...]


def engine_objects() -> list[Manifest]:
    """The objects of some services, with the exceptions as annotations of their Deployments."""
    settings = Settings(
        engine_image="inflight-engine:scan", plugin_image="inflight-operator:scan", operator_namespace="inflight-system"
    )
    plan = ChildPlan(replicas=2, limits=LimitsInForce(Limits(64, 1024), 1), admin_token="scan", spec_digest="scan")
    objects = [
        child
        for name, spec in ENGINES.items()
        for child in render(
            InferenceService.from_dict({"metadata": {"name": name, "namespace": "team", "uid": name}, "spec": spec}),
            plan,
            settings,
        )
    ]
    for deployment in (one for one in objects if one["kind"] == "Deployment"):
        skips = enumerate(ENGINE_EXCEPTIONS.items(), start=1)
        deployment["metadata"]["annotations"] |= {f"checkov.io/skip{n}": f"{check}={why}" for n, (check, why) in skips}
    return objects


def installations() -> dict[str, list[Manifest]]:
    """The scanned objects, by file name.

    Raises:
        ClusterError: Helm is missing, or rejected the values.
    """
    images = ("image", "engine.image", "gateway.envoy.image")
    pinned = ("--set", ",".join(f"{image}.digest={_DIGEST}" for image in images))
    return {
        "default-values": rendered(),
        "gateway": rendered(*WITH_GATEWAY),
        "production-values": rendered("--values", str(CHART / "values-production.yaml"), *pinned),
        "kustomize": [one for one in yaml.safe_load_all(KUSTOMIZE_FILE.read_text()) if one],
        "engines": engine_objects(),
    }


def checkov(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run checkov in its own environment, which uv creates once and caches."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "tool", "run", "--quiet", "--from", CHECKOV, "--constraints", str(CONSTRAINTS), "checkov"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def scan(parts: dict[str, list[Manifest]]) -> Report:
    """Scan each part separately, in one run of checkov.

    Raises:
        OfflineError: checkov is not installed, and there is no network.
        ScanError: it could not be installed, or gave no report.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, objects in parts.items():
            Path(folder, f"{name}.yaml").write_text(yaml.safe_dump_all(objects))
        # `--skip-download`: descriptions of checks from the vendor's server, which are not needed.
        done = checkov(
            *("--directory", folder, "--framework", "kubernetes"), *("--output", "json", "--compact", "--skip-download")
        )
        try:
            report = json.loads(done.stdout)
        except ValueError as error:
            said = done.stderr.strip()[-2000:]
            raise (OfflineError if _NO_CONNECTION in said else ScanError)(said) from error
    if report["summary"]["parsing_errors"]:
        raise ScanError(f"checkov could not read {', '.join(report['results']['parsing_errors'])}")
    return Report(
        passed=report["summary"]["passed"],
        skipped=report["summary"]["skipped"],
        failed=tuple(
            Finding(one["check_id"], one["check_name"], one["resource"], one["file_path"].removeprefix("/"))
            for one in report["results"]["failed_checks"]
        ),
    )


def exceptions(objects: Iterable[Manifest]) -> dict[str, str]:
    """Check to reason, over all annotations."""
    return {
        check: reason
        for one in objects
        for key, value in one["metadata"].get("annotations", {}).items()
        if key.startswith(SKIP)
        for check, _, reason in [value.partition("=")]
    }


def bare(objects: Iterable[Manifest]) -> list[Manifest]:
    """The objects without their exceptions."""
    plain = copy.deepcopy(list(objects))
    for one in plain:
        annotations = one["metadata"].get("annotations", {})
        for key in [key for key in annotations if key.startswith(SKIP)]:
            del annotations[key]
    return plain


def faults(parts: Mapping[str, list[Manifest]]) -> tuple[list[str], Report]:
    """Failing checks and unneeded exceptions, a line each; and checkov's findings.

    Raises:
        ScanError: as `scan`.
    """
    report = scan({**parts, **{f"{_BARE}{name}": bare(objects) for name, objects in parts.items()}})
    found = [str(one) for one in report.failed if not one.file.startswith(_BARE)]
    for name, objects in parts.items():
        needed = {one.check for one in report.failed if one.file == f"{_BARE}{name}.yaml"}
        found += [
            f"{name}.yaml: the exception {check} is needless" for check in sorted({*exceptions(objects)} - needed)
        ]
    return found, report


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0 without faults, or if no scan is possible without a network; 1 with the faults, or the reason."""
    argparse.ArgumentParser(
        prog="python -m deploy.scan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)
    try:
        found, report = faults(installations())
    except OfflineError as error:
        print(
            f"{error}\n\nWARNING: NOTHING WAS SCANNED: checkov is not installed, and there is no network to get it from"
        )
        return 0
    except (ClusterError, ScanError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for line in found:
        print(line)
    print(f"{report.passed} checks passed, {report.skipped} skipped with a reason, {len(found)} faults")
    if not report.passed:
        print("error: checkov read nothing", file=sys.stderr)
    return 1 if found or not report.passed else 0


if __name__ == "__main__":
    sys.exit(main())
