"""The Grafana dashboards of Inflight, as code: `python -m deploy.dashboards --write` makes the JSON in the chart."""
