"""What became of the spans of requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SpanCounts:
    """Each number is written by one thread only.

    Attributes:
        ended: sampled spans, those of them that were dropped included.
        queue_full: dropped, as too many wait for the collector.
        exporting: taken from the queue to be sent.
        exported: the collector took them.
        refused: dropped, as the collector cannot be reached or did not take them.
    """

    ended: int = 0
    queue_full: int = 0
    exporting: int = 0
    exported: int = 0
    refused: int = 0

    @property
    def waiting(self) -> int:
        """In the queue, at most."""
        return self.ended - self.queue_full - self.exporting
