"""Fields that bind an answer to a grammar: OpenAI's `response_format` and vLLM's `structured_outputs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
from pydantic import Field

from inflight_contract.errors import bad_request
from inflight_engine.formats.schemas import MAX_BYTES
from inflight_engine.grammars import sources
from inflight_engine.grammars.compiled import GrammarError
from inflight_engine.grammars.sources import Source, Tag
from inflight_engine.server.bodies.fields import Body

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # a type of the stubs alone

INVALID = "invalid_grammar"

MAX_TRIGGERS = 1024
"""Each structure is compared with each of them."""

_MAX_WRITTEN = 4 * MAX_BYTES
"""Maximum length of an object that is written as a string, in characters: white space does not count in a grammar."""

Schema: TypeAlias = dict[str, Any]
IsSpecial: TypeAlias = Callable[[str], bool]
"""Tells whether a text is the name of a special token of the model."""

_ANY_OBJECT = {"type": "object"}


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class JsonSchema(Body):
    """`strict`: a schema with keywords that cannot be enforced is refused; otherwise these keywords are left out."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: Annotated[Schema, Field(alias="schema")] = _ANY_OBJECT
    strict: bool | None = None


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class Structure(Body):
    """Text from `begin` to `end` with JSON of a schema between them."""

    begin: Annotated[str, Field(min_length=1)]
    schema_: Annotated[Schema, Field(alias="schema")] = _ANY_OBJECT
    end: str


class StructuralTagFormat(Body):
    """vLLM's: free text, in which each of `triggers` begins one of `structures`."""

    type: Literal["structural_tag"]
    structures: Annotated[list[Structure], Field(min_length=1, fail_fast=True)]
    triggers: Annotated[
        list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_TRIGGERS, fail_fast=True)
    ]

    def source(self, field: str, is_special: IsSpecial) -> Source:
        tags = [Tag(each.begin, each.schema_, each.end) for each in self.structures]
        return sources.of_tags(field, tags, self.triggers, is_special)


ResponseFormat: TypeAlias = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat, Field(discriminator="type")
]


class StructuredOutputs(Body):
    """vLLM's: one of `json`, `json_object`, `regex`, `choice`, `grammar` and `structural_tag`. `json` and
    `structural_tag` may be objects written as strings. `disable_additional_properties` has no effect, as with vLLM's
    default backend: false is its default there, which clients write out, and objects have none either way."""

    json_: Annotated[Schema | str | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, fail_fast=True)] | None = None
    grammar: str | None = None
    structural_tag: StructuralTagFormat | str | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None
    disable_additional_properties: bool | None = None

    def source(self, field: str, is_special: IsSpecial) -> Source:
        """Raises ApiError: 400, not one grammar."""
        given = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            kinds = ", ".join(name.rstrip("_") for name in _KINDS)
            raise bad_request(f"{field}: needs exactly one of {kinds}, and has {len(given)}", field)
        (kind,) = given
        place, value = f"{field}.{kind.rstrip('_')}", getattr(self, kind)
        match kind:
            case "json_":
                return sources.of_schema(place, _decoded(value, place), self._whitespace())
            case "json_object":
                return sources.of_schema(place, _ANY_OBJECT, self._whitespace())
            case "regex":
                return sources.of_regex(place, value)
            case "choice":
                return sources.of_choice(place, value)
            case "grammar":
                return sources.of_grammar(place, value)
            case _:
                return _tags(value, place).source(place, is_special)

    def _whitespace(self) -> JsonCompileOptions | None:
        if self.whitespace_pattern is not None:
            return {"whitespace_pattern": self.whitespace_pattern}
        return {"whitespace_flexible": False} if self.disable_any_whitespace else None


_KINDS = ("json_", "json_object", "regex", "choice", "grammar", "structural_tag")


def source_of(
    response_format: ResponseFormat | None, structured: StructuredOutputs | None, is_special: IsSpecial
) -> Source | None:
    """The grammar that a body asks for; None: none.

    Raises:
        ApiError: 400, it is not one grammar.
    """
    bound = None if isinstance(response_format, TextFormat) else response_format
    if bound is not None and structured is not None:
        raise bad_request("structured_outputs: not allowed together with response_format", "structured_outputs")
    field = "response_format" if structured is None else "structured_outputs"
    try:
        match bound:
            case JsonObjectFormat():
                return sources.of_schema(field, _ANY_OBJECT)
            case JsonSchemaFormat(json_schema=asked):
                options: JsonCompileOptions | None = None if asked.strict else {"lenient": True}
                return sources.of_schema(f"{field}.json_schema.schema", asked.schema_, options)
            case StructuralTagFormat():
                return bound.source(field, is_special)
        return None if structured is None else structured.source(field, is_special)
    except (GrammarError, ValueError, RecursionError) as error:
        raise bad_request(f"{field}: {error}", field, INVALID) from None


def _decoded(value: Schema | str, place: str) -> Schema:
    """An object, or one written as a string."""
    if not isinstance(value, str):
        return value
    if len(value) > _MAX_WRITTEN:
        raise GrammarError(f"{place} has more than {_MAX_WRITTEN} characters")
    try:
        return msgspec.json.decode(value, type=Schema)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise GrammarError(f"{place} must be a JSON object: {error}") from None


def _tags(value: StructuralTagFormat | str, place: str) -> StructuralTagFormat:
    if not isinstance(value, str):
        return value
    try:
        return StructuralTagFormat.model_validate({"type": "structural_tag", **_decoded(value, place)})
    except ValueError as error:
        raise GrammarError(f"{place}: {error}") from None
