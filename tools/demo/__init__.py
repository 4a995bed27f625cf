"""`make demo`: the main job, start to end, on a real Kubernetes."""
