"""Several steps of a rollout as one, so that critics look further ahead than a step.

Axes: K rollout length, O observation size, A action size.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from qusac_jax.task import Transition


class Steps(NamedTuple):
    """One or several steps as critics read them, or any batch of these along leading axes."""

    observation: jax.Array  # [..., O] where they begin
    action: jax.Array  # [..., A] the first
    reward: jax.Array  # [...] sum of γ^i r_i over the n steps
    next_observation: jax.Array  # [..., O] where they lead
    discount: jax.Array  # [...] γ^n, of what comes next; 0 where the episode ends


def single(transition: Transition, discount: float) -> Steps:
    """One step each.

    Args:
        transition: `[...]`.
        discount: γ.

    Returns:
        `[...]`.
    """
    observation, action, reward, next_observation, terminated = transition
    left = jnp.where(terminated, 0.0, jnp.float32(discount))
    return Steps(observation, action, reward, next_observation, left)


def along(rollout: Transition, num_steps: int, discount: float) -> Steps:
    """As many steps as there are up to `num_steps`, from each state of a rollout.

    Those that begin near the rollout's end are fewer, and the end of an episode ends them. Later
    actions are those that were drawn in the rollout, without their entropy bonus (Sutton and
    Barto, 2018, section 7.1).

    Args:
        rollout: `[K, ...]`; what follows an end may be anything finite.
        num_steps: the most, at least 1.
        discount: γ.

    Returns:
        `[K, ...]`.
    """
    one = single(rollout, discount)
    steps = one
    for _ in range(num_steps - 1):
        head = jax.tree.map(lambda x: x[:-1], one)
        rest = jax.tree.map(lambda x: x[1:], steps)
        joined = head._replace(
            reward=head.reward + head.discount * rest.reward,
            next_observation=jnp.where(
                head.discount[..., None] > 0, rest.next_observation, head.next_observation
            ),
            discount=head.discount * rest.discount,
        )
        steps = jax.tree.map(lambda x, last: jnp.concatenate([x, last[-1:]]), joined, one)
    return steps
