"""Address ranges and ports, fixed when the cluster is created."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.localcluster.errors import ClusterError
from tools.localcluster.files import write_whole
from tools.localcluster.node import addresses, host
from tools.localcluster.node.addresses import Network, Ports

NODE_NAME = "inflight"


@dataclass(frozen=True)
class Settings:
    """Settings of a cluster, kept as JSON in its folder."""

    network: Network
    ports: Ports

    def to_json(self) -> str:
        return json.dumps({"network": asdict(self.network), "ports": asdict(self.ports)}, indent=2)

    @staticmethod
    def from_json(text: str) -> Settings:
        saved = json.loads(text)
        return Settings(Network(**saved["network"]), Ports(**saved["ports"]))


def load(cluster: Path) -> Settings | None:
    """The settings of the cluster in the folder `cluster`, None where there is none."""
    path = cluster / "settings.json"
    return Settings.from_json(path.read_text()) if path.exists() else None


def load_or_choose(cluster: Path) -> Settings:
    """The settings of the cluster, chosen now where it is new. Raises ClusterError without a free address range."""
    saved = load(cluster)
    if saved:
        return saved
    network = addresses.choose_network(host.routes())
    if not network:
        raise ClusterError(
            "every address range that the cluster could use overlaps a route of this machine "
            f"({', '.join(candidate.pods for candidate in addresses.CANDIDATES)}); disconnect the network that uses it"
        )
    chosen = Settings(network, addresses.choose_ports(addresses.port_is_free, addresses.find_free_port))
    write_whole(cluster / "settings.json", chosen.to_json())
    return chosen
