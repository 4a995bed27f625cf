"""Models from a store and from an image: streamed with credentials, mounted read-only, one version for a rollout."""

import io
import json
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.scenarios.conftest import apply
from inflight_base.manifest.pods import condition
from tools.bench.delivery.checkpoint import TINY, write_checkpoint
from tools.localcluster import kubectl, own_store
from tools.localcluster.images import oci_archive
from tools.localcluster.images.oci_archive import ImageConfig
from tools.localcluster.progress import to_stdout
from tools.testbed.incluster import script_pod
from tools.testbed.pods import pods
from tools.testbed.service import is_ready

ROOT = Path(__file__).parents[3]
IMAGE = "localhost/tiny-model:1"
KEY = "reader"
STREAMED = {"source": "s3://models/tiny", "credentialsSecret": "reader"}
ONE = {"scaling": {"maxReplicas": 1}, "tuning": {"mode": "Off"}, "engine": {"dtype": "bfloat16", "maxModelLen": 128}}
CODE = ("__init__", "bench/__init__", "bench/delivery/__init__", "bench/delivery/checkpoint", "bench/delivery/store")


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The model as an image in the node's store."""
    folder, archive = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("image")
    write_checkpoint(folder, TINY)
    oci_archive.layer_of_files(
        archive / "layer.tar", {f"tiny/{path.name}": (path.read_bytes(), 0o644) for path in folder.iterdir()}
    )
    oci_archive.write(archive / "image.tar", IMAGE, [archive / "layer.tar"], ImageConfig())
    store = own_store(to_stdout())
    store.import_archive(archive / "image.tar")
    yield IMAGE
    store.remove_images({IMAGE})


@pytest.fixture(scope="module")
def mounted(namespace, image):
    return apply("mounted", namespace, **ONE, model={"source": f"oci://{image}", "path": "tiny"})


@contextmanager
def model_store(namespace, engine_image):
    """A pod that writes a model and serves it as S3; yields its URL."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in CODE:
            archive.write(ROOT / "tools" / f"{name}.py", f"tools/{name}.py")
    arguments = ["/dev/shm/model", "--host", "0.0.0.0", "--key", KEY, "--write"]
    module = "tools.bench.delivery.store"
    with script_pod(module, content.getvalue(), arguments, name="store", image=engine_image, namespace=namespace):
        deadline = time.monotonic() + 120
        while "listening" not in (said := kubectl("-n", namespace, "logs", "store")):
            assert time.monotonic() < deadline, said
            time.sleep(0.5)
        kubectl("-n", namespace, "label", "pod", "store", "app=store")
        (found,) = pods(namespace, "app=store")
        yield f"http://{found.address}:9000"


def create_account(namespace, secret, key):
    """Makes the Secret of an account. Args: key: id of its access key."""
    keys = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-central-1"}
    literals = [f"--from-literal={name}={value}" for name, value in keys.items()]
    kubectl("-n", namespace, "create", "secret", "generic", secret, *literals)


@pytest.fixture(scope="module")
def streamed(namespace, mounted):
    """A service whose model comes from a store in the cluster, with an account from a Secret."""
    status = mounted.wait("an image", lambda status: "engine" in status, seconds=60)
    create_account(namespace, "reader", KEY)
    with model_store(namespace, status["engine"]["image"]) as url:
        yield apply("streamed", namespace, **ONE, model={**STREAMED, "endpoint": url})


def answers(service):
    """Asks it for two tokens, from the store's pod."""
    asked = {"model": service.name, "prompt": "The capital of France", "max_tokens": 2, "ignore_eos": True}
    program = (
        "import sys, urllib.request as web;"
        "asked = web.Request(sys.argv[1], sys.argv[2].encode(), {'Content-Type': 'application/json'});"
        "print(web.urlopen(asked, timeout=60).read().decode())"
    )
    command = ("python3", "-c", program, f"{service.url}/v1/completions", json.dumps(asked))
    answer = json.loads(kubectl("-n", service.namespace, "exec", "store", "--", *command))
    return answer["usage"]["completion_tokens"] == 2


def sent(namespace):
    """Returns the bytes of weights that the store has sent."""
    program = "import urllib.request as web; print(web.urlopen('http://127.0.0.1:9000/sent').read().decode())"
    return int(kubectl("-n", namespace, "exec", "store", "--", "python3", "-c", program))


def fetching(status):
    return status.get("prefetch", {}).get("reason", "")


def digest(status):
    return status.get("model", {}).get("digest", "")


def test_a_model_in_an_image_is_mounted_and_serves(mounted, streamed):
    status = mounted.wait("Ready, with a digest", lambda status: is_ready(status) and digest(status), seconds=180)
    assert digest(status).startswith("sha256:")
    assert answers(mounted)


