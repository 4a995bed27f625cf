"""`bench SERVICE`: a load of chosen shape through port-forwards, and a report of client-side metrics."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from inflight_base.manifest.lenient import Part
from inflight_kubectl.access.api_keys import authorization
from inflight_kubectl.access.cluster import Target, cluster_options, service_argument
from inflight_kubectl.access.resources import Service
from inflight_kubectl.engines.conversation import served_name
from inflight_kubectl.engines.gateways import behind_gateway
from inflight_kubectl.flag_types import DurationType, HeaderType, RangeType, api_key_option
from inflight_kubectl.load.report import Report, Spread, Targets
from inflight_kubectl.output import Problem, console, json_option, latency, plain_table, print_json

if TYPE_CHECKING:
    from inflight_kubectl.engines.engine_access import PortForward
    from inflight_kubectl.load.drive import Load
    from inflight_kubectl.load.shape import Arrivals, Shape

GATEWAY_PROBE = "/ready"
"""A path that the gateway refuses itself: it wakes no service and is charged to no tenant."""

MOST_CLIENTS = 256
"""Maximum number of requests in flight: each has a websocket to the API server and a thread."""


@click.command(
    "bench",
    epilog="""\b
Examples:
  kubectl inflight bench chat                                       # 8 clients for 30 seconds
  kubectl inflight bench chat --concurrency 64 --requests 500       # 64 clients, 500 requests
  kubectl inflight bench chat --rate 5 --duration 2m                # 5 requests/s, whatever the answers take
  kubectl inflight bench chat --prompt-tokens 200-2000 --output-tokens 100 --shared-prefix 0.5
  kubectl inflight bench chat --rate 2 --arrivals constant --json > report.json
