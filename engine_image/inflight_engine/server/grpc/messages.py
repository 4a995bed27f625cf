"""Messages of answers, made of generations."""

from __future__ import annotations

from collections.abc import Sequence

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from inflight_engine.output import TokenLogprobs
from inflight_engine.server.answers.logprobs import finite
from inflight_engine.server.requests.choice_text import Piece
from inflight_engine.server.requests.generation import Generation
from inflight_engine.server.requests.prompt_scores import PromptScores


def chunk(choice: Generation, piece: Piece, begin: int) -> pb.GenerateResponse:
    """The tokens of a stream from index `begin` up to a piece; the client adds up their numbers."""
    token_ids = choice.token_ids[begin : piece.num_tokens]
    return pb.GenerateResponse(
        chunk=pb.GenerateStreamChunk(
            token_ids=token_ids,
            prompt_tokens=len(choice.request.prompt_token_ids),
            completion_tokens=len(token_ids),
            cached_tokens=choice.cached_tokens,
            output_logprobs=_output(token_ids, piece.logprobs),
            input_logprobs=_input(choice, piece.prompt),
            index=choice.request.index,
        )
    )


def complete(choice: Generation, piece: Piece, kv_transfer_params: str | None) -> pb.GenerateResponse:
    """The end of a choice, with all of its tokens, and the log-probabilities of `piece`, of its last tokens.
    `kv_transfer_params`: for the engine that goes on, as JSON."""
    reason, scores = choice.stop_reason, piece.logprobs
    return pb.GenerateResponse(
        complete=pb.GenerateComplete(
            output_ids=choice.token_ids,
            finish_reason=str(choice.finish_reason),
            prompt_tokens=len(choice.request.prompt_token_ids),
            completion_tokens=len(choice.token_ids),
            cached_tokens=choice.cached_tokens,
            output_logprobs=_output(choice.token_ids[len(choice.token_ids) - len(scores) :], scores),
            input_logprobs=_input(choice, piece.prompt),
            index=choice.request.index,
            matched_token_id=reason if isinstance(reason, int) else None,
            matched_stop_str=reason if isinstance(reason, str) else None,
            kv_transfer_params_json=kv_transfer_params,
        )
    )


def _output(token_ids: Sequence[int], scores: Sequence[TokenLogprobs]) -> pb.OutputLogProbs | None:
    if not scores:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[finite(each.logprob) for each in scores],
        token_ids=token_ids,
        top_logprobs=[_top(each.top_token_ids, each.top_logprobs) for each in scores],
    )


def _input(choice: Generation, scores: PromptScores | None) -> pb.InputLogProbs | None:
    num_top = choice.request.sampling.prompt_logprobs
    if scores is None or num_top is None:
        return None
    tokens = [*scores.after_first(num_top)]
    values = (pb.InputTokenLogProb(value=finite(each.logprob)) for each in tokens)
    tops = (_top([id_ for id_, _ in each.top], [value for _, value in each.top]) for each in tokens)
    return pb.InputLogProbs(
        token_logprobs=[pb.InputTokenLogProb(), *values],  # the first token has none
        token_ids=scores.token_ids,
        top_logprobs=[pb.TopLogProbs(), *tops],
    )


def _top(token_ids: Sequence[int], values: Sequence[float]) -> pb.TopLogProbs:
    return pb.TopLogProbs(token_ids=token_ids, values=[*map(finite, values)])
