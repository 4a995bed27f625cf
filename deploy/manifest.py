"""The chart with its default values as one plain manifest, for kustomize and `kubectl apply`.

The gateway's objects are a second one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from inflight_base.manifest import Manifest
from tools import generated
from tools.localcluster.layout import REPOSITORY
from tools.testbed.helm import rendered

FOLDER = REPOSITORY / "deploy" / "kustomize"
FILE = FOLDER / "base" / "inflight.yaml"
GATEWAY_FILE = FOLDER / "gateway" / "gateway.yaml"
WITH_GATEWAY = ("--set", "gateway.enabled=true")

_HEADER = """\
# Generated from the chart by deploy/manifest.py. Apply it with `kubectl apply --server-side`: a client-side apply would
# copy the CustomResourceDefinition into an annotation of itself.
"""

_OF_HELM = ("helm.sh/", "meta.helm.sh/")


def manifest() -> str:
    """The manifest with default values as YAML."""
    return _as_yaml(rendered("--no-hooks"))


def whole(chart: Path, *flags: str) -> str:
    """The namespace and the objects that `chart` renders with `flags`, as YAML for one `kubectl apply`."""
    namespace = yaml.safe_load((FOLDER / "base" / "namespace.yaml").read_text())
    return _as_yaml([namespace, *rendered("--no-hooks", *flags, chart=chart)])


def gateway() -> str:
    """The objects that gateway.enabled adds, as YAML. Its changes to other objects are in the folder's
    kustomization."""
    base = {_identity(one) for one in rendered("--no-hooks")}
    return _as_yaml([one for one in rendered("--no-hooks", *WITH_GATEWAY) if _identity(one) not in base])


def _identity(one: Manifest) -> tuple[str, str]:
    return one["kind"], one["metadata"]["name"]


def _as_yaml(objects: list[Manifest]) -> str:
    plain = [_without_helm(one) for one in objects]
    return _HEADER + yaml.dump_all(plain, Dumper=_PlainDumper, sort_keys=False, width=120, allow_unicode=True)


def _without_helm(node: Any) -> Any:
    """Removes Helm's labels and annotations; kubectl manages the objects."""
    if isinstance(node, list):
        return [_without_helm(one) for one in node]
    if not isinstance(node, dict):
        return node
    plain: Manifest = {
        key: _without_helm(value)
        for key, value in node.items()
        if not (isinstance(key, str) and key.startswith(_OF_HELM))
    }
    if plain.get("app.kubernetes.io/managed-by") == "Helm":
        plain["app.kubernetes.io/managed-by"] = "kubectl"
    if plain.get("annotations") == {}:
        del plain["annotations"]
    return plain


class _PlainDumper(yaml.SafeDumper):
    """Dumper of YAML without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


if __name__ == "__main__":
    sys.exit(generated.run("deploy.manifest", __doc__, {FILE: manifest(), GATEWAY_FILE: gateway()}))
