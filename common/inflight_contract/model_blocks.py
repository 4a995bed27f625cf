"""Blocks of weights that the engines of a service read from each other, through signed calls to their admin ports.

- `GET PATH` is answered by 200 with the block's bytes, and the checksums of its pages in `CHECKSUMS_HEADER`;
  404: this engine does not have the block, and will not; 425: not yet, as it loads the model; 503 with Retry-After: too
  many read now, or its own requests are slow. `HEAD PATH` has the same statuses but 503, and no body; for 425 it first
  waits a second.
- The checksums are signed, as the answer may come from anywhere: `SIGNATURE_HEADER` has `content_proof` of them.
"""

from __future__ import annotations

PEERS_FILE = "peers.json"
"""File beside that of `--limits-file`: a JSON object of addresses (`IP:PORT` of the admin port) by the pod's uid."""

PATH = "/admin/model-blocks/{entry}/{number}"
"""`entry`: name of the file in one version, as model caches name it. `number`: of the block, from 0."""

CHECKSUMS_HEADER = "Inflight-Checksums"
SIGNATURE_HEADER = "Inflight-Checksums-Proof"
