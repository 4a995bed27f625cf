"""Durations and quantities: as the operator reads them, refused with a sentence otherwise."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_gateway.discovery.units import seconds, whole_bytes
from inflight_operator.quantities import parse_duration, parse_quantity


@pytest.mark.parametrize(("text", "value"), [("60s", 60), ("500ms", 0.5), ("1m30s", 90), ("1.5h", 5400), ("0ms", 0)])
def test_durations(text, value):
    assert seconds(text) == value == parse_duration(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("64Mi", 64 * 2**20), ("1k", 1000), (5, 5), ("500M", 5 * 10**8), ("1.5Ki", 1536), ("1e3", 1000), ("1E", 10**18)],
)
def test_quantities(text, value):
    assert whole_bytes(text) == value == parse_quantity(text)


@pytest.mark.parametrize("text", ["", "5", "5d", "-5s", "1 s", "9" * 100 + "s"])
def test_other_texts_are_no_durations(text):
    with pytest.raises(ValueError, match="is not a duration such as"):
        seconds(text)


@pytest.mark.parametrize("text", ["", "250m", "-1", "1.5.5", "5MB", "1e999999999"])
def test_other_texts_are_no_quantities_of_bytes(text):
    with pytest.raises(ValueError, match="is not a quantity of bytes such as"):
        whole_bytes(text)


@given(st.text(max_size=40))
def test_no_text_does_anything_but_raise_value_error(text):
    for read in (seconds, whole_bytes):
        with suppress(ValueError):
            assert read(text) >= 0
