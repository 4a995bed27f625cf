"""A stand-in engine, with levels: its pages alone, its streams, its steps timed by the cost model."""
