"""`make e2e-disruptions`: one service under traffic during one disruption after the other.

`phases.py` has the disruptions, `stage.py` the service and the cluster they act on, `load.py` the traffic, `verdict.py`
the rule that decides whether a phase held, `table.py` the table at the end.
"""
