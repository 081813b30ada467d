"""A pendulum in pure JAX, `functional:tests.pendulum:Pendulum`, as a user would write one.

It starts anywhere, is to stand upright, and its motor is strong enough to lift it without swinging.
An episode ends where it spins too fast, and is cut off after 20 steps.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MAX_SPEED = 6.0
DT = 0.1


class State(NamedTuple):
    angle: jax.Array  # 0 is upright
    speed: jax.Array


class Keyed(NamedTuple):
    angle: jax.Array
    speed: jax.Array
    key: jax.Array


class Pendulum:
    observation_size = 3
    action_size = 1
    action_low, action_high = -2.0, 2.0
    episode_length = 20

    def reset(self, key):
        angle, speed = jax.random.uniform(key, (2,), minval=-1.0)
        return State(jnp.pi * angle, speed)

    def step(self, state, action, key):
        push = action[0] + 0.1 * jax.random.normal(key)
        speed = state.speed + DT * (jnp.sin(state.angle) + push)
        return State(state.angle + DT * speed, speed)

    def observation(self, state):
        return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.speed])

    def reward(self, state, action, next_state):
        return jnp.cos(next_state.angle) - 0.01 * action[0] ** 2

    def terminated(self, state):
        return jnp.abs(state.speed) > MAX_SPEED

    def truncated(self, state):
        return jnp.zeros((), bool)

    def termination(self, observation, action, next_observation):
        return jnp.abs(next_observation[..., 2]) > MAX_SPEED


class Drawn(Pendulum):
    """Its pictures are dark, but for the 4 x 4 pixels at the pendulum's tip."""

    frames_per_second = 1 / DT

    def reset(self, key):
        return Keyed(*super().reset(key), key)

    def step(self, state, action, key):
        return Keyed(*super().step(State(*state[:2]), action, key), state.key)

    def draw(self, state):
        picture = np.zeros((64, 96, 3), np.uint8)
        row = round(32 - 24 * float(np.cos(state.angle)))
        column = round(48 + 24 * float(np.sin(state.angle)))
        picture[row - 2 : row + 2, column - 2 : column + 2] = 255
        return picture


class DrawnInShares(Drawn):
    """Its pictures are no integers."""

    def draw(self, state):
        return super().draw(state) / 255


class Exploding(Pendulum):
    """Its speed is infinite as soon as it hangs to one side."""

    episode_length = 30

    def step(self, state, action, key):
        state = super().step(state, action, key)
        return state._replace(speed=jnp.where(jnp.abs(state.angle) > 1.0, jnp.inf, state.speed))

    def terminated(self, state):
        return jnp.zeros((), bool)


class LostAtFirst(Pendulum):
    """No episode begins anywhere."""

    def reset(self, key):
        return State(jnp.nan * jnp.zeros(()), jnp.zeros(()))


class LostLater(Pendulum):
    """One of many short episodes begins nowhere; the first ones of seeds 0 and 1 do not."""

    episode_length = 2

    def reset(self, key):
        state = super().reset(key)
        is_lost = jax.random.uniform(jax.random.fold_in(key, 5)) < 1 / 16
        return state._replace(angle=jnp.where(is_lost, jnp.nan, state.angle))
