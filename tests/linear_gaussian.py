"""A linear system with Gaussian noise, and small fits of the dynamics on what it does."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from qusac_jax.qusac import dynamics as dynamics_lib
from qusac_jax.qusac import fitting
from qusac_jax.qusac.config import DynamicsConfig
from qusac_jax.qusac.dynamics_network import DynamicsNetwork
from qusac_jax.task import Transition

MODEL = DynamicsNetwork((32, 32), observation_size=2, num_members=3)
CAPACITY = 2_000
BATCH_SIZE = 64
CONFIG = DynamicsConfig(
    learning_rate=3e-3, max_steps=10**6, patience=3, max_epochs=60, holdout_every=20
)
# s' = s + s A + a B + noise, r = s C + noise.
A = jnp.array([[-0.1, 0.2], [0.0, -0.3]])
B = jnp.array([[0.5, -0.4]])
C = jnp.array([1.0, -1.0])
NOISE = jnp.array([0.1, 0.3, 0.05])


def linear_gaussian(key, count, noise_scale=NOISE):
    keys = jax.random.split(key, 3)
    observation = jax.random.normal(keys[0], (count, 2))
    action = jax.random.uniform(keys[1], (count, 1), minval=-1.0)
    noise = noise_scale * jax.random.normal(keys[2], (count, 3))
    return Transition(
        observation=observation,
        action=action,
        reward=observation @ C + noise[:, 2],
        next_observation=observation + observation @ A + action @ B + noise[:, :2],
        terminated=jnp.zeros(count, bool),
    )


def fresh(key=0):
    return dynamics_lib.init(MODEL, jax.random.key(key), action_size=1, learning_rate=3e-3)


@functools.partial(jax.jit, static_argnames=("config", "model"))
def compiled_fit(dynamics, buffer, key, config, model):
    return fitting.fit(model, dynamics, buffer, key, config=config, batch_size=BATCH_SIZE)


def fit(dynamics, buffer, key, model=MODEL, **changes):
    """A compiled fit with the hyperparameters of `CONFIG`, but for the changes."""
    return compiled_fit(dynamics, buffer, key, dataclasses.replace(CONFIG, **changes), model)
