"""Metrics pages of engines: names, and their reader. Names are vLLM's, with `inflight_*` where vLLM has none.

vLLM's own pages are supported as well; they lack most of `inflight_*`.

A page comes from a pod that runs a tenant's model and is not trusted: the reader looks at the lines of the names that
it was made for in one linear pass, and the size of the result is bounded.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import gt, itemgetter, le, lt

from inflight_base.page.histogram import Histogram
from inflight_base.page.shape import split, wanted
from inflight_cost.model import TERMS, CostModel

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
WAITING_PROMPT_TOKENS = "inflight_waiting_prompt_tokens"
KV_USAGE = "vllm:kv_cache_usage_perc"
KV_CACHE_TOKENS = "inflight_kv_cache_tokens"
CACHE_CONFIG = "vllm:cache_config_info"
"""Metric whose labels contain the size of the KV cache."""
MAX_NUM_SEQS = "inflight_max_num_seqs"
MAX_NUM_BATCHED_TOKENS = "inflight_max_num_batched_tokens"
PREEMPTIONS = "vllm:num_preemptions_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
TTFT = "vllm:time_to_first_token_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"
STEP_COST = "inflight_step_cost_seconds"
STEP_COST_CURVE = "inflight_step_cost_curve_seconds"
TIER_BLOCKS = "inflight_tier_blocks"
TIER_HITS = "inflight_tier_hit_blocks_total"
TIER_FAILED = "inflight_tier_failed_blocks_total"
TIER_DROPPED = "inflight_tier_dropped_blocks_total"
TIER_SPEED = "inflight_tier_bytes_per_second"
ASLEEP = "inflight_asleep"
DISK_REFUSALS = "inflight_disk_refused_loads_total"
WEIGHTS_SECONDS = "inflight_weights_seconds"
WEIGHTS_READ = "inflight_weights_read_bytes_total"
ARRIVED_SQUARES = "inflight_arrived_prompt_tokens_squared_total"
REJECTIONS = "inflight_admission_rejections_total"

MAX_LINES = 20_000
"""Most lines of a page. A whole page of vLLM has about 1,000 for each of its engines."""

MAX_BUCKETS = 64
"""Most buckets of one histogram; engines have about 20."""

MAX_NUMBER = 2.0**53
"""Largest number unless a reader has another: above it doubles skip integers."""

MAX_CURVE = 32
"""Most points of the curve in a cost model, and engines of one vLLM server whose KV cache counts."""

MAX_LABELS = 4096
"""Most characters of the labels of `CACHE_CONFIG` that are looked at; vLLM writes some 700."""

MAX_STEP_SECONDS = 3600.0
"""Largest accepted coefficient of a cost model: slower engines cannot serve requests."""

_LARGEST = {STEP_COST: MAX_STEP_SECONDS, STEP_COST_CURVE: MAX_STEP_SECONDS, ARRIVED_SQUARES: 2.0**80}
"""Largest number of some names: of a sum of squared lengths only the mean is used, which needs no exact integer."""

TIERS = (TIER_BLOCKS, TIER_HITS, TIER_FAILED, TIER_DROPPED, TIER_SPEED, DISK_REFUSALS)
"""Names of the tiers of the KV cache behind the device. Engines have those of their own tiers only."""

_KEYED = frozenset((STEP_COST, STEP_COST_CURVE, *TIERS, REJECTIONS, WEIGHTS_READ))
"""Names whose series differ by one label that matters: `term`, `tokens`, `tier`, `reason` or `from`."""

_NEEDED_TERMS = TERMS.keys() - {"copied_token"}
"""Engines without copies do not report the other one."""

MOST_SHAPES = 128
"""Most shapes of pages that are kept. Engines of one version and with the same settings share one."""

_QUOTED = r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
_EDGE = r'[ \t]*+le[ \t]*+=[ \t]*+"([!#-\[\]^`-~]*+)"'
_KEY = r'[ \t]*+(?:term|tokens|tier|reason|from)[ \t]*+=[ \t]*+"([!#-\[\]^`-~_]*+)"'
_LABEL = rf"[ \t]*+[a-zA-Z_]\w*+[ \t]*+=[ \t]*+{_QUOTED}"
_AFTER_VALUE = re.compile(r"(?:[ \t]+[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)?(?:[ \t]+#[^\n]*)?[ \t\r]*", re.ASCII)
"""Text after a value: a time stamp and an exemplar, both optional and both ignored."""
_BLOCK_SIZE = re.compile(r'(?:^|,)block_size="([0-9]{1,7})"')
_NUM_BLOCKS = re.compile(r'(?:^|,)num_gpu_blocks="([0-9]{1,9})"')


class PageError(ValueError):
    """The response is not an engine's metrics page; the message says why."""