def test_a_model_in_a_store_is_streamed_and_serves(streamed):
    status = streamed.wait("Ready, with a digest", lambda status: is_ready(status) and digest(status), seconds=180)
    assert digest(status).startswith("sha256:")
    assert answers(streamed)


def test_a_store_that_refuses_the_account_is_a_sentence_in_the_status(namespace, streamed):
    streamed.wait("Ready", is_ready, seconds=180)
    (store,) = pods(namespace, "app=store")
    create_account(namespace, "another", "nobody")
    model = {"source": STREAMED["source"], "credentialsSecret": "another", "endpoint": f"http://{store.address}:9000"}
    refused = apply("refused", namespace, **ONE, model=model)
    said = (
        "model source s3://models/tiny: the store refuses its files (403): check the credentials, and that they may"
        " list and read the folder"
    )

    def says(status):
        return all(said in condition(status, kind).get("message", "") for kind in ("Ready", "ModelLoaded"))

    status = refused.wait("the engine's sentence", says, seconds=120)
    for kind in ("Ready", "ModelLoaded"):
        assert (condition(status, kind)["status"], condition(status, kind)["reason"]) == ("False", "EngineFailed")
    kubectl("-n", namespace, "delete", "inferenceservice", "refused", "--wait=false")


def test_replicas_read_the_weights_of_a_store_from_each_other(namespace, streamed):
    """The first pod reads the store. Two more, which start together, read nothing of it."""
    streamed.wait("Ready", is_ready, seconds=180)
    (store,) = pods(namespace, "app=store")
    model = {**STREAMED, "endpoint": f"http://{store.address}:9000", "peers": True, "storage": "1Gi"}
    before = sent(namespace)
    shared = apply("shared", namespace, **ONE | {"scaling": {"mode": "External"}}, model=model, replicas=1)
    shared.wait("Ready", is_ready, seconds=180)
    first = sent(namespace) - before
    assert first > 10e6
    kubectl("-n", namespace, "scale", "inferenceservice/shared", "--replicas=3")
    shared.wait("weights from other pods", lambda status: status.get("readyReplicas") == 3, seconds=180)

    def told(status):
        return "GB of weights came from other pods" in condition(status, "ModelLoaded").get("message", "")

    shared.wait("a sentence", told, seconds=60)
    assert sent(namespace) - before - first < first / 10


def test_all_nodes_have_the_model_of_an_image_before_an_engine_needs_it(namespace, image):
    """No replica is ordered. The Jobs that fetch are gone at the end."""
    model = {"source": f"oci://{image}", "path": "tiny", "prefetch": {"nodeSelector": {"kubernetes.io/os": "linux"}}}
    early = apply("early", namespace, **ONE | {"scaling": {"mode": "External"}}, model=model, replicas=0)
    status = early.wait("the model on all nodes", lambda status: fetching(status) == "Prefetched", seconds=120)
    found = status["prefetch"]
    assert found["done"] == found["total"] == len(found["places"]) > 0
    assert found["bytes"] == found["totalBytes"] > 0
    assert found["digest"].startswith("sha256:")
    deadline = time.monotonic() + 60
    while kubectl("-n", namespace, "get", "jobs", "-l", "inflight.dev/service=early", "-o", "name").strip():
        assert time.monotonic() < deadline, "a Job is left"
        time.sleep(1)


def test_a_model_that_no_node_can_keep_is_not_fetched_and_the_status_says_why(namespace):
    model = {"source": "s3://models/tiny", "prefetch": {"nodeSelector": {"kubernetes.io/os": "linux"}}}
    nowhere = apply("nowhere", namespace, **ONE | {"scaling": {"mode": "External"}}, model=model, replicas=0)
    status = nowhere.wait("a reason", fetching, seconds=60)
    assert fetching(status) == "PrefetchNoCache"
    assert "engine.modelCache" in status["prefetch"]["message"]


def test_a_model_that_moves_is_not_served_before_somebody_asks_for_a_rollout(streamed):
    before = digest(streamed.wait("a digest", digest, seconds=60))
    kubectl("-n", streamed.namespace, "exec", "store", "--", "touch", "/dev/shm/model/config.json")
    (pod,) = streamed.pods()
    kubectl("-n", streamed.namespace, "delete", "pod", pod.name, "--wait=false")

    def refused(status):
        message = condition(status, "Ready").get("message", "")
        return not is_ready(status) and "s3://models/tiny has changed" in message and "rollout" in message

    assert digest(streamed.wait("a sentence", refused, seconds=120)) == before
    kubectl("-n", streamed.namespace, "rollout", "restart", "deployment/streamed")
    deadline = time.monotonic() + 120
    while digest(streamed.wait("Ready again", is_ready, seconds=120)) == before:
        assert time.monotonic() < deadline, "the new rollout has told no version"
        time.sleep(1)
