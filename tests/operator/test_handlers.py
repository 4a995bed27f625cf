"""What kopf is asked to watch, and what its events become."""

import kopf

from inflight_operator.handlers import WATCHED_KINDS, build_registry, configure_kopf
from inflight_operator.observe.cache import ClusterCache
from tests.operator.fakes import KEY
from tests.operator.observe.cluster_history import manifest


async def nothing(*_):
    """For parts that a test does not look at."""


def handlers(cache, looked, relisted):
    async def look_at(key):
        looked.append(key)

    registry = build_registry(cache, look_at, relisted.append, nothing, nothing)
    return {handler.id: handler.fn for handler in registry._watching.get_all_handlers()}


async def test_events_fill_the_cache_and_ask_for_a_look():
    cache, looked = ClusterCache(), []
    told = handlers(cache, looked, [])
    assert set(told) == set(WATCHED_KINDS)
    await told["Service"](type="ADDED", body=manifest("Service", "chat", "1", 1), memo=kopf.Memo())
    await told["Service"](type="MODIFIED", body=manifest("Service", "chat", "1", 1), memo=kopf.Memo())
    assert looked == [KEY]
    await told["Service"](type="DELETED", body=manifest("Service", "chat", "1", 2), memo=kopf.Memo())
    assert cache.children(KEY) == []
    assert looked == [KEY, KEY]


async def test_an_object_that_is_listed_again_asks_for_a_list_of_its_kind():
    relisted, memo = [], kopf.Memo()
    told = handlers(ClusterCache(), [], relisted)
    await told["Pod"](type=None, body=manifest("Pod", "chat-1", "1", 1), memo=memo)
    await told["Pod"](type="MODIFIED", body=manifest("Pod", "chat-1", "1", 2), memo=memo)
    assert relisted == []
    await told["Pod"](type=None, body=manifest("Pod", "chat-1", "1", 2), memo=memo)
    assert relisted == ["Pod"]


def test_kopf_only_watches_and_lists_in_pages_by_label():
    settings = kopf.OperatorSettings()
    configure_kopf(settings)
    assert not settings.posting.enabled
    assert settings.watching.chunk_size == 500
    assert len(settings.watching.label_selectors) == len(WATCHED_KINDS) - 1
