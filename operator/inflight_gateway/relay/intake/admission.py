"""Checks of a request by its head: path, method, service, API key and length. No I/O; the clocks are arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inflight_base.http.heads import find
from inflight_base.manifest.api_keys import TENANT_NAME
from inflight_base.manifest.keys import ObjectKey
from inflight_gateway.discovery.catalog import Catalog, Change
from inflight_gateway.relay.http.client import Request
from inflight_gateway.relay.http.errors import ClientError, refused
from inflight_gateway.relay.intake.bodies import MAX_OTHER_BYTES, BodyOwner
from inflight_gateway.relay.intake.wrong_keys import WrongKeys
from inflight_gateway.request import paths
from inflight_gateway.request.paths import HEALTH, Answers, Path
from inflight_gateway.settings import MAX_BODY_BYTES
from inflight_gateway.tenants import answers
from inflight_gateway.tenants.keys import KeyTables, digest_of, presented_key
from inflight_gateway.tenants.signature import EngineHeaders
from inflight_gateway.types import Refusal, ServiceConfig

STARTING = ClientError(503, "the gateway does not know its services yet", "gateway_starting", retry_after_s=1)
_WRONG_KEYS = ClientError(429, "this address sent too many wrong API keys", "too_many_wrong_keys", retry_after_s=10)
_WRONG_TENANT = ClientError(403, "the tenant of this token may not use this service", "tenant_not_allowed")


def too_large(most: int) -> ClientError:
    """Returns the error of a body with more than `most` bytes, of whole MiB."""
    return ClientError(413, f"the request's body is larger than {most >> 20} MiB", "request_too_large")


@dataclass(frozen=True, slots=True)
class Client:
    """The sender of a request, by its head.

    Attributes:
        key: API key, empty without one.
        token_tenant: tenant of a token that Envoy verified; None without one.
        address: of the peer.
    """

    key: str
    token_tenant: str | None
    address: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that passed the checks of its head.

    Attributes:
        health: the request asks for the gateway's health, which needs no key.
        config: None: its body's model names the service, or the request is for none.
        tenant, key_id: whom the API key belongs to, and the id of the key; empty without.
        owner: who its body counts for.
        most: longest body, in bytes.
    """

    path: Path
    health: bool
    client: Client
    config: ServiceConfig | None
    owner: BodyOwner
    tenant: str = ""
    key_id: str = ""

    @property
    def most(self) -> int:
        return MAX_BODY_BYTES if self.path.answers is Answers.GENERATION else MAX_OTHER_BYTES


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused head. Attributes: config: its service, where one was found. counted: it is reported: not so for
    clients that are refused many times a second."""

    error: ClientError
    config: ServiceConfig | None = None
    counted: bool = True


class Admission:
    """The checks. Attributes: engine_headers: replaced when the gateway key changes."""

    def __init__(self, catalog: Catalog) -> None:
        self.engine_headers = EngineHeaders(None)
        self._catalog = catalog
        self._keys = KeyTables(catalog)
        self._wrong = WrongKeys()
        self._by_model: tuple[frozenset[ObjectKey], bool] | None = None
        catalog.subscribe(self._changed)

    def check(self, request: Request, now: float, unix: float) -> Admitted | Refused:
        """Checks a head. Args: now: seconds of one monotonic clock. unix: Unix time, in seconds."""
        path = paths.path_of(request.path.decode("latin-1"))
        if path is None:
            return Refused(ClientError(404, "the gateway serves no such path", "not_found"))
        method = request.method.decode("latin-1")
        if method not in path.methods:
            allow = (("allow", ", ".join(sorted(path.methods))),)
            return Refused(ClientError(405, f"this path takes no {method}", "method_not_allowed", more=allow))
        client = _client(request)
        service = self._catalog.resolve_host((find(request.headers, b"host") or b"").decode("latin-1"))
        if isinstance(service, Refusal):
            return Refused(refused(service) if self._catalog.complete else STARTING)
        if service is None:
            admitted = self._admit_by_model(Admitted(path, request.path in _HEALTH, client, None, _BY_MODEL), now)
        else:
            admitted = self._admit(
                Admitted(path, request.path in _HEALTH, client, None, _NOBODY),
                self._catalog.services[service],
                now,
                unix,
            )
        if isinstance(admitted, Admitted) and (request.length or 0) > admitted.most:
            return Refused(too_large(admitted.most), admitted.config)
        return admitted

    def check_model(self, admitted: Admitted, model: str | None, now: float, unix: float) -> Admitted | Refused:
        """Checks a request whose body names its service by the model."""
        service = self._catalog.resolve_model(model)
        if isinstance(service, Refusal):
            return Refused(refused(service) if self._catalog.complete else STARTING)
        return self._admit(admitted, self._catalog.services[service], now, unix)

    def _admit(self, admitted: Admitted, config: ServiceConfig, now: float, unix: float) -> Admitted | Refused:
        if not config.keyed or admitted.health:
            owner = BodyOwner(keyed=False, name=str(config.key))
            return Admitted(admitted.path, admitted.health, admitted.client, config, owner)
        found = self._identity(admitted.client, config, now, unix)
        if isinstance(found, Refused):
            return found
        unsigned = self.engine_headers.refusal(config)
        if unsigned is not None and admitted.path.answers is not Answers.GATEWAY:
            return Refused(refused(unsigned), config)
        tenant, key_id = found
        owner = BodyOwner(keyed=True, name=f"{config.key}/{key_id or tenant}")
        return Admitted(admitted.path, admitted.health, admitted.client, config, owner, tenant, key_id)

    def _identity(self, client: Client, config: ServiceConfig, now: float, unix: float) -> tuple[str, str] | Refused:
        """Returns the tenant and the id of its key, which is empty for the tenant of a token."""
        if client.token_tenant is not None and config.jwt_tenants:
            named = client.token_tenant in config.jwt_tenants or "*" in config.jwt_tenants
            if named and TENANT_NAME.fullmatch(client.token_tenant):
                return client.token_tenant, ""
            if config.api_keys_secret is None or not client.key:
                return Refused(_WRONG_TENANT, config)
        if config.api_keys_secret is None:
            return self._wrong_key(client, answers.no_token(), config, now)
        found = self._keys.check(client.key, config, unix)
        if not isinstance(found, Refusal):
            return found.tenant, found.key_id
        if not self._catalog.complete:
            return Refused(STARTING, config)
        if found.status == 401:
            return self._wrong_key(client, found, config, now)
        return Refused(refused(found), config)

    def _wrong_key(self, client: Client, why: Refusal, config: ServiceConfig | None, now: float) -> Refused:
        """Refuses a missing or wrong key: with status 401, or 429 where its address sends many."""
        if self._wrong.too_many(client.address, now):
            return Refused(_WRONG_KEYS, config, counted=False)
        return Refused(refused(why), config)

    def _admit_by_model(self, admitted: Admitted, now: float) -> Admitted | Refused:
        """Admits a request whose body will name its service. Its key must be one of these services, so that clients
        without a key cannot have bodies read for those with keys; it is checked again for the one service."""
        client = admitted.client
        if admitted.path.answers is Answers.ENGINE and "POST" not in admitted.path.methods:
            return Refused(
                ClientError(404, "this path needs the address of a service as its Host", "service_not_found")
            )
        secrets, keyless = self._of_models()
        if admitted.health or client.token_tenant is not None:
            return admitted
        digest = digest_of(client.key) if client.key else None
        if digest is not None and not secrets.isdisjoint(self._keys.secrets_with(digest)):
            return replace(admitted, owner=BodyOwner(keyed=True, name=digest.hex()))
        if keyless:
            return admitted
        return self._wrong_key(client, answers.wrong_key() if client.key else answers.no_key(), None, now)

    def _of_models(self) -> tuple[frozenset[ObjectKey], bool]:
        """Returns the Secrets of services that a model may name, and whether one of these needs no key."""
        if self._by_model is None:
            services = self._catalog.model_services()
            named = ((config.key.namespace, config.api_keys_secret) for config in services)
            secrets = frozenset(ObjectKey(namespace, name) for namespace, name in named if name is not None)
            self._by_model = secrets, any(not config.keyed for config in services)
        return self._by_model

    def _changed(self, change: Change) -> None:
        if change.services or change.models:
            self._by_model = None


_HEALTH = frozenset(path.encode() for path in HEALTH)
_NOBODY, _BY_MODEL = BodyOwner(keyed=False, name=""), BodyOwner(keyed=False, name="by model")


def _client(request: Request) -> Client:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
    # Envoy appends the address of its peer; what a client sends comes before it.
    address = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    token = request.token_tenant
    return Client(presented_key(headers), None if token is None else token.decode("latin-1"), address)
