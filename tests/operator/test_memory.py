"""The operator holds little memory that is free."""

import asyncio
import ctypes
import subprocess
import sys

import pytest

from inflight_operator import memory, runtime
from tests.base.virtual_time import in_virtual_time

SCRIPT = """
import ctypes, sys, threading
from inflight_operator import memory

if sys.argv[1] == "keep_little":
    memory.keep_little()
barrier = threading.Barrier(8)

def use():
    barrier.wait()
    some = [bytearray(10_000) for _ in range(100)]
    barrier.wait()

threads = [threading.Thread(target=use) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
stream = libc.fdopen(1, b"w")
libc.malloc_info(0, ctypes.c_void_p(stream))
libc.fflush(ctypes.c_void_p(stream))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="needs glibc")
@pytest.mark.parametrize(("call", "few"), [("keep_little", True), ("nothing", False)])
def test_threads_share_two_arenas(call, few):
    done = subprocess.run([sys.executable, "-c", SCRIPT, call], capture_output=True, text=True, check=True)
    assert done.stdout.count("<heap nr=") >= 1
    assert (done.stdout.count("<heap nr=") <= 2) == few


@in_virtual_time
async def test_free_memory_is_given_back_each_minute(monkeypatch):
    times = []
    monkeypatch.setattr(memory, "give_back", lambda: times.append(asyncio.get_running_loop().time()))
    tidying = asyncio.create_task(runtime._tidy())
    await asyncio.sleep(150.0)
    tidying.cancel()
    assert times == [60.0, 120.0]


def test_memory_is_given_back_wherever_the_operator_runs():
    memory.give_back()
