"""Configuration of the connection to the API server."""

from __future__ import annotations

from pathlib import Path

from kubernetes.aio import client, config


class ConnectError(Exception):
    """No usable configuration for the API server; the message says what to do."""


async def load_configuration(kubeconfig: str | None, otherwise: str = "") -> client.Configuration:
    """Loads a kubeconfig file, or the pod's service account if unset.

    Args:
        otherwise: what a caller outside a cluster may do other than to give a kubeconfig.

    Raises:
        ConnectError: the file or the service account cannot be used.
    """
    configuration = client.Configuration(connection_pool_maxsize=0)  # unlimited: each watch holds a connection
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        if kubeconfig is None:
            raise ConnectError(f"not inside a cluster ({error}): give --kubeconfig FILE{otherwise}") from error
        raise ConnectError(f"cannot use kubeconfig {kubeconfig}: {_why(kubeconfig, error)}") from error
    return configuration


def _why(kubeconfig: str, error: Exception) -> str:
    """Returns the reason of an error: the library says of a missing file that it has no contexts."""
    return str(error) if Path(kubeconfig).expanduser().exists() else "there is no such file"
