"""Services the render tests share."""

from inflight_operator.api import InferenceService
from inflight_operator.render import ChildPlan, LimitsInForce, Settings, render

SETTINGS = Settings(engine_image="example.com/engine:1")
PLAN = ChildPlan(replicas=2, limits=LimitsInForce(64, 1024, 7), admin_token="secret")
CPU = {"accelerator": {"count": 0}}


def make(name="chat", **spec):
    return InferenceService.from_dict(
        {
            "metadata": {"name": name, "namespace": "team", "uid": "u-1"},
            "spec": {"model": {"source": "builtin://smollm2"}, **spec},
        }
    )


def child(kind, service, plan=PLAN, settings=SETTINGS):
    (found,) = (child for child in render(service, plan, settings) if child["kind"] == kind)
    return found


def pod(service, settings=SETTINGS):
    return child("Deployment", service, settings=settings)["spec"]["template"]


def engine(service, settings=SETTINGS):
    (container,) = pod(service, settings)["spec"]["containers"]
    return container
