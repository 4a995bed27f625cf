"""`limits SERVICE`: the limits in force with their source, and limits set by hand for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import click

from inflight_base.manifest.engines import VLLM
from inflight_kubectl.access.cluster import Cluster, Target, cluster_options, service_argument
from inflight_kubectl.engines.overrides import LimitsView, clear_override, limits_view, set_override
from inflight_kubectl.flag_types import DurationType, duration_text
from inflight_kubectl.output import Problem, console, in_utc, json_option, plain_table, print_json
from inflight_settings.limits import HIGHEST_LIMITS, Limits, PartialLimits

WAIT_SECONDS = 30.0
"""Seconds that the operator and the engines have to apply a change; both usually need one interval of the operator, 3
seconds."""

DAY = 86_400.0


@click.command(
    "limits",
    epilog="""\b
Examples:
  kubectl inflight limits chat                                # limits in force, and what set them
  kubectl inflight limits chat --max-num-seqs 32 --for 10m    # 32 requests at once for ten minutes
  kubectl inflight limits chat --max-num-batched-tokens 512   # 512 tokens in a step, for ten minutes
  kubectl inflight limits chat --clear                        # end limits set by hand now
""",
)
@service_argument
@click.option(
    "--max-num-seqs",
    type=click.IntRange(1, HIGHEST_LIMITS.max_num_seqs),
    metavar="N",
    help="Most requests that run at once.",
)
@click.option(
    "--max-num-batched-tokens",
    type=click.IntRange(1, HIGHEST_LIMITS.max_num_batched_tokens),
    metavar="N",
    help="Most tokens in one step.",
)
@click.option(
    "--for",
    "length",
    type=DurationType(1.0, 30 * DAY),
    metavar="DURATION",
    help="How long the limits hold, such as 90s, 10m or 2h. Default: 10m.",
)
@click.option("--clear", is_flag=True, help="End limits set by hand.")
@click.option("--wait/--no-wait", default=True, help="Wait until running engines have taken the change. Default: wait.")
@json_option
@cluster_options()
def limits(
    service: str,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    length: float | None,
    clear: bool,
    wait: bool,
    as_json: bool,
    target: Target,
) -> None:
    """Show the limits of SERVICE's engines, or set them by hand for a limited time.

    Limits set by hand pause the tuning of the service. Replicas are still scaled, by what an engine carries with these
    limits. At the end, the limits before them return. Engines keep running.
    """
    wanted = PartialLimits(max_num_seqs, max_num_batched_tokens)
    setting = wanted != PartialLimits()
    if clear and (setting or length is not None):
        raise click.UsageError("--clear goes without other limits and without --for")
    if length is not None and not setting:
        raise click.UsageError("--for needs --max-num-seqs, --max-num-batched-tokens or both")
    cluster = target.connect()
    found = cluster.service(service)
    if setting and not found.live_limits:
        kind = "vllm without the plugin" if found.engine.name == VLLM else found.engine.name
        raise Problem(
            f"limits of running engines of type {kind} cannot change",
            "Set engine.maxNumSeqs and engine.maxNumBatchedTokens, or arguments of the container, for new pods",
        )
    if setting:
        until = (datetime.now(UTC) + timedelta(seconds=length or 600.0)).replace(microsecond=0)
        set_override(cluster, found, wanted, until)
        if wait:
            _await(cluster, service, lambda view: _holds(view, wanted, until))
    elif clear:
        clear_override(cluster, found)
        if wait:
            _await(cluster, service, lambda view: view.until is None and view.pods_in_force >= view.ready_replicas)
    view = limits_view(cluster.service(service))
    if as_json:
        print_json(view)
    else:
        _show(view)


COMMAND = limits


def _holds(view: LimitsView, wanted: PartialLimits, until: datetime) -> bool:
    if view.in_force is None or view.until != until:
        return False
    return wanted.over(view.in_force) == view.in_force and view.pods_in_force >= view.ready_replicas


def _await(cluster: Cluster, service: str, done: Callable[[LimitsView], bool]) -> None:
    """
    Raises:
        Problem: the operator or an engine did not apply the change in time; it stays in the spec.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        view = limits_view(cluster.service(service))
        if done(view):
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    if view.reason == "LimitsNotTaken":
        raise Problem(f"not every engine took the limits: {view.tuning}")
    raise Problem(
        f"the change is in the spec, but not in force after {WAIT_SECONDS:.0f} s; the operator says: {view.tuning}",
        "Run `kubectl inflight doctor` to see whether the operator works",
    )


def _show(view: LimitsView) -> None:
    table = plain_table("", "max_num_seqs", "max_num_batched_tokens", right=("max_num_seqs", "max_num_batched_tokens"))

    def row(name: str, pair: Limits | None) -> None:
        if pair is not None:
            table.add_row(name, str(pair.max_num_seqs), str(pair.max_num_batched_tokens))

    row("in force", view.in_force)
    row("before", view.before)
    if view.canary is not None:
        row(f"on {view.canary.pod}", view.canary)
    row("cost model", view.modelled)
    if view.live and view.low is not None and view.high is not None:
        spans = (
            (view.low.max_num_seqs, view.high.max_num_seqs),
            (view.low.max_num_batched_tokens, view.high.max_num_batched_tokens),
        )
        table.add_row("bounds of tuning", *(f"{low}-{high}" for low, high in spans))
    row("capacity", view.capacity)
    out = console()
    if table.row_count:
        out.print(table)
    if not view.live:
        out.print(f"tuning: {view.tuning}", soft_wrap=True, markup=False)
        return
    out.print(f"source: {_source(view)}", soft_wrap=True, markup=False)
    pods = f"{view.pods_in_force} of {view.ready_replicas} ready pod{'s' * (view.ready_replicas != 1)}"
    out.print(f"pods: {pods} run with the limits in force", soft_wrap=True, markup=False)
    out.print(f"tuning: {view.tuning}", soft_wrap=True, markup=False)


def _source(view: LimitsView) -> str:
    if view.until is not None:
        left = max(0.0, (view.until - datetime.now(UTC)).total_seconds())
        return f"set by hand until {in_utc(view.until):%Y-%m-%dT%H:%M:%SZ}, for {duration_text(left)} more"
    words = {
        "Capacity": "capacity, which engines start with",
        "Tuning": f"tuning (mode {view.mode})",
    }
    return words.get(view.source or "", "not known: the operator does not say")
