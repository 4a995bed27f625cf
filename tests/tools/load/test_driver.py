"""The driver must see every loss: it runs here against a small server that answers as it is told."""

import asyncio
import json
import os
import signal
import time

from hypothesis import given
from hypothesis import strategies as st

from tests.standin import served
from tools.load import driver
from tools.load.driver import parse, run
from tools.measure.report import rounded_percentile

ANSWER = {"choices": [{"finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
CHUNKS = [
    {"choices": [{"finish_reason": None, "delta": {"content": "a"}}]},
    {"choices": [{"finish_reason": "stop", "delta": {}}]},
    {"choices": [], "usage": {"completion_tokens": 3}},
]


def http(status, body, headers=""):
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n{body}".encode()


def whole_answer(body):
    if not body.get("stream"):
        return http(200, json.dumps(ANSWER))
    return http(200, "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in CHUNKS) + "data: [DONE]\n\n")


def server(answer):
    async def respond(request, to):
        to.transport.write(answer(json.loads(request.body)))
        to.transport.close()

    return served(respond)


async def drive(answer, requests=12, flags=()):
    async with server(answer) as url:
        return await run(parse(["--url", url, "--model", "m", "--clients", "3", "--requests", str(requests), *flags]))


async def test_whole_answers_are_counted_and_nothing_is_lost():
    tally = await drive(whole_answer)
    assert (tally.sent, tally.answered, dict(tally.lost)) == (12, 12, {})
    assert tally.tokens == 12 * 3


async def test_a_503_with_retry_after_is_retried_and_one_without_is_a_loss():
    refused = iter([True, True] + [False] * 100)
    tally = await drive(
        lambda body: http(503, "{}", "Retry-After: 0\r\n") if next(refused) else whole_answer(body), requests=6
    )
    assert (tally.answered, tally.retries, dict(tally.lost)) == (6, 2, {})
    assert dict((await drive(lambda body: http(503, "{}"))).lost) == {"HTTP 503": 12}


async def test_an_answer_that_is_none_is_a_loss_and_the_driver_goes_on():
    for body in ("<html>", "{}", '{"choices": []}', '{"choices": null}'):
        tally = await drive(lambda asked, body=body: http(200, f"data: {body}" if asked.get("stream") else body))
        assert (tally.sent, tally.answered, tally.lost.total()) == (12, 0, 12)


def test_the_examples_in_help_and_docstring_are_accepted():
    for text in (driver.__doc__, driver.parser().epilog):
        words = (
            next(line for line in text.splitlines() if "tools.load.driver" in line)
            .partition("tools.load.driver")[2]
            .split()
        )
        assert driver.parse(words).requests


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_at_least_the_share_is_at_or_below_the_percentile(values, share):
    values = [round(value, 3) for value in values]
    found = rounded_percentile(values, share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9


async def test_a_stream_without_its_end_and_a_cut_connection_are_losses():
    def cut(body):
        return http(200, f"data: {json.dumps(CHUNKS[0])}\n\n") if body.get("stream") else b""

    tally = await drive(cut)
    assert tally.answered == 0
    assert tally.lost.total() == 12


async def test_an_error_event_in_a_stream_is_a_loss():
    error = 'data: {"error": {"message": "timed out"}}\n\n'
    tally = await drive(lambda body: http(200, error) if body.get("stream") else whole_answer(body))
    assert tally.answered + tally.lost.total() == 12
    assert any("timed out" in reason for reason in tally.lost)


async def test_each_loss_says_when_it_began_and_ended_and_from_which_port_it_was_sent():
    tally = await drive(lambda body: http(500, "{}"), requests=1)
    (loss,) = tally.losses
    assert loss.kind == "HTTP 500"
    assert loss.port > 0
    assert 0 <= loss.ended - loss.begun <= tally.longest_wait + 1
    refused = await run(parse(["--url", "http://127.0.0.1:1", "--model", "m", "--clients", "1", "--requests", "1"]))
    assert [loss.port for loss in refused.losses] == [None]


async def test_patience_bounds_a_request_with_all_its_retries():
    tally = await drive(lambda body: http(503, "{}", "Retry-After: 1\r\n"), flags=("--patience", "0.2"))
    assert tally.answered == 0
    assert dict(tally.lost) == {"no whole answer within 0.2 s": tally.sent}
    assert 0.2 <= tally.longest_wait < 60


async def test_a_new_connection_is_opened_for_each_request_when_asked():
    ports = set()

    async def respond(request, to):
        ports.add(to.transport.get_extra_info("peername")[1])
        to.transport.write(whole_answer(json.loads(request.body)).replace(b"Connection: close\r\n", b""))

    async def connections(*flags):
        ports.clear()
        async with served(respond) as url:
            await run(parse(["--url", url, "--model", "m", "--clients", "1", "--requests", "8", *flags]))
        return len(ports)

    assert await connections() < 8
    assert await connections("--new-connections") == 8


async def test_sigterm_sends_no_more_and_ends_with_the_closing_line(capfd):
    asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), signal.SIGTERM)
    tally = await drive(whole_answer, requests=10**9)
    assert tally.answered == tally.sent > 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["done"]


async def test_a_streamed_answer_tells_its_latencies_as_the_client_saw_them(capfd):
    tally = await drive(whole_answer)
    closing = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert 0 < len(tally.streams) < 12
    assert closing["ttft_p95"] == rounded_percentile([one.ttft for one in tally.streams], 0.95)
    assert closing["tpot_p95"] == rounded_percentile([one.tpot for one in tally.streams], 0.95)


async def test_with_a_rate_requests_come_at_their_times_however_fast_answers_are():
    started = time.monotonic()
    tally = await drive(whole_answer, requests=10**9, flags=("--rate", "40", "--seconds", "1"))
    assert 20 <= tally.sent <= 60
    assert tally.answered == tally.sent
    assert time.monotonic() - started < 30


async def test_clients_whose_turn_comes_after_the_end_do_not_wait_for_it():
    began = time.monotonic()
    await drive(whole_answer, requests=10**9, flags=("--rate", "0.01", "--seconds", "0.5"))
    assert time.monotonic() - began < 60
