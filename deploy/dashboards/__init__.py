"""The Grafana dashboards of Inflight, as code: `python -m dashboards --write` makes the JSON in the chart."""
