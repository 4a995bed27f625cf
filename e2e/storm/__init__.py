"""A wake storm: many services at zero replicas get requests at the same moment."""
