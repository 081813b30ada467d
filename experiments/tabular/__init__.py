"""Tabular experiments: `python -m experiments.tabular`."""
