"""A belief and a policy for the tests of the tabular agents."""

import jax.numpy as jnp
import numpy as np

from qusac_jax import posterior

NUM_STATES, NUM_ACTIONS = 6, 2


def some_belief(seed=0, num_transitions=30, weight=2.0, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    data = posterior.Transitions(
        jnp.asarray(rng.integers(NUM_STATES, size=num_transitions)),
        jnp.asarray(rng.integers(NUM_ACTIONS, size=num_transitions)),
        jnp.asarray(rng.normal(size=num_transitions)),
        jnp.asarray(rng.integers(NUM_STATES + 1, size=num_transitions)),
    )
    prior = posterior.init(NUM_STATES, NUM_ACTIONS, dtype=dtype)
    return posterior.update(prior, data, weight=weight)


def some_policy(seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(NUM_ACTIONS, size=NUM_STATES))
