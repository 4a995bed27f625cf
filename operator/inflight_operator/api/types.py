"""The InferenceService itself."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, ValidatorFunctionWrapHandler, field_validator

from inflight_base.manifest.names import API_VERSION, KIND
from inflight_operator.api.base import SpecModel, StatusModel
from inflight_operator.api.lenient import read_leniently
from inflight_operator.api.spec import InferenceServiceSpec
from inflight_operator.api.status import InferenceServiceStatus

SHORT_NAME = "ifsvc"
CATEGORY = "inflight"


class ObjectMeta(StatusModel):
    """The parts of `meta/v1` ObjectMeta that the operator reads."""

    name: str
    namespace: str
    uid: str
    generation: int = 1


class ServiceRecord(SpecModel):
    """An InferenceService without its spec: the object of status writes and events, also if the spec cannot be read."""

    api_version: Literal["inflight.dev/v1alpha1"] = API_VERSION
    kind: Literal["InferenceService"] = KIND
    metadata: ObjectMeta
    status: InferenceServiceStatus = Field(default_factory=InferenceServiceStatus)

    @field_validator("status", mode="wrap")
    @classmethod
    def _read_status(cls, value: Any, read: ValidatorFunctionWrapHandler) -> InferenceServiceStatus:
        """The parts of a status that this version cannot read are ignored and written anew: a newer operator may have
        written them."""
        try:
            status: InferenceServiceStatus = read(value)
        except ValidationError as error:
            if not isinstance(value, dict):
                return InferenceServiceStatus()
            unread = {one["loc"][0] for one in error.errors(include_url=False)}
            status = read({name: part for name, part in value.items() if name not in unread})
        _share_names(status)
        return status

    @classmethod
    def from_dict(cls, body: dict[str, Any]) -> Self:
        """Reads the object that the API server returns.

        Raises:
            pydantic.ValidationError: a field is missing, unknown or of the wrong type; the message names it.
        """
        return cls.model_validate(cls._known_parts(body))

    @classmethod
    def _known_parts(cls, body: dict[str, Any]) -> dict[str, Any]:
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in body.items() if key in known}


class InferenceService(ServiceRecord):
    """A large language model, served by a fleet of engines whose number and limits the operator adjusts."""

    spec: InferenceServiceSpec

    @classmethod
    def read(cls, body: dict[str, Any]) -> tuple[Self, tuple[str, ...]]:
        """Reads the object that the API server returns, written for this version of the types or for another one.

        Returns:
            The service, and a sentence for each part that this version cannot read: unknown fields, and known fields
            with a value that is not valid (any more). These parts are left out; defaults apply instead.

        Raises:
            pydantic.ValidationError: there is no model, or the metadata are incomplete.
        """
        service, unread = read_leniently(cls, cls._known_parts(body))
        parts = {name: _shared(part) for name, part in service.spec if isinstance(part, SpecModel)}
        return service.model_copy(update={"spec": service.spec.model_copy(update=parts)}), unread


_names: dict[frozenset[str], set[str]] = {}


def _share_names(model: BaseModel) -> None:
    """Gives the models of a status that have the same fields one set of their names: a set takes more memory than the
    values."""
    names = model.model_fields_set
    object.__setattr__(model, "__pydantic_fields_set__", _names.setdefault(frozenset(names), names))
    for value in model.__dict__.values():
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, BaseModel):
                _share_names(part)


_parts: dict[tuple[type[SpecModel], str], SpecModel] = {}

_MOST_PARTS = 4096


def _shared(part: SpecModel) -> SpecModel:
    """Returns one object for equal parts of specs: most parts of most services are the defaults."""
    if len(_parts) >= _MOST_PARTS:
        _parts.clear()
    return _parts.setdefault((type(part), part.model_dump_json(exclude_unset=True)), part)
