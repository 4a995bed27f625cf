"""The reference of the programs: every command and flag, read from their parsers."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator

import click

from docs.generate.markdown import GENERATED, cell, code, fenced, prose, table
from docs.generate.parsers import PARSERS, subcommands
from inflight_kubectl.cli import cli

_HEADER = ("flag", "meaning")


def kubectl_page() -> str:
    """`kubectl inflight`."""
    top = GENERATED + "# kubectl inflight\n"
    return top + "".join(_click_sections(cli, click.Context(cli, info_name="kubectl inflight")))


def page(program: str) -> str:
    """Returns the page of a program in `PARSERS`."""
    return GENERATED + f"# {program}\n" + "".join(_argparse_sections(PARSERS[program](), top=True))


def _argparse_sections(parser: argparse.ArgumentParser, *, top: bool = False) -> Iterator[str]:
    parts = [] if top else [f"\n## {parser.prog}\n"]
    if parser.description:
        parts.append("\n" + _paragraphs(parser.description))
    rows = [_argparse_row(parser, action) for action in parser._actions if _is_shown(action)]
    if rows:
        parts.append("\n" + table(_HEADER, rows))
    if parser.epilog:
        parts.append("\n" + fenced(parser.epilog))
    yield "".join(parts)
    for one in subcommands(parser).values():
        yield from _argparse_sections(one)


def _is_shown(action: argparse.Action) -> bool:
    apart = isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return not apart and action.help != argparse.SUPPRESS


def _argparse_row(parser: argparse.ArgumentParser, action: argparse.Action) -> list[str]:
    formatter = parser._get_formatter()
    if action.option_strings:
        metavar = formatter._get_default_metavar_for_optional(action)
        values = "" if action.nargs == 0 else " " + formatter._format_args(action, metavar)
        shown = ", ".join(action.option_strings) + values
    else:
        shown = str(action.metavar or action.dest)
    return [cell(code(shown)), cell(formatter._expand_help(action) if action.help else "")]


def _click_sections(command: click.Command, context: click.Context) -> Iterator[str]:
    parts = [] if context.parent is None else [f"\n## {context.command_path}\n"]
    if command.help:
        parts.append("\n" + _paragraphs(command.help))
    records = [one for option in command.get_params(context) if (one := option.get_help_record(context))]
    rows = [[cell(code(name)), cell(text)] for name, text in records if name != "--help"]
    if rows:
        parts.append("\n" + table(_HEADER, rows))
    yield "".join(parts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _click_sections(inner, click.Context(inner, info_name=name, parent=context))


def _paragraphs(text: str) -> str:
    """Indented paragraphs, and those that click must not rewrap, stay unchanged as code; the rest is prose."""
    parts = []
    for block in inspect.cleandoc(text).split("\n\n"):
        lines = [line for line in block.splitlines() if line.strip()]
        if lines and (lines[0] == "\b" or all(line.startswith("  ") for line in lines)):
            parts.append(fenced("\n".join(line.removeprefix("  ") for line in lines if line != "\b")))
        elif lines:
            parts.append("\n".join(map(prose, lines)) + "\n")
    return "\n".join(parts)
