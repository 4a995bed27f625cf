"""The pickers that a relay asks, and which one of them owns a service."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from inflight_base.manifest.keys import ServiceKey
from inflight_gateway.link.ownership import Owners
from inflight_gateway.relay.pickers.health import Trust

_log = logging.getLogger(__name__)


class Trusted(Protocol):
    """A picker."""

    @property
    def trust(self) -> Trust: ...


_Link = TypeVar("_Link", bound=Trusted)


class View(Generic[_Link]):
    """The ready gateway pods, without those that this relay cannot count on: trusted ones only, or where none is
    trusted all that are not gone; else the picker of this pod, which may start or drain.

    Args:
        own: the picker of this pod.

    Attributes:
        pods: pickers of the ready pods, by name.
        without: pods that this relay does not ask, by name.
    """

    def __init__(self, own: _Link) -> None:
        self.pods: Mapping[str, _Link] = {}
        self.without: tuple[str, ...] = ()
        self._own = own
        self._owners = Owners({}, ())
        self._asked: dict[str, _Link] = {}
        self._last: _Link | None = None

    def share_out(self, engines: Mapping[ServiceKey, int]) -> bool:
        """Computes the owners again, for `pods` and these numbers of engines; returns whether any may have changed."""
        owners = Owners(engines, self.pods)
        changed = owners != self._owners
        self._owners = owners
        return self.refresh() or changed

    def refresh(self) -> bool:
        """Looks at the trust in all pickers; returns whether owners may have changed."""
        trusted = {name: link for name, link in self.pods.items() if link.trust is Trust.TRUSTED}
        asked = trusted or {name: link for name, link in self.pods.items() if link.trust is not Trust.GONE}
        last = self._own if not asked and self._own.trust is not Trust.GONE else None
        # A new pod is not reached yet.
        self.without = tuple(sorted(self.pods.keys() - asked.keys()))
        if asked == self._asked and last is self._last:
            return False
        if asked.keys() != self._asked.keys():
            _log.info("gateway pods that are asked: %s", ", ".join(sorted(asked)) or "none")
        self._asked, self._last = asked, last
        return True

    def owner(self, service: ServiceKey) -> _Link | None:
        """Returns the picker that owns a service; None: no picker can be reached."""
        pod = self._owners.owner(service, self.without)
        return self._last if pod is None else self._asked.get(pod, self._last)

    def pod(self, name: str) -> _Link | None:
        """Returns the picker of a pod that is asked; None: it is not."""
        return self._asked.get(name)

    def has(self, link: _Link | None) -> bool:
        """Returns whether this picker is asked."""
        return link is not None and (link is self._last or link in self._asked.values())

    @property
    def empty(self) -> bool:
        """True if no picker can be reached."""
        return not self._asked and self._last is None
