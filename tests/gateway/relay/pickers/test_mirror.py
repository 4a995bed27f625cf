from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.keys import ObjectKey, ServiceKey
from inflight_gateway.discovery.catalog import Catalog
from inflight_gateway.discovery.hosts import Hosts
from inflight_gateway.link.wire import Known
from inflight_gateway.relay.pickers.mirror import Mirror
from inflight_gateway.types import Endpoint, ServiceConfig

KEYS = [ServiceKey("a", name) for name in "xyz"]


def config(key, model=None):
    return ServiceConfig(key, "u", model or key.name)


def one(key, **more):
    return Known(
        services=((key, config(key, key.name)),),
        endpoints=((key, (Endpoint("10.0.0.1:80", "pod"),)),),
        secrets=((ObjectKey("a", f"keys-{key.name}"), {"k": b"x"}),),
        models=((key.name, (key,)),),
        **more,
    )


def test_changes_reach_the_catalog():
    catalog = Catalog()
    mirror = Mirror(catalog)
    mirror.begin()
    mirror.take(one(KEYS[0], hosts=Hosts(by_model=True)))
    assert not catalog.complete
    mirror.take(Known(outside=((KEYS[1], True),), complete=True))
    assert catalog.complete
    assert catalog.services[KEYS[0]] == config(KEYS[0], "x")
    assert catalog.resolve_model("x") == KEYS[0]
    assert catalog.outside == {KEYS[1]}
    mirror.take(Known(services=((KEYS[0], None),), endpoints=((KEYS[0], ()),)))
    assert not catalog.services
    assert not catalog.endpoints


def test_what_a_new_stream_does_not_name_goes_when_it_is_complete_and_not_before():
    catalog = Catalog()
    mirror = Mirror(catalog)
    mirror.begin()
    mirror.take(one(KEYS[0]))
    mirror.take(one(KEYS[1], outside=((KEYS[2], True),), complete=True))
    mirror.begin()
    mirror.take(one(KEYS[1]))
    assert set(catalog.services) == {KEYS[0], KEYS[1]}
    assert catalog.complete
    mirror.take(Known(complete=True))
    assert set(catalog.services) == set(catalog.endpoints) == {KEYS[1]}
    assert catalog.secret_refs() == {ObjectKey("a", "keys-y")}
    assert set(catalog.models) == {"y"}
    assert not catalog.outside


@given(st.lists(st.lists(st.sampled_from(KEYS), unique=True), min_size=1, max_size=5))
def test_after_each_stream_the_catalog_is_that_of_the_picker(streams):
    catalog = Catalog()
    mirror = Mirror(catalog)
    for keys in streams:
        mirror.begin()
        for key in keys:
            mirror.take(one(key))
        mirror.take(Known(complete=True))
        assert set(catalog.services) == set(catalog.endpoints) == set(keys)
