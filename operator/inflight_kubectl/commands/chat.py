"""`chat SERVICE`: a conversation in the terminal, or one question for a script."""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import click

from inflight_kubectl.access.api_keys import authorization
from inflight_kubectl.access.cluster import Target, cluster_options, service_argument
from inflight_kubectl.engines.conversation import Conversation, served_name
from inflight_kubectl.flag_types import api_key_option
from inflight_kubectl.load.answers import Answer
from inflight_kubectl.output import Problem, json_option, latency, print_json

if TYPE_CHECKING:
    from inflight_kubectl.engines.engine_access import PortForward

_COMMANDS = """\
/reset         forget the conversation; the system prompt stays
/system TEXT   set the system prompt, and forget the conversation
/stats         show or hide figures after each answer
/exit          leave; so does Ctrl-D
Ctrl-C stops an answer."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters but tab and line feed."""


@click.command(
    "chat",
    epilog="""\b
Examples:
  kubectl inflight chat chat
  kubectl inflight chat chat --system "Answer in one sentence." --stats
  kubectl inflight chat chat -m "Why is the sky blue?"
  git diff | kubectl inflight chat chat --system "Write a commit message for this diff."
  kubectl inflight chat chat -m "Name a colour." --json
""",
)
@service_argument
@click.option("-m", "--message", metavar="TEXT", help="Ask this one question, print the answer and exit.")
@click.option("--system", metavar="TEXT", default="", help="System prompt.")
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Most tokens of an answer.")
@click.option("--temperature", type=click.FloatRange(0, 2), metavar="T", help="0 always takes the likeliest token.")
@click.option("--class", "service_class", metavar="NAME", help="Service class of the requests.")
@api_key_option
@click.option("--stats", is_flag=True, help="Show time to first token, tokens a second and token counts.")
@json_option
@cluster_options()
def chat(
    service: str,
    message: str | None,
    system: str,
    max_tokens: int | None,
    temperature: float | None,
    service_class: str | None,
    api_key: str | None,
    stats: bool,
    as_json: bool,
    target: Target,
) -> None:
    """Chat with SERVICE through a port-forward, to the gateway where the service is behind it.

    A question comes from -m, or from standard input where that is not a terminal; the answer then goes to standard
    output and nothing else does. Otherwise the conversation goes on until Ctrl-D; /help lists its commands.
    """
    question = message
    if question is None and not sys.stdin.isatty():
        question = sys.stdin.read().strip()
        if not question:
            raise Problem("there is no question on standard input", "Pipe one in, or give it with -m")
    if as_json and question is None:
        raise click.UsageError("--json answers one question: give it with -m, or on standard input")

    from inflight_kubectl.engines.engine_access import forward_to_service

    cluster = target.connect()
    found = cluster.service(service)
    options = {
        "model": served_name(found),
        "max_tokens": max_tokens,
        "temperature": temperature,
        "class": service_class,
    }
    given = {name: value for name, value in options.items() if value is not None}
    conversation = Conversation(given, authorization(found, api_key), system)
    if found.state in ("Idle", "Waking"):
        click.echo(f"{service} is at zero: the first answer comes when a replica is ready.", err=True)
    with forward_to_service(cluster, found) as forward:
        if question is None:
            _Session(conversation, forward, service, stats).run()
        else:
            _one(conversation, forward, question, stats, as_json)


COMMAND = chat


def _one(conversation: Conversation, forward: PortForward, question: str, stats: bool, as_json: bool) -> None:
    answer, whole = conversation.ask(forward, question, (lambda *_: None) if as_json else _Screen().show)
    if not whole:
        raise click.Abort
    if as_json:
        print_json({"answer": answer.text, **_beside(answer), **_numbers(answer)})
        return
    click.echo()
    if stats:
        click.echo(_figures(answer), err=True)


@dataclass(slots=True)
class _Session:
    """An interactive conversation."""

    conversation: Conversation
    forward: PortForward
    service: str
    stats: bool

    def run(self) -> None:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - arrow keys and history in input()
        click.echo(f"Chat with {self.service}. /help lists commands; Ctrl-D leaves.", err=True)
        while True:
            try:
                line = input("> ").strip()
            except EOFError:
                click.echo(err=True)
                return
            except KeyboardInterrupt:
                click.echo("\nCtrl-D leaves.", err=True)
                continue
            if line == "/exit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._answer(line)

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "/reset":
            self.conversation.reset()
            click.echo("The conversation is empty.", err=True)
        elif name == "/system":
            self.conversation.system = rest.strip()
            self.conversation.reset()
            click.echo("The system prompt is set." if rest.strip() else "There is no system prompt.", err=True)
        elif name == "/stats":
            self.stats = not self.stats
            click.echo(f"Figures are {'shown' if self.stats else 'hidden'}.", err=True)
        elif name == "/help":
            click.echo(_COMMANDS, err=True)
        else:
            click.echo(f"There is no command {name}; /help lists them.", err=True)

    def _answer(self, question: str) -> None:
        try:
            answer, whole = self.conversation.ask(self.forward, question, _Screen().show)
        except Problem as problem:
            click.echo()
            problem.show()
            return
        click.echo("" if whole else " [stopped]")
        if self.stats and whole:
            click.echo(_figures(answer), err=True)


class _Screen:
    """Shows an answer: content on standard output, thinking and tool calls on standard error."""

    def __init__(self) -> None:
        self._in_aside = False

    def show(self, piece: str, aside: str) -> None:
        """Writes the text and the aside of an event."""
        if aside:
            _write(sys.stderr, aside)
            self._in_aside = True
        if piece and self._in_aside:
            _write(sys.stderr, "\n")
            self._in_aside = False
        _write(sys.stdout, piece)


def _write(file: TextIO, text: str) -> None:
    # Model output must not control the terminal (ECMA-48 sequences begin with ESC or a C1 character).
    file.write(_CONTROLS.sub("", text) if file.isatty() else text)
    file.flush()


def _figures(answer: Answer) -> str:
    """Returns the figures of an answer: `TTFT 71ms, 20.3 tokens/s, 12 + 40 tokens, length`."""
    rate = f"{answer.tokens_per_s:.1f} tokens/s" if answer.tokens_per_s is not None else "- tokens/s"
    tokens = f"{answer.prompt_tokens} + {answer.completion_tokens} tokens"
    return f"[TTFT {latency(answer.ttft)}, {rate}, {tokens}, finish reason {answer.finish_reason}]"


def _beside(answer: Answer) -> dict[str, Any]:
    calls = [{"name": name, "arguments": arguments} for name, arguments in answer.tool_calls.values()]
    return {**({"thinking": answer.thinking} if answer.thinking else {}), **({"toolCalls": calls} if calls else {})}


def _numbers(answer: Answer) -> dict[str, Any]:
    return {
        "finishReason": answer.finish_reason,
        "promptTokens": answer.prompt_tokens,
        "cachedTokens": answer.cached_tokens,
        "completionTokens": answer.completion_tokens,
        "ttftSeconds": _rounded(answer.ttft),
        "tokensPerSecond": _rounded(answer.tokens_per_s),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
