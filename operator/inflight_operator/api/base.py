"""Base classes of the API types: camelCase names, strict keys, and CEL rules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, PlainSerializer
from pydantic.alias_generators import to_camel


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


Timestamp = Annotated[AwareDatetime, PlainSerializer(_rfc3339, return_type=str, when_used="json")]
"""A time with its zone, written to the second in RFC 3339 as the Kubernetes API does."""


class SpecModel(BaseModel):
    """A part of the spec. Unknown fields are an error; objects do not change after they are made."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class StatusModel(BaseModel):
    """A part of the status. Unknown fields are dropped: a newer operator may have written them."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    def to_dict(self) -> dict[str, Any]:
        """Returns the form that the API server stores, without fields that are None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def rule(expression: str, message: str, **more: Any) -> dict[str, Any]:
    """Returns an entry of `x-kubernetes-validations`: a CEL expression that must hold, and the message if it does
    not."""
    return {"rule": expression, "message": message, **more}


def validation(expression: str, message: str) -> dict[str, Any]:
    """Returns the JSON schema keys that attach one CEL rule to a field or an object."""
    return validations(rule(expression, message))


def validations(*rules: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON schema keys that attach CEL rules to a field or an object."""
    return {"x-kubernetes-validations": list(rules)}
