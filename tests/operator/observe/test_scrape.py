"""Scraping: each pod on its own, over real sockets; what a pod may do is bounded."""

import asyncio
import gzip
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic
from urllib.parse import parse_qsl, urlsplit

import pytest

from inflight_base.manifest.keys import ServiceKey
from inflight_base.page import response as response_module
from inflight_base.page import scraper as scraper_module
from inflight_base.page.response import MAX_BODY
from inflight_operator.observe import scrape as scrape_module
from inflight_operator.observe.metrics import READER, read_page
from inflight_operator.observe.scrape import ScrapePool, Target
from inflight_operator.reconcile.reconciler import ReconcilerSettings
from tests.base.page.pages import engine_page

READ, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
KEY, OTHER = ServiceKey("team", "chat"), ServiceKey("team", "other")
PAGE = engine_page().encode()


def response(body=PAGE, status="200 OK", **headers):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def well(writer):
    writer.write(response())


async def hang(writer):
    await asyncio.sleep(60)


def queued_page(running, waiting):
    """Page of an engine with so many requests that run and wait."""
    lines = []
    for line in PAGE.decode().splitlines():
        series, _, _ = line.rpartition(" ")
        number = {READ: running, WAITING: waiting}.get(series.partition("{")[0])
        lines.append(line if number is None else f"{series} {number}")
    return "\n".join([*lines, ""]).encode()


class Pods:
    """Stand-ins for pods: one server, and what the pod `name` does with a request to `/name/metrics`.

    Attributes:
        requests: head of each request, in order.
        seen: requests by pod.
        connections: accepted so far.
        at_once, most: connections with a request that is not answered yet.
        sent: bytes of endless bodies.
    """

    def __init__(self):
        self.behaviours, self.requests, self.seen = {}, [], Counter()
        self.connections = self.at_once = self.most = self.sent = 0
        self.port = 0

    def target(self, name, behaviour=well):
        self.behaviours[name] = behaviour
        return Target(f"uid-{name}", name, f"http://127.0.0.1:{self.port}/{name}/metrics")

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                name = head.split("/")[1]
                self.requests.append(head)
                self.seen[name] += 1
                self.at_once += 1
                self.most = max(self.most, self.at_once)
                try:
                    await self.behaviours[name](writer)
                finally:
                    self.at_once -= 1
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def endless(self, writer):
        """A chunked body without end."""
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"# " + b"x" * 65533 + b"\n\r\n"
        while True:
            writer.write(chunk)
            self.sent += len(chunk)
            await writer.drain()


@asynccontextmanager
async def world(interval=0.05, **settings):
    """Pods, and a pool that scrapes them."""
    pods, handlers = Pods(), set()

    async def serve(reader, writer):
        handlers.add(asyncio.current_task())
        await pods.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pods.port = server.sockets[0].getsockname()[1]
    pool = ScrapePool(interval, **settings)
    try:
        yield pods, pool
    finally:
        pool.close()
        server.close()
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)


