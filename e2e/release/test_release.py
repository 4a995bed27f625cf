"""The operator's image (the smallest of the project, also the gateway's) built, pushed, and run from the registry."""

import json

import httpx
import pytest
import yaml

from deploy.release.__main__ import publish
from deploy.release.images import IMAGES, build
from tools.localcluster import kubectl
from tools.localcluster.images.oci_archive import architecture
from tools.measure.report import say

VERSION = "0.2.0-rc.1"


@pytest.fixture(scope="module")
def published(registry, tmp_path_factory):
    """The operator's image and the chart, by digest, and the folder of the chart's archive."""
    out = tmp_path_factory.mktemp("release")
    build(IMAGES["operator"], registry, VERSION, {}, sbom=False, progress=say)
    operator, chart = publish(registry, VERSION, [architecture()], ["operator"], out)
    return operator, chart, out


def manifest_of(reference, media_type="application/vnd.oci.image.index.v1+json"):
    """The manifest that a registry gives for HOST/REPOSITORY:TAG@DIGEST."""
    name, _, digest = reference.partition("@")
    host, _, repository = name.rpartition(":")[0].partition("/")
    answer = httpx.get(f"http://{host}/v2/{repository}/manifests/{digest}", headers={"Accept": media_type})
    return answer.raise_for_status().json()


def test_the_joined_image_has_the_provenance_of_its_build(published):
    image, attested = manifest_of(published[0])["manifests"]
    assert image["platform"] == {"architecture": architecture(), "os": "linux"}
    assert attested["annotations"]["vnd.docker.reference.digest"] == image["digest"]
    repository = published[0].partition("@")[0]
    kind = "application/vnd.oci.image.manifest.v1+json"
    (layer,) = manifest_of(f"{repository}@{attested['digest']}", kind)["layers"]
    assert "slsa.dev/provenance" in layer["annotations"]["in-toto.io/predicate-type"]


def test_a_pod_of_the_image_that_the_chart_names_is_pulled_by_digest_and_runs(published, namespace):
    operator, _, out = published
    manifest = yaml.safe_load_all((out / "inflight.yaml").read_text())
    (template,) = [one["spec"]["template"]["spec"] for one in manifest if one["kind"] == "Deployment"]
    (container,) = template["containers"]
    assert container["image"] == operator
    shown = {key: container[key] for key in ("name", "image", "securityContext")} | {"args": ["run", "--help"]}
    spec = {"securityContext": template["securityContext"], "restartPolicy": "Never", "containers": [shown]}
    metadata = {"name": "operator", "namespace": namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    kubectl("apply", "-f", "-", input=json.dumps(pod))
    kubectl("-n", namespace, "wait", "pod/operator", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
    status = json.loads(kubectl("-n", namespace, "get", "pod", "operator", "-o", "json"))["status"]
    assert status["containerStatuses"][0]["imageID"].endswith(operator.partition("@")[2])
    pulled = kubectl(
        "-n", namespace, "get", "events", "--field-selector=reason=Pulled", "-o", "jsonpath={.items[*].message}"
    )
    assert "Successfully pulled" in pulled
