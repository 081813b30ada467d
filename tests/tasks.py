"""When episodes of a task end, in tests: never, or where an observation is large."""

import jax.numpy as jnp


def never(observation, action, next_observation):
    """No episode ends but by a time limit."""
    del observation, action
    return jnp.zeros(next_observation.shape[:-1], bool)


def ends_beyond(limit, *, feature=0):
    """Episodes end where the next observation has a feature over the limit."""
    return lambda observation, action, next_observation: next_observation[..., feature] > limit
