"""Files generated from code or the chart: dashboards, table of values, manifest for kustomize; a scan of its objects."""
