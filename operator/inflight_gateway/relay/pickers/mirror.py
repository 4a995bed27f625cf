"""The relay's catalog, filled by the picker's `Known` messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.link.wire import Known


@dataclass(slots=True)
class _Stale:
    """Objects of the catalog that a new stream has not named yet."""

    services: set[ServiceKey] = field(default_factory=set)
    endpoints: set[ServiceKey] = field(default_factory=set)
    secrets: set[ObjectKey] = field(default_factory=set)
    outside: set[ServiceKey] = field(default_factory=set)
    models: set[str] = field(default_factory=set)


class Mirror:
    """Keeps a catalog like that of the picker. The first messages of a new stream bring all that the picker knows; what
    they lack was removed while there was no stream, and goes when they are complete."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._stale = _Stale()

    def begin(self) -> None:
        """Begins a new stream."""
        catalog = self._catalog
        self._stale = _Stale(
            set(catalog.services),
            set(catalog.endpoints),
            set(catalog.secret_refs()),
            set(catalog.outside),
            set(catalog.models),
        )

    def take(self, known: Known) -> None:
        """Applies a message."""
        services, endpoints, secrets = dict(known.services), dict(known.endpoints), dict(known.secrets)
        outside, models = dict(known.outside), dict(known.models)
        stale = self._stale
        stale.services -= services.keys()
        stale.endpoints -= endpoints.keys()
        stale.secrets -= secrets.keys()
        stale.outside -= outside.keys()
        stale.models -= models.keys()
        if known.complete:
            services |= dict.fromkeys(stale.services)
            endpoints |= dict.fromkeys(stale.endpoints, ())
            secrets |= dict.fromkeys(stale.secrets)
            outside |= dict.fromkeys(stale.outside, False)
            models |= dict.fromkeys(stale.models, ())
            self._stale = _Stale()
        self._catalog.update(
            services=services,
            endpoints=endpoints,
            secrets=secrets,
            outside=outside,
            models=models,
            hosts=known.hosts,
            complete=known.complete,
        )
