"""`completion SHELL`, and the program that kubectl calls for completions of this plugin."""

from __future__ import annotations

import sys

import click
from click.shell_completion import ShellComplete, get_completion_class

PROGRAMS = ("inflight", "kubectl-inflight")
VARIABLE = "_INFLIGHT_COMPLETE"

_NO_FILES = 4
"""cobra's ShellCompDirectiveNoFileComp, which kubectl reads from the last line."""


@click.command(
    "completion",
    epilog="""\b
Examples:
  source <(inflight completion bash)                      # in ~/.bashrc
  source <(inflight completion zsh)                       # in ~/.zshrc, after compinit
  inflight completion fish > ~/.config/fish/completions/inflight.fish
""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for SHELL.

    The script completes the programs inflight and kubectl-inflight. `kubectl inflight` needs no script: where kubectl's
    own completion is set up, it asks the program kubectl_complete-inflight, which is installed beside this one.
    """
    from inflight_kubectl.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None
    for program in PROGRAMS:
        click.echo(kind(cli, {}, program, VARIABLE).source())


COMMAND = completion


def complete_for_kubectl() -> None:
    """Entry point of `kubectl_complete-inflight`: kubectl calls it with the words after `kubectl inflight`, and reads a
    candidate from each line, with its description after a tab, and a directive from the last."""
    from inflight_kubectl.cli import cli

    *words, incomplete = sys.argv[1:] or [""]
    for item in ShellComplete(cli, {}, "inflight", VARIABLE).get_completions(words, incomplete):
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{_NO_FILES}")
