"""Everything that runs Inflight for real on one machine: the local cluster, traffic, the demo, scenarios on real pods."""
