"""The pods' network: a routed veth pair for each pod, addresses from the pods' range.

The `ptp` plugin and not a bridge: traffic between two pods is routed, so that service addresses work without the
kernel's br_netfilter and without changing how the host's other bridges are filtered. Host ports of pods are not
wired up, and NetworkPolicy objects are accepted but not enforced.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.localcluster.addresses import Network

NETWORK_NAME = "inflight"


def configuration(network: Network, leases: Path) -> dict[str, Any]:
    """A CNI network list (https://www.cni.dev/docs/spec/); address leases are kept in the folder `leases`."""
    return {
        "cniVersion": "1.0.0",
        "name": NETWORK_NAME,
        "plugins": [
            {
                "type": "ptp",
                # Outgoing packets are masqueraded by one rule of the node's own table instead of one per pod.
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(leases),
                    "ranges": [[{"subnet": network.pods, "gateway": network.node_address}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }
