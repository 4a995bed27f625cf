"""Requests to a test API server without a program between: each kubectl costs a third of a second of CPU."""

import httpx
import yaml

from tools.localcluster.probe import client_context


class ApiServer:
    """The API server of a kubeconfig that `apiserver_only` wrote, asked as its admin."""

    def __init__(self, kubeconfig):
        server = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        trusted = client_context(kubeconfig.parent, "admin")
        self.http = httpx.Client(base_url=server, verify=trusted, timeout=60, trust_env=False)

    def post(self, manifest, *, dry_run=False, user=None):
        """Ask to create an object, as `kubectl create` does: unknown fields are refused. `user`: as whom, if not the
        admin."""
        asked = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        headers = {"Impersonate-User": user} if user else {}
        return self.http.post(_collection(manifest), json=manifest, params=asked, headers=headers)

    def create(self, manifest, *, user=None):
        """The object as it is stored."""
        answer = self.post(manifest, user=user)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def apply(self, manifest):
        """The object as it is stored, made or changed as `kubectl apply --server-side` does."""
        answer = self.http.patch(
            f"{_collection(manifest)}/{manifest['metadata']['name']}",
            json=manifest,
            params={"fieldManager": "user", "force": "true", "fieldValidation": "Strict"},
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
        assert answer.is_success, answer.text
        return answer.json()

    def allows(self, user, verb, resource, namespace=None):
        """Runs `kubectl auth can-i VERB RESOURCE --as USER`, in one namespace or in all.

        Args:
            resource: PLURAL[.GROUP][/NAME] [--subresource=SUBRESOURCE].
        """
        what, _, subresource = resource.partition(" --subresource=")
        what, _, name = what.partition("/")
        plural, _, group = what.partition(".")
        attributes = {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "name": name}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "metadata": {},
            "spec": {"resourceAttributes": attributes | {"namespace": namespace or ""}},
        }
        return self.create(review, user=user)["status"]["allowed"]


def _collection(manifest):
    version, namespace = manifest["apiVersion"], manifest["metadata"].get("namespace")
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{manifest['kind'].lower()}s"
