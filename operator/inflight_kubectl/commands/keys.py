"""`keys`: API keys of services behind the gateway."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from inflight_base.manifest.api_keys import TENANT_NAME
from inflight_kubectl.access.api_keys import StoredKey, cautions, keys_secret, named_secret, new_key, rfc3339
from inflight_kubectl.access.cluster import Cluster, Target, cluster_options, completing, service_argument
from inflight_kubectl.access.resources import Service
from inflight_kubectl.flag_types import DurationType
from inflight_kubectl.output import Problem, console, json_option, plain_table, print_json

DAY = 86_400.0


@click.group(
    "keys",
    epilog="""\b
Examples:
  kubectl inflight keys create chat --tenant acme --expires 90d
  kubectl inflight keys list
  kubectl inflight keys revoke acme-5d0c2e1f
""",
)
def keys() -> None:
    """Create, list and revoke the API keys of services behind the gateway.

    The Secret named by spec.gateway.auth.apiKeysSecret stores the SHA-256 hash, the tenant and the expiry of each key.
    The gateway applies changes of the Secret without a restart. To rotate a key, create a new one for the tenant, give
    it to the client, and revoke the old one.
    """


COMMAND = keys


@keys.command(
    "create",
    epilog="""\b
Examples:
  kubectl inflight keys create chat --tenant acme
  kubectl inflight keys create chat --tenant acme --expires 90d
  KEY=$(kubectl inflight keys create chat --tenant acme)      # the key alone goes to standard output
""",
)
@service_argument
@click.option("--tenant", required=True, metavar="NAME", help="Tenant that requests with the key belong to.")
@click.option(
    "--expires",
    "lifetime",
    type=DurationType(60.0, 3660 * DAY),
    metavar="DURATION",
    help="How long the key is valid, such as 12h or 90d. Default: until it is revoked.",
)
@json_option
@cluster_options()
def create(service: str, tenant: str, lifetime: float | None, as_json: bool, target: Target) -> None:
    """Create an API key of SERVICE for a tenant, and print it.

    The key is shown only once: the Secret stores its hash. The Secret is created if it does not exist.
    """
    from inflight_kubectl.access.key_store import add_key

    if not TENANT_NAME.fullmatch(tenant):
        raise click.UsageError(
            f"{tenant!r} is no name of a tenant: use at most 63 letters, digits, `.`, `_` and `-`, with a letter or a"
            " digit at both ends"
        )
    cluster = target.connect()
    found = cluster.service(service)
    secret = named_secret(found)
    expires = None if lifetime is None else (datetime.now(UTC) + timedelta(seconds=lifetime)).replace(microsecond=0)
    made = new_key(tenant, expires)
    created = add_key(cluster, found.namespace, secret, made)
    for caution in cautions(found, tenant):
        click.echo(f"note: {caution}", err=True)
    if as_json:
        print_json({"id": made.key_id, "tenant": tenant, "key": made.key, "expires": expires, "secret": secret})
        return
    end = f"until {rfc3339(expires)}" if expires is not None else "until it is revoked"
    where = f"Secret {secret} ({'created' if created else 'updated'})"
    click.echo(f"Key {made.key_id} of tenant {tenant}, valid {end}.", err=True)
    click.echo(f"{where} stores only its hash: save the key now.", err=True)
    click.echo(made.key)


@keys.command(
    "list",
    epilog="""\b
Examples:
  kubectl inflight keys list              # of all services of the namespace
  kubectl inflight keys list chat
  kubectl inflight keys list chat --json | jq -r '.keys[] | select(.state == "expired") | .id'
""",
)
@click.argument("service", required=False, shell_complete=completing("services"))
@json_option
@cluster_options()
def list_keys(service: str | None, as_json: bool, target: Target) -> None:
    """List the API keys of SERVICE, or of all services of the namespace.

    Shows key IDs, tenants and expiry. The keys themselves are not stored.
    """
    from inflight_kubectl.access.key_store import keys_by_secret

    cluster = target.connect()
    services = _services(cluster, service)
    if service is not None:
        named_secret(services[0])
    found = keys_by_secret(cluster, services)
    rows = [(secret, one) for secret, those in found.items() for one in those]
    if as_json:
        print_json({"namespace": cluster.namespace, "keys": [_as_json(secret, one) for secret, one in rows]})
        return
    if not rows:
        where = service or f'namespace "{cluster.namespace}"'
        click.echo(f"No API keys of {where}. `kubectl inflight keys create SERVICE --tenant NAME` makes one.", err=True)
        return
    table = plain_table("id", "tenant", "state", "expires", "secret")
    for secret, one in rows:
        end = rfc3339(one.expires) if one.expires is not None else "never" if one.state == "valid" else "-"
        table.add_row(one.key_id, one.tenant or "-", one.state, end, secret)
    console().print(table)


@keys.command(
    "revoke",
    epilog="""\b
Examples:
  kubectl inflight keys revoke acme-5d0c2e1f
  kubectl inflight keys revoke acme-5d0c2e1f --service chat
""",
)
@click.argument("key_id", metavar="KEY_ID", shell_complete=completing("keys"))
@click.option(
    "--service",
    metavar="NAME",
    shell_complete=completing("services"),
    help="Service of the key. Default: looked for in all services of the namespace.",
)
@json_option
@cluster_options()
def revoke(key_id: str, service: str | None, as_json: bool, target: Target) -> None:
    """Revoke the API key KEY_ID: new requests with it get status 401.

    Requests in flight finish normally. `keys list` shows the key IDs.
    """
    from inflight_kubectl.access.key_store import keys_by_secret, remove_key

    cluster = target.connect()
    services = _services(cluster, service)
    if service is not None:
        named_secret(services[0])
    found = keys_by_secret(cluster, services)
    secrets = [secret for secret, those in found.items() if any(one.key_id == key_id for one in those)]
    if not secrets:
        ids = [one.key_id for those in found.values() for one in those]
        known = f"There are {', '.join(ids[:8])}{', ...' * (len(ids) > 8)}" if ids else "The namespace has none"
        raise Problem(f'no API key "{key_id}" in namespace "{cluster.namespace}"', known)
    if len(secrets) > 1:
        raise Problem(f"the Secrets {', '.join(secrets)} all have a key {key_id}", "Choose one with --service")
    remove_key(cluster, cluster.namespace, secrets[0], key_id)
    users = [one.name for one in services if keys_secret(one) == secrets[0]]
    if as_json:
        print_json({"id": key_id, "secret": secrets[0], "services": users})
        return
    click.echo(f"Key {key_id} is revoked for {', '.join(users)} (Secret {secrets[0]}).", err=True)


def _services(cluster: Cluster, name: str | None) -> list[Service]:
    return [cluster.service(name)] if name is not None else cluster.services()


def _as_json(secret: str, one: StoredKey) -> dict[str, Any]:
    return {"id": one.key_id, "tenant": one.tenant, "state": one.state, "expires": one.expires, "secret": secret}
