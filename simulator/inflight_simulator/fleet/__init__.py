"""A fleet of replicas behind a router, with pods that come and go: what a scaler would make of it."""
