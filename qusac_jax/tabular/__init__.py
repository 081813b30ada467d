"""Tabular agents that explore with the epistemic variance of values."""

from qusac_jax.tabular import agent, environments, experiment, planning, problems, simulation

__all__ = ["agent", "environments", "experiment", "planning", "problems", "simulation"]
