"""What all API types share: camelCase names, strict keys, and where their CEL rules are kept."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class SpecModel(BaseModel):
    """A part of the spec. Unknown fields are an error; objects do not change after they are made."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class StatusModel(BaseModel):
    """A part of the status. Unknown fields are dropped: a newer operator may have written them."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    def to_dict(self) -> dict[str, Any]:
        """As the API server stores it; fields that are None are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def rule(expression: str, message: str, **more: Any) -> dict[str, Any]:
    """One entry of `x-kubernetes-validations`: a CEL expression that must hold, and the sentence said when not."""
    return {"rule": expression, "message": message, **more}


def validations(*rules: dict[str, Any]) -> dict[str, Any]:
    """JSON schema keys that attach CEL rules to a field or an object."""
    return {"x-kubernetes-validations": list(rules)}
