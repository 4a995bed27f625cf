"""The format of a recording: JSON lines, compressed with gzip.

The first line is the header: `{"recording": "inflight-operator decisions", "version": ..., "started": ..., "types":
...}`. `version` is the operator's; `types` has the names of the fields of each dataclass and named tuple in the file.

Each other line is a round of a service: `{"service": "NAMESPACE/NAME", "whole": true, "snapshot": ..., "memory": ...,
"plan": ...}` as `codec` writes them. A line refers to values in earlier lines of the same service, back to its last
line with `whole`, which has no references before it. Each file begins with such a line for each of its services.
"""

from __future__ import annotations

from importlib.metadata import version

from inflight_operator.reconcile.memory import Memory
from inflight_operator.reconcile.plan import Plan
from inflight_operator.reconcile.snapshot import Snapshot
from inflight_operator.recording.codec import Codec, Read, Written

KIND = "inflight-operator decisions"
VERSION = version("inflight")

PLACEHOLDER = "token-not-recorded"
"""In the place of a service's admin token and tenant key, also where it is replayed."""


class RoundCodec:
    """Inputs and output of `decide`.

    Attributes:
        types: fields of all dataclasses in it, by full name.
    """

    def __init__(self) -> None:
        self._snapshot, self._memory, self._plan = Codec(Snapshot), Codec(Memory), Codec(Plan)
        self.types = {**self._snapshot.fields, **self._memory.fields, **self._plan.fields}

    def write(self, snapshot: Snapshot, memory: Memory, plan: Plan, known: Written) -> dict[str, object]:
        return {
            "snapshot": self._snapshot.write(snapshot, known),
            "memory": self._memory.write(memory, known),
            "plan": self._plan.write(plan, known),
        }

    def read(self, line: dict[str, object], known: Read) -> tuple[Snapshot, Memory, Plan]:
        """
        Raises:
            CodecError: it is no round, or one of other types.
            KeyError: a part of it is missing.
        """
        return (
            self._snapshot.read(line["snapshot"], known),
            self._memory.read(line["memory"], known),
            self._plan.read(line["plan"], known),
        )
