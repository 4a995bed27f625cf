"""`helm test`: the operator answers and exports its metrics, the API server serves InferenceServices, and the gateway
answers where it is installed."""

import json
import os
import ssl
import sys
import time
import urllib.error
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
    try:
        lines = get(f"{os.environ['OPERATOR_URL']}/metrics").splitlines()
    except urllib.error.HTTPError as refusal:
        if refusal.code == 401 and "METRICS_NEED_A_TOKEN" in os.environ:
            return
        raise
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


def gateway_answers() -> None:
    """Its own name is no service, which it says itself: Envoy, relay and picker have worked."""
    try:
        get(f"{os.environ['GATEWAY_URL']}/v1/models")
    except urllib.error.HTTPError as refusal:
        error = json.loads(refusal.read())["error"]
        if error["code"] == "service_not_found":
            return
        raise OSError(f"HTTP {refusal.code}: {error}") from refusal
    raise OSError("/v1/models was answered without the name of a service")


def main() -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    checks = [operator_is_healthy, metrics_are_exported, resource_is_served]
    if "GATEWAY_URL" in os.environ:
        checks.append(gateway_answers)
    for check in checks:
        while True:
            try:
                check()
                break
            except (OSError, ValueError, LookupError, TypeError) as error:
                # A Service that is new may not be known to DNS yet.
                if time.monotonic() > deadline:
                    sys.exit(f"{check.__name__.replace('_', ' ')}: no ({error})")
                time.sleep(1)
        print(f"{check.__name__.replace('_', ' ')}: yes", flush=True)


if __name__ == "__main__":
    main()
