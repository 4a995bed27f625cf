"""Counts of spans of requests, by outcome."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SpanCounts:
    """Each number is written by one thread only.

    Attributes:
        ended: sampled spans, including dropped ones.
        queue_full: dropped because the queue was full.
        exporting: taken from the queue to be sent.
        exported: accepted by the collector.
        refused: dropped because the collector was unreachable or rejected them.
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
