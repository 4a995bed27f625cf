"""The operator at scale: a real control plane, fake nodes and pods, and one process that answers for every engine.

`python -m tools.bench.operator` builds what is missing, enters a network namespace of its own and measures there.
"""
