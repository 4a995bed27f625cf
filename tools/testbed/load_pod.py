"""The traffic driver in a separate pod, against a service's DNS name."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from tools.testbed.incluster import ScriptPod, script_pod
from tools.testbed.service import Service

FOLDER = Path(__file__).parents[1] / "load"


def driver_pod(service: Service, name: str, arguments: list[str], *, image: str) -> AbstractContextManager[ScriptPod]:
    """Start `driver.py` with `arguments` against the service, from a pod in its namespace."""
    command = ["--url", service.url, "--model", service.name, *arguments]
    return script_pod(FOLDER / "driver.py", command, name=name, image=image, namespace=service.namespace)


def greedy_pod(service: Service, name: str, *, image: str) -> AbstractContextManager[ScriptPod]:
    """Start `greedy.py` against the service."""
    command = ["--url", service.url, "--model", service.name]
    return script_pod(FOLDER / "greedy.py", command, name=name, image=image, namespace=service.namespace)


def ask_pod(service: Service, name: str, question: str, *, image: str) -> AbstractContextManager[ScriptPod]:
    """Start `ask.py` with one question to the service."""
    command = [service.url, service.name, question]
    return script_pod(FOLDER / "ask.py", command, name=name, image=image, namespace=service.namespace)
