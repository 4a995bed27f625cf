"""An engine process for the tests of tensor parallelism, run as a program: loads the engine of a configuration as the
real one does, generates, says what came of it, and waits to be ended.

    python -m tests.engine.execution.parallel_session CONFIG REQUESTS

CONFIG is an `EngineConfig`, REQUESTS a list of prompts and sampling parameters, both JSON; the answer is a line of it.
"""

import json
import sys
import threading
from unittest.mock import patch

import msgspec
import numpy as np

from inflight_engine import engine_process
from inflight_engine.messages import AddRequest
from inflight_engine.request import SamplingParams
from inflight_settings.engine import EngineConfig
from tests.engine.grammars.ascii import vocabulary


def load(config):
    """The engine of a configuration, whose model has a vocabulary of characters; and what is set when a grammar of a
    request is compiled."""
    compiled = threading.Event()
    with patch.object(engine_process, "_vocabulary", lambda config, vocab_size: vocabulary()):
        engine, _ = engine_process.load(config, wake=compiled.set)
        engine.prepare()
    return engine, compiled


def generate(engine, compiled, requests):
    """Tokens and log-probabilities of the prompt of each request, how many preemptions and swapped blocks there were at
    most, and how many tokens were not sampled."""
    for request_id, (prompt, sampling) in enumerate(requests):
        compiled.clear()
        engine.handle(AddRequest(request_id, np.array(prompt, np.int32).tobytes(), sampling, float(request_id)))
        if sampling.grammar is not None:
            compiled.wait()
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
        "forced": report.stats.num_forced_tokens,
    }


if __name__ == "__main__":
    config = msgspec.json.decode(sys.argv[1], type=EngineConfig)
    requests = msgspec.json.decode(sys.argv[2], type=list[tuple[list[int], SamplingParams]])
    engine, compiled = load(config)
    result = generate(engine, compiled, requests)
    workers = [worker.process.pid for worker in engine._runner._workers]
    print(json.dumps(result | {"workers": workers}), flush=True)
    sys.stdin.read()
