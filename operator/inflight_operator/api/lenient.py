"""Lenient parsing of objects written for another version of the operator's types.

The API server validates against the CRD that is installed, which may be newer or older than this operator. A field that
this operator does not know, or a value that it cannot read, must not stop it from scaling the service.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)
Path = tuple[str | int, ...]


def read_leniently(model: type[Model], body: dict[str, Any]) -> tuple[Model, tuple[str, ...]]:
    """Returns the object in `body` without the parts that `model` cannot read, and a sentence for each part left out.

    Defaults replace fields that are left out; in a list, the item is left out. `body` itself is not changed.

    Raises:
        pydantic.ValidationError: a required field of the object, or of one of its top-level parts, is missing or
            cannot be read.
    """
    rest, notes = body, list[str]()
    while True:
        try:
            return model.model_validate(rest), tuple(notes)
        except ValidationError as error:
            # One pass may find a path several times: a union has one error for each of its types.
            left_out = {_existing(rest, found["loc"]): found for found in reversed(error.errors(include_url=False))}
            # A top-level part holds required fields: only parts inside it can be left out.
            left_out = {path: found for path, found in left_out.items() if len(path) > 1}
            if not left_out:
                raise
            if not notes:
                rest = deepcopy(body)
            # From the end of lists, so that positions stay valid; `_remove` skips items that were removed with their
            # parent.
            for path in sorted(left_out, key=_order, reverse=True):
                _remove(rest, path)
            notes += [_sentence(path, left_out[path]) for path in sorted(left_out, key=_order)]


def _existing(body: Any, location: Path) -> Path:
    """Returns the part of `location` that exists in `body`: a missing field counts as an error of its parent."""
    path: Path = ()
    for key in location:
        in_mapping = isinstance(body, dict) and key in body
        in_list = isinstance(body, list) and isinstance(key, int) and key < len(body)
        if not (in_mapping or in_list):
            break
        body, path = body[key], (*path, key)
    return path


def _order(path: Path) -> tuple[tuple[bool, str, int], ...]:
    """Returns a sort key for names and list positions side by side."""
    return tuple((True, "", key) if isinstance(key, int) else (False, key, 0) for key in path)


def _remove(body: Any, path: Path) -> None:
    *parents, last = path
    for key in parents:
        body = body[key]
    del body[last]


def _sentence(path: Path, found: ErrorDetails) -> str:
    first, *others = path
    name = str(first) + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in others)
    if found["type"] == "extra_forbidden":
        return f"{name} is unknown to this version of the operator and is ignored"
    missing = ".".join(map(str, found["loc"][len(path) :])) if found["type"] == "missing" else ""
    why = f"{missing} is missing" if missing else found["msg"].removeprefix("Value error, ")
    return f"{name} cannot be read by this version of the operator and is ignored: {why}"
