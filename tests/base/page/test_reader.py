"""The reader of pages: errors of the page, and values that count as missing. Whole pages are read in the tests of
the programs."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_base.page.reader import (
    CACHE_CONFIG,
    MAX_LINES,
    MAX_NUMBER,
    REJECTIONS,
    RUNNING,
    TTFT,
    WAITING,
    PageError,
    PageReader,
)
from inflight_base.page.shape import LONGEST_TEXT, MOST_NUMBERS, split
from tests.base.page.pages import engine_page, vllm_page

OPTIONAL = "inflight_max_num_seqs"
STRICT = PageReader((RUNNING, WAITING, OPTIONAL))
LENIENT = PageReader((RUNNING, WAITING, OPTIONAL), strict=False)


def page(name, number):
    return f'{RUNNING}{{engine="0"}} 3\n{RUNNING}{{engine="1"}} 4\n{name} {number}\n'


@pytest.mark.parametrize("number", ["NaN", "+Inf"])
def test_a_number_that_is_not_finite_counts_as_missing(number):
    for reader in (STRICT, LENIENT):
        found = reader.read(page(WAITING, number))
        assert (found.total(RUNNING), found.total(WAITING), found.largest(WAITING)) == (7, 0, None)


@pytest.mark.parametrize("number", ["-1", str(4 * MAX_NUMBER)])
def test_an_impossible_number_is_an_error_but_of_an_optional_name_or_for_a_lenient_reader(number):
    with pytest.raises(PageError, match="which no engine counts to"):
        STRICT.read(page(WAITING, number))
    assert STRICT.read(page(OPTIONAL, number)).whole(OPTIONAL) is None
    assert LENIENT.read(page(WAITING, number)).largest(WAITING) is None


def test_text_that_is_no_number_is_an_error_but_for_a_lenient_reader():
    with pytest.raises(PageError, match="not Prometheus text"):
        STRICT.read(page(OPTIONAL, "many"))
    assert LENIENT.read(page(OPTIONAL, "many")).largest(OPTIONAL) is None


def test_running_requests_are_needed_and_lines_bounded():
    for reader in (STRICT, LENIENT):
        with pytest.raises(PageError, match="is missing"):
            reader.read(f"{WAITING} 1\n")
        with pytest.raises(PageError, match="lines"):
            reader.read(f"{RUNNING} 1\n" + "\n" * MAX_LINES)
    with pytest.raises(PageError, match="is missing"):
        STRICT.read(f"{RUNNING} NaN\n")
    assert LENIENT.read(f"{RUNNING} NaN\n").total(RUNNING) == 0


def test_the_query_asks_for_the_names():
    assert STRICT.query == f"name%5B%5D={RUNNING}&name%5B%5D={WAITING}&name%5B%5D={OPTIONAL}"


NAMES = (RUNNING, WAITING, OPTIONAL, CACHE_CONFIG, REJECTIONS, "vllm:generation_tokens_total")
READERS = [PageReader(NAMES, (TTFT,), strict=strict) for strict in (True, False)]
ENGINE_PAGES = [engine_page(), vllm_page(), vllm_page() * 2]
PADDING = f"# {'x' * LONGEST_TEXT}\n"
"""A comment that makes a page too long to be kept, so that it is read line by line."""

ODD = [
    "0",
    "7",
    "1e3",
    "1.5",
    "1e999",
    "1.2.3",
    "1_0",
    "1e",
    "NaN",
    "+Inf",
    "-1",
    "9007199254740994",
    "",
    "5 1700000000",
]
CUTS = ["\n", " ", "{", "}", '"', ",", "\r\n", "\t", 'model_name="', 'num_gpu_blocks="12"', f"\n{WAITING} 3\n", "# 1\n"]


def read(reader, text):
    """Returns what is read of a page, or the error."""
    try:
        page = reader.read(text)
    except PageError as error:
        return str(error)
    buckets = {name: dict(of_name) for name, of_name in page.buckets.items() if of_name}
    buckets |= {name: dict(zip(bounds, counts, strict=True)) for name, (bounds, counts) in page.single.items()}
    values = {name: numbers for name, numbers in page.values.items() if numbers}
    try:
        ttft = page.histogram(TTFT)
    except PageError as error:
        ttft = str(error)
    return values, dict(page.keyed), buckets, page.unknown, page.kv_cache_tokens(), ttft


@settings(max_examples=300)
@given(st.data())
def test_a_page_of_a_known_shape_is_read_as_line_by_line(data):
    text = data.draw(st.sampled_from(ENGINE_PAGES))
    for reader in READERS:
        read(reader, text)  # its shape is known now
    numbers = [match.span(1) for match in re.finditer(r" (\S+)$", text, re.MULTILINE)]
    for start, end in sorted(data.draw(st.lists(st.sampled_from(numbers), max_size=3, unique=True)), reverse=True):
        text = text[:start] + data.draw(st.sampled_from(ODD)) + text[end:]
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(text)))
        text = text[:place] + data.draw(st.sampled_from(CUTS)) + text[place + data.draw(st.integers(0, 3)) :]
    for reader in READERS:
        assert read(reader, text) == read(reader, text + ("" if text.endswith("\n") else "\n") + PADDING)


def test_engines_of_other_models_and_with_other_caches_have_the_same_shape():
    reader = PageReader(NAMES)
    for number in range(3):
        config = f'block_size="16",model_name="model {number}",num_gpu_blocks="{number + 1}"'
        page = reader.read(f'{CACHE_CONFIG}{{{config}}} 1\n{RUNNING}{{model_name="model {number}"}} {number}\n')
        assert (page.count(RUNNING), page.kv_cache_tokens()) == (number, 16 * (number + 1))
    texts = {split(f'{RUNNING}{{model_name="model {number}"}} {number}\n').texts for number in range(3)}
    assert len(texts) == 1


def test_pages_that_are_large_or_have_many_numbers_are_not_kept():
    assert split(f"{RUNNING} 1\n{PADDING}") is None
    assert split("a 1\n" * (MOST_NUMBERS - 1)) is not None
    assert split("a 1\n" * MOST_NUMBERS) is None