def _line(names: Collection[str]) -> re.Pattern[str]:
    """A line of a wanted sample: name, `le`, the label of `_KEYED`, value, and the text after the value. A line that is
    not well formed matches too; its value is then no number, or something follows it that is no time stamp."""

    def one_of(prefix: str) -> str:
        """Returns a pattern of the names with this prefix. They begin with different letters, so few are tried."""
        return prefix + "(?:" + "|".join(name.removeprefix(prefix) for name in names if name.startswith(prefix)) + ")"

    # `re` finds the line feed with memchr, and all repetitions are possessive: no backtracking, so the time is linear
    # in the text for any input.
    return re.compile(
        rf"\n[ \t]*+({one_of('vllm:')}|{one_of('inflight_')})(?![\w:])[ \t]*+"
        rf"(?:\{{(?:(?:{_EDGE}|{_KEY}|{_LABEL})[ \t]*+,?+)*+[ \t]*+\}})?+"
        r"[ \t]*+([!-^`-~]*+)([^\n]*+)",
        re.ASCII,
    )


class PageReader:
    """Reads the samples of some names.

    A number that is not finite counts as missing. One that is negative or too large is an error of the page; of gauges
    of our own engine, and without `strict`, it counts as missing too. Counters (names in `_total`) count whole requests
    and tokens; a fraction is left out, so that no mean is of less than one.

    Args:
        names: names of samples.
        histograms: names of histograms.
        largest: largest number, except of sums of squares and costs.
        strict: a line that cannot be parsed is an error of the page; else its number counts as missing.

    Attributes:
        names: names of all samples, including samples of the histograms.
        query: query of the URL that asks for these samples alone. prometheus_client's servers know it; others ignore it
            and send all.
    """

    def __init__(
        self,
        names: Collection[str],
        histograms: Collection[str] = (),
        *,
        largest: float = MAX_NUMBER,
        strict: bool = True,
    ) -> None:
        self._buckets = frozenset(f"{name}_bucket" for name in histograms)
        self.names = (*names, *(f"{name}{suffix}" for name in histograms for suffix in ("_bucket", "_sum")))
        self.query = "&".join(f"name%5B%5D={name}" for name in self.names)
        self._line = _line(self.names)
        self._strict = strict
        self._counters = frozenset(name for name in self.names if name.endswith("_total"))
        own = {name for name in self.names if name.startswith("inflight_")} - self._counters - {WAITING_PROMPT_TOKENS}
        self._optional = frozenset(own if strict else self.names)
        self._largest = {**dict.fromkeys(self.names, largest), **_LARGEST}
        self._shape = lru_cache(maxsize=MOST_SHAPES)(self._shape_of)
        self._last: tuple[tuple[str, ...], _Shape | None] = ((), None)

    def read(self, text: str) -> Page:
        """Reads a page.

        Raises:
            PageError: no line has `RUNNING`, or, if `strict`, none with a possible number; there are more than
                `MAX_LINES` lines; a line cannot be parsed, or a number is impossible, where that is an error.
        """
        if text.count("\n") > MAX_LINES:
            raise PageError(f"more than {MAX_LINES} lines")
        text = f"\n{text}"
        page = Page([rest.partition("\n")[0][:MAX_LABELS] for rest in text.split(f"\n{CACHE_CONFIG}{{", MAX_CURVE)[1:]])
        if not self._read_known(text, page):
            self._read_lines(text, page)
        if not page.values[RUNNING] and (self._strict or RUNNING not in page.unknown):
            raise PageError(f"{RUNNING} is missing: this is not an engine's metrics page")
        return page

    def _read_known(self, text: str, page: Page) -> bool:
        """Reads a page of a known shape, all of whose numbers are possible ones. Returns False for any other page, of
        which nothing is read."""
        for labels in page.cache_configs:  # each engine has its own number of blocks
            if (blocks := _NUM_BLOCKS.search(labels)) is not None:
                text = text.replace(blocks[0], blocks[0].replace(blocks[1], ""), 1)
        parts = split(text)
        if parts is None:
            return False
        if parts.texts != self._last[0]:  # the hash of a known page takes more than all comparisons
            self._last = (parts.texts, self._shape(parts.texts))
        shape = self._last[1]
        if shape is None:
            return False
        try:
            numbers = [*map(float, shape.of(parts.numbers))]
        except ValueError:  # such as 1.2.3
            return False
        if any(map(gt, numbers, shape.largest)):
            return False
        for index in shape.counters:
            numbers[index] //= 1
        for name, indices in shape.values:
            page.values[name] = [numbers[index] for index in indices]
        for name, keys in shape.keyed:
            page.keyed[name] = [(key, numbers[index]) for key, index in keys]
        for name, bounds, first in shape.single:
            page.single[name] = bounds, numbers[first : first + len(bounds)]
        for name, bounds, first in shape.buckets:
            counts, others = (
                dict(zip(bounds, numbers[first : first + len(bounds)], strict=True)),
                page.buckets.get(name),
            )
            if others:  # several engines
                counts = {one: others.get(one, 0.0) + counts.get(one, 0.0) for one in {**others, **counts}}
            page.buckets[name] = counts
        return True

    def _shape_of(self, texts: tuple[str, ...]) -> _Shape | None:
        """Returns what the numbers between the texts mean; None where they are to be read line by line."""
        series = wanted(texts, self._line)
        if series is None or len(series) < 2:
            return None
        values: defaultdict[str, list[int]] = defaultdict(list)
        keyed: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        buckets: list[tuple[str, list[float], int]] = []
        counters = []
        for index, (name, edge, key, _) in enumerate(series):
            if name in self._buckets:
                try:
                    bound = float(edge)
                except ValueError:
                    return None
                if not buckets or buckets[-1][0] != name or bound in buckets[-1][1] or series[index - 1].name != name:
                    buckets.append((name, [], index))
                buckets[-1][1].append(bound)
                continue
            if name in self._counters:
                counters.append(index)
            if name in _KEYED:
                keyed[name].append((key, index))
            else:
                values[name].append(index)
        engines = Counter(name for name, _, _ in buckets)
        single = {name for name, bounds, _ in buckets if engines[name] == 1 and _is_possible(bounds)}
        runs = [(name, _shared_bounds(tuple(bounds)), first) for name, bounds, first in buckets]
        return _Shape(
            of=itemgetter(*(one.place for one in series)),
            largest=tuple(self._largest[one.name] for one in series),
            counters=tuple(counters),
            values=tuple((name, tuple(indices)) for name, indices in values.items()),
            keyed=tuple((name, tuple(keys)) for name, keys in keyed.items()),
            single=tuple(run for run in runs if run[0] in single),
            buckets=tuple(run for run in runs if run[0] not in single),
        )

    def _read_lines(self, text: str, page: Page) -> None:
        """Reads the page line by line."""
        values, unknown, buckets, counters = page.values, page.unknown, self._buckets, self._counters
        largest, strict = self._largest, self._strict
        for name, edge, key, number, rest in self._line.findall(text):
            try:
                value = float(number)
                bound = float(edge) if name in buckets else None
            except ValueError as error:
                if strict:
                    sample = f"{name} is {number[:40]!r} in bucket {edge[:40]!r}"
                    raise PageError(f"not Prometheus text: {sample}") from error
                value = math.nan
            if rest and strict and not _AFTER_VALUE.fullmatch(rest):
                raise PageError(f"not Prometheus text: {name} is followed by {rest.strip()[:40]!r}")
            if not 0 <= value <= largest[name]:
                if math.isfinite(value) and name not in self._optional:
                    raise PageError(f"{name} is {value:g}, which no engine counts to")
                unknown.add(name)
            elif bound is not None:
                of_name = page.buckets[name]
                of_name[bound] = of_name.get(bound, 0.0) + value
            else:
                if name in counters:
                    value //= 1
                if name in _KEYED:
                    page.keyed[name].append((key, value))
                else:
                    values[name].append(value)


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """Meaning of the numbers of a page. Indices are among the wanted numbers.

    Attributes:
        of: selects the wanted numbers of all numbers of the page.
        largest: largest possible numbers.
        counters: indices of numbers whose fraction is left out.
        values: indices by name.
        keyed: labels and indices by name.
        single: upper bounds by name of the histograms of one engine, and the index of the first of them: possible
            bounds, rising, and no more than may be.
        buckets: the same of others; one entry for each engine.
    """

    of: Callable[[Sequence[str]], Sequence[str]]
    largest: tuple[float, ...]
    counters: tuple[int, ...]
    values: tuple[tuple[str, tuple[int, ...]], ...]
    keyed: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
    single: tuple[tuple[str, tuple[float, ...], int], ...]
    buckets: tuple[tuple[str, tuple[float, ...], int], ...]


