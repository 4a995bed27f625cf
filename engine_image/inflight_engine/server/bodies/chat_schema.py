"""Bodies of chat requests: conversations with their tool calls, in the form for chat templates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from inflight_contract.errors import ApiError, bad_request
from inflight_engine.formats.calls import MAX_NAME, is_name
from inflight_engine.formats.choose import Chosen
from inflight_engine.formats.forced_runs import MAX_FORCED
from inflight_engine.formats.grammar import calls_grammar, longest_run, text_or_calls_grammar
from inflight_engine.formats.kinds import UnenforceableError
from inflight_engine.formats.parser import Parsing
from inflight_engine.formats.values import parameters_of
from inflight_engine.grammars.sources import Source, of_grammar
from inflight_engine.models.tokens.conversation import Conversation
from inflight_engine.server.bodies.fields import (
    FIRST_ERROR,
    MAX_TOP_LOGPROBS,
    Body,
    Prompt,
    only,
)
from inflight_engine.server.bodies.grammar_fields import INVALID
from inflight_engine.server.bodies.json_size import MAX_ITEMS, TooManyValuesError, check_size
from inflight_engine.server.bodies.schema import OpenAIFields
from inflight_engine.server.bodies.unions import kinds, shape


class TextPart(Body):
    type: Literal["text"]
    text: str


def holds_text(value: Any) -> Any:
    """JSON that a template writes into the prompt; all of its strings must be Unicode text."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise PydanticCustomError("not_text", "must hold text, and holds half of a surrogate pair") from None
    except RecursionError:
        raise PydanticCustomError("too_deep", "is nested too deeply") from None
    return value


def _is_object(value: str) -> str:
    """The chat template gets the arguments, not the string that contains them."""
    if value:
        try:
            if len(value) > MAX_ITEMS:
                check_size(value.encode(), MAX_ITEMS)
            decoded = json.loads(value)
        except TooManyValuesError as error:
            raise PydanticCustomError("long_json", str(error)) from None
        except (ValueError, RecursionError):
            decoded = None
        if not isinstance(decoded, dict):
            raise PydanticCustomError("not_json", "must be a JSON object written as a string")
        holds_text(decoded)
    return value


ArgumentsText: TypeAlias = Annotated[str, AfterValidator(_is_object)]


class CalledFunction(Body):
    """`arguments`: JSON, as the model wrote it."""

    name: str
    arguments: ArgumentsText = ""
    provider_specific_fields: object = None


class ToolCall(Body):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    provider_specific_fields: object = None

    def plain(self) -> dict[str, Any]:
        """The call in the form for chat templates: the arguments are an object."""
        arguments = json.loads(self.function.arguments or "{}")
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}


class ToolFunction(Body):
    """`parameters`: a JSON schema, which the model is shown."""

    name: str
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(holds_text)] | None = None
    strict: bool | None = None

    def plain(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)

    def schemas(self) -> dict[str, Any]:
        """Schema of each parameter."""
        return parameters_of(self.parameters or {})


class Tool(Body):
    type: Literal["function"]
    function: ToolFunction

    def plain(self) -> dict[str, Any]:
        return {"type": self.type, "function": self.function.plain()}


class FunctionName(Body):
    name: str


class NamedTool(Body):
    """A function that must be called."""

    type: Literal["function"]
    function: FunctionName


Tools: TypeAlias = Annotated[list[Tool], FIRST_ERROR]


