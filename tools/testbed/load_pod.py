"""The programs of `tools.load` in a separate pod, against services by their DNS names."""

from __future__ import annotations

import io
import zipfile
from contextlib import AbstractContextManager
from pathlib import Path

from tools.testbed.incluster import ScriptPod, script_pod
from tools.testbed.service import Service

_ROOT = Path(__file__).parents[2]
_CODE = (
    "operator/inflight_kubectl/__init__.py",
    "operator/inflight_kubectl/load/answers.py",
    "operator/inflight_kubectl/output.py",
    "operator/inflight_kubectl/load/__init__.py",
    "operator/inflight_kubectl/load/client.py",
    "tools/__init__.py",
    "tools/load/__init__.py",
    "tools/load/ask.py",
    "tools/load/attempts.py",
    "tools/load/driver.py",
    "tools/load/greedy.py",
    "tools/load/storm.py",
    "tools/measure/__init__.py",
    "tools/measure/report.py",
)
"""Files that the programs import besides aiohttp, click and `inflight_base`, which the operator's image has."""


def code() -> bytes:
    """The programs as a zip file that Python imports from."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in _CODE:
            archive.write(_ROOT / file, file.removeprefix("operator/"))
    return content.getvalue()


def program_pod(
    program: str, arguments: list[str], *, name: str, image: str, namespace: str
) -> AbstractContextManager[ScriptPod]:
    """Start `tools.load.PROGRAM` with `arguments` in a pod of that namespace."""
    return script_pod(f"tools.load.{program}", code(), arguments, name=name, image=image, namespace=namespace)


def driver_pod(service: Service, name: str, arguments: list[str], *, image: str) -> AbstractContextManager[ScriptPod]:
    """Start the driver against the service, from a pod in its namespace."""
    command = ["--url", service.url, "--model", service.name, *arguments]
    return program_pod("driver", command, name=name, image=image, namespace=service.namespace)


def greedy_pod(service: Service, name: str, *, image: str) -> AbstractContextManager[ScriptPod]:
    """Start the greedy requests against the service."""
    command = ["--url", service.url, "--model", service.name]
    return program_pod("greedy", command, name=name, image=image, namespace=service.namespace)


def ask_pod(service: Service, name: str, question: str, *, image: str) -> AbstractContextManager[ScriptPod]:
    """Ask the service one question."""
    command = [service.url, service.name, question]
    return program_pod("ask", command, name=name, image=image, namespace=service.namespace)
