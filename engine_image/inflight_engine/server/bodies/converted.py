"""Bodies of other APIs as chat requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from inflight_contract.errors import ApiError
from inflight_engine.server.bodies.chat_schema import ChatCompletionRequest
from inflight_engine.server.bodies.fields import Body, SchedulingFields
from inflight_engine.server.errors import describe_invalid

_Body = TypeVar("_Body", bound=Body)


class ConvertedChat(ChatCompletionRequest):
    """A chat request made of another API's body."""

    cuts_max_tokens: ClassVar[bool] = True


def shared_fields(body: SchedulingFields) -> dict[str, Any]:
    """Fields that a body shares with chat requests, by their names in JSON."""
    fields = SchedulingFields.model_fields.items()
    return {field.alias or name: getattr(body, name) for name, field in fields}


def as_chat(values: Mapping[str, Any]) -> ConvertedChat:
    """The chat request with these fields; null ones are left out.

    Raises:
        ApiError: 400, a value is not permitted.
    """
    chat = validated(ConvertedChat, {name: value for name, value in values.items() if value is not None})
    chat.check()
    return chat


def validated(model: type[_Body], values: Mapping[str, Any]) -> _Body:
    """The body with these fields.

    Raises:
        ApiError: 400, a value is not permitted.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        findings = [{**finding, "loc": ("body", *finding["loc"])} for finding in error.errors(include_url=False)]
        raise describe_invalid(RequestValidationError(findings, body=values)) from None


def in_words_of(names: Mapping[str, str], error: ApiError) -> ApiError:
    """An error whose fields have the names of the client's API.

    Args:
        names: of fields of a chat request in that API. Where they have another name, the first part counts.
    """
    first, _, rest = (error.param or "").partition(".")
    if first not in names:
        return error
    place, _, said = error.message.partition(": ")
    message = said if place.partition(".")[0] == first else error.message
    named = names[first]
    param = f"{named}.{rest}".replace(".function.", ".") if rest and named == first else named
    return ApiError(error.status, f"{param}: {message}", param, error.code, error.retry_after, error.headers)
