"""Messages as the bodies of HTTP requests: one validation for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from inflight_contract.errors import bad_request
from inflight_engine.server.bodies.converted import validated
from inflight_engine.server.bodies.json_size import MAX_COMMAS, MAX_ITEMS, check_size
from inflight_engine.server.bodies.pooling_schema import EmbeddingRequest
from inflight_engine.server.bodies.schema import GenerateRequest, OpenAIFields
from inflight_engine.server.http.strict_json import decoded

_READ = frozenset(
    {"request_id", "tokenized", "text", "sampling_params", "stream", "data_parallel_rank", "kv_transfer_params_json"}
)

_AS_IN_HTTP = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("max_tokens", "min_tokens", "ignore_eos", "n", "logprobs", "prompt_logprobs", "seed"),
    *("include_stop_str_in_output", "spaces_between_special_tokens", "truncate_prompt_tokens"),
)
"""Fields of `SamplingParams` with the names and meanings of HTTP's. Where a message cannot tell zero from absent, it is
absent: the model's default."""

_CONSTRAINTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "json_schema": ("json", str),
    "regex": ("regex", str),
    "grammar": ("grammar", str),
    "structural_tag": ("structural_tag", str),
    "json_object": ("json_object", bool),
    "choice": ("choice", lambda value: _listed("sampling_params.choice", value.choices)),
}


class GenerationBody(OpenAIFields, GenerateRequest):
    """A generation: the fields of `SamplingParams`, with `prompt` as text or token ids."""


def check_known(message: Any) -> None:
    """Refuse fields that the service's definition does not have: a constraint must not be ignored.

    Raises:
        ApiError: 400.
    """
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        text = "the message has fields that this server does not know; it has those of smg-grpc-proto 0.4.28"
        raise bad_request(text, code="unsupported_parameter")


def generation_body(message: pb.GenerateRequest) -> GenerationBody:
    """The body of a Generate call.

    Raises:
        ApiError: 400, a value is not permitted.
    """
    for field, value in message.ListFields():
        if field.name not in _READ or (field.name == "data_parallel_rank" and value != 0):
            text = f"{field.name}: this parameter is not supported by this server"
            raise bad_request(text, field.name, "unsupported_parameter")
    values = {**_prompt(message), **_sampling(message.sampling_params), "stream": message.stream}
    if message.kv_transfer_params_json:
        text = message.kv_transfer_params_json.encode()
        try:
            check_size(text)
            values["kv_transfer_params"] = decoded(text)
        except ValueError as error:
            raise bad_request(f"kv_transfer_params_json: {error}", "kv_transfer_params_json") from None
    body = validated(GenerationBody, values)
    body.check()
    return body


def embedding_body(message: pb.EmbedRequest) -> EmbeddingRequest:
    """The body of an Embed call.

    Raises:
        ApiError: 400, a value is not permitted.
    """
    if not message.tokenized.input_ids:
        raise bad_request("tokenized.input_ids: must hold at least one token", "tokenized.input_ids")
    return validated(EmbeddingRequest, {"input": _token_ids(message.tokenized)})


def _prompt(message: pb.GenerateRequest) -> dict[str, Any]:
    match message.WhichOneof("input"):
        case "tokenized":
            return {"prompt": _token_ids(message.tokenized)}
        case "text":
            return {"prompt": message.text}
    raise bad_request("input: needs tokenized or text", "input")


def _sampling(params: pb.SamplingParams) -> dict[str, Any]:
    values = {field.name: value for field, value in params.ListFields()}
    body = {name: values[name] for name in _AS_IN_HTTP if name in values}
    body["skip_special_tokens"] = params.skip_special_tokens
    for name in ("stop", "stop_token_ids"):
        if name in values:
            body[name] = _listed(f"sampling_params.{name}", values[name])
    if "logit_bias" in values:
        given = params.logit_bias
        _check_count("sampling_params.logit_bias", len(given), MAX_ITEMS)
        body["logit_bias"] = {str(token_id): bias for token_id, bias in given.items()}
    kind = params.WhichOneof("constraint")
    if kind is not None:
        name, convert = _CONSTRAINTS[kind]
        value = convert(getattr(params, kind))
        if value is not False:
            body["structured_outputs"] = {name: value}
    return body


def _token_ids(tokenized: pb.TokenizedInput) -> list[int]:
    _check_count("tokenized.input_ids", len(tokenized.input_ids), MAX_COMMAS)
    return list(tokenized.input_ids)


def _listed(field: str, values: Sequence[Any]) -> list[Any]:
    _check_count(field, len(values), MAX_ITEMS)
    return list(values)


def _check_count(field: str, count: int, most: int) -> None:
    if count > most:
        raise bad_request(f"{field}: has more than {most} values", field, "too_many_values")
