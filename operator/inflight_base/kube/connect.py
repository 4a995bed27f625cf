"""Configuration of the connection to the API server, for the client and for kopf."""

from __future__ import annotations

from pathlib import Path

import kopf
from kubernetes.aio import client, config


class ConnectError(Exception):
    """No usable configuration for the API server; the message says what to do."""


async def load_configuration(kubeconfig: str | None) -> client.Configuration:
    """From a kubeconfig file, or from the pod's service account if unset.

    Raises:
        ConnectError: the file or the service account cannot be used.
    """
    configuration = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        if kubeconfig is None:
            raise ConnectError(f"not inside a cluster ({error}): give --kubeconfig FILE") from error
        raise ConnectError(f"cannot use kubeconfig {kubeconfig}: {_why(kubeconfig, error)}") from error
    return configuration


def _why(kubeconfig: str, error: Exception) -> str:
    """The library calls a file that is missing one without contexts."""
    return str(error) if Path(kubeconfig).expanduser().exists() else "there is no such file"


async def kopf_connection(configuration: client.Configuration) -> kopf.ConnectionInfo:
    """The same for kopf. It is called again when the API server answers 401: service account tokens run out."""
    header = await configuration.get_api_key_with_prefix("BearerToken")
    scheme, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        username=configuration.username or None,
        password=configuration.password or None,
        scheme=scheme or None,
        token=token.strip() or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )
