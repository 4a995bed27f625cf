"""Metrics pages of engines: reading, histograms, scraping."""
