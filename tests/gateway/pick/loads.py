"""Requests, services and loads with few words."""

from inflight_base.manifest.keys import ServiceKey
from inflight_cost.model import CostModel
from inflight_gateway.pick.load import EndpointLoad
from inflight_gateway.types import Endpoint, EngineSample, RequestView, ServiceConfig
from inflight_settings.limits import DEFAULT_LIMITS, Limits

SERVICE = ServiceKey("default", "chat")
CONFIG = ServiceConfig(key=SERVICE, uid="u", model="m")
COST = CostModel(
    base_s=5e-3, decode_seq_s=15e-6, prefill_token_s=30e-6, decode_kv_token_s=45e-9, prefill_context_token_s=1e-9
)
NOW = 100.0


def request(name="r", **fields):
    fields.setdefault("prompt_tokens", 1000)
    return RequestView(request_id=name, service=SERVICE, arrived=NOW, **fields)


def sample(max_num_seqs=DEFAULT_LIMITS.max_num_seqs, max_num_batched_tokens=2048, **fields):
    limits = Limits(max_num_seqs, max_num_batched_tokens)
    return EngineSample(**{"at": NOW - 0.5, "kv_cache_tokens": 400_000, "limits": limits, "cost": COST, **fields})


def load(address, *, in_flight=0, sent_tokens=0, cached_tokens=0, computed_tokens=0, others=0, **fields):
    """`fields`: of the sample; `sample=None`: never scraped."""
    scraped = None if "sample" in fields else sample(**fields)
    return EndpointLoad(
        Endpoint(address, f"pod-{address}"), scraped, in_flight, sent_tokens, cached_tokens, computed_tokens, others
    )


def addresses(pick):
    return [each.address for each in pick.endpoints]
