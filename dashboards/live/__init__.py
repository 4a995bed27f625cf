"""A real Prometheus over a running cluster, and the queries of the dashboards asked the way Grafana asks them."""
