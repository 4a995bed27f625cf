"""A real Prometheus over a running cluster, and the dashboard queries executed as Grafana executes them."""
