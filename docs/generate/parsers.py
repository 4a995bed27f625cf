"""The command lines of the programs, as parsers that can be read."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from inflight_engine.cli import build_parser as engine_parser
from inflight_gateway.cli import build_parser as gateway_parser
from inflight_operator.cli import build_parser as operator_parser
from inflight_simulator.cli import build_parser as simulator_parser

PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "inflight-engine": engine_parser,
    "inflight-gateway": gateway_parser,
    "inflight-operator": operator_parser,
    "inflight-simulate": simulator_parser,
}


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Commands of a parser, by name."""
    found = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {name: one for action in found for name, one in action.choices.items()}


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """Every flag of a parser, excluding those of its commands."""
    return {flag for action in parser._actions for flag in action.option_strings}
