"""Inputs and results of the operator's decisions for one service: demand, capacity, fit, decisions, missed targets."""

from __future__ import annotations

from deploy.dashboards import style
from deploy.dashboards.dashboard import Dashboard, Row
from deploy.dashboards.engine import STEP, parts
from deploy.dashboards.panels import Column, Panel, Query, bars, lines, number, table
from deploy.dashboards.queries import (
    ONE_SERVICE,
    RANGE,
    counted,
    counted_each,
    in_target,
    known,
    last_decisions,
    mean,
    out_of_target_seconds,
    rate,
    ratio,
    value,
)
from deploy.dashboards.service import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, replicas
from inflight_operator.decide.replicas.demand import MAX_ERROR

_ARRIVED = "inflight_arrived_requests_total"
_DECISIONS = "inflight_operator_service_decisions_total"
_DEMAND = value("demand_requests_per_second")


def _capacity(pods: str) -> str:
    return f"{value(pods)} * {value('replica_requests_per_second')}"


def _missed(events: str, counter: str) -> Panel:
    return number(
        "s",
        f"Time in the range in which more than 5% of the last minute's {events} were over the target.",
        Query("Out of target", out_of_target_seconds(counter, ONE_SERVICE)),
        steps=((None, style.GOOD), (60, style.WARNING), (600, style.BAD)),
        none="No requests or no target",
    )


