"""`helm test`: the operator answers, exports its metrics, and the API server serves InferenceServices."""

import json
import os
import ssl
import sys
import time
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
PATIENCE_SECONDS = 60


def get(url: str, token: str | None = None) -> str:
    """The body of a 200 answer; raises OSError otherwise."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    authorities = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt") if token else None
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=5, context=authorities) as answer:
        body: bytes = answer.read()
        return body.decode()


def operator_is_healthy() -> None:
    get(f"{os.environ['OPERATOR_URL']}/healthz")


def metrics_are_exported() -> None:
    lines = get(f"{os.environ['OPERATOR_URL']}/metrics").splitlines()
    if not any(line.startswith("inflight_operator_") for line in lines):
        raise OSError("/metrics has no metric that begins with inflight_operator_")


def resource_is_served() -> None:
    with open(f"{ACCOUNT}/token") as file:
        token = file.read()
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    answer = get(f"https://{address}/apis/inflight.dev/v1alpha1", token)
    served = {resource["name"] for resource in json.loads(answer)["resources"]}
    missing = {"inferenceservices", "inferenceservices/status", "inferenceservices/scale"} - served
    if missing:
        raise OSError(f"the API server does not serve {', '.join(sorted(missing))}")


def main() -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    for check in (operator_is_healthy, metrics_are_exported, resource_is_served):
        while True:
            try:
                check()
                break
            except (OSError, ValueError) as error:
                # A Service that is new may not be known to DNS yet.
                if time.monotonic() > deadline:
                    sys.exit(f"{check.__name__.replace('_', ' ')}: no ({error})")
                time.sleep(1)
        print(f"{check.__name__.replace('_', ' ')}: yes", flush=True)


if __name__ == "__main__":
    main()
