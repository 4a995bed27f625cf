"""KubeApi over a stand-in for the API server with prepared answers: pages, refusals, and the guard of writes."""

from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio import client

from inflight_base.kube.client import PAGE, KubeApi, Page
from inflight_base.kube.errors import KubeApiError
from inflight_base.kube.kinds import Selection


@asynccontextmanager
async def answering(answers, **more):
    """Returns a KubeApi, and the requests that it made; each is answered with the next (status, body, headers)."""
    requests, left = [], iter(answers)

    async def answer(request):
        requests.append(request)
        status, body, *headers = next(left)
        return web.json_response(body, status=status, headers=headers[0] if headers else None)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = client.Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        async with client.ApiClient(configuration) as connected:
            yield KubeApi(connected, **more), requests
    finally:
        await runner.cleanup()


def page(version, *names, following=""):
    items = [{"metadata": {"name": name}} for name in names]
    return 200, {"metadata": {"resourceVersion": version, "continue": following}, "items": items}


def names(objects):
    return [one["metadata"]["name"] for one in objects]


async def test_a_list_is_read_in_pages():
    answers = [page("7", "a", "b", following="token"), page("7", "c")]
    async with answering(answers) as (api, requests):
        assert names(await api.list(Selection("Pod", "team", "x=y"))) == ["a", "b", "c"]
    first, second = (dict(one.query) for one in requests)
    assert first == {"limit": str(PAGE), "labelSelector": "x=y"}
    assert second == {**first, "continue": "token"}


async def test_a_list_that_expires_on_the_way_begins_anew():
    answers = [
        page("7", "a", following="token"),
        (410, {"message": "expired"}),
        page("9", "b", following="t"),
        page("9"),
    ]
    async with answering(answers) as (api, _):
        pages = [one async for one in api.pages(Selection("Pod"))]
    assert [(one.first, one.version, names(one.items)) for one in pages] == [
        (True, "7", ["a"]),
        (True, "9", ["b"]),
        (False, "9", []),
    ]
    assert isinstance(pages[0], Page)


async def test_a_list_keeps_only_what_came_after_it_began_anew():
    answers = [page("7", "a", following="token"), (410, {}), page("9", "b")]
    async with answering(answers) as (api, _):
        assert names(await api.list(Selection("Pod"))) == ["b"]


async def test_an_expired_first_page_is_an_error():
    async with answering([(410, {"message": "expired"})]) as (api, _):
        with pytest.raises(KubeApiError, match="expired"):
            await api.list(Selection("Pod"))


async def test_too_many_requests_says_when_to_try_again():
    async with answering([(429, {"message": "slow down"}, {"Retry-After": "3"}), (500, {})]) as (api, _):
        with pytest.raises(KubeApiError, match="slow down") as refused:
            await api.get("Pod", "team", "x")
        assert (refused.value.status, refused.value.retry_after) == (429, 3.0)
        with pytest.raises(KubeApiError) as refused:
            await api.get("Pod", "team", "x")
        assert refused.value.retry_after is None


async def test_who_may_not_write_reads_and_sends_no_write():
    child = {"kind": "Service", "metadata": {"name": "x", "namespace": "team"}}
    async with answering([(200, child)], may_write=lambda: False) as (api, requests):
        assert await api.get("Service", "team", "x") == child
        for write in (
            lambda: api.apply(child),
            lambda: api.create(child),
            lambda: api.delete("Service", "team", "x"),
            lambda: api.patch("Pod", "team", "x", {}),
        ):
            with pytest.raises(KubeApiError, match="no longer leads"):
                await write()
    assert len(requests) == 1


async def test_what_another_creates_first_is_read():
    secret = {"kind": "Secret", "metadata": {"name": "x", "namespace": "team"}}
    answers = [(404, {}), (409, {"message": "exists"}), (200, {**secret, "data": {"whose": "theirs"}})]
    async with answering(answers) as (api, requests):
        assert (await api.get_or_create(secret))["data"] == {"whose": "theirs"}
    assert [one.method for one in requests] == ["GET", "POST", "GET"]
