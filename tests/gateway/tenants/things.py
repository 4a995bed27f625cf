"""Services, requests and Secrets for the tests of the gate."""

import hashlib
import json
from pathlib import Path

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.tenants.estimate import Estimates
from inflight_gateway.tenants.gate import Gate
from inflight_gateway.tenants.gateway_key import GatewayKey
from inflight_gateway.tenants.keys import KeyTables
from inflight_gateway.types import Finished, RateLimits, RequestView, ServiceConfig, TenantConfig

CHAT = ServiceKey("team-a", "chat")


def gateway_key(current=b"gateway key", previous=None):
    """A key as if it had been read. Args: None: there is none."""
    key = GatewayKey(Path("/nonexistent"))
    key.current, key.previous = current, previous
    return key


def secret(**tenants):
    """Data of a Secret: tenant -> its key."""
    return {
        f"key-{tenant}": json.dumps({"tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest()}).encode()
        for tenant, key in tenants.items()
    }


def config(*tenants, keys="keys", limits=None):
    """The service `chat`. Args: tenants: TenantConfig of those that are named. limits: of the others."""
    return ServiceConfig(CHAT, "u-1", "m", api_keys_secret=keys, tenants=tenants, default_limits=limits or RateLimits())


def named(name, weight=1.0, **limits):
    return TenantConfig(name, weight, RateLimits(**limits))


def request(number=1, tenant="acme", **more):
    fields = {"prompt_tokens": 10, "max_tokens": 20} | more
    return RequestView(f"r-{number}", CHAT, 0.0, tenant=tenant, **fields)


def finished(number=1, status=200, endpoints=("10.0.0.1:8000",), **more):
    return Finished(f"r-{number}", CHAT, status, stream=False, endpoints=endpoints, **more)


def catalog_with(secrets):
    catalog = Catalog()
    catalog.update(secrets={ObjectKey(CHAT.namespace, name): data for name, data in secrets.items()})
    return catalog


def gate_of(secrets=None, **options):
    """A gate. Args: secrets: name of a Secret -> its data; or their catalog."""
    catalog = secrets if isinstance(secrets, Catalog) else catalog_with(secrets or {})
    return Gate(KeyTables(catalog), Estimates(), **options)


def gate_with(keys, **options):
    """A gate with one Secret. Args: keys: data of the Secret that `config` names."""
    return gate_of({"keys": keys}, **options)
