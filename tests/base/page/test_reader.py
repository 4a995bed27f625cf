"""The reader of pages: errors of the page, and values that count as missing. Whole pages are read in the tests of
the programs."""

import pytest

from inflight_base.page.reader import MAX_LINES, MAX_NUMBER, RUNNING, WAITING, PageError, PageReader

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
