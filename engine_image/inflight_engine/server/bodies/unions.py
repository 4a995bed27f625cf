"""Values of several forms, told apart before they are validated: errors are those of the form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError


def kinds(what: str, *types: str, default: str | None = None) -> BeforeValidator:
    """Objects of some types; others are refused by their names.

    Args:
        what: it is.
        default: the type of an object that names none.
    """

    def check(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        kind = value.get("type") or default
        if not isinstance(kind, str) or kind not in types:
            known = ", ".join(types)
            message = "{what} of type {kind} are not supported by this server, only: {known}"
            raise PydanticCustomError(
                "unsupported_parameter", message, {"what": what, "kind": str(kind)[:64], "known": known}
            )
        return {**value, "type": kind}

    return BeforeValidator(check)


def shape(value: Any) -> str:
    """Tells text from a list, for unions of both."""
    return "list" if isinstance(value, list) else "text"


def prompt_form(value: object) -> str:
    """Tells a text, token ids, and lists of either apart, for unions of these."""
    if not isinstance(value, list):
        return "text"
    if value and isinstance(value[0], str):
        return "texts"
    return "lists" if value and isinstance(value[0], list) else "token_ids"
