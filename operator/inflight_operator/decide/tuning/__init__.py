"""The limits of running engines: advice from a cost model, and rules that try it."""
