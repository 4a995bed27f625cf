"""Trust of a relay in a picker. Pure: time is counted in ticks of the relay, so that a relay that was stopped does not
take what it has not read yet for silence."""

from __future__ import annotations

from enum import IntEnum

from inflight_gateway.link.wire import ACKNOWLEDGED_S, BEAT_S, SILENT_S

TICK_S = 0.1

FIRST_TRIAL_S, LONGEST_TRIAL_S = 1.0, 30.0
"""Bounds of the time in which a picker that failed has to be heard without a break before it is trusted again: each
failure soon after a trial doubles it, because each move of services costs their prefixes and limits."""

PROVEN_S = 60.0
"""Seconds of trust after which a failure counts as the first one."""

LATE_S = 2 * BEAT_S
"""Most seconds between two beats in a trial."""

BUSY_S = 2.0
"""Most seconds for which a picker that answers others is waited for: in a burst it is busy, and not gone."""


def ticks(seconds: float) -> int:
    """Returns the number of ticks in a time."""
    return round(seconds / TICK_S)


class Trust(IntEnum):
    """Trust in a picker."""

    GONE = 0
    """Not connected, or silent for `SILENT_S`."""
    DOUBTED = 1
    """Failed not long ago: asked where no other one is trusted."""
    TRUSTED = 2


class Health:
    """Trust in one picker. Silence is counted from its beats, which all relays get at the same time: they agree on when
    it hung, and on when it is back, whatever else it told each of them.

    Attributes:
        quiet: ticks since a frame of it.
    """

    def __init__(self) -> None:
        self.quiet = self._silent = 0
        self._open = False
        self._trial = self._length = 0
        """Ticks that are left of the trial, and those of a whole one."""
        self._trusted = ticks(PROVEN_S)
        """Ticks since the last trial."""

    @property
    def trust(self) -> Trust:
        if not self._open or self._silent >= ticks(SILENT_S):
            return Trust.GONE
        return Trust.DOUBTED if self._trial else Trust.TRUSTED

    def heard(self, *, beat: bool) -> None:
        """Notes a frame. Args: beat: it is a beat."""
        self.quiet = 0
        if beat or not self._open:
            if self._trial and self._open:
                late = self._silent > ticks(LATE_S)
                self._trial = self._length if late else max(0, self._trial - self._silent)
            self._open, self._silent = True, 0

    def lost(self) -> None:
        """Notes the end of the stream."""
        self._open = False
        self.failed()

    def failed(self) -> None:
        """Notes a failure: the trial begins, or begins anew."""
        if not self._trial:
            again = self._trusted < ticks(PROVEN_S)
            self._length = min(ticks(LONGEST_TRIAL_S), 2 * self._length) if again else ticks(FIRST_TRIAL_S)
            self._trusted = 0
        self._trial = self._length

    def tick(self) -> None:
        """Notes that `TICK_S` passed."""
        self.quiet += 1
        self._silent += 1
        if self._open and self._silent == ticks(SILENT_S):
            self.failed()
        elif not self._trial:
            self._trusted += 1

    def overdue(self, waited: int, *, only: bool) -> bool:
        """Returns whether the picker fails to acknowledge a question. Args: waited: ticks since it was asked. only: no
        other picker can be asked, so that the relay then picks alone, at once."""
        most = BUSY_S if self.quiet <= ticks(ACKNOWLEDGED_S) or not only else ACKNOWLEDGED_S
        return waited > ticks(most)