async def until(condition):
    """The test's own time limit ends what never holds."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_first_results_are_waited_for_but_not_for_long():
    async def refuse(writer):
        writer.write(response(b"", "503 Busy"))

    async with world(timeout=20.0) as (pods, pool):
        pool.keep(KEY, [pods.target("a"), pods.target("b", refuse)])
        await pool.first_results(KEY, 10.0)
        assert set(pool.window(KEY).pods) == {"uid-a"}
        assert set(pool.errors(KEY)) == {"uid-b"}
        pool.keep(OTHER, [pods.target("c", hang)])
        began = monotonic()
        await pool.first_results(OTHER, 0.2)
        assert 0.2 <= monotonic() - began < 5.0
        await pool.first_results(ServiceKey("team", "unknown"), 10.0)


async def test_a_pod_is_scraped_at_once_and_then_each_interval_over_one_connection():
    async with world(interval=0.05) as (pods, pool):
        pool.keep(KEY, [pods.target("a")])
        await until(lambda: pods.seen["a"] >= 5)
        history = pool.window(KEY).pods["uid-a"]
        assert (history.newest.running, history.newest.waiting) == (5, 2)
        assert pods.connections == 1
        assert pool.counts.done >= 4
        assert pool.errors(KEY) == {}
    async with world(interval=3600.0) as (pods, pool):
        pool.keep(KEY, [pods.target("a")])
        await until(lambda: pool.window(KEY).pods)


async def test_a_queue_is_told_where_none_was_and_each_time_that_it_has_doubled():
    told, waiting = [], {"a": 0, "b": 0, "c": 0}

    async with world(queued=told.append) as (pods, pool):

        def queue_of(name):
            async def answer(writer):
                writer.write(response(queued_page(4, waiting[name])))

            return answer

        async def tells(expected, **queues):
            told.clear()
            waiting.update(queues)
            seen = pods.seen.copy()
            await until(lambda: all(pods.seen[name] >= seen[name] + 3 for name in "abc"))
            assert told == expected

        pool.keep(KEY, [pods.target("a", queue_of("a")), pods.target("b", queue_of("b"))])
        pool.keep(OTHER, [pods.target("c", queue_of("c"))])
        await tells([])
        await tells([], a=3)  # fewer than run: ordinary
        await tells([KEY], a=4)
        await tells([], b=3)
        await tells([KEY], b=6)
        await tells([], a=9)
        await tells([KEY], a=14)
        await tells([], a=8)
        await tells([], a=14)  # has not been gone
        await tells([], a=0, b=2)
        await tells([KEY], a=4)


async def test_a_queue_that_the_first_scrape_of_a_pod_finds_is_not_told():
    told = []
    async with world(queued=told.append) as (pods, pool):

        async def answer(writer):
            writer.write(response(queued_page(1, 9)))

        pool.keep(KEY, [pods.target("a", answer)])
        await until(lambda: pods.seen["a"] > 3)
    assert told == []


async def test_only_needed_samples_are_asked_for_and_no_encoding():
    async with world() as (pods, pool):
        pool.keep(KEY, [pods.target("a")])
        await until(lambda: pods.requests)
        line, *headers = pods.requests[0].splitlines()
        asked = parse_qsl(urlsplit(line.split()[1]).query)
        assert asked == [("name[]", name) for name in READER.names]
        assert "Accept-Encoding: identity" in headers


async def test_a_pod_that_hangs_delays_nobody_and_is_named():
    async with world(interval=0.05, timeout=0.3) as (pods, pool):
        pool.keep(KEY, [pods.target("a"), pods.target("stuck", hang), pods.target("b")])
        await until(lambda: pods.seen["a"] >= 40 and pods.seen["b"] >= 40)
        assert pool.errors(KEY)["uid-stuck"] == "stuck did not answer /stuck/metrics within 0.3 s"
        assert pods.seen["stuck"] < 20
        assert "uid-stuck" not in pool.window(KEY).pods


async def test_a_pod_that_fails_again_and_again_is_asked_less_often():
    async with world(interval=10.0) as (pods, pool):
        pool.keep(KEY, [pods.target("a")])
        pod = pool._services[KEY]["uid-a"]
        intervals = []
        for pod.failures in range(6):
            intervals.append(pool._wait(pod, 1000.0) / 10.0)
        assert intervals == pytest.approx([1, 1, 2, 4, 4, 4], abs=0.51)


async def test_a_pod_that_recovers_is_asked_each_interval_again():
    async with world(interval=0.02) as (pods, pool):
        pool.keep(KEY, [pods.target("a", hang_up)])
        await until(lambda: pool.counts.failed >= 3)
        pods.behaviours["a"] = well
        await until(lambda: pool.counts.done >= 5)
        assert pool.errors(KEY) == {}


async def hang_up(writer):
    writer.close()


async def test_a_connection_that_a_pod_closed_is_replaced_within_the_scrape():
    async with world(interval=0.02) as (pods, pool):

        async def once(writer):
            pods.behaviours["a"] = well
            writer.close()

        pool.keep(KEY, [pods.target("a")])
        await until(lambda: pool.counts.done == 1)
        pods.behaviours["a"] = once
        await until(lambda: pool.counts.done >= 5)
        assert pool.counts.failed == 0
        assert pods.connections == 2


async def test_a_large_page_that_breaks_off_is_an_error_and_leaves_its_place(monkeypatch):
    monkeypatch.setattr(response_module, "SMALL_PAGE", len(PAGE))

    async def breaks(writer):
        writer.write(response(PAGE + b"# x\n" * 1000)[:-1])
        writer.close()

    async with world(interval=60.0, timeout=600.0) as (pods, pool):
        pool.keep(KEY, [pods.target(f"breaks-{number}", breaks) for number in range(5)])
        await until(lambda: pool.counts.failed == 5)
        assert {error.rpartition(": ")[2] for error in pool.errors(KEY).values()} == {
            "the connection was closed before the end of the response"
        }
        assert not pool._large._held


async def test_a_body_without_end_is_cut_at_the_limit():
    async with world(timeout=20.0, interval=60.0) as (pods, pool):
        pool.keep(KEY, [pods.target("large", pods.endless)])
        await until(lambda: pool.errors(KEY))
        assert pool.errors(KEY)["uid-large"] == f"large: /large/metrics: more than {MAX_BODY} bytes"
        await until(lambda: pods.at_once == 0)  # the connection is gone, not drained
        assert pods.sent < 32 * MAX_BODY


async def test_pods_with_large_pages_are_scraped_less_often_by_as_much(monkeypatch):
    monkeypatch.setattr(scrape_module, "LARGE_PAGE", 50_000)

    async def large(writer):
        writer.write(response(PAGE + b"# x\n" * 50_000))

    async with world() as (pods, pool):
        pool.keep(KEY, [pods.target("small"), pods.target("large", large)])
        await until(lambda: pods.seen["small"] >= 20)
        assert pods.seen["large"] <= 6


async def test_a_page_keeps_its_offset_while_its_size_varies():
    async with world(interval=3.0) as (pods, pool):
        pool.keep(KEY, [pods.target("a")])
        pod, waits = pool._services[KEY]["uid-a"], []
        for pod.page_bytes in range(600_000, 601_000, 7):
            waits.append(pool._wait(pod, 1e6))
        assert len(set(waits)) == 1


async def test_few_large_pages_are_read_at_once_and_small_ones_beside_them(monkeypatch):
    monkeypatch.setattr(scraper_module, "_LARGE_AT_ONCE", 2)
    monkeypatch.setattr(scraper_module, "_PLACE_SECONDS", 600.0)
    monkeypatch.setattr(response_module, "SMALL_PAGE", len(PAGE))
    go, page = asyncio.Event(), PAGE + b"# x\n" * 1000

    async def stalls(writer):
        writer.write(response(page)[:-1])
        await go.wait()
        writer.write(page[-1:])

    async with world(interval=60.0, timeout=20.0) as (pods, pool):
        pool.keep(KEY, [pods.target(f"large-{number}", stalls) for number in range(5)])
        await until(lambda: pods.most == 5)
        await until(lambda: not pool._large._free)
        pool.keep(OTHER, [pods.target("small")])
        await until(lambda: pool.counts.done == 1)
        go.set()
        await until(lambda: pool.counts.done == 6)
        assert not pool.errors(KEY)


async def test_large_pages_of_many_services_that_stall_give_way_to_those_of_others(monkeypatch):
    monkeypatch.setattr(scraper_module, "_LARGE_AT_ONCE", 4)
    monkeypatch.setattr(scraper_module, "_PLACE_SECONDS", 0.5, raising=False)
    monkeypatch.setattr(response_module, "SMALL_PAGE", len(PAGE))
    page = PAGE + (b"# " + b"x" * 1000 + b"\n") * 200  # more than one read

    async def stalls(writer):
        writer.write(response(page)[:-1])
        await asyncio.sleep(600)

    async def large(writer):
        writer.write(response(page))

    async with world(interval=0.5, timeout=600.0) as (pods, pool):
        hostile = [ServiceKey("hostile", f"{number}") for number in range(4)]
        for key in hostile:
            pool.keep(key, [pods.target(f"{key.name}-{number}", stalls) for number in range(5)])
        await until(lambda: not pool._large._free)
        pool.keep(OTHER, [pods.target("large", large)])
        await until(lambda: pool.counts.done)
        said = [error for key in hostile for error in pool.errors(key).values()]
        assert said, "their places were needed"
        assert all("bytes came before it was another's turn" in error for error in said)


async def test_a_large_page_that_is_slow_is_read_while_no_other_waits(monkeypatch):
    monkeypatch.setattr(scraper_module, "_PLACE_SECONDS", 0.01, raising=False)
    monkeypatch.setattr(response_module, "SMALL_PAGE", len(PAGE))
    page = PAGE + b"# x\n" * 1000

    async def slow(writer):
        writer.write(response(page)[:-1])
        await asyncio.sleep(0.1)
        writer.write(page[-1:])

    async with world(interval=60.0, timeout=600.0) as (pods, pool):
        pool.keep(KEY, [pods.target("slow", slow)])
        await until(lambda: pool.counts.done == 1)


async def test_the_age_of_a_sample_counts_from_the_begin_of_its_scrape():
    """A page of a slow engine may be as old."""
    asked = []

    async def slow(writer):
        asked.append(monotonic())
        await asyncio.sleep(0.2)
        writer.write(response())

    async with world(interval=60.0, timeout=60.0) as (pods, pool):
        pool.keep(KEY, [pods.target("slow", slow)])
        await until(lambda: pool.counts.done)
        assert pool.window(KEY).pods["uid-slow"].newest.time <= asked[0]


async def test_large_pages_are_read_in_another_process_than_the_event_loops_and_small_ones_in_it(monkeypatch):
    real = ScrapePool.scraped
    large, here = PAGE + (b"# " + b"x" * 1000 + b"\n") * 200, []

    def scraped(pool, engine, body, began):
        here.append(len(body))
        real(pool, engine, body, began)

    async def sends(writer):
        writer.write(response(large))

    async def wrong(writer):
        writer.write(response(large.replace(READ.encode(), b"other")))

    monkeypatch.setattr(ScrapePool, "scraped", scraped)
    async with world(interval=60.0, timeout=60.0) as (pods, pool):
        pool.keep(KEY, [pods.target("small"), pods.target("large", sends), pods.target("wrong", wrong)])
        await until(lambda: pool.counts.done == 2 and pool.errors(KEY))
        samples = {uid: history.newest for uid, history in pool.window(KEY).pods.items()}
        assert samples["uid-large"] == replace(samples["uid-small"], time=samples["uid-large"].time)
        assert pool.errors(KEY) == {
            "uid-wrong": f"wrong: /wrong/metrics: {READ} is missing: this is not an engine's metrics page"
        }
        assert here == [len(PAGE)]
        assert not pool._large._held


async def test_pods_of_one_service_that_hang_delay_another_service_by_one_scrape():
    async with world(interval=60.0, timeout=0.1, concurrency=1) as (pods, pool):
        pool.keep(KEY, [pods.target(f"stuck-{number}", hang) for number in range(10)])
        await until(lambda: len(pool._due._groups.get(str(KEY), ())) >= 8)
        before = pool.counts.failed
        pool.keep(OTHER, [pods.target("a")])
        await until(lambda: pool.counts.done)
        assert pool.counts.failed <= before + 2


@pytest.mark.parametrize("interval", [0.5, 3.0, 60.0])
async def test_samples_of_the_largest_page_are_never_stale(interval):
    every = ReconcilerSettings(interval=interval)
    async with world(interval=3600.0) as (pods, _):
        pool = ScrapePool(interval, stale_after=every.stale_after)
        pool.keep(KEY, [pods.target("a")])
        pod = pool._services[KEY]["uid-a"]
        for page_bytes in range(0, MAX_BODY + 1, 10_007):
            pod.page_bytes = page_bytes
            waits = [pool._wait(pod, 1e6 + tenth * interval / 10) for tenth in range(30)]
            assert max(waits) + pool._timeout <= max(every.stale_after, 1.5 * interval + pool._timeout)
        assert min(waits) > 1.4 * interval or interval > 10, "and yet they are read less often where that is possible"
        pool.close()


async def test_a_page_of_a_known_size_above_the_limit_is_refused_by_its_head_and_the_size_is_said():
    async def huge(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n")
        await hang(writer)

    async with world(timeout=20.0, interval=60.0) as (pods, pool):
        pool.keep(KEY, [pods.target("large", huge)])
        await until(lambda: pool.errors(KEY))
        assert pool.errors(KEY)["uid-large"] == f"large: /large/metrics: 3000000 bytes, more than {MAX_BODY}"


async def test_a_bomb_is_refused_and_not_inflated():
    bomb = gzip.compress(b"\n" * (64 * MAX_BODY))

    async def answer(writer):
        writer.write(response(bomb, Content_Encoding="gzip"))

    async with world(interval=60.0) as (pods, pool):
        pool.keep(KEY, [pods.target("a", answer)])
        await until(lambda: pool.errors(KEY))
        assert pool.errors(KEY)["uid-a"] == "a: /a/metrics: Content-Encoding 'gzip' was not asked for"


async def test_the_time_of_a_scrape_is_bounded_as_a_whole():
    """A body that trickles never lets a limit between two reads run out."""

    async def trickle(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b"#")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with world(interval=60.0, timeout=0.3) as (pods, pool):
        pool.keep(KEY, [pods.target("a", trickle)])
        await until(lambda: pool.errors(KEY))
        assert pool.errors(KEY)["uid-a"] == "a did not answer /a/metrics within 0.3 s"
        await until(lambda: pods.at_once == 0)


async def test_an_answer_that_a_late_event_loop_takes_late_is_in_time():
    async def slow(writer):
        await asyncio.sleep(0.2)
        writer.write(response())

    async with world(interval=60.0, timeout=0.05, stretch=lambda: 100.0) as (pods, pool):
        pool.keep(KEY, [pods.target("a", slow)])
        await until(lambda: pool.counts.done or pool.counts.failed)
        assert pool.errors(KEY) == {}


async def test_redirects_are_not_followed():
    async with world(interval=60.0) as (pods, pool):
        elsewhere = pods.target("b").url

        async def redirect(writer):
            writer.write(response(b"", "302 Found", Location=elsewhere))

        pool.keep(KEY, [pods.target("a", redirect)])
        await until(lambda: pool.errors(KEY))
        assert pool.errors(KEY)["uid-a"] == "a: /a/metrics: HTTP 302"
        assert pods.seen["b"] == 0


async def test_errors_are_reported_and_not_raised():
    async def broken(writer):
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

    async def other(writer):
        writer.write(response(b"hello"))

    async def failing(writer):
        writer.write(response(b"no", "500 Internal Server Error"))

    async def latin(writer):
        writer.write(response(b"vllm:num_requests_running 1 # \xff"))

    async with world(interval=60.0) as (pods, pool):
        named = {"broken": broken, "other": other, "failing": failing, "latin": latin, "left": hang_up}
        targets = [pods.target(name, behaviour) for name, behaviour in named.items()]
        targets.append(Target("uid-refused", "refused", "http://127.0.0.1:1/metrics"))
        targets.append(Target("uid-wrong", "wrong", "http://[not an address]:1/metrics"))
        pool.keep(KEY, targets)
        await until(lambda: len(pool.errors(KEY)) == len(targets))
        errors = pool.errors(KEY)
        assert "vllm:num_requests_running is missing" in errors["uid-other"]
        assert errors["uid-failing"] == "failing: /failing/metrics: HTTP 500"
        assert "utf-8" in errors["uid-latin"]
        assert errors["uid-broken"].startswith("broken: /broken/metrics: the response cannot be read as HTTP/1.1: ")
        assert errors["uid-refused"].startswith("refused: /metrics: cannot connect to 127.0.0.1:1: ")
        assert errors["uid-left"] == "left: /left/metrics: the connection was closed before the end of the response"
        assert all(len(error) < 300 for error in errors.values())
        assert pool.counts.failed == len(targets)
        assert pool.window(KEY).pods == {}


async def test_a_page_without_the_metric_that_a_custom_service_names_is_an_error_with_that_name():
    async def other(writer):
        writer.write(response(b"vllm:num_requests_running 1\nllamacpp:requests_deferred 0\n"))

    async with world(interval=60.0) as (pods, pool):
        target = replace(pods.target("llama", other), names={READ: "llamacpp:requests_processing"})
        pool.keep(KEY, [target])
        await until(lambda: pool.errors(KEY))
        (error,) = pool.errors(KEY).values()
        assert error.startswith("llama: /llama/metrics: llamacpp:requests_processing is missing")
        assert READ not in error
        assert pool.window(KEY).pods == {}


async def test_a_fault_of_ours_with_one_page_stops_no_scrape(monkeypatch):
    def read(page, time):
        if page.startswith(b"odd"):
            raise RecursionError("as deep as it gets")
        return read_page(page, time)

    async def odd(writer):
        writer.write(response(b"odd"))

    monkeypatch.setattr(scrape_module, "read_page", read)
    async with world(interval=0.02, concurrency=1) as (pods, pool):
        pool.keep(KEY, [pods.target("odd", odd), pods.target("a")])
        await until(lambda: pool.counts.done >= 3 and pool.counts.failed >= 2)
        assert "RecursionError" in pool.errors(KEY)["uid-odd"]


async def test_no_more_at_once_than_allowed():
    async def slow(writer):
        await asyncio.sleep(0.1)
        await well(writer)

    async with world(interval=60.0, concurrency=3) as (pods, pool):
        pool.keep(KEY, [pods.target(f"pod-{number}", slow) for number in range(20)])
        await until(lambda: pool.counts.done == 20)
        assert pods.most == 3


async def test_a_pod_that_is_not_kept_is_forgotten_and_not_scraped_again():
    async with world(interval=0.02) as (pods, pool):
        first, second = pods.target("a"), pods.target("b")
        pool.keep(KEY, [first, second])
        pool.keep(OTHER, [pods.target("c")])
        await until(lambda: len(pool.window(KEY).pods) == 2 and pods.seen["c"])
        pool.keep(KEY, [second])
        pool.forget(OTHER)
        assert set(pool.window(KEY).pods) == {"uid-b"}
        assert pool.window(OTHER).pods == {}
        await asyncio.sleep(0.1)  # whatever was under way has ended
        before = pods.seen.copy()
        await until(lambda: pods.seen["b"] >= before["b"] + 5)
        assert (pods.seen["a"], pods.seen["c"]) == (before["a"], before["c"])


async def test_what_a_dropped_pod_still_answers_is_thrown_away():
    async def late(writer):
        await asyncio.sleep(0.1)
        await well(writer)

    async with world(interval=60.0) as (pods, pool):
        pool.keep(KEY, [pods.target("a", late)])
        await until(lambda: pods.seen["a"])
        pool.keep(KEY, [])
        pool.keep(KEY, [pods.target("b")])
        await until(lambda: pool.counts.done)
        await asyncio.sleep(0.2)
        assert set(pool.window(KEY).pods) == {"uid-b"}


async def test_the_same_targets_again_cause_no_scrape():
    async with world(interval=60.0) as (pods, pool):
        targets = [pods.target("a"), pods.target("b")]
        for _ in range(50):
            pool.keep(KEY, targets)
            await asyncio.sleep(0.005)
        assert pods.seen == {"a": 1, "b": 1}


async def test_a_pod_is_followed_to_its_new_address():
    async with world(interval=0.02) as (pods, pool):
        pool.keep(KEY, [pods.target("a")])
        await until(lambda: pods.seen["a"])
        moved = Target("uid-a", "a", pods.target("b").url)
        pool.keep(KEY, [moved])
        await until(lambda: pods.seen["b"])


async def test_a_window_is_a_value():
    async with world(interval=0.02) as (pods, pool):
        pool.keep(KEY, [pods.target("a")])
        await until(lambda: pool.counts.done >= 2)
        window = pool.window(KEY)
        newest = window.pods["uid-a"].newest
        await until(lambda: pool.counts.done >= 4)
        assert window.pods["uid-a"].newest is newest
        assert pool.window(KEY).pods["uid-a"].newest.time > newest.time


async def test_moments_are_spread_over_the_interval_and_stay():
    """The 60 pods are first scraped together, then each at its own moment, the same in each interval."""
    async with world(interval=0.5) as (pods, pool):
        pool.keep(KEY, [pods.target(f"pod-{number}") for number in range(60)])
        loop = asyncio.get_running_loop()
        await until(lambda: pool.counts.done >= 60)
        now = loop.time()
        waits = [pool._wait(pod, now) for pod in pool._services[KEY].values()]
        assert all(0.25 <= wait <= 0.75 for wait in waits)
        tenths = Counter(int((now + wait) % 0.5 / 0.05) for wait in waits)
        assert max(tenths.values()) <= 20
        later = [pool._wait(pod, now + 2.5) for pod in pool._services[KEY].values()]
        assert later == pytest.approx(waits, abs=1e-6)


async def test_nothing_is_left_when_the_pool_ends():
    before = len(asyncio.all_tasks())
    async with world(interval=0.02) as (pods, pool):
        pool.keep(KEY, [pods.target("a")])
        await until(lambda: pool.counts.done)
    assert pool.window(KEY).pods == {}
    await until(lambda: len(asyncio.all_tasks()) == before)
