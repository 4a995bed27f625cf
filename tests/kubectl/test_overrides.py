"""Limits as the commands read them, and refusals in the words of the API server."""

import json

import click
import pytest
from click.testing import CliRunner

from inflight_kubectl.access.api_problems import refusal
from inflight_kubectl.access.resources import Service
from inflight_kubectl.commands import limits as limits_command
from inflight_kubectl.engines.overrides import Canary, _refused, limits_view
from inflight_kubectl.flag_types import DurationType, HeaderType, RangeType, duration_text
from inflight_kubectl.output import print_json
from inflight_settings.limits import Limits
from tests.kubectl.objects import body

SPEC = {
    "model": {"source": "builtin://smollm2"},
    "engine": {"maxNumSeqs": 256, "maxNumBatchedTokens": 8192},
    "tuning": {"mode": "Auto", "maxNumSeqs": {"min": 2}, "maxNumBatchedTokens": {"max": 1024}},
}
IN_FORCE = {"maxNumSeqs": 169, "maxNumBatchedTokens": 1342, "revision": 3, "podsInForce": 2, "source": "Tuning"}
OVERRIDE = {"until": "2026-05-04T12:10:00Z", "before": {"maxNumSeqs": 169, "maxNumBatchedTokens": 1342}}
BY_HAND = {**IN_FORCE, "maxNumSeqs": 4, "source": "Override", "override": OVERRIDE}


def view(spec=SPEC, **limits):
    return limits_view(Service.of(body(spec=spec, limits=limits)))


def test_an_end_outside_all_calendars_of_utc_is_shown_as_it_is(capsys):
    shown = view(**{**BY_HAND, "override": {**OVERRIDE, "until": "9999-12-31T23:59:59-12:00"}})
    assert limits_command._source(shown).startswith("set by hand until 9999-12-31T23:59:59Z")
    print_json(shown)
    assert json.loads(capsys.readouterr().out)["until"] == "9999-12-31T23:59:59Z"


def test_bounds_are_those_of_tuning_and_where_it_has_none_the_capacity():
    shown = view(**IN_FORCE)
    assert (shown.low, shown.high, shown.capacity) == (Limits(2, 64), Limits(256, 1024), Limits(256, 8192))
    assert (shown.in_force, shown.source, shown.until, shown.before) == (Limits(169, 1342), "Tuning", None, None)


def test_limits_by_hand_are_shown_with_their_end_and_what_returns_then():
    shown = view(**BY_HAND)
    assert (shown.in_force, shown.before) == (Limits(4, 1342), Limits(169, 1342))
    assert shown.until.isoformat() == "2026-05-04T12:10:00+00:00"


def test_a_canary_and_what_the_cost_model_would_set_are_shown():
    canary = {"pod": "chat-1", "maxNumSeqs": 80, "maxNumBatchedTokens": 300}
    shown = view(**IN_FORCE, canary=canary, modelled={"maxNumSeqs": 84, "maxNumBatchedTokens": 224})
    assert (shown.canary, shown.modelled) == (Canary(80, 300, "chat-1"), Limits(84, 224))


def test_a_service_that_no_operator_has_seen_has_nothing_in_force():
    shown = limits_view(Service.of({**body(spec=SPEC), "status": {}}))
    assert (shown.in_force, shown.source) == (None, None)
    assert shown.tuning == "the operator has written no status yet"


def refused(message, status=422):
    return _refused(refusal(status, json.dumps({"message": message}).encode(), "/apis/inflight.dev/", "test"))


def test_a_refusal_is_the_rules_sentence_without_what_was_sent():
    sent = json.dumps(json.dumps({"spec": {"engine": "x" * 2000}}))
    said = f'InferenceService.inflight.dev "chat" is invalid: spec: Invalid value: {sent}: a rule was broken'
    assert refused(said).message == "the limits were refused: a rule was broken"


def test_a_resource_without_the_field_is_named():
    said = 'is invalid: patch: Invalid value: "{}": strict decoding error: unknown field "spec.tuning.override"'
    assert "has no field spec.tuning.override" in refused(said).message


def test_other_refusals_stay_what_they_are():
    assert refused("etcd is away", 500).message == "the API server answers 500: etcd is away"