@dataclass(slots=True, eq=False)
class Page:
    """The numbers of one page. Values of several label sets (engines of one vLLM server) are lists.

    Attributes:
        cache_configs: lines of `CACHE_CONFIG` from their labels on, `MAX_CURVE` at most.
        values: numbers by name, in the order of the page.
        keyed: numbers of names whose series differ by a label that matters, with the value of that label.
        single: possible upper bounds and counts of histogram buckets, by name.
        buckets: counts of other histogram buckets, by name and upper bound.
        unknown: names with a number that counts as missing.
    """

    cache_configs: list[str]
    values: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    keyed: defaultdict[str, list[tuple[str, float]]] = field(default_factory=lambda: defaultdict(list))
    single: dict[str, tuple[tuple[float, ...], list[float]]] = field(default_factory=dict)
    buckets: defaultdict[str, dict[float, float]] = field(default_factory=lambda: defaultdict(dict))
    unknown: set[str] = field(default_factory=set)

    def total(self, name: str) -> float:
        """The sum; 0 without a value."""
        return sum(self.values[name])

    def largest(self, name: str) -> float | None:
        """The largest value; None without a value."""
        return max(self.values[name], default=None)

    def count(self, name: str) -> int:
        """The sum without its fraction; 0 without a value."""
        return int(self.total(name))

    def positive(self, name: str) -> float | None:
        """The largest value; None without one above 0."""
        return self.largest(name) or None

    def whole(self, name: str) -> int | None:
        """The largest value; None without any, or when it is not a whole number."""
        largest = max(self.values[name], default=0.5)
        return int(largest) if largest.is_integer() else None

    def histogram(self, name: str) -> Histogram:
        """The sum over label sets; empty without buckets, and where a bucket or the sum counts as missing.

        Raises:
            PageError: it has falling counts, no bucket for infinity, impossible bounds, or more buckets than
                `MAX_BUCKETS`.
        """
        bucket, total = _parts(name)
        if bucket in self.single:
            bounds, counts = self.single[bucket]
        else:
            found = self.buckets[bucket]
            if not found or bucket in self.unknown or total in self.unknown:
                return Histogram()
            if len(found) > MAX_BUCKETS:
                raise PageError(f"{name} has {len(found)} buckets, {MAX_BUCKETS} at most are read")
            bounds = _shared_bounds(tuple(sorted(found)))
            if problem := _bounds_problem(bounds):
                raise PageError(f"{name} has {problem}")
            counts = [found[bound] for bound in bounds]
        if not all(map(le, counts, counts[1:])):
            raise PageError(f"{name} has bucket counts that fall")
        return Histogram(bounds, counts, self.total(total))

    def by_key(self, name: str) -> dict[str, float]:
        """Returns the largest value for each value of the label that matters."""
        largest: dict[str, float] = {}
        for key, value in self.keyed[name]:
            largest[key] = max(value, largest.get(key, 0.0))
        return largest

    def cost(self, *_: str) -> CostModel | None:
        """The cost model of a step; None if a coefficient is missing or impossible, or the curve is invalid."""
        if STEP_COST in self.unknown or STEP_COST_CURVE in self.unknown:
            return None
        terms, curve = (self.by_key(name) for name in (STEP_COST, STEP_COST_CURVE))
        if len(curve) > MAX_CURVE or not terms.keys() >= _NEEDED_TERMS:
            return None
        try:
            points = tuple(sorted((float(tokens), seconds) for tokens, seconds in curve.items()))
        except ValueError:
            return None
        tokens = [0.0, *(tokens for tokens, _ in points)]
        # NaN compares as false, so it is rejected here too.
        if not (all(map(lt, tokens, tokens[1:])) and tokens[-1] <= MAX_NUMBER):
            return None
        return _shared_cost(tuple(terms.get(term, 0.0) for term in TERMS), points)

    def slowness(self, tier: str) -> float:
        """Returns the time of reading a KV block from a tier by that of copying one from host memory; 0: not known.

        Args:
            tier: `disk`, or `peer` for other engines.
        """
        speeds = self.by_key(TIER_SPEED)
        speed = speeds.get(tier, 0.0)
        return speeds.get("host", 0.0) / speed if speed else 0.0

    def block_size(self) -> int:
        """Returns the tokens of a block of the KV cache; 0 if not reported."""
        return next((int(size[1]) for labels in self.cache_configs if (size := _BLOCK_SIZE.search(labels))), 0)

    def kv_cache_tokens(self) -> int:
        """Returns the size of the KV cache in tokens, of all engines of a vLLM server together; 0 if not reported."""
        found = [(_BLOCK_SIZE.search(labels), _NUM_BLOCKS.search(labels)) for labels in self.cache_configs]
        return sum(int(size[1]) * int(blocks[1]) for size, blocks in found if size is not None and blocks is not None)


