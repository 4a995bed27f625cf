"""A release: its images, its chart and its plain manifests, and where they go: `python -m deploy.release --help`."""
