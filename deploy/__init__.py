"""Files generated from the chart: the table of values and a manifest for kustomize; and a scan of its objects."""
