"""The version of a model: all pods of one rollout serve the same, or do not serve.

The operator writes down which version the first ready pod of a rollout has, and pods of that rollout find it in a file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import socket
from pathlib import Path

from inflight_contract.model_version import DIGESTS_FILE, rollout_of
from inflight_engine.models.checkpoints.source import ModelFiles, ModelSourceError

_COMMIT = "commit:"
_DIGEST = re.compile(r"(commit:[0-9a-f]{40}|sha256:[0-9a-f]{64})\Z")
_NEEDED = ("*.json", "*.jinja", "*.safetensors", "*.gguf")

log = logging.getLogger(__name__)


def digest_of(files: ModelFiles) -> str:
    """Return the version of a model's files: the commit of one from the hub, else a digest.

    It is that of names, sizes and etags in a store, of names, sizes and times of modification in a folder.
    """
    if files.remote is not None:
        from inflight_engine.models.remote.snapshot import digest  # has numpy, which takes long to import

        return digest(files.remote.files)
    if files.folder.parent.name == "snapshots" and _DIGEST.match(_COMMIT + files.folder.name):
        return _COMMIT + files.folder.name
    if files.gguf is not None:  # part of the image, whose layers may be made anew
        facts = [[files.gguf.name, files.gguf.stat().st_size]]
    else:
        paths = sorted(path for pattern in _NEEDED for path in files.folder.glob(pattern))
        stats = [path.stat() for path in paths]
        # Whole seconds: not all file systems keep more.
        facts = [[path.name, stat.st_size, int(stat.st_mtime)] for path, stat in zip(paths, stats, strict=True)]
    return f"sha256:{hashlib.sha256(json.dumps(facts).encode()).hexdigest()}"


class Rollout:
    """The rollout of this pod, as far as it is known.

    Args:
        limits_file: path of `--limits-file`; None: this is no pod, or nobody tells it.
    """

    def __init__(self, limits_file: Path | None) -> None:
        self._file = None if limits_file is None else limits_file.with_name(DIGESTS_FILE)
        self._name = rollout_of(socket.gethostname())

    @property
    def digest(self) -> str | None:
        """Returns the version that the first ready pod has; None: none has told one yet."""
        if self._file is None:
            return None
        try:
            found = json.loads(self._file.read_bytes()).get(self._name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError) as error:
            log.warning("%s cannot be read (%s): the version of the model is not compared", self._file, error)
            return None
        return found if isinstance(found, str) and _DIGEST.match(found) else None

    @property
    def commit(self) -> str | None:
        """Returns the commit to take from the hub; None: the one that a branch or tag names now."""
        found = self.digest or ""
        return found.removeprefix(_COMMIT) if found.startswith(_COMMIT) else None

    def agrees(self, source: str, found: str) -> bool:
        """Return whether the first pod has the same version; False: none has told one yet.

        Raises:
            ModelSourceError: it has another one.
        """
        first = self.digest
        if first is not None and first != found:
            raise ModelSourceError(
                f"model source {source} has changed: it is {found} now, and the first pod of this rollout has {first}; "
                "pods of one rollout serve one version: put the files back, or ask for a rollout "
                "(kubectl rollout restart of the Deployment), which takes the new version"
            )
        return first is not None
