"""Fields of generation requests that several endpoints share, and their permitted values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from inflight_contract.errors import bad_request
from inflight_contract.kv_blocks import MOST_SOURCE_BYTES
from inflight_engine.formats.choose import Chosen
from inflight_engine.formats.parser import Parsing
from inflight_engine.grammars.sources import Source
from inflight_engine.models.tokens.conversation import Conversation
from inflight_engine.request import MAX_LOGIT_BIAS, Scheduling
from inflight_settings.requests import MAX_N
from inflight_settings.scheduling import ServiceClass
from inflight_settings.setting import settings_of

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
"""Characters: the end of a text is compared with every beginning of each stop string."""
MAX_STOP_TOKEN_IDS = 128
MAX_TOP_LOGPROBS = 20
"""OpenAI's limit for chat."""
MAX_LOGPROB_TOKEN_IDS = 128
"""vLLM's."""
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 1024
MAX_ALLOWED_TOKEN_IDS = 2**20
"""More than any vocabulary has."""
MAX_SALT_LENGTH = 256


def only(*neutral: object) -> AfterValidator:
    """An unsupported parameter: null, or a value without effect, is accepted; any other value is rejected."""

    def check(value: Any) -> Any:
        if value is None or any(
            value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in neutral
        ):
            return value
        raise PydanticCustomError("unsupported_parameter", "this parameter is not supported by this server")

    return AfterValidator(check)


def replaced_by(name: str) -> AfterValidator:
    """A parameter of earlier servers; only null is accepted."""

    def check(value: Any) -> Any:
        if value is not None:
            raise PydanticCustomError("unsupported_parameter", f"this parameter is not supported; use {name}")
        return value

    return AfterValidator(check)


FIRST_ERROR = Field(fail_fast=True)
"""Validation of a list or object whose size the client chooses ends with the first wrong item: pydantic keeps a
kilobyte for each, and a body has room for millions."""

_LONG_LIST = 2**14
"""Items from which a list is looked at before it is validated."""

TokenId = Annotated[int, Field(ge=0)]


def _fits(value: Any) -> Any:
    """Numbers of more than 64 bits take several times as long to validate, in one stretch for a whole list."""
    if isinstance(value, list) and len(value) > _LONG_LIST:
        try:
            fits = max(value) < 2**63
        except TypeError:  # which validation says better
            fits = True
        if not fits:
            raise PydanticCustomError("too_large", "must hold token ids, and holds larger numbers")
    return value


TokenIdList = Annotated[list[TokenId], FIRST_ERROR, BeforeValidator(_fits)]
TokenIdName = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
"""A token id as a key of a JSON object."""
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_LENGTH)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


@dataclass(frozen=True, slots=True)
class PlainText:
    """`special_tokens`: with those that the model expects around a prompt."""

    text: str
    special_tokens: bool = True


Prompt: TypeAlias = PlainText | list[int] | Conversation
"""Text, token ids, or a conversation."""


_NULL = """
    add_generation_prompt chat_template chat_template_kwargs continue_final_message documents
    ec_transfer_params instruction kv_transfer_params late_chunking_params logit_bias media_io_kwargs messages
    min_p mm_processor_kwargs padding previous_input_messages prompt_cache_options prompt_embeds
    repetition_detection repetition_penalty request_id return_mm_kwargs seed session_id stream_interval
    structured_outputs thinking_token_budget top_k use_activation vllm_xargs watermarking
"""
_DEFAULTS = {
    "echo": False,
    "embed_dtype": "float32",
    "enable_response_messages": False,
    "endianness": "native",
    "ignore_eos": False,
    "include_reasoning": True,
    "include_stop_str_in_output": False,
    "length_penalty": 1.0,
    "max_tokens_per_doc": 0,
    "max_tokens_per_query": 0,
    "mm_payload": "tensors",
    "return_prompt_text": False,
    "return_token_offsets": False,
    "return_tokens_as_token_ids": False,
    "return_weight_versions": False,
    "routed_experts_prompt_start": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "stop": [],
    "stop_token_ids": [],
    "use_beam_search": False,
}
WITHOUT_EFFECT: Mapping[str, object] = {**dict.fromkeys(_NULL.split()), **_DEFAULTS}
"""vLLM's fields, and a value of each beside null that an endpoint without the field accepts: clients write out
defaults."""


