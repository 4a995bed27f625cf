"""Rules for strings that are written as they are."""

from __future__ import annotations

import re

from inflight_engine.formats.kinds import Schema, Values

_DATE = r"[0-9]{4}-(?:(?:0[13578]|1[02])-31|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8]))"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"(?:{_DATE})T{_TIME}",
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
}
"""Formats of strings (RFC 3339, 4122 and 2673), as regular expressions: without 29 February and leap seconds, which not
each year and minute has."""


def count_of(part: Schema, keyword: str) -> int | None:
    """Return the number that a keyword states; None: it states none."""
    value = part.get(keyword)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def plain_string(values: Values, part: Schema, end: str, close: str, place: str, also: str = "") -> str:
    """A rule for a string as it is, and what ends it.

    Args:
        close: text that ends it for the parser, contained in `end`.
        also: restricts the text further.
    """
    bounds = also
    least, most = count_of(part, "minLength"), count_of(part, "maxLength")
    if least or most is not None:
        bounds += f" & /(?s:.{{{least or 0},{'' if most is None else most}}})/"
    for regex in (_searched(part.get("pattern")), _FORMATS.get(str(part.get("format")))):
        if regex is not None:
            escaped = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", regex, flags=re.DOTALL)
            bounds += " & /(?:" + escaped.replace("\n", r"\n") + ")/"
    if part.get("format") is not None and part["format"] not in _FORMATS:
        values.refuse(place, "format")
    if bounds or close != end:
        bounds += " & ~/(?s:.*" + re.escape(close).replace("/", r"\/") + ".*)/"
    return values.text.text_up_to(end, bounds)


def _searched(pattern: object) -> str | None:
    """A regular expression for texts that a pattern is found in."""
    if not isinstance(pattern, str):
        return None
    found = []
    for each in _alternatives(pattern):
        begin = "" if each.startswith("^") else "(?s:.*)"
        anchored = re.search(r"(?<!\\)(?:\\\\)*\$$", each) is not None
        inside = each.removeprefix("^")
        found.append(f"{begin}(?:{inside[:-1] if anchored else inside}){'' if anchored else '(?s:.*)'}")
    return "|".join(found)


def _alternatives(pattern: str) -> list[str]:
    """The alternatives of a pattern at its top."""
    found, depth, in_class = [""], 0, False
    for piece in re.findall(r"\\.|.", pattern, flags=re.DOTALL):
        if piece == "|" and not depth and not in_class:
            found.append("")
            continue
        found[-1] += piece
        depth += 0 if in_class else (piece == "(") - (piece == ")")
        in_class = piece == "[" or (in_class and piece != "]")
    return found
