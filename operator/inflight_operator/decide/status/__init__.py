"""Texts of the status: conditions, problems of pods, sentences."""