class Body(BaseModel):
    """An object in a request: nothing unknown in it, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True)

    _names: ClassVar[frozenset[str]]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls._names = frozenset(field.alias or name for name, field in cls.model_fields.items())

    @model_validator(mode="before")
    @classmethod
    def _one_unknown(cls, value: Any) -> Any:
        """Drop vLLM's fields that ask for nothing. Keep one error, as `FIRST_ERROR`: of the first unknown field."""
        names = cls._names
        if not isinstance(value, dict) or names.issuperset(value):
            return value
        unknown = (name for name, item in value.items() if not (name in names or _asks_nothing(name, item)))
        kept = next(unknown, None)
        return {name: item for name, item in value.items() if name in names or name == kept}


def _asks_nothing(name: str, value: object) -> bool:
    return name in WITHOUT_EFFECT and (value is None or value == WITHOUT_EFFECT[name])


class TruncationFields(Body):
    """Fields that shorten a prompt, vLLM's. `truncate_prompt_tokens`: so many of its tokens are kept, -1 as many as
    fit; `truncation_side`: the side that loses the others."""

    keeps_end: ClassVar[bool] = True
    """Without `truncation_side` the last tokens are kept."""

    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None


class SamplingFields(TruncationFields):
    """Fields for `SamplingParams`: choice of tokens, and the end of the answer.

    `top_k`: 0 or -1 keeps all tokens. `stop`: strings that end the answer and are not part of it. `n`: how many
    answers; the i-th of them takes `seed` + i. `repetition_penalty`: vLLM's range, less what float32 cannot divide by.

    vLLM's: `bad_words`, texts that are not generated; `allowed_token_ids`: all tokens that may be;
    `include_stop_str_in_output`: the stop string, or the text of the stop token, ends the answer's text;
    `skip_special_tokens`: false shows special tokens by their names; `spaces_between_special_tokens`: no text has any.
    """

    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-6, le=1e6)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[
            dict[TokenIdName, Annotated[float, Field(ge=-100, le=100)]],
            Field(max_length=MAX_LOGIT_BIAS, fail_fast=True),
        ]
        | None
    ) = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS, fail_fast=True)] | None = None
    allowed_token_ids: Annotated[TokenIdList, Field(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    stream: bool | None = None

    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


_PRIORITY = settings_of(ServiceClass)["priority"]


class SchedulingFields(Body):
    """Fields for `Scheduling`. `class` names a service class, and so does `service_tier`, OpenAI's field, where `auto`
    and `default` are the default class. `expected_output_tokens` is a prediction."""

    priority: Annotated[int, Field(ge=_PRIORITY.ge, le=_PRIORITY.le)] | None = None
    service_class: Annotated[str | None, Field(alias="class")] = None
    service_tier: str | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_LENGTH)] | None = None
    expected_output_tokens: Annotated[int, Field(ge=1)] | None = None

    def scheduling(self, classes: Sequence[ServiceClass], tenant: str) -> Scheduling:
        """The scheduling parameters, with the defaults of the class; a request that names none belongs to the first.

        Raises:
            ApiError: 400, the class does not exist, or two are named.
        """
        names = [each.name for each in classes]
        tier = names[0] if self.service_tier in ("auto", "default") else self.service_tier
        asked = tier if self.service_class is None else self.service_class
        if asked not in (None, *names):
            field = "service_tier" if self.service_class is None else "class"
            known = ", ".join(names)
            raise bad_request(f"{field}: there is no class {asked!r}; this server has: {known}", field)
        if tier not in (None, asked):
            raise bad_request("service_tier: differs from class; send one of them", "service_tier")
        chosen = classes[0 if asked is None else names.index(asked)]
        return Scheduling(
            service_class=chosen.name,
            priority=chosen.priority if self.priority is None else self.priority,
            tenant=tenant,
            cache_salt=self.cache_salt or "",
            predicted_tokens=self.expected_output_tokens,
        )


