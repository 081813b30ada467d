"""Datasets for offline training: `python -m experiments.collect`."""
