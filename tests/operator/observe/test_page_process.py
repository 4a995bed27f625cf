"""Large metrics pages in a process of their own: the same samples and errors, and no page that stops the next one."""

import asyncio
import os
import re
import signal

import pytest

from inflight_base.page.page_process import PageProcess
from inflight_base.page.reader import PageError
from inflight_operator.observe.metrics import Sample, parse_metrics, read_page
from tests.base.page.pages import engine_page, vllm_page

PAGE = engine_page()
LONG = 120.0


@pytest.fixture
def process():
    made = PageProcess(read_page, Sample)
    yield made
    made.close()


def page(running):
    return re.sub(r"(?m)^(vllm:num_requests_running\b.*) .*$", rf"\1 {running}", PAGE).encode()


@pytest.mark.parametrize("text", [PAGE, engine_page(observations=100, seed=1), vllm_page()])
async def test_the_sample_of_a_page_is_that_of_the_event_loops_process(process, text):
    assert await process.read(text.encode(), {}, [7.5], LONG) == parse_metrics(text, 7.5)


async def test_an_engine_may_have_names_of_its_own(process):
    text = PAGE.replace("vllm:num_requests_waiting", "queue:length")
    sample = await process.read(text.encode(), {"vllm:num_requests_waiting": "queue:length"}, [0.0], LONG)
    assert sample == parse_metrics(PAGE, 0.0)


async def test_errors_of_pages_are_said_and_end_nothing(process):
    for text in ("nothing", PAGE + 'vllm:num_preemptions_total{a="b"} -5\n'):
        with pytest.raises(PageError) as here:
            parse_metrics(text, 0.0)
        with pytest.raises(PageError, match=re.escape(str(here.value))):
            await process.read(text.encode(), {}, [0.0], LONG)
        of_errors = process._process
    with pytest.raises(PageError, match="can't decode byte 0xff"):
        await process.read(b"\xff", {}, [0.0], LONG)
    assert (await process.read(page(3), {}, [0.0], LONG)).running == 3
    assert process._process is of_errors


async def test_pages_at_the_same_time_get_their_own_answers_though_some_are_not_waited_for(process):
    asked = [asyncio.create_task(process.read(page(number), {}, [0.0], LONG)) for number in range(12)]
    await asyncio.sleep(0.01)
    for number in (0, 5):
        asked[number].cancel()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    for number, answer in enumerate(answers):
        assert number in (0, 5) or answer.running == number


async def test_a_process_that_ended_is_replaced(process):
    await process.read(page(1), {}, [0.0], LONG)
    before = process._process
    before.kill()
    before.wait()
    assert (await process.read(page(2), {}, [0.0], LONG)).running == 2
    asked = asyncio.create_task(process.read(page(3), {}, [0.0], LONG))
    os.kill(process._process.pid, signal.SIGSTOP)
    await asyncio.sleep(0.01)
    process._process.kill()
    with pytest.raises(PageError, match="the process that reads large pages ended"):
        await asked
    assert (await process.read(page(4), {}, [0.0], LONG)).running == 4


async def test_a_page_that_takes_too_long_is_an_error_and_the_next_one_is_read(process):
    await process.read(page(1), {}, [0.0], LONG)
    os.kill(process._process.pid, signal.SIGSTOP)
    with pytest.raises(PageError, match=r"^[0-9]+ bytes were not read within 0\.1 s$"):
        await process.read(page(2), {}, [0.0], 0.1)
    assert (await process.read(page(3), {}, [0.0], LONG)).running == 3


async def test_the_process_ends_with_the_operator(process):
    await process.read(page(1), {}, [0.0], LONG)
    child = process._process
    child.stdin.close()
    assert await asyncio.to_thread(child.wait) == 0
