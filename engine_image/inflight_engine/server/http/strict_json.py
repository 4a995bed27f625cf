"""Bodies are read as the gateway reads them.

The gateway counts what it reads of a body, so an engine must not accept one that the gateway cannot read: both use
msgspec, which takes JSON as RFC 8259 has it, in UTF-8 without a byte order mark. `json.loads` also takes UTF-16, NaN
and half of a surrogate pair. Of several fields of a name, both take the last one.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from inflight_engine.server.bodies.json_size import TooManyValuesError, check_size

LONG_BODY = 64 * 2**10
"""Bytes from which validation (0.1 ms for a KiB of short messages) would hold up the streams of others. A thread gives
way to them at every object of the body."""

LONG_STRETCH = 8 * 2**20
"""Bytes that are decoded in one stretch, in which no stream goes on: some 20 ms. Longer values are decoded part by
part."""
MAX_STRING = 16 * 2**20
"""Maximum length of a string, in bytes as it is written: no part of it is decoded alone."""

_SPACE = 64
"""Bytes of white space before a value at most."""

_LEVELS = 8
"""Levels of a body that may be decoded part by part: each looks through all of it."""

_T = TypeVar("_T")

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class StrictJsonRoute(APIRoute):
    """A route whose body is strict JSON: for `APIRouter(route_class=...)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        model: Any = None if self.body_field is None else self.body_field.field_info.annotation

        async def handle(request: Request) -> Response:
            strict = _Request(request, model)
            try:
                return await handler(strict)
            except RequestValidationError as error:
                raise strict.invalid or error from None

        return handle


class _Request(Request):
    """A request whose body, where it is long, is validated in a thread.

    Attributes:
        invalid: what is wrong with such a body. FastAPI gets none then, and would pass no other error on.
    """

    def __init__(self, request: Request, model: type[BaseModel] | None) -> None:
        super().__init__(request.scope, request.receive)
        self.invalid: RequestValidationError | None = None
        self._model = model

    async def json(self) -> Any:
        body = await self.body()
        if self._model is None or len(body) < LONG_BODY:
            return decoded(body)
        try:
            return await asyncio.to_thread(_validated, body, self._model)
        except RequestValidationError as error:
            self.invalid = error
            return None


async def converted(http: Request, convert: Callable[[], _T]) -> _T:
    """Convert what was read of a request's body, in a thread where the body is long."""
    return convert() if len(await http.body()) < LONG_BODY else await asyncio.to_thread(convert)


def _validated(body: bytes, model: type[BaseModel]) -> BaseModel:
    """Raises: RequestValidationError: it has too many values, or does not fit the model; json.JSONDecodeError: as
    `decoded`."""
    try:
        check_size(body)
        value = decoded(body)
    except TooManyValuesError as error:
        raise RequestValidationError([{"type": "too_many_values", "loc": ("body",), "msg": str(error)}]) from None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        findings = [
            {**finding, "loc": ("body", *finding["loc"])}
            for finding in error.errors(include_url=False, include_input=False)
        ]
        raise RequestValidationError(findings, body=value) from None


def decoded(body: bytes) -> Any:
    """The value of a body.

    Raises:
        json.JSONDecodeError: it is no JSON; what FastAPI expects.
        TooManyValuesError: it has a string that is too long.
    """
    try:
        return _value(body, _LEVELS)
    except TooManyValuesError:
        raise
    except RecursionError:
        why = "it is nested too deeply"
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    except ValueError as error:
        why = str(error).removeprefix("JSON is malformed: ")
        if len(body) <= LONG_STRETCH and _SURROGATE.search(body):
            why += ", or a string holds half of a surrogate pair"
    raise json.JSONDecodeError(why, "", 0)


def _value(text: bytes | msgspec.Raw, levels: int) -> Any:
    if len(text) <= LONG_STRETCH or levels == 0:
        return msgspec.json.decode(text)
    match bytes(memoryview(text)[:_SPACE]).lstrip()[:1]:
        case b"{":
            parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            return {name: _value(part, levels - 1) for name, part in parts.items()}
        case b"[":
            return [_value(part, levels - 1) for part in msgspec.json.decode(text, type=list[msgspec.Raw])]
        case b'"' if len(text) > MAX_STRING:
            raise TooManyValuesError(f"has a string of more than {MAX_STRING} bytes")
    return msgspec.json.decode(text)
