"""Epistemic uncertainty about values, in JAX."""
