"""Live limits, drain, measured step cost and signed admin calls for a vLLM server, without a fork of vLLM.

`vllm serve MODEL --scheduler-cls=inflight_vllm.scheduler.LiveScheduler --middleware=inflight_vllm.middleware.Inflight`
"""

VERSION = "0.2.0"
