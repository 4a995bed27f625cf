"""The chart installed in the local cluster, and the services, pods and numbers there."""
