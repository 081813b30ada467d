"""Several steps of a rollout as one, so that critics and U-net look further ahead than a step.

Axes: K rollout length, O observation size, A action size.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from qusac_jax.task import Transition

# The most steps that are taken as one: a byte counts them, and buffers hold millions.
MOST_STEPS = 255


class Steps(NamedTuple):
    """One or several steps as critics read them, or any batch of these along leading axes."""

    observation: jax.Array  # [..., O] where they begin
    action: jax.Array  # [..., A] the first
    reward: jax.Array  # [...] sum of γ^i r_i over the n steps
    next_observation: jax.Array  # [..., O] where they lead
    num_steps: jax.Array  # [...] uint8, n; 0 where the episode ends, so that no value follows


class Ahead(NamedTuple):
    """A transition of a rollout, and what a U-net learns of the steps that follow.

    The first five fields are those of `Transition`.
    """

    observation: jax.Array  # [..., O]
    action: jax.Array  # [..., A]
    reward: jax.Array  # [...]
    next_observation: jax.Array  # [..., O]
    terminated: jax.Array  # [...] bool
    propagated: jax.Array  # [...] sum of γ^2i u_i over n steps, u_i what the UBE propagates
    per_step: jax.Array  # [...] mean of the u_i with the same weights
    led_to: jax.Array  # [..., O] the observation after the n steps
    num_steps: jax.Array  # [...] uint8, n; 0 where the episode ends


def plain(transition: Transition | Ahead) -> Transition:
    """The transition alone."""
    return Transition(*transition[: len(Transition._fields)])


def single(transition: Transition | Ahead) -> Steps:
    """One step each, `[...]` of `[...]`."""
    goes_on = jnp.logical_not(transition.terminated).astype(jnp.uint8)
    return Steps(
        transition.observation,
        transition.action,
        transition.reward,
        transition.next_observation,
        goes_on,
    )


def ahead(rollout: Transition, local: jax.Array, num_steps: int, discount: float) -> Ahead:
    """What a U-net learns that looks up to `num_steps` ahead, from each state of a rollout.

    Args:
        rollout: `[K, ...]`, as for `along`.
        local: `[K, ...]` what the UBE propagates at its pairs.
        num_steps: the most, in [1, `MOST_STEPS`]; 1 for single transitions, too.
        discount: γ, of values.

    Returns:
        `[K, ...]`.
    """
    summed, weight = (
        along(rollout._replace(reward=x), num_steps, discount**2)
        for x in (local, jnp.ones_like(local))
    )
    return Ahead(
        *rollout,
        propagated=summed.reward,
        per_step=summed.reward / weight.reward,
        led_to=summed.next_observation,
        num_steps=summed.num_steps,
    )


def along(rollout: Transition, num_steps: int, discount: float) -> Steps:
    """n-step returns of up to `num_steps` steps, from each state of a rollout.

    There are fewer steps where the rollout or its episode ends sooner. The actions after the first
    are those that were drawn in the rollout, without their entropy bonus (Sutton and Barto, 2018,
    section 7.1).

    Args:
        rollout: `[K, ...]`; what follows an end may be anything finite.
        num_steps: the most, in [1, `MOST_STEPS`].
        discount: γ.

    Returns:
        `[K, ...]`.
    """
    one = single(rollout)

    def a_step_more(_: int, steps: Steps) -> Steps:
        head = jax.tree.map(lambda x: x[:-1], one)
        rest = jax.tree.map(lambda x: x[1:], steps)
        goes_on = head.num_steps > 0
        joined = head._replace(
            reward=head.reward + jnp.where(goes_on, discount * rest.reward, 0.0),
            next_observation=jnp.where(
                goes_on[..., None], rest.next_observation, head.next_observation
            ),
            num_steps=jnp.where(goes_on & (rest.num_steps > 0), rest.num_steps + 1, 0).astype(
                jnp.uint8
            ),
        )
        return jax.tree.map(lambda x, last: jnp.concatenate([x, last[-1:]]), joined, one)

    # A loop for the compiler, which takes minutes over twenty of these written out.
    turns = min(num_steps, len(rollout.reward)) - 1
    return jax.lax.fori_loop(0, turns, a_step_more, one)


def discounts(steps: Steps | Ahead, discount: float) -> jax.Array:
    """What the value that follows is multiplied by, `[...]`: γ^n, or 0 after an end."""
    powers = jnp.power(jnp.float32(discount), steps.num_steps.astype(jnp.float32))
    return jnp.where(steps.num_steps > 0, powers, 0.0)
