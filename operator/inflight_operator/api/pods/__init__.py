"""The fields that shape pods: template, scheduling, spread, network, rollout, cost."""
