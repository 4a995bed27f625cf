"""Catalog of services, engines and API keys, and resolution of a request to its service.

One writer (discovery), many readers. Runs in the event loop's thread; nothing here blocks.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.types import Endpoint, Refusal, ServiceConfig

logger = logging.getLogger(__name__)


SecretData = Mapping[str, bytes]
"""Entries of a Secret, decoded from base64."""


@dataclass(frozen=True, slots=True)
class Change:
    """The keys of the objects that an update added, changed or removed. Attributes: outside: services that are outside
    the gateway since then, or no longer."""

    services: frozenset[ServiceKey] = frozenset()
    endpoints: frozenset[ServiceKey] = frozenset()
    secrets: frozenset[ObjectKey] = frozenset()
    outside: frozenset[ServiceKey] = frozenset()


Subscriber = Callable[[Change], None]


class Catalog:
    """Services, the endpoints of each, and the Secrets that services name.

    Endpoints may be added before their service and outlive it: readers that go through `services` see only those that
    belong to one.

    Args:
        cluster_domain: domain of the cluster's DNS, as in NAME.NAMESPACE.svc.DOMAIN.
    """

    def __init__(self, cluster_domain: str = "cluster.local") -> None:
        self._cluster_domain = cluster_domain.strip(".").lower()
        self._services: dict[ServiceKey, ServiceConfig] = {}
        self._endpoints: dict[ServiceKey, tuple[Endpoint, ...]] = {}
        self._secrets: dict[ObjectKey, SecretData] = {}
        self._outside: set[ServiceKey] = set()
        self._by_name: dict[str, set[ServiceKey]] = defaultdict(set)
        self._by_model: dict[str, set[ServiceKey]] = defaultdict(set)
        self._by_address: dict[str, ServiceKey] = {}
        self._subscribers: list[Subscriber] = []

    @property
    def services(self) -> Mapping[ServiceKey, ServiceConfig]:
        """A live, read-only view of all services."""
        return MappingProxyType(self._services)

    @property
    def endpoints(self) -> Mapping[ServiceKey, tuple[Endpoint, ...]]:
        """A live, read-only view of the endpoints of each service; services without endpoints are not in it."""
        return MappingProxyType(self._endpoints)

    def endpoints_of(self, key: ServiceKey) -> tuple[Endpoint, ...]:
        """Engines that accept requests now, by address; none while the service is at zero."""
        return self._endpoints.get(key, ())

    def addresses(self) -> frozenset[str]:
        """Returns the addresses of the endpoints of all services."""
        return frozenset(endpoint.address for key in self._services for endpoint in self.endpoints_of(key))

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

    @property
    def outside(self) -> frozenset[ServiceKey]:
        """InferenceServices that are not behind the gateway."""
        return frozenset(self._outside)

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
    ) -> Change:
        """Sets each of these objects, or removes it where the value is None or, for endpoints, empty.

        `outside` are InferenceServices that are not behind the gateway. Clients of a service that was behind it until
        now may still connect, and must not reach another service by their model.

        Subscribers are called once, after all changes, and not at all without a change. A failing subscriber does not
        prevent calls to the others, as the change is not repeated.
        """
        change = Change(
            frozenset(key for key, config in services.items() if self._set_service(key, config)),
            frozenset(key for key, each in endpoints.items() if self._set_endpoints(key, each)),
            frozenset(ref for ref, data in secrets.items() if self._set_secret(ref, data)),
            frozenset(key for key, is_outside in outside.items() if is_outside != (key in self._outside)),
        )
        self._outside ^= change.outside
        if change != Change():
            for subscriber in tuple(self._subscribers):
                try:
                    subscriber(change)
                except Exception:
                    logger.exception("a change of the catalog was not taken: %s", change)
        return change

    def hosts(self, key: ServiceKey) -> tuple[str, ...]:
        """Returns all host names by which clients reach the service, without ports: `resolve` maps them to it."""
        name, namespace = key.name, key.namespace
        full = f"{name}.{namespace}"
        hosts = (full, f"{full}.svc", f"{full}.svc.{self._cluster_domain}")
        return (name, *hosts) if self._by_name.get(name) == {key} else hosts

    def resolve(self, host: str, model: str | None = None, subset: Sequence[str] = ()) -> ServiceKey | Refusal:
        """Returns the service that a request is for.

        The Host header decides where it names services. Where it names several (a short name in several namespaces) or
        none, the request's model decides, then the addresses that another gateway allows. The gateway never guesses a
        service: if more than one remains, the request is rejected.

        Args:
            host: Host or :authority, with or without a port.
            model: field of the body.
            subset: addresses that another gateway allows, see `headers.SUBSET`.
        """
        hostname = _hostname(host)
        named = self._key_of(hostname)
        if named in self._services:
            return named
        if named in self._outside:
            return _outside(named)
        candidates = set(self._by_name.get(hostname, ()))
        if len(candidates) == 1:
            return next(iter(candidates))
        for hinted in (self._by_model.get(model or "", set()), self._owners(subset)):
            # Each hint narrows the result of the previous one; a hint without a match is ignored.
            candidates = (candidates & hinted if candidates else hinted) or candidates
            if len(candidates) == 1:
                return next(iter(candidates))
        return _unresolved(hostname, model, len(candidates))

    def _key_of(self, hostname: str) -> ServiceKey | None:
        """Returns the service that NAME.NAMESPACE[.svc[.DOMAIN]] names, whether it exists or not."""
        name, _, rest = hostname.partition(".")
        namespace, _, suffix = rest.partition(".")
        full = name and namespace and suffix in ("", "svc", f"svc.{self._cluster_domain}")
        return ServiceKey(namespace, name) if full else None

    def _owners(self, addresses: Iterable[str]) -> set[ServiceKey]:
        owners = (self.service_of(address.strip()) for address in addresses)
        return {key for key in owners if key is not None}

    def _set_service(self, key: ServiceKey, config: ServiceConfig | None) -> bool:
        before = self._services.get(key)
        if config == before:
            return False
        if before is not None:
            del self._services[key]
            _take_out(self._by_name, key.name, key)
            _take_out(self._by_model, before.model, key)
        if config is not None:
            self._services[key] = config
            self._by_name[key.name].add(key)
            self._by_model[config.model].add(key)
        return True

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

    def _set_secret(self, ref: ObjectKey, data: SecretData | None) -> bool:
        if data == self._secrets.get(ref):
            return False
        if data is None:
            del self._secrets[ref]
        else:
            self._secrets[ref] = data
        return True


def _take_out(index: dict[str, set[ServiceKey]], entry: str, key: ServiceKey) -> None:
    index[entry].discard(key)
    if not index[entry]:
        del index[entry]


def _hostname(host: str) -> str:
    """Returns the host without its port and the root's dot. A bracketed IPv6 address, which names no service, stays."""
    name, _, port = host.strip().lower().rpartition(":")
    return (name if name and port.isdigit() else host.strip().lower()).removesuffix(".")


def _outside(key: ServiceKey) -> Refusal:
    return Refusal(
        404,
        "service_not_behind_gateway",
        f"InferenceService {key} is not behind the gateway: set spec.gateway.enabled, or where that was just switched"
        " off try again, as addresses are cached for some seconds",
    )


def _unresolved(hostname: str, model: str | None, candidates: int) -> Refusal:
    """Returns the refusal. It names no other namespaces: the client may not be permitted to see them."""
    way_out = "send the request to http://NAME.NAMESPACE.svc with the name of an InferenceService behind this gateway"
    if candidates:
        names = f"host {hostname!r} and model {model!r}" if model else f"host {hostname!r}"
        return Refusal(404, "service_ambiguous", f"{names} fit {candidates} services: {way_out}")
    if not model:
        return Refusal(
            404, "service_not_found", f"host {hostname!r} is no service, and the request names no model: {way_out}"
        )
    return Refusal(
        404, "model_not_found", f"no service is called {hostname!r}, and none serves model {model!r}: {way_out}"
    )
