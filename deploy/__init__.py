"""What is made from the chart: the table of its values, a plain manifest for kustomize, and a scan of its objects."""
