"""Catalog of services, engines and API keys, and resolution of a request to its service.

One writer (discovery), many readers. Runs in the event loop's thread; nothing here blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.hosts import DEFAULT_HOSTS, NO_SERVICE, Hosts, hostname_of
from inflight_gateway.types import Endpoint, Refusal, ServiceConfig

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

logger = logging.getLogger(__name__)

SecretData = Mapping[str, bytes]
"""Entries of a Secret, decoded from base64."""


@dataclass(frozen=True, slots=True)
class Change:
    """The keys of the objects that an update added, changed or removed.

    Attributes:
        outside: InferenceServices that are behind the gateway no longer, or again.
        models: names of models whose claims changed.
        hosts: the rules of Hosts changed. complete: the catalog became complete.
    """

    services: frozenset[ServiceKey] = frozenset()
    endpoints: frozenset[ServiceKey] = frozenset()
    secrets: frozenset[ObjectKey] = frozenset()
    outside: frozenset[ServiceKey] = frozenset()
    models: frozenset[str] = frozenset()
    hosts: bool = False
    complete: bool = False


Subscriber = Callable[[Change], None]


class Catalog:
    """Services, the endpoints of each, and the Secrets that services name.

    Endpoints may be added before their service and outlive it: readers that go through `services` see only those that
    belong to one.

    Args:
        hosts: which Hosts name a service, and whether models may.

    Attributes:
        complete: all services have been read once; a service that is missing before may exist.
    """

    def __init__(self, hosts: Hosts = DEFAULT_HOSTS) -> None:
        self.complete = False
        self._hosts = hosts
        self._services: dict[ServiceKey, ServiceConfig] = {}
        self._endpoints: dict[ServiceKey, tuple[Endpoint, ...]] = {}
        self._secrets: dict[ObjectKey, SecretData] = {}
        self._outside: set[ServiceKey] = set()
        self._models: dict[str, tuple[ServiceKey, ...]] = {}
        self._by_address: dict[str, ServiceKey] = {}
        self._subscribers: list[Subscriber] = []

    @property
    def services(self) -> Mapping[ServiceKey, ServiceConfig]:
        """A live, read-only view of all services."""
        return MappingProxyType(self._services)

    @property
    def hosts(self) -> Hosts:
        """The rules of Hosts."""
        return self._hosts

    @property
    def outside(self) -> Set[ServiceKey]:
        """A live view of the InferenceServices that are not behind the gateway."""
        return self._outside

    @property
    def models(self) -> Mapping[str, tuple[ServiceKey, ...]]:
        """A live, read-only view of the services that claim each model, see `ModelClaims`."""
        return MappingProxyType(self._models)

    @property
    def endpoints(self) -> Mapping[ServiceKey, tuple[Endpoint, ...]]:
        """A live, read-only view of the endpoints of each service; services without endpoints are not in it."""
        return MappingProxyType(self._endpoints)

    def endpoints_of(self, key: ServiceKey) -> tuple[Endpoint, ...]:
        """Engines that accept requests now, by address; none while the service is at zero."""
        return self._endpoints.get(key, ())

    def engine_counts(self) -> dict[ServiceKey, int]:
        """Returns the number of endpoints of each service."""
        return {key: len(self.endpoints_of(key)) for key in self._services}

    def by_endpoint(self) -> dict[Endpoint, ServiceConfig]:
        """Returns the service of each endpoint."""
        services = self._services.items()
        return {endpoint: config for key, config in services for endpoint in self.endpoints_of(key)}

    def service_of(self, address: str) -> ServiceKey | None:
        """Returns the service whose endpoint has this address; None: there is none."""
        key = self._by_address.get(address)
        return key if key in self._services else None

    def secret(self, ref: ObjectKey) -> SecretData | None:
        """Returns the entries of a Secret; None: it does not exist, or has not been read yet."""
        return self._secrets.get(ref)

    def secret_refs(self) -> frozenset[ObjectKey]:
        """Returns the keys of the known Secrets."""
        return frozenset(self._secrets)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Calls `subscriber` after each update that changed something. Returns the function that unsubscribes."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def update(
        self,
        *,
        services: Mapping[ServiceKey, ServiceConfig | None] = MappingProxyType({}),
        endpoints: Mapping[ServiceKey, Collection[Endpoint]] = MappingProxyType({}),
        secrets: Mapping[ObjectKey, SecretData | None] = MappingProxyType({}),
        outside: Mapping[ServiceKey, bool] = MappingProxyType({}),
        models: Mapping[str, tuple[ServiceKey, ...]] = MappingProxyType({}),
        hosts: Hosts | None = None,
        complete: bool = False,
    ) -> Change:
        """Sets each of these objects, or removes it where the value is None or empty.

        Subscribers are called once, after all changes, and not at all without a change. A failing subscriber does not
        prevent calls to the others, as the change is not repeated.

        Args:
            outside: InferenceServices, and whether they are not behind the gateway. Clients of a service that was
                behind it until now may still connect, and get an answer that says so.
            models: services that claim a model.
            hosts: new rules of Hosts; None: unchanged.
            complete: all services have been read once.
        """
        change = Change(
            frozenset(key for key, config in services.items() if _set(self._services, key, config)),
            frozenset(key for key, each in endpoints.items() if self._set_endpoints(key, each)),
            frozenset(ref for ref, data in secrets.items() if _set(self._secrets, ref, data)),
            frozenset(key for key, is_outside in outside.items() if is_outside != (key in self._outside)),
            frozenset(model for model, keys in models.items() if _set(self._models, model, keys or None)),
            hosts not in (None, self._hosts),
            complete and not self.complete,
        )
        self._outside ^= change.outside
        self._hosts = hosts or self._hosts
        self.complete = complete or self.complete
        if change != Change():
            for subscriber in tuple(self._subscribers):
                try:
                    subscriber(change)
                except Exception:
                    logger.exception("a change of the catalog was not taken: %s", change)
        return change

    def resolve_host(self, host: str) -> ServiceKey | Refusal | None:
        """Returns the service that a Host names; None: it is no address of a Service, so the model decides.

        Args:
            host: Host or :authority, with or without a port.
        """
        hostname = hostname_of(host)
        named = self._hosts.service_of(hostname)
        if named is None:
            return None if self._hosts.by_model else _no_address(hostname)
        if named in self._services:
            return named
        if named in self._outside:
            return _outside(named)
        return _no_address(hostname) if named == NO_SERVICE else _no_service(named)

    def resolve_model(self, model: str | None) -> ServiceKey | Refusal:
        """Returns the service that a model names, where `resolve_host` returned None.

        Args:
            model: field of the body.
        """
        if not model:
            return _NO_MODEL
        claims = self._models.get(model, ())
        if len(claims) > 1:
            return Refusal(404, "service_ambiguous", _CONTESTED.format(model=model))
        config = self._services.get(claims[0]) if claims else None
        if config is None or config.model != model:
            return _not_found("model_not_found", f"no service that model names may choose serves {model!r}")
        return config.key

    def model_services(self) -> list[ServiceConfig]:
        """Returns the services that a model chooses, by model."""
        found = (self.resolve_model(model) for model in sorted(self._models))
        return [self._services[key] for key in found if isinstance(key, ServiceKey)]

    def _owner_of(self, addresses: Iterable[str]) -> ServiceKey | None:
        """Returns the service that all of these endpoints belong to, without unknown ones; None: none, or several."""
        owners = {self.service_of(address.strip()) for address in addresses} - {None}
        return owners.pop() if len(owners) == 1 else None

    def resolve(self, host: str, model: str | None = None, subset: Sequence[str] = ()) -> ServiceKey | Refusal:
        """Returns the service that a request of another gateway is for: that of its Host, else of the endpoints that
        the other gateway allows, else of its model.

        Args:
            host, model: see `resolve_host`, `resolve_model`.
            subset: addresses, see `headers.SUBSET`.
        """
        named = self.resolve_host(host)
        if isinstance(named, ServiceKey) or (isinstance(named, Refusal) and named.code != "service_not_found"):
            return named
        return self._owner_of(subset) or named or self.resolve_model(model)

    def _set_endpoints(self, key: ServiceKey, endpoints: Collection[Endpoint]) -> bool:
        ordered = tuple(sorted(endpoints, key=lambda endpoint: endpoint.address))
        before = self._endpoints.get(key, ())
        if ordered == before:
            return False
        for endpoint in before:
            # An address may belong to another service now: pod addresses are reused.
            if self._by_address.get(endpoint.address) == key:
                del self._by_address[endpoint.address]
        self._by_address.update({endpoint.address: key for endpoint in ordered})
        if ordered:
            self._endpoints[key] = ordered
        else:
            self._endpoints.pop(key, None)
        return True


def _set(objects: dict[K, V], key: K, value: V | None) -> bool:
    """Sets an entry, or removes it where the value is None. Returns True if that changed something."""
    if objects.get(key) == value:
        return False
    if value is None:
        del objects[key]
    else:
        objects[key] = value
    return True


def _outside(key: ServiceKey) -> Refusal:
    return Refusal(
        404,
        "service_not_behind_gateway",
        f"InferenceService {key} is not behind the gateway: set spec.gateway.enabled, or where that was just switched"
        " off try again on a new connection",
    )


_CONTESTED = (
    "several services claim model {model!r}, or the one that it named is gone: send the request to"
    " http://NAME.NAMESPACE.svc; whoever installed the gateway may rename the others, or restart it to let the model"
    " choose another service"
)


_NO_MODEL = Refusal(
    400,
    "model_missing",
    "model: this field is required, a text, where Host names no service; or send the request to"
    " http://NAME.NAMESPACE.svc with the name of an InferenceService behind this gateway",
    param="model",
)


def _not_found(code: str, problem: str) -> Refusal:
    """Returns the refusal. It names no other namespaces: the client may not be permitted to see them."""
    return Refusal(
        404,
        code,
        f"{problem}: send the request to http://NAME.NAMESPACE.svc with the name of an InferenceService behind this"
        " gateway",
    )


def _no_service(key: ServiceKey) -> Refusal:
    return _not_found("service_not_found", f"no InferenceService {key} is behind this gateway")


def _no_address(hostname: str) -> Refusal:
    """Returns the refusal of a Host that is no address of a service."""
    if hostname and "." not in hostname and ":" not in hostname and hostname != "localhost":
        return Refusal(
            404,
            "service_not_found",
            f"host {hostname!r} has no namespace: send the request to http://{hostname}.NAMESPACE.svc",
        )
    return _not_found("service_not_found", f"host {hostname!r} is no service")