class StandIn:
    """Stands in for a cluster: the status follows the spec at once, or never."""

    def __init__(self, *, works=True, engine=()):
        self.works = works
        self.spec = {**SPEC, "engine": {**SPEC["engine"], **dict(engine)}}
        self.limits = dict(IN_FORCE)
        self.connection = self

    def connect(self):
        return self

    def service(self, name):
        return Service.of(body(name, spec=self.spec, limits=self.limits))

    def request(self, method, path, *, query, body, content_type):
        self.asked = method, path, query["fieldManager"], body["spec"]["tuning"]["override"]
        override = body["spec"]["tuning"]["override"]
        if self.works:
            changed = {name: value for name, value in (override or {}).items() if value and name != "until"}
            self.limits = IN_FORCE | changed
            if override is not None:
                self.limits |= {"source": "Override", "override": OVERRIDE | {"until": override["until"]}}
        return self.service("chat").raw


def run(monkeypatch, cluster, *flags):
    monkeypatch.setattr("inflight_kubectl.access.cluster.Target.connect", lambda target: cluster)
    return CliRunner().invoke(limits_command.COMMAND, ["chat", *flags])


def test_limits_are_set_with_an_end_and_cleared_by_a_merge_patch(monkeypatch):
    cluster = StandIn()
    done = run(monkeypatch, cluster, "--max-num-seqs", "4", "--for", "1h")
    assert done.exit_code == 0, done.output
    method, path, manager, override = cluster.asked
    assert (method, path) == ("PATCH", "/apis/inflight.dev/v1alpha1/namespaces/default/inferenceservices/chat")
    assert not manager.startswith("kubectl")
    assert override | {"until": ""} == {"maxNumSeqs": 4, "maxNumBatchedTokens": None, "until": ""}
    assert "set by hand until" in done.output
    assert run(monkeypatch, cluster, "--clear").exit_code == 0
    assert cluster.asked[3] is None


def test_an_operator_that_does_nothing_is_reported_after_a_while(monkeypatch):
    monkeypatch.setattr(limits_command, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(limits_command.time, "sleep", lambda _: None)
    done = run(monkeypatch, StandIn(works=False), "--max-num-seqs", "4")
    assert done.exit_code == 1
    assert "not in force after" in done.output
    assert run(monkeypatch, StandIn(works=False), "--max-num-seqs", "4", "--no-wait").exit_code == 0


@pytest.mark.parametrize("engine", [{"type": "custom"}, {"type": "vllm", "plugin": False}])
def test_types_without_live_limits_are_refused_limits_and_show_why_they_have_none(monkeypatch, engine):
    cluster = StandIn(engine=engine)
    done = run(monkeypatch, cluster, "--max-num-seqs", "4")
    assert done.exit_code == 1
    assert "cannot change" in done.output
    shown = run(monkeypatch, cluster).output
    assert "tuning: the limits are right" in shown
    assert not [row for row in ("pods:", "source:", "bounds of tuning") if row in shown]
    assert run(monkeypatch, StandIn(engine={"type": "vllm"}), "--max-num-seqs", "4").exit_code == 0


@pytest.mark.parametrize("flags", [["--for", "10m"], ["--clear", "--max-num-seqs", "4"], ["--max-num-seqs", "0"]])
def test_flags_that_do_not_go_together_are_wrong_usage(monkeypatch, flags):
    assert run(monkeypatch, StandIn(), *flags).exit_code == 2


def test_durations_and_ranges_are_read_and_wrong_ones_are_explained():
    duration, span = DurationType(1.0, 7200.0), RangeType()
    assert [duration.convert(text, None, None) for text in ("90s", "1m30s", "2h")] == [90.0, 90.0, 7200.0]
    assert [duration_text(seconds) for seconds in (0.25, 0, 90, 7200, 3661)] == ["250ms", "0s", "1m30s", "2h", "1h1m1s"]
    assert [span.convert(text, None, None) for text in ("64", "64-512")] == [(64, 64), (64, 512)]
    for kind, wrong in ((duration, "10"), (duration, "3h"), (duration, "0s"), (span, "0"), (span, "9-3"), (span, "x")):
        with pytest.raises(Exception, match=r"(?i)between|such as"):
            kind.convert(wrong, None, None)


@pytest.mark.parametrize("value", ["zoë", "a\nb", "\x1b[0m"])
def test_what_no_header_can_carry_is_a_usage_error(value):
    assert HeaderType().convert("team-a", None, None) == "team-a"
    with pytest.raises(click.BadParameter, match="printable ASCII"):
        HeaderType().convert(value, None, None)
