"""The work queue of services, and the workers that reconcile them."""
