"""Names of a prompt's blocks as vLLM has them."""

import json
import os
import subprocess
from base64 import b64decode

import pytest

from inflight_gateway.relay.answers.answer import Answer
from inflight_gateway.relay.answers.vllm import stream_of
from inflight_gateway.relay.answers.vllm_blocks import note
from tests.engine.kv_events.test_real_engine import python_of

IDS = [*range(250, 290)]
WRITTEN = ",".join(map(str, IDS)).encode()
OF_VLLM = """
import sys, json
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils as utils
utils.init_none_hash(sha256)
ids = json.loads(sys.argv[1])
for salt in sys.argv[2:]:
    parent, names = None, []
    for start in range(0, len(ids) // 16 * 16, 16):
        keys = (salt,) if salt and not start else None
        parent = utils.hash_block_tokens(sha256, parent, ids[start : start + 16], keys)
        names.append(int.from_bytes(parent, "big") & (1 << 64) - 1)
    print(json.dumps(names))
"""


def names_of(noted):
    kind, size, tokens, names = noted.split(b" ")
    raw = b64decode(names)
    return (kind, int(size), int(tokens)), [int.from_bytes(raw[at : at + 8], "little") for at in range(0, len(raw), 8)]


@pytest.mark.contract
def test_names_are_those_of_vllm():
    python, salts = python_of("vllm", "make e2e-vllm"), ("", "a salt")
    command = [python, "-c", OF_VLLM, json.dumps(IDS), *salts]
    ran = subprocess.run(
        command, capture_output=True, env={**os.environ, "PYTHONHASHSEED": "0"}, check=True, timeout=300
    )
    for salt, line in zip(salts, ran.stdout.splitlines()[-2:], strict=True):
        head, names = names_of(note(WRITTEN, 16, salt))
        assert head == (b"b", 16, 40)
        assert names == json.loads(line)


def test_names_of_two_prompts_are_equal_up_to_the_first_block_that_differs():
    _, one = names_of(note(WRITTEN, 4, ""))
    _, other = names_of(note(WRITTEN.replace(b"262", b"1"), 4, ""))
    assert one[:3] == other[:3]
    assert not set(one[3:]) & set(other[3:])
    assert len(one) == 10
    assert not set(one) & set(names_of(note(WRITTEN, 4, "salt"))[1])
    assert note(b"1,2,3", 4, "") == b""


def test_the_blocks_of_a_stream_are_told_once_where_its_engine_has_events():
    body = b'{"prompt":"x","stream":true,"cache_salt":"s"}'
    event = b'data: {"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null,"stop_reason":null,'
    event += b'"prompt_token_ids":[%b],"token_ids":[7]}]}\n\n' % WRITTEN
    for size in (0, 16):
        stream, answer = stream_of(body, b"/v1/completions"), Answer()
        stream.block_size = size
        [frame] = stream.reader(answer).feed(event)
        answer.take(frame.notes)
        assert (answer.blocks is not None) == bool(size)
    assert (answer.blocks.size, answer.blocks.tokens, len(answer.blocks.names)) == (16, 40, 16)
