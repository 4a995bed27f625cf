"""The node's changes to the host, and their reversal: an address, forwarding, one nftables table, kernel settings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tools.localcluster import machine
from tools.localcluster.commands import output
from tools.localcluster.errors import ClusterError
from tools.localcluster.files import write_json
from tools.localcluster.layout import Layout
from tools.localcluster.node.addresses import Network
from tools.localcluster.programs import packages

DEVICE = "inflight0"
TABLE = "inflight"
RULE_COMMENT = "inflight-cluster"
KUBE_PROXY_TABLES = (("ip", "kube-proxy"), ("ip6", "kube-proxy"))
"""Family and name of the nftables tables that kube-proxy makes, and leaves when it is killed."""

SETTINGS = (
    "net/ipv4/ip_forward",  # set here
    "vm/overcommit_memory",  # these six by the kubelet at its start
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/conf/all/route_localnet",  # and this one by kube-proxy in some versions
)


def parse_routes(output: str) -> list[str]:
    """Networks from the JSON of `ip -json route`, without the default route and without this node's own."""
    routes = json.loads(output or "[]")
    return [
        route["dst"]
        for route in routes
        if route["dst"] != "default" and "." in route["dst"] and route.get("dev") != DEVICE
    ]


def routes() -> list[str]:
    """The IPv4 networks that this machine has routes to."""
    return parse_routes(output([packages.require("ip"), "-json", "-4", "route", "show", "table", "main"]))


def pod_links(output: str, network: Network) -> list[str]:
    """Names of the host's ends of pods' veth pairs, from the JSON of `ip -json address show type veth`.

    The CNI plugin gives each the node's address, which no other veth has.
    """
    return [
        link["ifname"]
        for link in json.loads(output or "[]")
        if any(address.get("local") == network.node_address for address in link.get("addr_info", []))
    ]


def remove_pod_links(network: Network) -> None:
    """Delete the veth pairs of pods that were not torn down.

    The kernel deletes a pair with its network namespace, but in its own time, and a pod that was on its way out when
    its containers were removed is left without a caller of the CNI plugin.
    """
    ip = packages.require("ip")
    for name in pod_links(output([ip, "-json", "address", "show", "type", "veth"]), network):
        # Fails where the kernel was faster.
        subprocess.run([ip, "link", "delete", name], capture_output=True, check=False)
    if left := pod_links(output([ip, "-json", "address", "show", "type", "veth"]), network):
        raise ClusterError(f"network links of pods cannot be deleted: {', '.join(left)}; `ip link delete` says why")


def masquerade_table(network: Network) -> str:
    """nftables script: what pods send outside their range leaves with the machine's address."""
    return f"""table ip {TABLE}
delete table ip {TABLE}
table ip {TABLE} {{
  chain postrouting {{
    type nat hook postrouting priority srcnat
    ip saddr {network.pods} ip daddr != {{ {network.pods}, {network.services}, 224.0.0.0/4 }} masquerade
  }}
}}
"""


def save_settings(layout: Layout) -> None:
    """Remember the kernel settings before the first change of this boot."""
    path = layout.host_changes
    if path.exists() and json.loads(path.read_text())["boot"] == machine.boot_id():
        return
    values = {name: Path("/proc/sys", name).read_text() for name in SETTINGS if Path("/proc/sys", name).exists()}
    write_json(path, {"boot": machine.boot_id(), "settings": values})


def restore_settings(layout: Layout) -> None:
    """Put the remembered kernel settings back."""
    if not layout.host_changes.exists():
        return
    saved = json.loads(layout.host_changes.read_text())
    if saved["boot"] == machine.boot_id():
        for name, value in saved["settings"].items():
            path = Path("/proc/sys", name)
            if path.read_text() != value:
                path.write_text(value)
    layout.host_changes.unlink()


def set_up(network: Network, layout: Layout) -> None:
    """The node's address on its own device, forwarding, masquerading. Safe to repeat."""
    ip = packages.require("ip")
    save_settings(layout)
    if not Path("/sys/class/net", DEVICE).exists():
        # A bridge without members: as a device that only holds an address, it is there in every kernel with bridges.
        output([ip, "link", "add", DEVICE, "type", "bridge"])
    output([ip, "address", "replace", f"{network.node_address}/32", "dev", DEVICE])
    output([ip, "link", "set", DEVICE, "up"])
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    output([packages.require("nft"), "-f", "-"], text=masquerade_table(network))
    for iptables, rule in _firewall_rules(network):
        present = subprocess.run([iptables, "-C", *rule], capture_output=True, check=False).returncode == 0
        if not present:
            output([iptables, "-I", *rule])


def firewall_rules(listing: str, network: Network) -> list[list[str]]:
    """iptables rules that let the pods' packets pass, from the output of `iptables -S`.

    None where the host drops nothing by default; Docker drops what is forwarded, some firewalls what comes in.
    """
    wanted = []
    for chain, ways in (("FORWARD", ("-s", "-d")), ("INPUT", ("-s",))):
        if f"-P {chain} DROP" in listing:
            match = ["-m", "comment", "--comment", RULE_COMMENT, "-j", "ACCEPT"]
            wanted += [[chain, way, network.pods, *match] for way in ways]
    return wanted


def _firewall_rules(network: Network) -> list[tuple[str, list[str]]]:
    iptables = packages.find("iptables")
    if not iptables:
        return []
    listing = subprocess.run([iptables, "-S"], capture_output=True, text=True, check=False).stdout
    return [(iptables, rule) for rule in firewall_rules(listing, network)]


def tear_down(network: Network | None, layout: Layout) -> None:
    """Undo `set_up` and remove kube-proxy's tables. Safe to repeat, and without anything set up."""
    if nft := packages.find("nft"):
        present = output([nft, "list", "tables"]).splitlines()
        for family, table in (("ip", TABLE), *KUBE_PROXY_TABLES):
            if f"table {family} {table}" in present:
                output([nft, "delete", "table", family, table])
    for iptables, rule in _firewall_rules(network) if network else []:
        subprocess.run([iptables, "-D", *rule], capture_output=True, check=False)
    if network:
        remove_pod_links(network)
    if Path("/sys/class/net", DEVICE).exists():
        output([packages.require("ip"), "link", "delete", DEVICE])
    restore_settings(layout)


def mounts_below(mountinfo: str, folders: Iterable[Path]) -> list[str]:
    """Mount points below `folders`, innermost first, from the text of /proc/self/mountinfo (proc(5))."""
    points = [line.split()[4].encode().decode("unicode_escape") for line in mountinfo.splitlines() if line]
    prefixes = tuple(f"{folder}/" for folder in folders)
    return [point for point in reversed(points) if point.startswith(prefixes)]


def unmount_below(folders: Iterable[Path]) -> None:
    """Unmount everything below `folders`."""
    for point in mounts_below(Path("/proc/self/mountinfo").read_text(), folders):
        output(["umount", "--lazy", point])
