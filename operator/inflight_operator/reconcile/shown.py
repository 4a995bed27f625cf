"""Values of the operator's metrics of a service after a round. Pure."""

from __future__ import annotations

from inflight_operator.reconcile.plan import Plan
from inflight_operator.reconcile.snapshot import Snapshot
from inflight_operator.reconcile.views import mean_slo
from inflight_operator.telemetry.service_metrics import Shown


def shown_of(snapshot: Snapshot, plan: Plan) -> Shown:
    """Live values, over the pods with fresh samples; latency targets are for a prompt of mean length."""
    policy, fresh = snapshot.policy, snapshot.fresh.values()
    targets = mean_slo(policy, plan.memory.demand)
    ready = sum(pod.serves for pod in snapshot.pods)
    assert targets.ttft_p95 is not None
    assert targets.tpot_p95 is not None
    return Shown(
        desired=plan.desired,
        replicas=plan.replicas,
        ready=ready,
        unmeasured=ready - len(fresh),
        blocked=plan.blocked,
        waiting=sum(one.waiting for one in fresh),
        running=sum(one.running for one in fresh),
        kv_utilization=sum(one.kv_usage for one in fresh) / len(fresh) if fresh else 0.0,
        preemptions_per_minute=plan.measured.preemptions_per_min,
        limits=plan.limits.limits,
        modelled=plan.modelled,
        overridden=plan.memory.before_override is not None,
        scrape_age=snapshot.window.oldest_age(snapshot.now),
        ttft_target=targets.ttft_p95,
        tpot_target=targets.tpot_p95,
        sizing=plan.sizing,
        cost_per_hour=None if policy.price is None else policy.price * len(snapshot.replicas),
        currency=policy.currency,
        gateway=snapshot.gateway,
        asleep=None if policy.idle_timeout is None else plan.replicas == 0,
    )
