"""A field that holds a duration."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from inflight_base.manifest.units import parse_duration
from inflight_operator.api.base import rule, validations

DURATION_PATTERN = "^([0-9]+(\\\\.[0-9]+)?(ms|s|m|h))+$"
"""Durations, as CEL has them: in its string literals."""


def _readable(text: str) -> str:
    parse_duration(text)
    return text


Duration = Annotated[str, AfterValidator(_readable)]
"""A duration as text, such as `1m30s`."""


def duration_field(field: str, description: str, default: Any, bounds: tuple[str, str] | None = None) -> Any:
    """Declares a field that holds a duration: a positive one, unless the minimum is `0s`.

    Args:
        field: name of the field in the error message.
        default: text, None, or `...` for a field that must be given.
        bounds: minimum and maximum, if the consumer has such bounds.
    """
    is_duration = f"self.matches('{DURATION_PATTERN}')"
    may_be_zero = bounds is not None and bounds[0] == "0s"
    rules = [
        rule(is_duration, f"{field} must be a duration, such as 0ms, 500ms or 2s")
        if may_be_zero
        else rule(
            f"{is_duration} && duration(self) > duration('0s')",
            f"{field} must be a duration above zero, such as 500ms, 2s or 1m30s",
        )
    ]
    if bounds is not None:
        least, most = bounds
        rules.append(
            rule(
                f"!{is_duration} || (duration(self) >= duration('{least}') && duration(self) <= duration('{most}'))",
                f"{field} must be between {least} and {most}",
            )
        )
    return Field(default=default, max_length=16, description=description, json_schema_extra=validations(*rules))
