"""Equal parts of manifests are one object."""

from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.sharing import shared

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([0.5, 1.0, 2.5]) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)


def typed(value):
    """The value with the types of its scalars: true equals 1."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return [typed(item) for item in value] if isinstance(value, list) else (type(value), value)


@given(st.lists(JSON, max_size=4))
def test_a_shared_value_is_equal_in_value_type_and_order(values):
    for value in values:
        before, made = deepcopy(value), shared(value)
        assert typed(made) == typed(value) == typed(before)
        assert repr(made) == repr(value)


def test_equal_parts_of_two_manifests_are_one_object():
    def manifest(name):
        return {"metadata": {"name": name}, "spec": {"ports": [{"port": 8000, "name": "http"}], "on": True, "one": 1}}

    one, other = shared(manifest("a")), shared(manifest("b"))
    assert one["spec"] is other["spec"]
    assert one["metadata"] is not other["metadata"]
    assert shared({"spec": {"on": 1, "one": True}})["spec"] == {"on": 1, "one": True}
