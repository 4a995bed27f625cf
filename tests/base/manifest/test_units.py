from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_base.manifest.units import format_price, format_seconds, parse_duration, parse_quantity, whole_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("2s", 2.0), ("1m", 60.0), ("1m30s", 90.0), ("1h0.5s", 3600.5), ("0s", 0.0), ("0.1s", 0.1)],
)
def test_durations_are_read_as_go_reads_them(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-1s", "1 s", "1us", "1d", "1.s", " 1s", "1s ", "1s\n", "9" * 100 + "s"]
)
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="write a number with a unit of ms, s, m or h, such as 500ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0714, "71ms"), (0, "0ms"), (0.9994, "999ms"), (0.9996, "1s"), (1, "1s"), (2.34, "2.3s"), (120, "120s")],
)
def test_seconds_are_written_as_a_person_writes_them(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.0, "0.00"), (12.0, "12.00"), (3.456, "3.46"), (0.999, "1.00"), (0.4237, "0.424"), (0.00123, "0.00123")],
)
def test_prices_are_written_as_a_person_writes_them(amount, text):
    assert format_price(amount) == text
    assert float(format_price(amount / 1e6)) == pytest.approx(amount / 1e6, rel=0.01)


def test_negative_seconds_are_refused():
    with pytest.raises(ValueError, match="cannot be negative"):
        format_seconds(-0.1)


@given(st.floats(min_value=0, max_value=1e6))
def test_what_is_written_reads_back_within_its_precision(seconds):
    assert parse_duration(format_seconds(seconds)) == pytest.approx(seconds, abs=0.0006 if seconds < 1 else 0.051)


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        ("4Gi", 4 * 2**30),
        ("1Ki", 1024),
        ("0.5", Decimal("0.5")),
        ("500m", Decimal("0.5")),
        ("250u", Decimal("0.00025")),
        ("2k", 2000),
        ("3M", 3_000_000),
        ("1e3", 1000),
        ("1E-2", Decimal("0.01")),
        ("1E", 10**18),
        (7, 7),
        ("-1", -1),
        (".5Ki", 512),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(quantity, number):
    assert parse_quantity(quantity) == number


@pytest.mark.parametrize("quantity", ["", "Gi", "4 Gi", "4GiB", "4K", "1e", "a", "1Gi\n", "1e999999999"])
def test_what_is_no_quantity_is_refused_with_an_example(quantity):
    with pytest.raises(ValueError, match="such as 4Gi, 500M or 250m"):
        parse_quantity(quantity)


@pytest.mark.parametrize(
    ("text", "value"),
    [("64Mi", 64 * 2**20), ("1k", 1000), (5, 5), ("500M", 5 * 10**8), ("1.5Ki", 1536), ("1e3", 1000), ("1E", 10**18)],
)
def test_bytes_are_whole(text, value):
    assert whole_bytes(text) == value


@pytest.mark.parametrize("text", ["", "250m", "1500m", "2000000u", "-1", "0.5", "1.5.5", "5MB", "1e999999999"])
def test_what_is_no_number_of_bytes_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="is not a quantity of bytes such as"):
        whole_bytes(text)


@given(st.text(max_size=40))
def test_no_text_does_anything_but_raise_value_error(text):
    for read in (parse_duration, whole_bytes):
        with suppress(ValueError):
            assert read(text) >= 0
