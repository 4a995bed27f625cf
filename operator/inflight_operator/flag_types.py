"""Types of command-line values: parsing, and errors that name the expected form."""

from __future__ import annotations

import argparse
import json
import re

from pydantic import ValidationError

from inflight_base.manifest import Manifest
from inflight_base.manifest.names import CLASS_EXPECTED, CLASS_PATTERN
from inflight_base.manifest.units import Share, parse_share
from inflight_operator.api.engine.observability import ENDPOINT_PATTERN
from inflight_operator.api.pods.network import Peer, peer_problem
from inflight_settings.flag_types import between, matching, whole

ratio = between(0, 1)
service_class = matching(CLASS_PATTERN, CLASS_EXPECTED)
interval = between(0.5, 60, " of seconds")
positive = whole("a whole number above 0", 1)
port = whole("a port: give 1 to 65535, or 0 for a free one", 0, 65535)


claim = matching("([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?", "the name of a PersistentVolumeClaim")
host_path = matching("(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*", "the path of a folder such as /var/cache/inflight")


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


def peers(text: str) -> tuple[Manifest, ...]:
    try:
        peers = json.loads(text)
    except (ValueError, RecursionError):
        peers = None
    if not isinstance(peers, list):
        raise argparse.ArgumentTypeError("it must be a JSON list of NetworkPolicyPeer objects")
    for number, peer in enumerate(peers):
        try:
            problem = peer_problem(Peer.model_validate(peer, by_alias=True, by_name=False))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            problem = ".".join(str(part) for part in first["loc"]) + f": {first['msg']}"
        if problem:
            raise argparse.ArgumentTypeError(f"item {number}: {problem.removeprefix(': ')}")
    return tuple(peers)


def share(text: str) -> Share:
    try:
        return parse_share(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def share_above_zero(text: str) -> Share:
    parsed = share(text)
    if not parsed.number:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0")
    return parsed


def service(text: str) -> str:
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME")
    return text