class ChatMessage(Body):
    """A message. That of an assistant that called tools may have no content. `reasoning`, or `reasoning_content`, its
    older name: the assistant's thinking before its content. The null fields are those that OpenAI's SDK sends back with
    an assistant's message, and `provider_specific_fields`, which changes nothing, is what LiteLLM's proxy adds."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[
            Annotated[str, Tag("text")]
            | Annotated[list[Annotated[TextPart, kinds("parts", "text")]], FIRST_ERROR, Tag("list")],
            Discriminator(shape),
        ]
        | None
    ) = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], FIRST_ERROR] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: Annotated[object, only()] = None
    annotations: Annotated[object, only([])] = None
    audio: Annotated[object, only()] = None
    function_call: Annotated[object, only()] = None
    provider_specific_fields: object = None

    def plain(self) -> dict[str, Any]:
        """The message in the form for chat templates: text parts joined by newlines, OpenAI's newer `developer` as
        `system`, missing content as an empty string; no other absent fields."""
        content = self.content or ""
        if not isinstance(content, str):
            content = "\n".join(part.text for part in content)
        plain: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": content}
        if self.name is not None:
            plain["name"] = self.name
        if self.tool_calls:
            plain["tool_calls"] = [call.plain() for call in self.tool_calls]
        if self.tool_call_id is not None:
            plain["tool_call_id"] = self.tool_call_id
        reasoning = self.reasoning_content if self.reasoning is None else self.reasoning
        if reasoning is not None:
            # Templates read one of these names.
            plain |= dict.fromkeys(("reasoning", "reasoning_content", "thinking"), reasoning)
        return plain


Messages: TypeAlias = Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]


_TEMPLATES_OWN = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize")
"""Variables of templates that fields of a request set, and parameters of transformers' function."""


def _are_free(arguments: dict[str, Any]) -> dict[str, Any]:
    for name in arguments:
        if name in _TEMPLATES_OWN or name.endswith("_token"):
            raise PydanticCustomError("not_free", "must not set {name}", {"name": name})
    holds_text(arguments)
    return arguments


class TemplateFields(Body):
    """Fields for the chat template, as in vLLM.

    `chat_template_kwargs`: variables of the template, such as `enable_thinking`. `add_generation_prompt` (default true,
    unless the final message is continued): the prompt ends where an answer begins. `continue_final_message`: the
    answer continues the last message.
    """

    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(_are_free)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


def conversation(
    messages: Sequence[ChatMessage],
    tools: Sequence[Tool] | None,
    fields: TemplateFields,
    arguments: Mapping[str, Any] | None = None,
) -> Conversation:
    """Input of a chat template.

    Args:
        arguments: defaults of `chat_template_kwargs`.

    Raises:
        ApiError: 400, a message has a field that its role does not permit, or the final message cannot be continued.
    """
    open_ended = bool(fields.continue_final_message)
    if open_ended and fields.add_generation_prompt:
        why = "continue_final_message: not together with add_generation_prompt: true"
        raise bad_request(why, "continue_final_message")
    for index, message in enumerate(messages):
        if message.role != "assistant" and message.content is None:
            raise _wrong(index, "content", "is required: only an assistant's message may have none")
        if message.role != "assistant" and message.tool_calls:
            raise _wrong(index, "tool_calls", "only an assistant's message may have any")
        if message.role != "assistant" and not (message.reasoning is None and message.reasoning_content is None):
            raise _wrong(index, "reasoning", "only an assistant's message may have any")
    if open_ended and not messages[-1].content:
        raise _wrong(len(messages) - 1, "content", "is required: continue_final_message continues it")
    return Conversation(
        [message.plain() for message in messages],
        [tool.plain() for tool in tools] if tools else None,
        {**(arguments or {}), **(fields.chat_template_kwargs or {})},
        continues=not open_ended and fields.add_generation_prompt is not False,
        open_ended=open_ended,
    )


_MAX_BUDGET = 2**31 - 1
"""Tokens of reasoning that no answer reaches."""


def _wrong(index: int, field: str, why: str) -> ApiError:
    param = f"messages.{index}.{field}"
    return bad_request(f"{param}: {why}", param)


