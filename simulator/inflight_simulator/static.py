"""Static batching: fill a batch, run it until its longest request is done, then fill the next.

Request-level scheduling in Orca (Yu et al. 2022); the baseline for continuous batching. A batch
takes up to `max_num_seqs` requests that wait, first come, first served, as far as the KV cache holds all of each
request from the start. Its first step computes the prompts and the first tokens. A request that has all its tokens
keeps its slot and is computed on as padding, and is answered with the batch, so that of slots x steps only
sum(L) / (B x max L) give a token.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from inflight_cost.model import StepWork, attended_tokens
from inflight_engine.scheduling.config import SchedulerConfig
from inflight_engine.scheduling.running import longest_request
from inflight_simulator.arrivals import Arrival, blocks_of
from inflight_simulator.cost import Cost
from inflight_simulator.outcome import Outcome, Phase, Refusal, Run, Span


def simulate_static(arrivals: Sequence[Arrival], config: SchedulerConfig, cost: Cost) -> Run:
    """Run all of `arrivals`, which must be in order of arrival. Of `config` only slots, KV cache and context count."""
    run = Run(config.capacity.max_num_seqs)
    longest = longest_request(config)
    fitting: list[tuple[int, Arrival]] = []
    for request_id, arrival in enumerate(arrivals):
        if arrival.total_tokens > longest:
            reason = f"{arrival.total_tokens} tokens do not fit in {longest}"
            run.refusals.append(Refusal(request_id, arrival, reason))
        else:
            fitting.append((request_id, arrival))
    times = [arrival.arrival_s for _, arrival in fitting]
    now, begin = 0.0, 0
    while begin < len(fitting):
        if times[begin] > now:
            run.series.append(now, 0, 0.0)
            now = times[begin]
        end = _batch_end(fitting, begin, bisect_right(times, now), config)
        now = _run_batch(run, fitting[begin:end], now, config, cost)
        begin = end
    return run


def _batch_end(fitting: Sequence[tuple[int, Arrival]], begin: int, arrived: int, config: SchedulerConfig) -> int:
    free = config.num_blocks
    end = begin
    while end < min(arrived, begin + config.capacity.max_num_seqs):
        free -= blocks_of(fitting[end][1].total_tokens, config.block_size)
        if free < 0:
            break
        end += 1
    return end


def _run_batch(
    run: Run,
    batch: Sequence[tuple[int, Arrival]],
    now: float,
    config: SchedulerConfig,
    cost: Cost,
) -> float:
    """Returns the time at which the batch is done."""
    size, admitted_s = len(batch), now
    kv_usage = sum(blocks_of(a.total_tokens, config.block_size) for _, a in batch) / config.num_blocks
    num_prompt = sum(a.prompt_tokens for _, a in batch)
    context = sum(attended_tokens(0, a.prompt_tokens) for _, a in batch)
    longest = max(a.output_tokens for _, a in batch)
    ends: list[float] = []
    """Returns when every request has token 1, 2, ..., in seconds."""
    for step in range(longest):
        run.series.append(now, size, kv_usage)
        work = StepWork(size, 0, num_prompt + size * step, 0, 0) if step else StepWork(0, num_prompt, 0, context, 0)
        now += cost.seconds(work)
        ends.append(now)
    run.num_steps += longest
    gaps = [later - earlier for earlier, later in pairwise(ends)]
    for slot, (request_id, arrival) in enumerate(batch):
        done = ends[arrival.output_tokens - 1]
        gap = max(gaps[: arrival.output_tokens - 1], default=0.0)
        run.outcomes.append(Outcome(request_id, arrival, admitted_s, ends[0], now, gap))
        run.timeline.append(Span(request_id, slot, Phase.PREFILL, admitted_s, ends[0], arrival.prompt_tokens))
        if done > ends[0]:
            run.timeline.append(Span(request_id, slot, Phase.DECODE, ends[0], done, arrival.output_tokens - 1))
        if now > done:
            run.timeline.append(Span(request_id, slot, Phase.PADDING, done, now, 0))
    return now