DASHBOARD = Dashboard(
    "autopilot",
    "What the operator sees and decides for one InferenceService: demand against capacity, the fitted cost of steps "
    "and its error, decisions by reason, and time out of target.",
    {
        Row("Is it fine", 4, 4): {
            "Out of TTFT target": _missed("first tokens", "first_tokens"),
            "Out of TPOT target": _missed("finished requests", "outputs"),
            "Load of ready replicas": number(
                "percentunit",
                "Expected demand as a share of what the ready replicas sustain within the targets.",
                Query("Load", ratio(_DEMAND, _capacity("ready_replicas"))),
                steps=((None, style.GOOD), (0.85, style.WARNING), (1, style.BAD)),
                decimals=0,
                none="Not measured",
            ),
            "Error of the fit": number(
                "percentunit",
                "Median relative error of the fitted cost of steps, in the pod where it is largest. Above "
                f"{MAX_ERROR:.0%} the operator does not use the fit: it tunes by rules and scales by targets.",
                Query("Error", f"max(inflight_step_cost_error_ratio{{{ONE_SERVICE}}})"),
                steps=((None, style.GOOD), (MAX_ERROR / 2, style.WARNING), (MAX_ERROR, style.BAD)),
                decimals=1,
                none="Not measured",
            ),
            "Decisions": number(
                "none",
                "Changes of replicas and of limits in the time range.",
                Query("Decisions", f"round(sum({counted(_DECISIONS, ONE_SERVICE, ('kind',), RANGE)}))"),
                none="None",
            ),
            "Age of metrics": number(
                "s",
                "Age of the newest sample of the pod that was scraped least recently. With stale metrics the operator "
                "removes no replicas.",
                Query("Age", known("scrape_age_seconds", ONE_SERVICE, ())),
                steps=((None, style.GOOD), (15, style.WARNING), (60, style.BAD)),
            ),
        },
        Row("Demand and capacity", 11, 12): {
            "Demand and capacity": lines(
                "reqps",
                "Requests per second. Expected: when a replica ordered now is ready. Capacity: what the ready and the "
                "ordered replicas sustain within the targets, by the cost model.",
                Query("Arriving", rate(_ARRIVED, ONE_SERVICE), style.MEDIAN, about="Arriving: accepted by engines."),
                Query("Expected", _DEMAND, style.WAITING),
                Query("Capacity of ready replicas", _capacity("ready_replicas"), style.READY),
                Query("Capacity of ordered replicas", _capacity("replicas"), style.ORDERED, dashed=True),
            ),
            "Replicas": replicas(
                Query("Needed for the demand, without margin", value("needed_replicas"), style.WAITING)
            ),
        },
        Row("Start-up", 9, 12): {
            "Lead time of a new replica": lines(
                "s",
                "Seconds from the order of a replica until it takes requests, by phase: medians of recent starts of "
                "this model and engine, on the nodes of the service where those are known. Demand is expected so far "
                "ahead.",
                Query("{{phase}}", known("service_start_up_seconds", ONE_SERVICE, ("phase",))),
                stacked=True,
            ),
            "Models that are loading": lines(
                "s",
                "Seconds until the slowest engine that starts for long has read its model, at its mean rate.",
                Query("Time left", value("loading_left_seconds"), style.WAITING),
            ),
        },
        Row("Decisions", 12, 8): {
            "Decisions by reason": lines(
                "none",
                "Changes of replicas (Scaling) and of limits (Tuning), by the reason that led to them.",
                Query("{{kind}}: {{reason}}", counted_each(_DECISIONS, ONE_SERVICE, ("kind", "reason"))),
                bars=True,
                stacked=True,
                calcs=("sum",),
            ),
            "Last decisions": table(
                "The last change of each knob: from which value to which, and why. `kubectl describe ifsvc` has the "
                "last ten with their numbers.",
                {"kind": "Kind", "knob": "Knob", "from": "From", "to": "To", "reason": "Reason"},
                Column("Time", "dateTimeAsIso", last_decisions(ONE_SERVICE)),
                sort=("Time", True),
                widths={"Knob": 200, "Time": 180},
            ),
        },
        Row("Limits", 10, 12): {"max_num_seqs": MAX_NUM_SEQS, "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS},
        Row("Cost of steps", 9, 8): {
            "Predicted and measured step": lines(
                "s",
                "Mean duration of a step: measured, and as the cost model that was fitted before predicted it.",
                Query("Measured", mean(STEP, ONE_SERVICE), style.OUTPUT),
                Query(
                    "Predicted",
                    ratio(
                        rate("inflight_step_predicted_seconds_total", ONE_SERVICE), rate(f"{STEP}_count", ONE_SERVICE)
                    ),
                    style.MODELLED,
                    dashed=True,
                ),
            ),
            "Error of the fit by pod": lines(
                "percentunit",
                "Median of |predicted - measured| / measured over the steps behind the fit. Above the dashed line the "
                "model is not used.",
                Query("{{pod}}", f"max by (pod) (inflight_step_cost_error_ratio{{{ONE_SERVICE}}})"),
                line=MAX_ERROR,
            ),
            "Where a step's time goes": bars(
                "s",
                "Seconds that each part adds to a mean step of the last five minutes, by the fitted cost.",
                *parts(ONE_SERVICE, "5m"),
            ),
        },
        Row("Targets", 9, 12): {
            "Requests over target": lines(
                "percentunit",
                "Share of first tokens and of finished requests over the targets of `spec.slo`. The dashed line is "
                "the error budget: 5%.",
                Query("First tokens (TTFT)", f"1 - {in_target('first_tokens', ONE_SERVICE, ())}", style.PROMPT),
                Query("Outputs (TPOT)", f"1 - {in_target('outputs', ONE_SERVICE, ())}", style.OUTPUT),
                line=0.05,
            ),
            "Sizes of requests": lines(
                "short",
                "Mean tokens of a prompt and of an output. A change of sizes changes what a replica sustains, and "
                "which limits are best.",
                Query(
                    "Prompt",
                    ratio(rate("inflight_arrived_prompt_tokens_total", ONE_SERVICE), rate(_ARRIVED, ONE_SERVICE)),
                    style.PROMPT,
                ),
                Query("Output", f"avg(inflight_output_tokens_mean{{{ONE_SERVICE}}})", style.OUTPUT),
            ),
        },
    },
    decisions=True,
    since="now-6h",
)
