"""Reports of requests that have ended, on their way to the pickers."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from inflight_gateway.link.wire import Ended
from inflight_gateway.relay.pickers.picker_link import PickerLink
from inflight_gateway.relay.pickers.view import View
from inflight_gateway.types import Finished

_log = logging.getLogger(__name__)

MAX_REPORTS = 10_000
"""Most reports that wait for a picker: those of about 5 s at the highest rate that one process can serve."""

MAX_REFUSED_PER_S = 100
"""Most reports per second on requests that were refused by their heads: their number depends on clients alone."""


class Reports:
    """Sends reports, and keeps them while no picker can be reached. Args: own: the picker of this pod.

    Attributes:
        dropped: reports that no picker got.
    """

    def __init__(self, view: View[PickerLink], own: PickerLink) -> None:
        self.dropped = 0
        self._view = view
        self._own = own
        self._kept: deque[Finished] = deque()
        """The oldest one first."""
        self._refused_left = MAX_REFUSED_PER_S
        self._logged = 0

    def send(self, report: Finished, link: PickerLink | None) -> None:
        """Sends a report to a picker, or to the owner of its service where that one is not asked."""
        if link is None or not self._view.has(link):
            link = self._view.owner(report.service)
        if link is not None:
            link.send(Ended(report))
            return
        self._kept.append(report)
        if len(self._kept) > MAX_REPORTS:
            self._kept.popleft()
            self.dropped += 1

    def send_own(self, report: Finished) -> None:
        """Sends a report on a request that no picker has."""
        self.send(report, self._own)

    def refused(self, report: Finished) -> None:
        """Sends a report on a request that was refused by its head, unless there are too many of them."""
        if self._refused_left:
            self._refused_left -= 1
            self.send_own(report)
        else:
            self.dropped += 1

    def send_again(self, unsent: Iterable[Finished] = ()) -> None:
        """Sends what was kept. Args: unsent: reports of a stream that has ended."""
        reports, self._kept = self._kept, deque()
        for report in (*reports, *unsent):
            self.send(report, None)

    def every_second(self) -> None:
        self._refused_left = MAX_REFUSED_PER_S
        if self.dropped > self._logged:
            _log.warning("%d reports of requests were not sent so far", self.dropped)
            self._logged = max(self.dropped, 2 * self._logged)
