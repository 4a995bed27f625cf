"""Report of a pod that fetches a model to the operator: the text of its termination message."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

REPORT_FILE = "/dev/termination-log"
"""File whose content Kubernetes keeps as the termination message of a container."""

_DIGEST = re.compile(r"[a-z0-9]{1,16}:[0-9a-f]{1,64}\Z")
_MOST_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class PrefetchReport:
    """Attributes:
    num_bytes: bytes of the weights.
    digest: version of the model, as of `inflight_model_info`.
    """

    num_bytes: int
    digest: str

    @property
    def text(self) -> str:
        """Returns the report as a JSON object."""
        return json.dumps(asdict(self))


def read_report(text: str) -> PrefetchReport | None:
    """Returns the report; None: the text is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    num_bytes, digest = found.get("num_bytes"), found.get("digest")
    if type(num_bytes) is not int or not 0 <= num_bytes <= _MOST_BYTES:
        return None
    return PrefetchReport(num_bytes, digest) if isinstance(digest, str) and _DIGEST.match(digest) else None
