"""The gateway in front of one service: panels of its row on the service's dashboard. Empty for services without it."""

from __future__ import annotations

from deploy.dashboards import style
from deploy.dashboards.panels import Panel, Query, lines, percentiles
from deploy.dashboards.queries import ONE_SERVICE_BEHIND_GATEWAY as BEHIND
from deploy.dashboards.queries import added, rate, ratio
from deploy.dashboards.scaling import value


def panels() -> list[Panel]:
    """In the order of the row."""
    return [_requests(), _first_token(), _held(), _held_time(), _attempts(), _gaps(), _picks(), _prefix(), _tenants()]


def _metric(name: str) -> str:
    return f"inflight_gateway_{name}"


def _requests() -> Panel:
    return lines(
        "Requests at the gateway by status",
        "Requests per second that ended, by the HTTP status that the client got. 0: the client left before one.",
        "reqps",
        [Query(rate(_metric("requests_total"), BEHIND, ("status",)), "{{status}}")],
        stacked=True,
        colors={"200": style.GOOD, "429": style.WARNING, "502": style.BAD, "503": style.BAD, "504": style.BAD},
    )


def _first_token() -> Panel:
    histogram = _metric("time_to_first_token_seconds")
    return lines(
        "Time to first token at the gateway",
        "As clients see it: from the arrival of a request at the gateway to its first token, with the time that it "
        "waited there and all attempts. The dashed line is the target of the 95th percentile.",
        "s",
        [
            *percentiles(histogram, BEHIND),
            Query(value("ttft_target_seconds"), "Target of p95", style.TARGET, dashed=True),
        ],
    )


def _held() -> Panel:
    return lines(
        "Requests held and in flight",
        "Held: requests that wait at the gateway for an engine that can start them. In flight: requests that the "
        "gateway sent to engines.",
        "short",
        [
            Query(added(f"{_metric('requests_in_flight')}{{{BEHIND}}}"), "In flight", style.RUNNING),
            Query(added(f"{_metric('held_requests')}{{{BEHIND}}}"), "Held", style.WAITING),
        ],
        stacked=True,
    )


def _held_time() -> Panel:
    histogram = _metric("held_seconds")
    return lines(
        "Time held",
        "How long requests waited at the gateway before they were sent to an engine, and how long the oldest request "
        "has waited now.",
        "s",
        [
            *percentiles(histogram, BEHIND, 0.5, 0.95),
            Query(f"max({_metric('oldest_held_seconds')}{{{BEHIND}}})", "Oldest now", style.WAITING),
        ],
    )


def _attempts() -> Panel:
    requests = rate(_metric("requests_total"), BEHIND)
    return lines(
        "Attempts and continuations",
        "Attempts: engines that a request was sent to, the mean; 1 without a failure. Continuations: answers per "
        "request that went on at another engine after the client had some of them.",
        "short",
        [
            Query(ratio(rate(_metric("attempts_total"), BEHIND), requests), "Attempts/request", style.MEASURED),
            Query(
                ratio(rate(_metric("continuations_total"), BEHIND), requests), "Continuations/request", style.WARNING
            ),
        ],
        decimals=2,
    )


def _gaps() -> Panel:
    histogram = _metric("longest_gap_seconds")
    return lines(
        "Longest gap in a stream",
        "The longest time between two pieces of the same stream: a stream that goes on at another engine has a gap.",
        "s",
        percentiles(histogram, BEHIND, 0.5, 0.99),
    )


def _picks() -> Panel:
    return lines(
        "Picks by reason",
        "Engines chosen per second, by what decided the choice.",
        "ops",
        [Query(rate(_metric("picks_total"), BEHIND, ("reason",)), "{{reason}}")],
        stacked=True,
    )


def _prefix() -> Panel:
    tokens = rate(_metric("prompt_tokens_total"), BEHIND)
    return lines(
        "Prefix cache hits",
        "Share of prompt tokens that the chosen engine's prefix cache held: as the gateway predicted, and as engines "
        "counted. Predictions are estimated from characters.",
        "percentunit",
        [
            Query(ratio(rate(_metric("cached_tokens_predicted_total"), BEHIND), tokens), "Predicted", style.MODELLED),
            Query(ratio(rate(_metric("cached_tokens_found_total"), BEHIND), tokens), "Found", style.MEASURED),
        ],
    )


def _tenants() -> Panel:
    tokens = f'{BEHIND}, kind=~"prompt|completion"'
    return lines(
        "Tokens by tenant",
        "Prompt and output tokens per second of each tenant. `anonymous`: requests without an API key.",
        "short",
        [Query(rate(_metric("tenant_tokens_total"), tokens, ("tenant",)), "{{tenant}}")],
        stacked=True,
    )
