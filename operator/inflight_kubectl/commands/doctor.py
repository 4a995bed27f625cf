"""`doctor`: checks, with the command that fixes each failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from inflight_kubectl.access.cluster import Target, cluster_options
from inflight_kubectl.output import FAILURE, console, json_option, print_json

if TYPE_CHECKING:
    from rich.text import Text

    from inflight_kubectl.doctor.result import Result


@click.command(
    "doctor",
    epilog="""\b
Examples:
  kubectl inflight doctor                 # your namespace
  kubectl inflight doctor -A              # services of all namespaces
  kubectl inflight doctor --json | jq -r '.[] | select(.level == "fail") | .remedy'
""",
)
@json_option
@cluster_options(all_namespaces=True)
@click.pass_context
def doctor(context: click.Context, target: Target, as_json: bool) -> None:
    """Check the cluster, the installation and your permissions.

    Each line is ok, warn or fail, with the command that fixes it. The exit code is 1 when a check fails.
    """
    from inflight_kubectl.doctor.run import examine

    results = []
    screen = console()
    for result in examine(target.connect()):
        results.append(result)
        if not as_json:
            screen.print(_line(result))
    if as_json:
        print_json(results)
    if any(one.level == "fail" for one in results):
        context.exit(FAILURE)


COMMAND = doctor

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def _line(result: Result) -> Text:
    """Returns the text of a result, `ok    cluster: ...`; a remedy is on a separate line, so that it can be copied."""
    from rich.text import Text

    text = Text(f"{result.level:5}", style=_STYLES[result.level])
    text.append(f" {result.check}: ", style="bold").append(result.found, style="not bold default")
    if result.remedy:
        text.append(f"\n      > {result.remedy}", style="not bold cyan")
    return text
