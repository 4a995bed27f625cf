"""Stop strings: whatever the pieces, the text ends before the first stop string and nothing is lost."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from inflight_engine.server.requests.choice_text import StopStrings

LETTERS = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4).map(tuple)


def text_before_first_stop(text, stops):
    """Read character by character: the first position at which a stop string is complete decides."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, ""


@st.composite
def pieces(draw):
    text = draw(LETTERS)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]


@given(pieces(), STOPS)
@example(["ab", "cabcab"], ("abcabd", "ca"))
def test_any_pieces_give_the_text_before_the_first_stop_string(chunks, stops):
    matcher = StopStrings(stops)
    out = "".join(matcher.push(chunk) for chunk in chunks) + matcher.flush()
    expected, found = text_before_first_stop("".join(chunks), stops)
    assert (out, matcher.found) == (expected, found)
    with_stop = StopStrings(stops, included=True)
    assert "".join(with_stop.push(chunk) for chunk in chunks) + with_stop.flush() == expected + found


@given(pieces(), STOPS)
def test_only_the_beginning_of_a_stop_string_is_held_back(chunks, stops):
    matcher, seen, out = StopStrings(stops), "", ""
    for chunk in chunks:
        seen += chunk
        out += matcher.push(chunk)
        if matcher.found:
            break
        assert seen.startswith(out)
        held = seen[len(out) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@given(pieces())
def test_without_stop_strings_text_passes_at_once(chunks):
    matcher = StopStrings(())
    for chunk in chunks:
        assert matcher.push(chunk) == chunk
    assert matcher.flush() == ""
