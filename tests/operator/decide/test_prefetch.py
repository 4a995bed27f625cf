"""Jobs that fetch a model: a few at once, one for each place, until all places have it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight_contract.prefetch import PrefetchReport
from inflight_operator.decide.prefetch import AGAIN_SECONDS, AT_ONCE, Wanted, prefetch
from inflight_operator.decide.status.pod_problems import ServiceFacts
from inflight_operator.decide.status.sentences import sentence
from inflight_operator.observe.pods import pod_view
from inflight_operator.observe.prefetch_view import Fetch, Places
from tests.operator.fakes import pod_body

FACTS = ServiceFacts("s3://models/a", "", "")
WANTED = Wanted("model", "template", cached=True)
FIRST, SECOND = ("sha256:" + digit * 64 for digit in "12")
NODES = tuple(f"node-{number}" for number in range(7))
THREE = Places(NODES[:3])


def decided(places=THREE, fetches=(), known=None, wanted=WANTED, now=0.0):
    return prefetch(wanted, places, fetches, known, FACTS, now)


def done(place, run, digest=FIRST):
    return Fetch(place, run, "template", "done", report=PrefetchReport(5_000_000_000, digest))


def finished(wanted=WANTED, digest=FIRST, places=THREE):
    run = decided(wanted=wanted).progress.run
    return decided(places, [done(place, run, digest) for place in places.names], wanted=wanted).progress


def test_a_few_places_begin_and_the_rest_wait():
    found = decided(Places(NODES))
    assert found.places == NODES[:AT_ONCE]
    assert (found.total, found.progress.done, found.reason.code) == (7, (), "Prefetching")


def test_a_place_that_has_the_model_needs_no_job_and_its_bytes_and_version_are_known():
    run = decided().progress.run
    found = decided(fetches=[done("node-1", run), Fetch("node-0", run, "template")])
    assert found.places == ("node-0", "node-2")
    assert (found.progress.done, found.progress.num_bytes, found.progress.digest) == (("node-1",), 5_000_000_000, FIRST)
    assert sentence(found.reason) == "1 of 3 nodes have the model (5 GB each)"


def test_at_the_end_there_are_no_jobs():
    found = decided(known=finished())
    assert (found.places, found.reason.code) == ((), "Prefetched")


def test_a_node_that_joins_gets_the_model_and_one_that_leaves_is_forgotten():
    progress = finished()
    found = decided(Places(NODES[1:4]), known=progress)
    assert (found.places, found.progress.done, found.progress.run) == (("node-3",), NODES[1:3], progress.run)
    assert decided(THREE, known=found.progress).places == ("node-0",)


def test_a_node_that_gets_another_version_than_the_others_does_not_have_the_model():
    progress = finished()
    found = decided(Places(NODES[:4]), [done("node-3", progress.run, SECOND)], known=progress)
    assert (found.progress.done, found.progress.digest) == (NODES[:3], FIRST)
    assert found.reason.code != "Prefetched"


def test_another_model_begins_anew_after_the_jobs_of_the_old_one_are_gone():
    progress = finished()
    old = Fetch("node-1", progress.run, "template")
    found = decided(fetches=[old], known=progress, wanted=replace(WANTED, model="other"))
    assert found.places == ("node-0", "node-2")
    assert found.progress.done == ()
    found = decided(
        fetches=[replace(old, state="leaving")], known=found.progress, wanted=replace(WANTED, model="other")
    )
    assert "node-1" not in found.places


def test_another_template_replaces_jobs_that_run_and_fetches_nothing_again():
    progress = replace(finished(), done=("node-0",))
    found = decided(fetches=[Fetch("node-1", progress.run, "old")], known=progress)
    assert found.places == ("node-2",)
    assert found.progress.done == ("node-0",)


def test_the_version_that_was_fetched_is_not_fetched_again_when_the_first_pod_tells_it():
    progress = finished()
    found = decided(known=progress, wanted=replace(WANTED, served=FIRST))
    assert (found.places, found.progress.served) == ((), FIRST)


def test_a_version_that_a_rollout_finds_later_is_fetched_once():
    """Also where the source has moved on since: what is found then differs from what is served, for good."""
    served = replace(WANTED, served=FIRST)
    known = decided(known=finished(), wanted=served).progress
    moved = replace(WANTED, served=SECOND)
    found = decided(known=known, wanted=moved)
    assert found.places == NODES[:3]
    run, third = found.progress.run, "sha256:" + "3" * 64
    ended = [done(place, run, third) for place in NODES[:3]]
    found = decided(fetches=ended, known=found.progress, wanted=moved)
    assert decided(known=found.progress, wanted=moved).places == ()


def test_a_job_that_failed_says_why_and_is_made_again_after_a_while():
    run = decided().progress.run
    failed = Fetch("node-0", run, "template", "failed", failure="too many retries", ended=100.0)
    said = replace(failed, pod=broken("error: s3://models/a is not in the model cache: its disk is full"))
    found = decided(fetches=[said], now=100.0 + AGAIN_SECONDS - 1)
    assert found.places == NODES[:3]
    assert sentence(found.reason) == (
        "0 of 3 nodes have the model; on node-0: failed to start: s3://models/a is not in the model cache: its disk is"
        " full"
    )
    assert "its Job failed: too many retries" in sentence(decided(fetches=[failed], now=100.0).reason)
    assert decided(fetches=[failed], now=100.0 + AGAIN_SECONDS).places == NODES[1:3]


def broken(message):
    ended = {"terminated": {"exitCode": 1, "message": message, "reason": "Error"}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "engine", "restartCount": 0, "state": ended}]}
    return pod_view(pod_body("chat-fetch-1", ready=False, status=status))


def test_an_image_that_cannot_be_pulled_is_reported_while_its_job_runs():
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "engine", "restartCount": 0, "state": waiting}]}
    fetch = Fetch("node-0", decided().progress.run, "template", pod=pod_view(pod_body("a", ready=False, status=status)))
    assert "on node-0: cannot pull image" in sentence(decided(fetches=[fetch]).reason)


@pytest.mark.parametrize(
    ("obstacle", "words"),
    [
        ("NodesUnknown", "the operator cannot list nodes"),
        ("NoNode", "no node that is ready has the labels"),
        ("TooManyNodes", "selects it nodes"),
        ("NoClaim", "the claim it of the model cache does not exist in this namespace"),
        ("ClaimUnknown", "the operator cannot read the claim"),
        ("ClaimOfOneNode", "has not the access mode ReadWriteMany"),
    ],
)
def test_without_a_place_there_are_no_jobs_and_a_sentence_says_why(obstacle, words):
    progress = finished()
    found = decided(Places(obstacle=obstacle, said="it"), known=progress)
    assert (found.places, found.progress) == ((), progress)
    assert words in sentence(found.reason)


def test_without_a_cache_nothing_is_fetched():
    found = decided(wanted=replace(WANTED, cached=False))
    assert found.places == ()
    assert "engine.modelCache of the chart" in sentence(found.reason)


def test_a_claim_that_all_nodes_share_is_filled_once():
    claim = Places(("models",), shared=True)
    found = decided(claim)
    assert (found.places, sentence(found.reason)) == (("models",), "the claim models does not have the model")
    found = decided(claim, [done("models", found.progress.run)], found.progress)
    assert (found.places, sentence(found.reason)) == ((), "the claim models has the model (5 GB)")


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["end", "fail", "gone", "join", "leave", "model", "template", "served", "later"]),
        st.integers(0, len(NODES) - 1),
    ),
    max_size=40,
)


class Cluster:
    """A stand-in for Kubernetes: makes and removes the Jobs that are asked for, and ends them as a test says."""

    def __init__(self):
        self.nodes, self.jobs, self.known, self.wanted, self.now = set(NODES), [], None, WANTED, 0.0

    def round(self):
        found = decided(Places(tuple(sorted(self.nodes))), self.jobs, self.known, self.wanted, self.now)
        self.known = found.progress
        asked = {(place, found.progress.run, self.wanted.template) for place in found.places}
        there = {(one.place, one.run, one.template) for one in self.jobs}
        kept = [self._kept(one, (one.place, one.run, one.template) in asked) for one in self.jobs]
        self.jobs = [*(one for one in kept if one is not None), *(Fetch(*one) for one in sorted(asked - there))]
        working = [one for one in self.jobs if one.state in ("running", "leaving")]
        assert len(working) <= AT_ONCE
        assert len({one.place for one in self.jobs}) == len(self.jobs), "two Jobs for one node"
        return found

    def _kept(self, job, asked):
        """A pod that runs takes a while to end; a Job without one is gone at once."""
        if asked or job.state == "leaving":
            return job
        return replace(job, state="leaving") if job.state == "running" else None

    def happens(self, what, number):
        node = NODES[number]
        if what in ("join", "leave"):
            (self.nodes.add if what == "join" else self.nodes.discard)(node)
        elif what == "later":
            self.now += AGAIN_SECONDS
        elif what == "served":
            self.wanted = replace(self.wanted, served=(FIRST, SECOND)[number % 2])
        elif what in ("model", "template"):
            self.wanted = replace(self.wanted, **{what: f"{what}{number}"})
        self.jobs = [self._after(one, what) if one.place == node else one for one in self.jobs]
        self.jobs = [one for one in self.jobs if one is not None]

    def _after(self, job, what):
        if job.state == "leaving":
            return None if what == "gone" else job
        if job.state != "running" or what not in ("end", "fail"):
            return job
        report = PrefetchReport(10, FIRST) if what == "end" else None
        return replace(job, state="done" if what == "end" else "failed", report=report, ended=self.now)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_never_more_than_a_few_jobs_never_two_for_a_node_and_an_end(events):
    cluster = Cluster()
    for what, number in events:
        cluster.round()
        cluster.happens(what, number)
    for _ in range(5 * len(NODES)):
        found = cluster.round()
        for number in range(len(NODES)):
            cluster.happens("gone", number)
            cluster.happens("end", number)
        cluster.now += AGAIN_SECONDS
    assert set(found.progress.done) == cluster.nodes
    assert (found.places, cluster.jobs) == ((), [])
