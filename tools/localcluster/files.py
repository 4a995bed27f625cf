"""Small files written whole."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tools.localcluster.errors import ClusterError


def write_whole(path: Path, text: str, mode: int = 0o644) -> str:
    """Write `text` with the permissions `mode`, so that a reader never sees half of it; the text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=mode)
    partial.write_text(text)
    partial.rename(path)
    return text


def write_json(path: Path, value: Any, mode: int = 0o644) -> str:
    """Write `value` as JSON, which is also YAML; the text."""
    return write_whole(path, json.dumps(value, indent=2) + "\n", mode)


def remove_tree(folder: Path) -> None:
    """Delete `folder`, read-only module caches included."""
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise ClusterError(f"{folder} could not be deleted wholly; see what is left in it")
