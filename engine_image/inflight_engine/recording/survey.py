"""First pass over a recording, which collects the parameters of the replay."""

from __future__ import annotations

from collections.abc import Iterable

from inflight_engine.recording.lines import Added, BlockRuns, BlocksFilled, Event, Repeated, Step


class Survey:
    """
    Attributes:
        num_events, num_requests, num_steps: in the recording.
        blocks: for each `Added` in order, the content of all blocks its request came to fill. A replay needs it before
            they are filled; in the recording it stands after.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.num_events = self.num_steps = 0
        self.blocks: list[BlockRuns] = []
        of_request: dict[int, BlockRuns] = {}
        for event in events:
            self.num_events += 1
            match event:
                case Added():
                    of_request[event.request_id] = list(event.prompt_blocks)
                    self.blocks.append(of_request[event.request_id])
                case BlocksFilled():
                    of_request.setdefault(event.request_id, []).extend(event.blocks)
                case Step():
                    self.num_steps += 1
                case Repeated():
                    self.num_steps += len(event.micros)

    @property
    def num_requests(self) -> int:
        return len(self.blocks)
