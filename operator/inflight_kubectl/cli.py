"""The command line of `kubectl inflight`, which is also the program `inflight`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import cast

import click

COMMANDS = {
    "top": "Show a live view of services and their pods.",
    "why": "Explain the state of a service and the operator's decisions.",
    "doctor": "Check the cluster, the installation and your permissions.",
    "limits": "Show the limits of engines, or set them by hand for a limited time.",
    "keys": "Create, list and revoke API keys of services behind the gateway.",
    "chat": "Chat with a service, or ask it one question.",
    "bench": "Send a load to a service, and report latencies, throughput and attainment.",
    "record": "Fetch what was recorded of a service into a file.",
    "replay": "Repeat recorded decisions, and compare.",
    "completion": "Print a completion script for bash, zsh or fish.",
}
"""Name -> the line in the list of commands. `inflight_kubectl.commands.NAME` has the command as `COMMAND`; it is
imported only when the command is used, so that `--help` and completion stay quick."""

_EPILOG = """\b
Examples:
  kubectl inflight top           # live view of the current namespace
  kubectl inflight top -A        # live view of all namespaces
  kubectl inflight why chat      # what chat waits for, and what would make it scale
  kubectl inflight doctor        # what is missing, and the command that fixes it
  kubectl inflight chat chat     # talk to the service chat
  kubectl inflight bench chat --rate 5 --duration 1m
  kubectl inflight limits chat --max-num-seqs 32 --for 10m
  kubectl inflight keys create chat --tenant acme
"""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, context: click.Context) -> list[str]:
        """All names, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command called `name`; None if unknown."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"inflight_kubectl.commands.{name}")
        return cast(click.Command, module.COMMAND)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EPILOG,
)
@click.version_option(package_name="inflight", message="%(version)s")
def cli() -> None:
    """Look into a fleet of inference services, and act on it.

    All commands talk to the API server alone: they read InferenceServices, and reach engines through port-forwards.
    """


def program_name() -> str:
    """The name under which the user called this program: `kubectl inflight` for the plugin."""
    return "kubectl inflight" if Path(sys.argv[0]).name.startswith("kubectl-") else "inflight"


def main() -> None:
    """Entry point of the programs `kubectl-inflight` and `inflight`."""
    cli(prog_name=program_name(), complete_var="_INFLIGHT_COMPLETE")
