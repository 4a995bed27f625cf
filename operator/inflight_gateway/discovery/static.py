"""The catalog's content from a YAML file, for laptops and benchmarks. The file is read again when it changes.

services:
- namespace: default        # default: default
  name: chat
  model: smollm2            # default: the name; all other fields of ServiceConfig too, under their names there
  hold: {max_requests: 10}
  endpoints: ["127.0.0.1:8000", {address: "127.0.0.1:8001", pod: second}]
secrets:
- {namespace: default, name: keys, data: {KEY_ID: '{"tenant": "acme", "sha256": "..."}'}}
peers:                      # the ready gateway pods, with this one, and their --link-port; default: this one alone
- {name: gateway-0, address: "127.0.0.1:9005"}

Requests name a service as in the cluster, such as `Host: chat.default`, or its model with `--model-namespace default`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog, SecretData
from inflight_gateway.types import Endpoint, GatewayPod, ServiceConfig

T = TypeVar("T")

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5

MAX_FILE = 2**24
"""Largest file, in bytes."""


class StaticFileError(Exception):
    """The file is invalid; the message names the field."""


class StaticDiscovery:
    """Fills the catalog from the file, at start and after each change.

    Args:
        on_pods: called with the ready gateway pods.

    Raises:
        StaticFileError: the file is invalid.
    """

    def __init__(self, path: Path, catalog: Catalog, on_pods: Callable[[Collection[GatewayPod]], None]) -> None:
        self._path = path
        self._catalog = catalog
        self._on_pods = on_pods
        self._seen = _version(path)
        self._problem = ""
        self._take(read_file(path))

    async def run(self) -> None:
        """Reads the file after each change, until cancelled. Errors in it leave its previous content in force."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            seen = _version(self._path)
            if seen == self._seen:
                continue
            self._seen = seen
            try:
                self._take(read_file(self._path))
            except StaticFileError as error:
                self._problem = str(error)
                logger.error("%s; what it said before stays in force", error)
            else:
                self._problem = ""
                logger.info("%s was read again: %d services", self._path, len(self._catalog.services))

    def unready(self) -> list[str]:
        """Returns nothing: the file was read before this object was created."""
        return []

    def problems(self) -> list[str]:
        """Returns why the current file is not in force."""
        return [self._problem] if self._problem else []

    def _take(self, file: StaticFile) -> None:
        catalog = self._catalog
        catalog.update(
            services={**dict.fromkeys(catalog.services), **file.services},
            endpoints={**dict.fromkeys(catalog.endpoints, ()), **file.endpoints},
            secrets={**dict.fromkeys(catalog.secret_refs()), **file.secrets},
            complete=True,
        )
        self._on_pods(file.peers)


class StaticFile(msgspec.Struct, frozen=True):
    """The content of a file."""

    services: dict[ServiceKey, ServiceConfig]
    endpoints: dict[ServiceKey, tuple[Endpoint, ...]]
    secrets: dict[ObjectKey, SecretData]
    peers: tuple[GatewayPod, ...] = ()


def read_file(path: Path) -> StaticFile:
    """Reads a file. Raises: StaticFileError: it cannot be read, or a field is unknown, missing or not of its type."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise ValueError(f"it has more than {MAX_FILE} bytes")
        return _parse(yaml.safe_load(path.read_text()))
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise StaticFileError(f"{path}: {error}") from error


def _parse(content: Any) -> StaticFile:
    """Reads a file's content. Raises: ValueError: a field is invalid; the message names it."""
    top = _object(content, "the file")
    _only_known(top, {"services", "secrets", "peers"}, "the file")
    peers = (_gateway_pod(one, f"peers[{number}]") for number, one in enumerate(_list(top.get("peers"), "peers")))
    file = StaticFile({}, {}, {}, tuple(peers))
    for position, entry in enumerate(_list(top.get("services"), "services")):
        where = f"services[{position}]"
        fields = dict(_object(entry, where))
        endpoints = fields.pop("endpoints", None)
        config = _service(fields, where)
        if config.key in file.services:
            raise ValueError(f"{where}: there is another service {config.key}")
        file.services[config.key] = config
        file.endpoints[config.key] = tuple(
            _endpoint(one, f"{where}.endpoints[{number}]")
            for number, one in enumerate(_list(endpoints, f"{where}.endpoints"))
        )
    for position, entry in enumerate(_list(top.get("secrets"), "secrets")):
        where = f"secrets[{position}]"
        secret = _convert(_object(entry, where), _Secret, where)
        file.secrets[ObjectKey(secret.namespace, secret.name)] = {
            name: value.encode() for name, value in secret.data.items()
        }
    return file


class _Secret(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    data: dict[str, str]
    namespace: str = "default"


def _service(fields: dict[str, Any], where: str) -> ServiceConfig:
    namespace, name = fields.pop("namespace", "default"), fields.pop("name", None)
    if not isinstance(name, str) or not isinstance(namespace, str) or not name or not namespace:
        raise ValueError(f"{where}: name and namespace must be texts, and name must be there")
    if "key" in fields:
        raise ValueError(f"{where}.key is not known: give namespace and name")
    given = {"uid": f"{namespace}/{name}", "model": name, **fields}
    config = _convert({**given, "key": [namespace, name]}, ServiceConfig, where)
    unknown = next(_unknown(given, msgspec.to_builtins(config), where), None)
    if unknown is not None:
        raise ValueError(f"{unknown} is not known")
    return config


def _endpoint(entry: Any, where: str) -> Endpoint:
    given = {"address": entry} if isinstance(entry, str) else dict(_object(entry, where))
    _only_known(given, {"address", "pod", "prefill"}, where)
    endpoint = _convert({"pod": "", **given}, Endpoint, where)
    _check_address(endpoint.address, where)
    return endpoint


def _gateway_pod(entry: Any, where: str) -> GatewayPod:
    given = _object(entry, where)
    _only_known(given, {"address", "name"}, where)
    pod = GatewayPod(*(_convert(given.get(field), str, f"{where}.{field}") for field in GatewayPod._fields))
    _check_address(pod.address, where)
    return pod


def _check_address(address: str, where: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
        usable = 0 < int(port) < 65536 and (":" in host) == host.startswith("[")
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"{where}: {address!r} is not IP:PORT, such as 127.0.0.1:8000; names are not looked up")


def _convert(value: Any, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        raise ValueError(f"{where}{path.removesuffix('`')}: {problem}") from error


def _unknown(given: Any, known: Any, where: str) -> Iterator[str]:
    """Yields the paths of given fields that are not known: dataclasses drop them."""
    if isinstance(given, dict) and isinstance(known, dict):
        for name, value in given.items():
            if name in known:
                yield from _unknown(value, known[name], f"{where}.{name}")
            else:
                yield f"{where}.{name}"
    elif isinstance(given, list) and isinstance(known, list | tuple):
        for number, (value, read) in enumerate(zip(given, known, strict=True)):
            yield from _unknown(value, read, f"{where}[{number}]")


def _only_known(given: dict[str, Any], known: set[str], where: str) -> None:
    extra = sorted(given.keys() - known)
    if extra:
        raise ValueError(f"{where}: {extra[0]} is not known; there is {', '.join(sorted(known))}")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{where} must be an object with named fields")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{where} must be a list")
    return value or []


def _version(path: Path) -> tuple[int, ...]:
    """Returns a value that changes with the file, also when a mounted ConfigMap replaces it; empty without a file."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)
