"""Metric families of one page. A scraper may select some; others are not built."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from inflight_engine.server.requests.counts import Histogram

_HISTOGRAM_SUFFIXES = ("_bucket", "_count", "_sum")


class Families(Collector):
    """Collects families whose first label is the model's name.

    Args:
        names: of families, or of single samples as `_bucket` of a histogram; unknown ones are no error, as with
            prometheus-client's `name[]`. None: all.
    """

    def __init__(self, model_name: str, names: Collection[str] | None = None) -> None:
        self._model_name = model_name
        self._names = None if names is None else frozenset(names)
        self._found: list[Metric] = []

    def collect(self) -> list[Metric]:
        return self._found

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self)

    def gauge(self, name: str, documentation: str, value: float) -> None:
        self.gauges(name, documentation, (), [((), value)])

    def counter(self, name: str, documentation: str, value: float) -> None:
        """`name` without `_total`, which the exposition adds."""
        self.counters(name, documentation, (), [((), value)])

    def gauges(
        self, name: str, documentation: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
    ) -> None:
        """`rows`: values of the further labels, and the gauge's."""
        if self._asked(name):
            self._add(GaugeMetricFamily(name, documentation, labels=("model_name", *labels)), rows)

    def counters(
        self, name: str, documentation: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
    ) -> None:
        """`name` without `_total`."""
        if self._asked(name, "_total"):
            self._add(CounterMetricFamily(name, documentation, labels=("model_name", *labels)), rows)

    def histogram(self, name: str, documentation: str, histogram: Histogram) -> None:
        if self._asked(name, *_HISTOGRAM_SUFFIXES):
            family = HistogramMetricFamily(name, documentation, labels=("model_name",))
            family.add_metric((self._model_name,), list(histogram.buckets()), histogram.sum)
            self._keep(family)

    def _asked(self, name: str, *suffixes: str) -> bool:
        return self._names is None or any(name + suffix in self._names for suffix in ("", *suffixes))

    def _add(
        self, family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[tuple[Sequence[str], float]]
    ) -> None:
        for labels, value in rows:
            family.add_metric((self._model_name, *labels), value)
        self._keep(family)

    def _keep(self, family: Metric) -> None:
        """A family without samples is left out, as are the samples that were not asked for."""
        if self._names is not None and family.name not in self._names:
            family.samples = [sample for sample in family.samples if sample.name in self._names]
        if family.samples:
            self._found.append(family)
