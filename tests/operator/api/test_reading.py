"""A service that was written for another version of the types is read as far as this version can."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from inflight_operator.api.types import InferenceService
from tests.operator.fakes import service_body
from tests.operator.render.services import EVERYTHING

FULL_SPEC = {
    **EVERYTHING,
    "replicas": 3,
    "slo": {"ttftP95": "2s", "tpotP95": "40ms"},
    "scaling": {
        "mode": "External",
        "minReplicas": 2,
        "maxReplicas": 5,
        "targets": {"waitingRequests": 9, "kvUtilization": 0.5},
        "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]}},
    },
    "tuning": {"mode": "Recommend", "maxNumSeqs": {"min": 2, "max": 60}},
    "template": {
        "labels": {"team": "search"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "env": [{"name": "A", "value": "b"}],
        "volumes": [{"name": "cache", "emptyDir": {}}],
        "resources": {"requests": {"cpu": "2"}},
    },
}


def body(spec=None):
    return {
        "apiVersion": "inflight.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": "team", "uid": "u-1", "generation": 3},
        "spec": copy.deepcopy(FULL_SPEC if spec is None else spec),
    }


def with_model(**spec):
    return body({"model": {"source": "builtin://smollm2"}, **spec})


def test_a_service_of_this_version_is_read_whole_and_without_a_sentence():
    service, left_out = InferenceService.read(body())
    assert service == InferenceService.from_dict(body())
    assert left_out == ()


def test_an_unknown_field_is_ignored_and_named():
    service, left_out = InferenceService.read(with_model(scaling={"maxReplicas": 3, "forecast": {"horizon": "1h"}}))
    assert service.spec.scaling.max_replicas == 3
    assert left_out == ("spec.scaling.forecast is unknown to this version of the operator and is ignored",)


def test_a_value_of_a_newer_enumeration_gives_way_to_the_default_and_is_named():
    service, left_out = InferenceService.read(with_model(rollout={"strategy": "BlueGreen", "drainTimeout": "9s"}))
    assert (service.spec.rollout.strategy, service.spec.rollout.drain_timeout) == ("SurgeFirst", "9s")
    assert left_out == (
        "spec.rollout.strategy cannot be read by this version of the operator and is ignored:"
        " Input should be 'SurgeFirst' or 'ReleaseFirst'",
    )


def test_an_item_of_a_list_that_cannot_be_read_is_left_out_alone():
    classes = [{"name": "a"}, {"weight": 2}, {"name": "b", "burst": 3}, {"name": "c", "priority": "high"}]
    service, left_out = InferenceService.read(with_model(engine={"scheduling": {"classes": classes}}))
    assert [each.name for each in service.spec.engine.scheduling.classes] == ["a", "b", "c"]
    assert left_out == (
        "spec.engine.scheduling.classes[1] cannot be read by this version of the operator and is ignored:"
        " name is missing",
        "spec.engine.scheduling.classes[2].burst is unknown to this version of the operator and is ignored",
        "spec.engine.scheduling.classes[3].priority cannot be read by this version of the operator and is ignored:"
        " Input should be a valid integer, unable to parse string as an integer",
    )


def test_what_is_read_is_not_changed():
    given = with_model(later=1)
    before = copy.deepcopy(given)
    InferenceService.read(given)
    assert given == before


@pytest.mark.parametrize(
    "spec", [{}, {"model": {}}, {"model": {"source": 3}}, {"model": "builtin://smollm2", "later": 1}, []]
)
def test_without_a_model_a_service_cannot_be_read(spec):
    with pytest.raises(ValidationError, match=r"spec"):
        InferenceService.read(body(spec))


def test_the_error_of_a_service_that_cannot_be_read_names_only_what_is_missing():
    with pytest.raises(ValidationError) as raised:
        InferenceService.read(body({"later": 1, "scaling": {"mode": "Later"}}))
    assert [error["loc"] for error in raised.value.errors()] == [("spec", "model")]


def places(value, path=()):
    """Yields every path to a mapping, a list item or a value below the spec."""
    if path:
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


PLACES = sorted(places(FULL_SPEC), key=str)
REQUIRED = {("model",), ("model", "source")}
garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.sampled_from([place for place in PLACES if place not in REQUIRED]), garbage), max_size=4
    ),
    extras=st.lists(st.tuples(st.sampled_from([(), *PLACES]), st.text(min_size=1, max_size=9), garbage), max_size=4),
)
def test_whatever_else_is_in_a_spec_its_model_is_enough_to_read_it(changes, extras):
    given = body()
    for path, value in changes:
        put(given["spec"], path, value)
    for path, name, value in extras:
        at = find(given["spec"], path)
        if isinstance(at, dict) and (*path, name) not in REQUIRED:
            at.setdefault(name, value)
    service, left_out = InferenceService.read(given)
    assert service.spec.model.source == FULL_SPEC["model"]["source"]
    assert all(sentence.startswith("spec.") for sentence in left_out)
    assert (left_out == ()) == strictly_readable(given)


def strictly_readable(given):
    try:
        InferenceService.from_dict(given)
    except ValidationError:
        return False
    return True


def find(value, path):
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def put(spec, path, value):
    """Sets the value at a path, if earlier changes left the path."""
    parent = find(spec, path[:-1])
    if (isinstance(parent, dict) and path[-1] in parent) or (
        isinstance(parent, list) and isinstance(path[-1], int) and path[-1] < len(parent)
    ):
        parent[path[-1]] = value


def test_equal_parts_of_two_specs_are_one_object_and_what_was_set_stays_known():
    first, second = (InferenceService.read(service_body())[0].spec for _ in range(2))
    assert first == second
    assert first.scaling is second.scaling
    more = InferenceService.read(service_body(spec={"scaling": {"maxReplicas": first.scaling.max_replicas}}))[0].spec
    assert more.scaling == first.scaling
    assert more.scaling.model_fields_set == {"max_replicas"}


@pytest.mark.parametrize(
    "newer", [{"engine": {"image": "a", "upgrade": "Later"}}, {"limits": 7}, {"conditions": [{"type": 1}]}]
)
def test_of_a_status_only_the_part_that_a_newer_operator_wrote_otherwise_is_forgotten(newer):
    known = {
        "desiredReplicas": 7,
        "limits": {"maxNumSeqs": 8, "maxNumBatchedTokens": 64, "revision": 3, "podsInForce": 1},
    }
    read = InferenceService.from_dict({**body(), "status": {**known, **newer}}).status
    assert read.desired_replicas == 7
    assert (read.limits is None) == ("limits" in newer)
    assert (read.engine, read.conditions) == (None, [])
