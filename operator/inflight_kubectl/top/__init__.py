"""The live view of `kubectl inflight top`. Only `rows` and `summary` can be imported without Textual."""
