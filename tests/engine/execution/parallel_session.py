"""An engine process for the tests of tensor parallelism, run as a program: loads the engine of a configuration as the
real one does, generates, says what came of it, and waits to be ended.

    python -m tests.engine.execution.parallel_session CONFIG REQUESTS

CONFIG is an `EngineConfig`, REQUESTS a list of prompts and sampling parameters, both JSON; the answer is a line of it.
"""

import json
import sys

import msgspec
import numpy as np

from inflight_engine.engine_process import load
from inflight_engine.messages import AddRequest
from inflight_engine.request import SamplingParams
from inflight_settings.engine import EngineConfig


def generate(engine, requests):
    """Tokens and log-probabilities of the prompt of each request, and how many preemptions and swapped blocks there
    were at most."""
    for request_id, (prompt, sampling) in enumerate(requests):
        engine.handle(AddRequest(request_id, np.array(prompt, np.int32).tobytes(), sampling, float(request_id)))
    outputs = [[] for _ in requests]
    scores = [{} for _ in requests]
    owner, preemptions, swapped, chunked = {}, 0, 0, 0
    while engine.has_work:
        report = engine.step()
        owner |= {admission.slot: admission.request_id for admission in report.admitted}
        slots, token_ids = np.frombuffer(report.slots, np.int32), np.frombuffer(report.token_ids, np.int32)
        for slot, token in zip(slots.tolist(), token_ids.tolist(), strict=True):
            outputs[owner[slot]].append(token)
        for each in report.prompt_logprobs:
            values = np.frombuffer(each.logprobs, np.float32).tolist()
            scores[owner[each.slot]].update(enumerate(values, each.first))
        preemptions = report.stats.num_preemptions
        swapped = max(swapped, report.stats.num_tier_blocks)
        chunked += report.stats.num_prefill_tokens > 0 and not report.slots
    prompts = [[own[position] for position in sorted(own)] for own in scores]
    return {
        "outputs": outputs,
        "prompt_logprobs": prompts,
        "preemptions": preemptions,
        "swapped": swapped,
        "chunked": chunked,
    }


if __name__ == "__main__":
    config = msgspec.json.decode(sys.argv[1], type=EngineConfig)
    requests = msgspec.json.decode(sys.argv[2], type=list[tuple[list[int], SamplingParams]])
    engine, _ = load(config)
    result = generate(engine, requests)
    workers = [worker.process.pid for worker in engine._runner._workers]
    print(json.dumps(result | {"workers": workers}), flush=True)
    sys.stdin.read()
