"""Everything that runs Inflight for real on one machine: local cluster, traffic, demo, scenarios on real pods."""
