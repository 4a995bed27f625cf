"""Types of command-line values: parsing, and errors that name the expected form."""

from __future__ import annotations

import argparse
import json
import re

from inflight_base.manifest import Manifest
from inflight_operator.api.observability import ENDPOINT_PATTERN


def collector(text: str) -> str:
    if text and re.fullmatch(ENDPOINT_PATTERN, text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a URL such as http://collector.observability.svc:4318, with a port from 1 to 65535"
        )
    return text


def gateway_service(text: str) -> str:
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    if text and (len(text) > 253 or re.fullmatch(rf"{label}\.{label}\.svc(\.{label})+", text) is None):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the full name of a Service: give NAME.NAMESPACE.svc.DOMAIN, such as"
            " inflight-gateway.inflight-system.svc.cluster.local"
        )
    return text


def share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return share


def peers(text: str) -> tuple[Manifest, ...]:
    try:
        peers = json.loads(text)
    except ValueError:
        peers = None
    if not isinstance(peers, list) or not all(isinstance(peer, dict) for peer in peers):
        raise argparse.ArgumentTypeError("it must be a JSON list of NetworkPolicyPeer objects")
    return tuple(peers)


def service(text: str) -> str:
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return text


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give 1 to 65535, or 0 for a free one")
    return int(text)


def interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.5 <= seconds <= 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.5 to 60")
    return seconds
