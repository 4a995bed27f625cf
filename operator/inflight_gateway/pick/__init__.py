"""Which replica a request goes to: pure functions of the loads, shared with the simulator."""
