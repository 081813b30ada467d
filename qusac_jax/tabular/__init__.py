"""Tabular agents that explore with the epistemic variance of values."""
