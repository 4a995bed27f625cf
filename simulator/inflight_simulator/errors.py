"""The error for wrong input."""

from __future__ import annotations


class InputError(ValueError):
    """A file or a flag that cannot be used; the message names it and says what is wrong."""
