"""QU-SAC: model-based actor-critic that learns and uses the variance of its values."""
