"""Samples of engines that have other names for what Inflight reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache


def renamed(page: bytes, names: Mapping[str, str]) -> bytes:
    """Returns a metrics page with Inflight's names, histograms included.

    Args:
        names: names on the page, by those that `reader` reads.
    """
    if not names:
        return page
    # Samples that have one of these names on the page are others, and are not read.
    ours = {name.encode(): f"_{name}".encode() for name in names}
    ours |= {theirs.encode(): name.encode() for name, theirs in names.items()}
    return _pattern(tuple(sorted(ours))).sub(lambda found: ours[found[1]], page)


@lru_cache(maxsize=1024)
def _pattern(names: tuple[bytes, ...]) -> re.Pattern[bytes]:
    return re.compile(rb"(?m)^(%b)(?=[ \t{]|_bucket[ \t{]|_sum[ \t{]|_count[ \t{])" % b"|".join(map(re.escape, names)))
