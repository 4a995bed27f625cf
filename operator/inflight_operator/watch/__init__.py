"""Watches and lists of the cluster: handlers of events, lists where watches miss deletions, optional APIs."""
