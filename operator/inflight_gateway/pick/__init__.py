"""Choice of the replica for a request: pure functions of the loads, shared with the simulator."""
