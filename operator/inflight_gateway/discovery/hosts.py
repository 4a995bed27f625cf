"""Which Hosts are addresses of services."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from inflight_base.manifest.keys import ServiceKey

NO_SERVICE = ServiceKey("", "")
"""Stands for a Host that is an address inside a cluster, but of no service of this one."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Rules of Hosts.

    NAME.NAMESPACE, NAME.NAMESPACE.svc and NAME.NAMESPACE.svc.DOMAIN are addresses of services. They never go by the
    model: the requests of a deleted service must not reach another one. A name without a namespace is no address of any
    service, and does not go by the model either.

    Attributes:
        cluster_domain: domain of the cluster's DNS, in lower case and without dots around it.
        own: the gateway's own Service, whose address is no service's; None: unknown.
        by_model: requests to other Hosts, such as that of an Ingress, an IP address or `localhost`, go by their model.
    """

    cluster_domain: str = "cluster.local"
    own: ServiceKey | None = None
    by_model: bool = False

    def service_of(self, hostname: str) -> ServiceKey | None:
        """Returns the service that the hostname is an address of, whether it exists or not; None: it is another Host.

        Args:
            hostname: as `hostname_of` returns it.
        """
        if _is_ip(hostname) or hostname in ("", "localhost"):
            return None
        name, _, rest = hostname.partition(".")
        namespace, _, suffix = rest.partition(".")
        if not rest:
            return NO_SERVICE
        if suffix in ("", "svc", f"svc.{self.cluster_domain}"):
            key = ServiceKey(namespace, name)
            return None if key == self.own else key
        return NO_SERVICE if suffix.startswith("svc.") else None


DEFAULT_HOSTS = Hosts()
"""Rules of Hosts where no model chooses a service."""


def hostname_of(host: str) -> str:
    """Returns a Host in lower case without its port and the root's dot; an IPv6 address keeps its brackets."""
    name, colon, port = host.strip().lower().rpartition(":")
    return (name if colon and port.isdigit() else host.strip().lower()).removesuffix(".")


def _is_ip(hostname: str) -> bool:
    if ":" not in hostname and not hostname[-1:].isdigit():  # a name, the usual case: an exception takes 5 us
        return False
    try:
        ip_address(hostname.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
