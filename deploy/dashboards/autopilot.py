"""Inputs and results of the operator's decisions for one service: demand, capacity, fit, decisions, missed targets."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.dashboards import decisions, style
from deploy.dashboards.engine import STEP, TERMS, per_term
from deploy.dashboards.frame import Row, assemble, service_variables
from deploy.dashboards.panels import Panel, Query, bars, lines, number
from deploy.dashboards.queries import (
    ONE_SERVICE,
    RANGE,
    counted,
    counted_each,
    in_target,
    known,
    mean,
    out_of_target_seconds,
    rate,
    ratio,
)
from deploy.dashboards.scaling import limits_panel, replicas_panel, value
from deploy.dashboards.tables import Column, rows
from inflight_operator.decide.demand import MAX_ERROR

_DECISIONS = "inflight_operator_service_decisions_total"


def dashboard() -> Dashboard:
    made = assemble(
        "autopilot",
        "Inflight / Autopilot",
        "What the operator sees and decides for one InferenceService: demand against capacity, the fitted cost of "
        "steps and its error, decisions by reason, and time out of target.",
        service_variables(several=False),
        [
            Row("Is it fine", 4, [(4, one) for one in _overview()]),
            Row("Demand and capacity", 11, [(12, one) for one in _demand()]),
            Row("Decisions", 12, [(8, _reasons()), (16, _last_decisions())]),
            Row("Limits", 10, [(12, one) for one in _limits()]),
            Row("Cost of steps", 9, [(8, one) for one in _fit()]),
            Row("Targets", 9, [(12, one) for one in _misses()]),
        ],
        since="now-6h",
    )
    return made.annotation(decisions.SCALING).annotation(decisions.TUNING)


def _capacity(replicas: str) -> str:
    return f"{value(replicas)} * {value('replica_requests_per_second')}"


def _overview() -> list[Panel]:
    def missed(title: str, what: str, counter: str) -> Panel:
        return number(
            title,
            f"Time in the range in which more than 5% of the last minute's {what} were over the target.",
            "s",
            [Query(out_of_target_seconds(counter, ONE_SERVICE), "Out of target")],
            steps=((None, style.GOOD), (60, style.WARNING), (600, style.BAD)),
            none="No requests or no target",
        )

    return [
        missed("Out of TTFT target", "first tokens", "first_tokens"),
        missed("Out of TPOT target", "finished requests", "outputs"),
        number(
            "Load of ready replicas",
            "Expected demand as a share of what the ready replicas sustain within the targets.",
            "percentunit",
            [Query(ratio(value("demand_requests_per_second"), _capacity("ready_replicas")), "Load")],
            steps=((None, style.GOOD), (0.85, style.WARNING), (1, style.BAD)),
            decimals=0,
            none="Not measured",
        ),
        number(
            "Error of the fit",
            f"Median relative error of the fitted cost of steps, in the pod where it is largest. Above {MAX_ERROR:.0%} "
            "the operator does not use the fit: it tunes by rules and scales by targets.",
            "percentunit",
            [Query(f"max(inflight_step_cost_error_ratio{{{ONE_SERVICE}}})", "Error")],
            steps=((None, style.GOOD), (MAX_ERROR / 2, style.WARNING), (MAX_ERROR, style.BAD)),
            decimals=1,
            none="Not measured",
        ),
        number(
            "Decisions",
            "Changes of replicas and of limits in the time range.",
            "none",
            [Query(f"round(sum({counted(_DECISIONS, ONE_SERVICE, ('kind',), RANGE)}))", "Decisions")],
            none="None",
        ),
        number(
            "Age of metrics",
            "Age of the newest sample of the pod that was scraped least recently. With stale metrics the operator "
            "removes no replicas.",
            "s",
            [Query(known("scrape_age_seconds", ONE_SERVICE, ()), "Age")],
            steps=((None, style.GOOD), (15, style.WARNING), (60, style.BAD)),
        ),
    ]


def _demand() -> list[Panel]:
    return [
        lines(
            "Demand and capacity",
            "Requests per second. Arriving: accepted by engines. Expected: when a replica ordered now is ready. "
            "Capacity: what the ready and the ordered replicas sustain within the targets, by the cost model.",
            "reqps",
            [
                Query(rate("inflight_arrived_requests_total", ONE_SERVICE), "Arriving", style.MEDIAN),
                Query(value("demand_requests_per_second"), "Expected", style.WAITING),
                Query(_capacity("ready_replicas"), "Capacity of ready replicas", style.READY),
                Query(_capacity("replicas"), "Capacity of ordered replicas", style.ORDERED, dashed=True),
            ],
        ),
        replicas_panel(Query(value("needed_replicas"), "Needed for the demand, without margin", style.WAITING)),
    ]


def _reasons() -> Panel:
    return lines(
        "Decisions by reason",
        "Changes of replicas (Scaling) and of limits (Tuning), by the reason that led to them.",
        "none",
        [Query(counted_each(_DECISIONS, ONE_SERVICE, ("kind", "reason")), "{{kind}}: {{reason}}")],
        bars=True,
        stacked=True,
        calcs=("sum",),
    )


def _last_decisions() -> Panel:
    decided = known(decisions.LAST_DECISION, ONE_SERVICE, decisions.LABELS)
    return rows(
        "Last decisions",
        "The last change of each knob: from which value to which, and why. `kubectl describe ifsvc` has the last ten "
        "with their numbers.",
        {"kind": "Kind", "knob": "Knob", "from": "From", "to": "To", "reason": "Reason"},
        [Column("Time", f"{decided} * 1000", "dateTimeAsIso")],
        sort=("Time", True),
        widths={"Knob": 200, "Time": 180},
    )


def _limits() -> list[Panel]:
    return [
        limits_panel("max_num_seqs", "max_num_seqs", "Requests that one engine runs at once."),
        limits_panel("max_num_batched_tokens", "max_num_batched_tokens", "Tokens that one engine computes in a step."),
    ]


def _fit() -> list[Panel]:
    steps = rate(f"{STEP}_count", ONE_SERVICE)
    return [
        lines(
            "Predicted and measured step",
            "Mean duration of a step: measured, and as the cost model that was fitted before predicted it.",
            "s",
            [
                Query(mean(STEP, ONE_SERVICE), "Measured", style.OUTPUT),
                Query(
                    ratio(rate("inflight_step_predicted_seconds_total", ONE_SERVICE), steps),
                    *("Predicted", style.MODELLED),
                    dashed=True,
                ),
            ],
        ),
        lines(
            "Error of the fit by pod",
            "Median of |predicted - measured| / measured over the steps behind the fit. Above the dashed line the "
            "model is not used.",
            "percentunit",
            [Query(f"max by (pod) (inflight_step_cost_error_ratio{{{ONE_SERVICE}}})", "{{pod}}")],
            line=(MAX_ERROR, style.TARGET),
        ),
        bars(
            "Where a step's time goes",
            "Seconds that each part adds to a mean step of the last five minutes, by the fitted cost.",
            "s",
            [
                Query(
                    per_term("inflight_step_predicted_seconds_total", ONE_SERVICE, term, "5m"),
                    *(name, color),
                )
                for term, (name, color) in TERMS.items()
            ],
        ),
    ]


def _misses() -> list[Panel]:
    return [
        lines(
            "Requests over target",
            "Share of first tokens and of finished requests over the targets of `spec.slo`. The dashed line is the "
            "error budget: 5%.",
            "percentunit",
            [
                Query(f"1 - {in_target('first_tokens', ONE_SERVICE, ())}", "First tokens (TTFT)", style.PROMPT),
                Query(f"1 - {in_target('outputs', ONE_SERVICE, ())}", "Outputs (TPOT)", style.OUTPUT),
            ],
            line=(0.05, style.TARGET),
        ),
        lines(
            "Sizes of requests",
            "Mean tokens of a prompt and of an output. A change of sizes changes what a replica sustains, and which "
            "limits are best.",
            "short",
            [
                Query(
                    ratio(
                        rate("inflight_arrived_prompt_tokens_total", ONE_SERVICE),
                        rate("inflight_arrived_requests_total", ONE_SERVICE),
                    ),
                    *("Prompt", style.PROMPT),
                ),
                Query(f"avg(inflight_output_tokens_mean{{{ONE_SERVICE}}})", "Output", style.OUTPUT),
            ],
        ),
    ]
