"""Files generated from code or the chart: dashboards, table of values, kustomize manifest; a scan of its objects."""