class ChatCompletionRequest(OpenAIFields, TemplateFields):
    """Body of /v1/chat/completions. `reasoning_effort`: for the chat template, which gets `enable_thinking` with it, as
    in vLLM. `thinking_token_budget` (vLLM's): after so many tokens of reasoning its end is sampled; -1: after any."""

    prompt_field: ClassVar[str] = "messages"

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    add_special_tokens: Annotated[object, only(False)] = None
    functions: Annotated[object, only([])] = None
    function_call: Annotated[object, only("none", "auto")] = None
    modalities: Annotated[object, only(["text"])] = None
    audio: Annotated[object, only()] = None
    prediction: Annotated[object, only()] = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    thinking_token_budget: Annotated[int, Field(ge=-1)] | None = None
    verbosity: Annotated[object, only()] = None
    store: Annotated[object, only(False)] = None
    metadata: Annotated[object, only({})] = None
    web_search_options: Annotated[object, only()] = None

    def check(self) -> None:
        super().check()
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise bad_request("max_tokens: differs from max_completion_tokens; send one of them", "max_tokens")
        self._check_tool_choice()
        if self.top_logprobs is not None and not self.logprobs:
            raise bad_request("top_logprobs: only allowed together with logprobs: true", "top_logprobs")

    def _check_tool_choice(self) -> None:
        choice = self.tool_choice
        if not self.tools and choice not in (None, "none", "auto"):
            raise bad_request("tool_choice: needs tools", "tool_choice")
        if isinstance(choice, NamedTool) and choice.function.name not in {
            each.function.name for each in self.tools or ()
        }:
            message = f"tool_choice.function.name: {choice.function.name!r} is none of the tools"
            raise bad_request(message, "tool_choice.function.name")

    def _check_names(self) -> None:
        for index, tool in enumerate(self.tools or ()):
            if not is_name(tool.function.name):
                param = f"tools.{index}.function.name"
                raise bad_request(f"{param}: must be 1 to {MAX_NAME} letters, digits and any of _ - . /", param)

    def bound_calls(self, parsing: Parsing | None, token_of: Callable[[str], int | None]) -> Source | None:
        """The grammar of tool calls, where the request demands them, or a function is strict."""
        choice = self.tool_choice or "auto"
        if parsing is None or parsing.format is None or choice == "none":
            return None
        name = choice.function.name if isinstance(choice, NamedTool) else None
        named = {i: each.function for i, each in enumerate(self.tools or ()) if name in (None, each.function.name)}
        functions = named.values()
        may = choice == "auto"
        if may and not (any(each.strict for each in functions) and self._text_is_free):
            return None
        make = text_or_calls_grammar if may else calls_grammar
        plain = [each.plain() for each in functions]
        try:
            text = make(parsing.format, plain, token_of, several=name is None and parsing.parallel)
            parts = {
                f"{index}.function.parameters": {**(each.parameters or {}), "x-guidance": {"lenient": not each.strict}}
                for index, each in named.items()
            }
            return of_grammar("tools", text, short_runs=sum(map(longest_run, plain)) <= MAX_FORCED, parts=parts)
        except UnenforceableError as error:
            index = next(i for i, each in named.items() if each.name == error.name)
            message = f"tools.{index}.function.parameters{error.place}: {error}"
            raise bad_request(message, "tools", INVALID) from None
        except ValueError as error:
            raise bad_request(f"tools: {error}", "tools", INVALID) from None

    @property
    def _text_is_free(self) -> bool:
        bound = self.response_format is not None and self.response_format.type != "text"
        return not bound and self.structured_outputs is None

    def prompts(self) -> list[Prompt]:
        effort = self.reasoning_effort
        thinking = {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        return [conversation(self.messages, self.tools, self, thinking)]

    def parsing(self, formats: Chosen, prompt_end: Callable[[], str]) -> Parsing | None:
        calls = bool(self.tools) and self.tool_choice != "none"
        if calls and formats.format is None:
            message = (
                "tools: the format of this model's tool calls is not known; start the engine with --tool-call-parser, "
                "or send tool_choice: none, and the model sees the tools and answers in text"
            )
            raise bad_request(message, "tools", "unsupported_parameter")
        if calls:
            self._check_names()
        reasoning = formats.reasoning
        if not calls and reasoning is None:
            return None
        schemas = {each.function.name: each.function.schemas() for each in self.tools or ()}
        opened = reasoning is not None and prompt_end().rstrip().endswith(reasoning.open)
        return Parsing(
            formats.format if calls else None,
            reasoning,
            opened=opened,
            schemas=schemas,
            parallel=self.parallel_tool_calls is not False,
            named=isinstance(self.tool_choice, NamedTool),
        )

    def thinking_budget(self) -> int | None:
        budget = self.thinking_token_budget
        # A larger number need not fit where the engine stores it.
        return None if budget is None or budget < 0 else min(budget, _MAX_BUDGET)

    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def limit_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    def asked_max_tokens(self) -> int | None:
        """`max_completion_tokens`, or `max_tokens`, its older name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