""",
)
@service_argument
@click.option("--rate", type=click.FloatRange(0, 10_000, min_open=True), metavar="R", help="Requests a second.")
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    help="Times between requests at a rate. Default: poisson.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, MOST_CLIENTS),
    metavar="N",
    help=f"Most requests in flight. Default: 8, and {MOST_CLIENTS} with --rate.",
)
@click.option("--requests", type=click.IntRange(1), metavar="N", help="Requests in all.")
@click.option(
    "--duration",
    type=DurationType(1.0, 86_400.0),
    metavar="DURATION",
    help="How long requests are sent, such as 30s. Default: 30s without --requests.",
)
@click.option(
    "--prompt-tokens",
    type=RangeType(),
    default=(128, 128),
    metavar="N|LOW-HIGH",
    help="Length of prompts. Default: 128.",
)
@click.option(
    "--output-tokens", type=RangeType(), default=(64, 64), metavar="N|LOW-HIGH", help="Length of outputs. Default: 64."
)
@click.option(
    "--shared-prefix",
    type=click.FloatRange(0, 1),
    default=0.0,
    metavar="SHARE",
    help="Share of each prompt that is the same in all, which the prefix cache can reuse. Default: 0.",
)
@click.option("--class", "service_class", metavar="NAME", help="Service class of the requests.")
@click.option("--tenant", type=HeaderType(), metavar="NAME", help="Header X-Inflight-Tenant of the requests.")
@api_key_option
@click.option("--seed", type=int, default=0, metavar="N", help="The same seed sends the same requests. Default: 0.")
@json_option
@cluster_options()
def bench(
    service: str,
    rate: float | None,
    arrivals: Arrivals,
    concurrency: int | None,
    requests: int | None,
    duration: float | None,
    prompt_tokens: tuple[int, int],
    output_tokens: tuple[int, int],
    shared_prefix: float,
    service_class: str | None,
    tenant: str | None,
    api_key: str | None,
    seed: int,
    as_json: bool,
    target: Target,
) -> None:
    """Send a load to SERVICE through port-forwards, and report latencies, throughput and attainment.

    Prompts are random tokens, and each output has exactly the length that was asked for. Requests are spread over
    the ready pods, by the gateway where the service is behind it; one at zero replicas is woken. At a --rate,
    latencies count from when a request was due, so waiting for a free client shows in them. Ctrl-C ends the load
    early; the report is then of what was answered. The exit code is 1 when no request succeeded.
    """
    from inflight_kubectl.engines.engine_access import forward_to_service
    from inflight_kubectl.load.engine_side import between, read_totals
    from inflight_kubectl.load.report import report
    from inflight_kubectl.load.shape import Shape

    shape = Shape(
        rate=rate,
        arrivals=arrivals,
        concurrency=concurrency or (8 if rate is None else MOST_CLIENTS),
        requests=requests,
        seconds=duration if duration is not None else 30.0 if requests is None else None,
        prompt=prompt_tokens,
        output=output_tokens,
        shared=shared_prefix,
        seed=seed,
    )
    cluster = target.connect()
    found = cluster.service(service)
    options = {"model": served_name(found), **({"class": service_class} if service_class else {})}
    headers = _headers(found, tenant, api_key)
    with forward_to_service(cluster, found) as forward:
        before = read_totals(cluster, cluster.pods(found))
        probe = GATEWAY_PROBE if behind_gateway(found) else "/health"
        load = asyncio.run(_run(forward, shape, options, headers, probe, progress=sys.stderr.isatty()))
        after = read_totals(cluster, cluster.pods(found))
    # Failed requests may have received their first token, as may those in flight at an early end.
    clean = not load.stopped and not any(one.error for one in load.results)
    engine = between(before, after, len(load.results)) if clean else None
    made = report(load, targets_of(found, service_class), engine)
    if as_json:
        print_json({"namespace": found.namespace, "service": found.name, "shape": shape, "report": made})
    else:
        _print(made, shape)
    if not made.succeeded:
        first = next(iter(made.errors), "no request was answered before the end")
        raise Problem(f"no request succeeded: {first}", f"See `kubectl inflight why {service} -n {found.namespace}`")


COMMAND = bench


def _headers(service: Service, tenant: str | None, api_key: str | None) -> dict[str, str]:
    """
    Raises:
        Problem: the service requires an API key, or its gateway accepts no tenant from clients.
    """
    if tenant and behind_gateway(service):
        raise Problem(
            f"{service.name} is behind the gateway, which takes the tenant from the API key, not from a header",
            "Give a key of the tenant with --api-key instead of --tenant",
        )
    return authorization(service, api_key) | ({"X-Inflight-Tenant": tenant} if tenant else {})


def targets_of(service: Service, service_class: str | None) -> Targets:
    """Returns the latency targets of the service; a class may have its own TTFT target."""
    spec = Part(service.spec, "spec", [])
    classes = spec.part("engine").part("scheduling").parts("classes")
    targets = {one.text("name", None): one.part("slo").seconds("ttftP95", None) for one in classes}
    own = targets.get(service_class)
    per_token = spec.part("slo").seconds("ttftPerThousandTokens", 0.0) / 1000
    return Targets(own or service.ttft_target, service.tpot_target, per_token, service.has_slo or own is not None)


async def _run(
    forward: PortForward, shape: Shape, options: dict[str, Any], headers: dict[str, str], probe: str, *, progress: bool
) -> Load:
    from inflight_kubectl.load.drive import drive

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        return await drive(forward, shape, options, headers, stop, _progress if progress else lambda _: None, probe)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if progress:
            click.echo("\r\x1b[K", nl=False, err=True)


def _progress(load: Load) -> None:
    """Shows the progress on a line that is rewritten in place."""
    whole = [one for one in load.results if not one.error]
    recent = [one.ttft for one in whole if one.ttft is not None and one.ended > load.seconds - 5]
    ttft = latency(sorted(recent)[len(recent) // 2]) if recent else "-"
    failed = len(load.results) - len(whole)
    text = (
        f"{load.seconds:5.0f} s  {len(whole)} answered, {failed} failed, {load.in_flight} in flight,"
        f" TTFT {ttft} (median of 5 s)"
    )
    click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def _print(made: Report, shape: Shape) -> None:
    out = console()

    def say(text: str) -> None:
        out.print(text, soft_wrap=True, markup=False)

    early = ", ended early" if made.stopped else ""
    rate = f"{shape.rate:g} requests/s ({shape.arrivals})" if shape.rate is not None else f"{shape.concurrency} clients"
    say(
        f"{rate}, prompts of {_span(shape.prompt)} tokens, outputs of {_span(shape.output)}:"
        f" {made.succeeded} of {made.requests} requests answered in {made.seconds:.1f} s{early}"
    )
    for error, count in made.errors.items():
        say(f"failed: {count} x {error}")
    table = plain_table(
        "", "mean", "p50", "p90", "p95", "p99", "max", right=("mean", "p50", "p90", "p95", "p99", "max")
    )
    for name, spread in (("TTFT", made.ttft), ("TPOT", made.tpot), ("end to end", made.latency)):
        if spread is not None:
            table.add_row(name, *_cells(spread))
    out.print(table)
    cached = f", {made.cached_share:.0%} of prompt tokens from the prefix cache" if made.cached_share else ""
    say(
        f"throughput: {made.requests_per_s:.2f} requests/s, {made.output_tokens_per_s:.1f} output tokens/s,"
        f" {made.prompt_tokens_per_s:.1f} prompt tokens/s{cached}"
    )
    if made.attainment is not None:
        kept, targets = made.attainment, made.attainment.targets
        per_token = f" + {latency(targets.per_token * 1000)} per 1,000 tokens" if targets.per_token else ""
        whose = "the service's targets" if targets.own else "the default targets (spec.slo is not set)"
        say(
            f"attainment of {whose}: {kept.both:.1%} of requests keep both, {kept.ttft:.1%} TTFT"
            f" {latency(targets.ttft)}{per_token}, {kept.tpot:.1%} TPOT {latency(targets.tpot)}"
        )
    if made.client.limited:
        say(f"the client or the tunnel was a limit: {made.client.said}")


def _cells(spread: Spread) -> list[str]:
    values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)
    return [_fine(value) for value in values]


def _fine(value: float) -> str:
    """Returns a duration with three digits: `0.71ms`, `71.2ms`, `2.41s`."""
    return f"{value:.3g}s" if value >= 0.9995 else f"{value * 1000:.3g}ms"


def _span(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return str(low) if low == high else f"{low} to {high}"
