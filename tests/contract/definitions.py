"""Waits for CustomResourceDefinitions that a test has just created or deleted."""

import asyncio
from time import monotonic, sleep

from inflight_operator.observe.cache import ClusterCache
from inflight_operator.watch.watches import OPTIONAL_KINDS, Watches

SECONDS = 30


def established(kubectl, crd):
    """`kubectl wait` fails at once for an object that has no conditions yet, and what kubectl knows of the API server's
    resources is older than the CRD until it asks for one that it does not know."""
    deadline = monotonic() + SECONDS
    while True:
        done = kubectl.run("wait", "--for=condition=Established", f"--timeout={SECONDS}s", f"crd/{crd}")
        if done.returncode == 0:
            done = kubectl.run("get", crd, "--all-namespaces")
        if done.returncode == 0:
            return
        assert monotonic() < deadline, done.stderr
        sleep(0.1)


async def apis_become(api, expected):
    """Waits until the operator's watches find exactly these APIs: the API server serves a CRD after a moment."""
    deadline = monotonic() + SECONDS
    while True:
        watches = Watches(api, ClusterCache(), lambda key: None)
        watching = asyncio.create_task(watches.run())
        await watches.listed(OPTIONAL_KINDS)
        watching.cancel()
        if watches.available == expected:
            return watches.available
        assert monotonic() < deadline, watches.available
        await asyncio.sleep(0.1)
