"""Small files written whole."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from e2e.cluster.errors import ClusterError


def write_if_changed(path: Path, text: str) -> bool:
    """Write `text` unless the file already holds it; True when written. A reader never sees half of it."""
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.rename(path)
    return True


def write_json(path: Path, value: Any) -> bool:
    """Write `value` as JSON, which is also YAML, unless the file already holds it."""
    return write_if_changed(path, json.dumps(value, indent=2) + "\n")


def remove_tree(folder: Path) -> None:
    """Delete `folder`, read-only module caches included."""
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise ClusterError(f"{folder} could not be deleted wholly; see what is left in it")
