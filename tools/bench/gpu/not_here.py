"""The error of a measurement that this machine cannot make."""


class NotHereError(Exception):
    """A peer or a device is not on this machine; the message says which."""