class ContinuedChoice(Body):
    """The part of a choice that a relay has: its tokens, the seed that was drawn for it, and why it ended, if it
    did."""

    token_ids: TokenIdList
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    finish_reason: Literal["stop", "length"] | None = None


class Continuation(Body):
    """The part of an answer that another replica wrote. `choices`: all of them. `created`: that of its chunks.
    `sequence_number`: of the next event, in streams that number them. `source`: name of that replica, where it may have
    the keys and values still. `cached_tokens`: of the prompt that it had in its prefix cache, where it says so."""

    choices: Annotated[list[ContinuedChoice], Field(min_length=1, fail_fast=True)]
    created: Annotated[int, Field(ge=0, lt=2**63)]
    sequence_number: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    source: Annotated[str, Field(max_length=MOST_SOURCE_BYTES)] | None = None
    cached_tokens: Annotated[int, Field(ge=0, lt=2**63)] | None = None


class KVTransfer(Body):
    """vLLM's `kv_transfer_params`, with which routers have one engine compute a prompt and another one the answer: see
    `Handover.transfer_params`. Fields of other meanings are for engines that move keys and values otherwise.

    `do_remote_decode`: another engine will want the keys and values of the prompt. `do_remote_prefill`: the one of this
    `remote_engine_id` may have them."""

    model_config = ConfigDict(extra="ignore", strict=True)

    do_remote_decode: bool | None = None
    do_remote_prefill: bool | None = None
    remote_engine_id: Annotated[str, Field(max_length=MOST_SOURCE_BYTES)] | None = None


class GenerationFields(SamplingFields, SchedulingFields):
    """Body of every generation endpoint."""

    inflight_continuation: Continuation | None = None

    prompt_field: ClassVar[str] = "prompt"
    default_max_tokens: ClassVar[int | None] = None
    """Limit of the output where the client sets none, if the context leaves that much; None: all that is left."""
    cuts_max_tokens: ClassVar[bool] = False
    """A limit above what the context leaves means all that is left; else it is an error."""

    @property
    def limit_field(self) -> str:
        """Name of the field that limits the output."""
        return "max_tokens"

    @abstractmethod
    def prompts(self) -> list[Prompt]: ...

    def source(self) -> str | None:
        """Name of an engine that may have the keys and values; None: none is known."""
        return None if self.inflight_continuation is None else self.inflight_continuation.source

    @abstractmethod
    def num_logprobs(self) -> int | None:
        """Value of `SamplingParams.logprobs`."""

    def num_prompt_logprobs(self) -> int | None:
        """Value of `SamplingParams.prompt_logprobs`."""
        return None

    def named_logprobs(self) -> Sequence[int]:
        """Value of `SamplingParams.logprob_token_ids`."""
        return ()

    def grammar(self, is_special: Callable[[str], bool]) -> Source | None:
        """The grammar that the answer follows; None: none.

        Args:
            is_special: whether a text is the name of a special token.

        Raises:
            ApiError: 400, it is not one grammar.
        """
        return None

    def bound_calls(self, parsing: Parsing | None, token_of: Callable[[str], int | None]) -> Source | None:
        """The grammar of an answer with tool calls; None: nothing binds these.

        Args:
            token_of: id of the special token with a name.
        """
        return None

    def parsing(self, formats: Chosen, prompt_end: Callable[[], str]) -> Parsing | None:
        """How the answers are parsed; None: they are text.

        Args:
            prompt_end: the end of the prompt, special tokens by their names.

        Raises:
            ApiError: 400, the model's format is not known.
        """
        return None

    def thinking_budget(self) -> int | None:
        """Most tokens of reasoning; None: any number."""
        return None

    def echoes(self) -> bool:
        """The response begins with its prompt."""
        return False

    def asked_max_tokens(self) -> int | None:
        """Limit of the output that the client asks for; 0: only the prompt is requested."""
        return self.max_tokens