@lru_cache(maxsize=256)
def _parts(name: str) -> tuple[str, str]:
    """Returns the names of a histogram's buckets and of its sum."""
    return f"{name}_bucket", f"{name}_sum"


@lru_cache(maxsize=4096)
def _shared_cost(coefficients: tuple[float, ...], curve: tuple[tuple[float, float], ...]) -> CostModel | None:
    """Returns the same object for all pages with this cost model; None if a decode step takes no time."""
    cost = CostModel(**dict(zip(TERMS.values(), coefficients, strict=True)), curve=curve)
    least = cost.base_s + cost.decode_seq_s + cost.decode_kv_token_s + min((one for _, one in curve), default=0.0)
    return cost if least > 0 else None


@lru_cache(maxsize=1024)
def _shared_bounds(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """Returns the same tuple for all histograms with these bounds."""
    return bounds


def _is_possible(bounds: Sequence[float]) -> bool:
    """Returns True for the upper bounds of a possible histogram, in its order."""
    return list(bounds) == sorted(bounds) and len(bounds) <= MAX_BUCKETS and not _bounds_problem(tuple(bounds))


@lru_cache(maxsize=1024)
def _bounds_problem(bounds: tuple[float, ...]) -> str:
    """Returns what is wrong with the sorted bounds of a histogram; empty if they are possible."""
    # NaN compares as false with everything, so a bound that is NaN is found here too.
    if bounds[-1] != math.inf or not all(map(lt, bounds, bounds[1:])):
        return "no bucket for +Inf, or one for NaN"
    if bounds[0] < 0.0 or (len(bounds) > 1 and bounds[-2] > MAX_NUMBER):
        return "a bucket bound that no engine has"
    return ""
