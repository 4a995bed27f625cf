"""The series of each service on the operator's metrics page."""

from prometheus_client import generate_latest

from inflight_operator.decide.decision import Decision, Reason
from inflight_operator.decide.replicas.autopilot import Sizing
from inflight_operator.decide.replicas.start_up import Phases
from inflight_operator.decide.status.conditions import Finding, unreadable
from inflight_operator.observe.attainment import Attainment, Counted
from inflight_operator.telemetry.metrics import OperatorMetrics
from inflight_operator.telemetry.service_metrics import ServiceValues
from inflight_settings.limits import Limits
from tests.operator.fakes import KEY

UNREADABLE = unreadable(0, "spec.model: field required")
SCALED = Decision("Scaling", "replicas", 1, 2, Reason("Demand"))
AT = 1.7e9


FINDINGS = (
    Finding("Ready", "True", "Serving", "1 of 2 replicas takes requests"),
    Finding("Progressing", "True", "StartingPods", "1 of 2 pods ready"),
)


ATTAINMENT = Attainment(Counted(10.0, 9.5), Counted(4.0, 4.0))


def recorded_with(findings=FINDINGS, attainment=ATTAINMENT, **changes):
    """Returns the arguments of `record` for a service with a measured demand and a price."""
    values = {
        "desired": 2,
        "replicas": 2,
        "ready": 1,
        "unmeasured": 0,
        "blocked": 1,
        "waiting": 3,
        "running": 4,
        "kv_utilization": 0.5,
        "preemptions_per_minute": 0.0,
        "limits": Limits(16, 512),
        "overridden": True,
        "scrape_age": 1.0,
        "ttft_target": 0.5,
        "tpot_target": 0.05,
        "sizing": Sizing(10.0, 8.0, 1.25),
        "cost_per_hour": 5.0,
        "currency": "EUR",
        "modelled": Limits(24, 768),
        "lead_time": Phases(0.5, 1.0, 2.5, 2.0, 0.25),
        "loading_left": 90.0,
    }
    return ServiceValues(**values | changes), findings, attainment, (SCALED,), AT


class Page:
    def __init__(self):
        self.metrics = OperatorMetrics()
        self.services = self.metrics.of_services

    def value(self, name, **labels):
        about = {"namespace": KEY.namespace, "name": KEY.name} | labels
        return self.metrics.registry.get_sample_value(f"inflight_operator_{name}", about)


def test_a_service_shows_its_numbers_its_state_and_what_it_was_decided_from():
    page = Page()
    page.services.record(KEY, *recorded_with())
    page.services.record(KEY, *recorded_with())
    assert page.value("service_blocked_replicas") == 1
    assert page.value("service_ttft_target_seconds") == 0.5
    assert page.value("service_state", state="Serving", engine="inflight") == 1
    assert page.value("service_demand_requests_per_second") == 10
    assert page.value("service_replica_requests_per_second") == 8
    assert page.value("service_limits_overridden") == 1
    assert page.value("service_cost_per_hour", currency="EUR") == 5
    assert page.value("service_first_tokens_total") == 10
    assert page.value("service_first_tokens_in_target_total") == 9.5
    assert page.value("service_decisions_total", kind="Scaling", reason="Demand") == 2
    assert page.value("service_max_num_seqs") == 16
    assert page.value("service_model_max_num_seqs") == 24
    assert page.value("service_model_max_num_batched_tokens") == 768
    assert page.value("service_start_up_seconds", phase="weights") == 2.5
    assert page.value("service_start_up_seconds", phase="endpoints") == 0.25
    assert page.value("service_loading_left_seconds") == 90


def test_the_last_decision_on_each_knob_is_shown_with_its_time():
    page = Page()
    values, findings, attainment, decisions, at = recorded_with()
    tuned = Decision("Tuning", "max_num_seqs", 16, 24, Reason("ByCostModel"))
    page.services.record(KEY, values, findings, attainment, (*decisions, tuned), at)
    again = Decision("Scaling", "replicas", 2, 5, Reason("TtftOverTarget"))
    page.services.record(KEY, values, findings, attainment, (again,), at + 60)
    page.services.record(KEY, values, findings, attainment, (), at + 90)
    name = "service_last_decision_timestamp_seconds"
    labels = {"kind": "Scaling", "knob": "replicas"}
    assert page.value(name, **labels, **{"from": "2", "to": "5"}, reason="TtftOverTarget") == at + 60
    assert page.value(name, **labels, **{"from": "1", "to": "2"}, reason="Demand") is None
    limit = {"kind": "Tuning", "knob": "max_num_seqs", "from": "16", "to": "24"}
    assert page.value(name, **limit, reason="ByCostModel") == at


def test_what_is_not_known_has_no_series():
    page = Page()
    page.services.record(
        KEY,
        *recorded_with(
            sizing=None,
            cost_per_hour=None,
            modelled=None,
            lead_time=None,
            loading_left=None,
            findings=(),
            attainment=None,
        ),
    )
    assert page.value("service_start_up_seconds", phase="weights") is None
    assert page.value("service_loading_left_seconds") is None
    assert page.value("service_model_max_num_seqs") is None
    assert page.value("service_first_tokens_total") is None
    assert page.value("service_demand_requests_per_second") is None
    assert page.value("service_cost_per_hour", currency="EUR") is None
    assert "inflight_operator_service_state{" not in generate_latest(page.metrics.registry).decode()


def test_a_rollout_is_stuck_only_where_it_needs_somebody():
    page = Page()
    for status, reason, stuck in (
        ("True", "RollingOut", 0),
        ("False", "Complete", 0),
        ("False", "ProgressDeadlineExceeded", 1),
        ("False", "PodsRefused", 1),
        ("False", "ApplyFailed", 1),
        ("False", "SpecNotUnderstood", 1),
    ):
        page.services.record(KEY, *recorded_with(findings=(Finding("Progressing", status, reason, "why"),)))
        assert page.value("service_rollout_stuck") == stuck, reason


def test_a_spec_that_cannot_be_read_changes_the_state_and_keeps_the_numbers():
    page = Page()
    page.services.record(KEY, *recorded_with())
    page.services.record_unreadable(KEY, UNREADABLE)
    assert page.value("service_state", state="SpecInvalid", engine="inflight") == 1
    assert page.value("service_state", state="Serving", engine="inflight") is None
    assert page.value("service_rollout_stuck") == 1
    assert page.value("service_replicas") == 2


def test_a_spec_that_this_process_could_never_read_is_stuck_too():
    page = Page()
    page.services.record_unreadable(KEY, UNREADABLE)
    assert page.value("service_rollout_stuck") == 1
    assert page.value("service_state", state="SpecInvalid", engine="inflight") == 1
    assert page.value("service_replicas") is None
    page.services.forget(KEY)
    assert page.value("service_rollout_stuck") is None


def test_a_deleted_service_has_no_series():
    page = Page()
    page.services.record(KEY, *recorded_with())
    page.services.forget(KEY)
    assert page.value("service_replicas") is None
    assert page.value("service_decisions_total", kind="Scaling", reason="Demand") is None
