"""Claims of services to names of models, for requests whose Host names no service."""

from __future__ import annotations

from collections.abc import Collection

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.discovery.catalog import Catalog, Change

MAX_REMEMBERED = 10_000
"""Most names that stay claimed by a service that is gone; the oldest is forgotten first."""


class ModelClaims:
    """Keeps `catalog.models`.

    A service claims the model that it serves, if its namespace is one of those that the installer names. A name chooses
    a service only while no other claims it. The service that a name chose keeps its claim when it is deleted or serves
    another model: its clients' prompts must not go to whoever takes the name next. A gateway that starts knows only the
    services that exist.

    Args:
        namespaces: whose services may be chosen by a model.
    """

    def __init__(self, catalog: Catalog, namespaces: Collection[str]) -> None:
        self._catalog = catalog
        self._namespaces = frozenset(namespaces)
        self._model_of: dict[ServiceKey, str] = {}
        self._claims: dict[str, set[ServiceKey]] = {}
        self._chosen: dict[str, ServiceKey] = {}
        catalog.subscribe(self._changed)

    def _changed(self, change: Change) -> None:
        touched = set(self._claims) if change.complete else set[str]()
        for key in change.services:
            if key.namespace not in self._namespaces:
                continue
            before, config = self._model_of.pop(key, None), self._catalog.services.get(key)
            if before is not None:
                self._claims[before].discard(key)
                touched.add(before)
            if config is not None:
                self._model_of[key] = config.model
                self._claims.setdefault(config.model, set()).add(key)
                touched.add(config.model)
        if touched:
            self._catalog.update(models={model: self._all(model) for model in touched} | self._forget())

    def _all(self, model: str) -> tuple[ServiceKey, ...]:
        """Returns the services that claim the model, and the one that it chose."""
        claims = self._claims.get(model, set())
        if not claims:
            self._claims.pop(model, None)
        if len(claims) == 1 and model not in self._chosen and self._catalog.complete:
            # Before that, another one may claim it which has not been listed yet.
            self._chosen[model] = next(iter(claims))
        chosen = self._chosen.get(model)
        return tuple(sorted(claims if chosen is None else claims | {chosen}))

    def _forget(self) -> dict[str, tuple[ServiceKey, ...]]:
        """Forgets names that no service claims any more, beyond the bound."""
        excess = len(self._chosen) - len(self._claims) - MAX_REMEMBERED
        oldest = [model for model in self._chosen if model not in self._claims][: max(0, excess)]
        for model in oldest:
            del self._chosen[model]
        return dict.fromkeys(oldest, ())
