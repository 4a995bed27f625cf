"""Which Jobs fetch a model now: one for each place, a few at a time, until all places have it.

A run fetches one version of the model as the spec names it. Another spec, and another version that rollouts serve,
begin a new run; a place that joins is fetched to in the run that is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from inflight_operator.decide.decision import Number, Reason
from inflight_operator.decide.status.pod_problems import ServiceFacts, pod_problem
from inflight_operator.observe.prefetch_view import Fetch, Places

AT_ONCE = 4
"""Most Jobs of a service that fetch at once: the source and the network are shared with pods that serve."""

AGAIN_SECONDS = 600.0
"""Seconds after which a Job that failed is made again."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model to fetch.

    Attributes:
        model: identity of the model in the spec.
        template: identity of the pods that fetch it.
        cached: whether there is a place to keep it: an image on the node, or a model cache.
        served: version that the newest rollout serves; empty before a pod has told it.
    """

    model: str
    template: str
    cached: bool
    served: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """State from round to round.

    Attributes:
        run: name of the run: the model, and the version that was served when it began.
        served: version that rollouts serve, for which no other run is needed.
        digest: version that the run found; empty before the first place has it.
        num_bytes: bytes of the weights; 0 before the first place has them.
        done: places that have the model.
    """

    run: str
    served: str = ""
    digest: str = ""
    num_bytes: int = 0
    done: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prefetching:
    """Attributes:
    progress: input of the next round.
    places: places for which there is to be a Job.
    total: places that are to have the model.
    reason: state, or what is wrong.
    """

    progress: Progress
    reason: Reason
    places: tuple[str, ...] = ()
    total: int = 0


@dataclass(frozen=True, slots=True)
class _Jobs:
    """Attributes:
    kept: places whose Job stays.
    open: number of Jobs whose pods may run.
    taken: places that have a Job, also one that goes.
    """

    kept: frozenset[str]
    open: int
    taken: frozenset[str]


def prefetch(
    wanted: Wanted,
    places: Places,
    fetches: Sequence[Fetch],
    known: Progress | None,
    facts: ServiceFacts,
    now: float,
) -> Prefetching:
    """Returns which Jobs are to exist, and the progress.

    Never more than `AT_ONCE` Jobs run, never two for one place: one that must go is gone before the next is made.

    Args:
        fetches: the Jobs that exist.
        known: progress of the last round; None without one.
        facts: names used in the sentences about their pods.
        now: seconds since the epoch.
    """
    progress = _brought_up_to(wanted, known)
    if not wanted.cached:
        return Prefetching(progress, Reason("PrefetchNoCache"))
    if places.obstacle:
        return Prefetching(progress, Reason(f"Prefetch{places.obstacle}", {"said": places.said}))
    progress = _with_done(progress, places, fetches)
    missing = [place for place in places.names if place not in progress.done]
    jobs = _jobs(wanted, progress, fetches, now)
    new = [place for place in missing if place not in jobs.taken][: max(0, AT_ONCE - jobs.open)]
    kept = [place for place in missing if place in jobs.kept]
    return Prefetching(
        progress,
        _reason(progress, places, [one for one in fetches if one.place in kept], facts),
        tuple(sorted((*kept, *new))),
        len(places.names),
    )


def _brought_up_to(wanted: Wanted, known: Progress | None) -> Progress:
    first = Progress(f"{wanted.model}.{crc32(wanted.served.encode()):08x}", wanted.served)
    if known is None or known.run.partition(".")[0] != wanted.model:
        return first
    if wanted.served in ("", known.served):
        return known
    # What a run finds while nothing is served yet is what the first pods find, unless the source changes meanwhile.
    found = known.digest == wanted.served or not known.digest
    return replace(known, served=wanted.served) if found else first


def _with_done(progress: Progress, places: Places, fetches: Sequence[Fetch]) -> Progress:
    ended = [one for one in fetches if one.state == "done" and one.run == progress.run]
    reports = [one.report for one in ended if one.report is not None]
    if reports:
        # Places of one run have one version: a source that moves meanwhile is not what the others have.
        progress = replace(progress, num_bytes=reports[-1].num_bytes, digest=progress.digest or reports[0].digest)
    same = [one for one in ended if one.report is None or one.report.digest == progress.digest]
    done = {*progress.done, *(one.place for one in same)}
    return replace(progress, done=tuple(place for place in places.names if place in done))


def _jobs(wanted: Wanted, progress: Progress, fetches: Sequence[Fetch], now: float) -> _Jobs:
    kept = frozenset(
        one.place
        for one in fetches
        if (one.run, one.template) == (progress.run, wanted.template)
        and (one.state == "running" or (one.state == "failed" and now - one.ended < AGAIN_SECONDS))
    )
    still = sum(one.state in ("running", "leaving") for one in fetches)
    return _Jobs(kept, still, frozenset(one.place for one in fetches))


def _reason(progress: Progress, places: Places, fetches: Sequence[Fetch], facts: ServiceFacts) -> Reason:
    numbers: dict[str, Number] = {"done": len(progress.done), "total": len(places.names), "bytes": progress.num_bytes}
    if places.shared:
        numbers["claim"] = places.names[0]
    if len(progress.done) == len(places.names):
        return Reason("Prefetched", numbers)
    for one in sorted(fetches, key=lambda one: (one.state != "failed", one.place)):
        if said := _problem(one, facts):
            return Reason("PrefetchFailing", {**numbers, "place": one.place, "said": said})
    return Reason("Prefetching", numbers)


def _problem(fetch: Fetch, facts: ServiceFacts) -> str:
    """Returns why a Job does not go on; empty if it does."""
    problem = None if fetch.pod is None else pod_problem(fetch.pod, facts)
    if problem is not None and problem.blocking:
        return problem.text
    return f"its Job failed: {fetch.failure}" if fetch.state == "failed" else ""
