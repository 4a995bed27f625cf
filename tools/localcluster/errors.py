"""The one error of this package."""


class ClusterError(Exception):
    """Something a person has to act on; the text is one sentence that says why and what to do."""
