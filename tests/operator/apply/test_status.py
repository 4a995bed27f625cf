from hypothesis import given
from hypothesis import strategies as st

from inflight_operator.apply.kube import status_patch

values = st.recursive(
    st.integers() | st.text(max_size=3) | st.booleans() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


def merged(target, patch):
    """Applies a JSON merge patch, as RFC 7386 section 2 defines it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@given(live=objects, wanted=objects)
def test_the_patch_turns_the_live_status_into_the_wanted_one(live, wanted):
    assert merged(live, status_patch(live, wanted) or {}) == wanted


@given(status=objects)
def test_an_equal_status_takes_no_write(status):
    assert status_patch(status, status) is None


def test_only_what_differs_is_in_the_patch():
    live = {"replicas": 1, "limits": {"a": 1, "b": 2}, "url": "u", "observed": {"x": 1}}
    wanted = {"replicas": 2, "limits": {"a": 1, "b": 3}, "url": "u"}
    assert status_patch(live, wanted) == {"replicas": 2, "limits": {"b": 3}, "observed": None}
