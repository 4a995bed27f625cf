"""A process that takes regular expressions of requests on their whole way: validated, compiled, followed.

Each line of stdin is an expression, and each of stdout why it was refused, or the length of the longest run of tokens
that an answer had to have; both as JSON.
"""

import asyncio
import json
import random
import sys

import numpy as np
from llguidance import LLTokenizer

from inflight_contract.errors import ApiError
from inflight_engine.grammars.compiled import GrammarError, Grammars
from inflight_engine.grammars.matching import Matching
from inflight_engine.request import SamplingParams
from inflight_engine.server.bodies.grammar_fields import StructuredOutputs, source_of
from inflight_engine.server.requests.grammar_checks import CheckedGrammars

MOST_TOKENS = 64


def longest_run(grammars, grammar):
    """Follow an answer of random tokens that the grammar allows, up to its end or to an error."""
    stop = (grammars.vocabulary.eos_token,)
    matching = Matching(grammars.compiled(grammar), SamplingParams(MOST_TOKENS, stop_token_ids=stop), stop)
    bits = np.empty(-(-grammars.vocabulary.vocab_size // 32), np.int32)
    longest, draw = 0, random.Random(0)
    for _ in range(MOST_TOKENS):
        if matching.complete:
            break
        matching.fill(bits)
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        token_id = int(draw.choice(allowed))
        if matching.error or token_id in stop:
            break
        matching.take(token_id)
        longest = max(longest, len(matching._run))
    return longest


async def serve():
    grammars, checked = Grammars(lambda: LLTokenizer("byte", slices=[])), CheckedGrammars()
    for line in sys.stdin:
        try:
            source = source_of(None, StructuredOutputs(regex=json.loads(line)), lambda text: False)
            answer = longest_run(grammars, await checked.check(source, ""))
        except (ApiError, GrammarError) as error:
            answer = str(error)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
