from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import ValidationError

from inflight_operator.api.resolve import model_argument, served_name, service_url, tuning_bounds
from inflight_operator.api.status import Condition, InferenceServiceStatus, LimitsStatus
from inflight_operator.api.types import InferenceService
from inflight_settings.limits import Limits, LimitsBounds


def make(**spec):
    return InferenceService.from_dict(
        {
            "apiVersion": "inflight.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "chat", "namespace": "team", "uid": "u-1", "managedFields": [], "generation": 3},
            "spec": {"model": {"source": "builtin://smollm2"}, **spec},
        }
    )


def test_a_stored_service_without_a_status_is_read_with_its_defaults():
    service = make()
    assert service.metadata.generation == 3
    assert service.spec.scaling.behavior.scale_down.stabilization_window_seconds == 60
    assert service.status == InferenceServiceStatus()


def test_an_unknown_field_of_the_spec_is_an_error_that_names_it():
    with pytest.raises(ValidationError, match=r"spec\.scaling\.maxreplicas"):
        make(scaling={"maxreplicas": 3})


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"slo": {"ttftP95": "soon"}}, r"spec\.slo\.ttftP95"),
        ({"rollout": {"drainTimeout": "2 minutes"}}, r"spec\.rollout\.drainTimeout"),
        ({"engine": {"kvCache": {"memory": "much"}}}, r"spec\.engine\.kvCache\.memory"),
        ({"template": {"resources": {"limits": {"memory": "8 GB"}}}}, r"spec\.template\.resources\.limits\.memory"),
    ],
)
def test_text_that_has_to_be_a_duration_or_a_quantity_is_read_with_the_spec(spec, field):
    with pytest.raises(ValidationError, match=field):
        make(**spec)


def test_an_unknown_field_of_the_status_is_left_out_since_a_newer_operator_may_have_written_it():
    assert InferenceServiceStatus.model_validate({"replicas": 1, "later": 2}).to_dict() == {
        "conditions": [],
        "replicas": 1,
        "decisions": [],
    }


def test_unknown_volume_sources_pass_through():
    (volume,) = make(template={"volumes": [{"name": "x", "nfs": {"server": "s", "path": "/"}}]}).spec.template.volumes
    assert volume.model_dump(by_alias=True) == {"name": "x", "nfs": {"server": "s", "path": "/"}}


def test_services_do_not_change_after_they_are_made():
    with pytest.raises(ValidationError, match="frozen"):
        make().spec.replicas = 2


def test_names_and_addresses_that_are_not_given():
    assert served_name(make()) == "chat"
    assert served_name(make(model={"source": "hf://a/b", "servedName": "b"})) == "b"
    assert service_url(make()) == "http://chat.team.svc"


@pytest.mark.parametrize(
    ("model", "argument"),
    [
        ({"source": "builtin://smollm2"}, "builtin://smollm2"),
        ({"source": "hf://Qwen/Qwen3-8B"}, "hf://Qwen/Qwen3-8B"),
        ({"source": "s3://models/qwen3"}, "s3://models/qwen3"),
        ({"source": "pvc://models/qwen3/8b/"}, "/models/qwen3/8b"),
        ({"source": "oci://registry/qwen3:1"}, "/models"),
        ({"source": "oci://registry/qwen3:1", "path": "models/8b/"}, "/models/models/8b"),
    ],
)
def test_the_model_argument_of_each_source(model, argument):
    assert model_argument(make(model=model).spec.model) == argument


def test_tuning_is_bounded_by_capacity_where_nothing_is_given():
    bounds = tuning_bounds(make().spec)
    assert bounds == LimitsBounds(low=Limits(1, 64), high=Limits(256, 8192))


def test_the_default_floor_of_the_budget_gives_way_to_a_small_capacity():
    bounds = tuning_bounds(make(engine={"maxNumBatchedTokens": 16}).spec)
    assert (bounds.low.max_num_batched_tokens, bounds.high.max_num_batched_tokens) == (16, 16)


def test_given_tuning_bounds_count():
    tuning = {"maxNumSeqs": {"min": 4, "max": 32}, "maxNumBatchedTokens": {"min": 128, "max": 512}}
    assert tuning_bounds(make(tuning=tuning).spec) == LimitsBounds(low=Limits(4, 128), high=Limits(32, 512))


def test_times_are_written_to_the_second_with_z_and_keep_their_zone():
    def written(moment):
        condition = Condition(type="Ready", status="True", reason="R", message="m", last_transition_time=moment)
        return condition.to_dict()["lastTransitionTime"]

    assert written(datetime(2026, 1, 2, 3, 4, 5, 999, tzinfo=UTC)) == "2026-01-02T03:04:05Z"
    assert written(datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=2)))) == "2026-01-02T03:00:00+02:00"
    with pytest.raises(ValidationError, match="timezone"):
        written(datetime(2026, 1, 2))


def test_the_limits_column_follows_the_limits():
    limits = LimitsStatus(max_num_seqs=48, max_num_batched_tokens=1024, revision=7, pods_in_force=2)
    assert limits.to_dict()["summary"] == "48/1024"
    assert LimitsStatus.model_validate(limits.to_dict()) == limits
