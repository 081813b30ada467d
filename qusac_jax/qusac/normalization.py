"""Observations of the scale of 1, whatever the environment's units are.

A velocity of a few millimetres a step, and a target of a centimetre's width, are next to nothing
for a network whose inputs are taken to be of the scale of 1. With `Config.normalize_observations`
actor, critics, U-net and their targets read observations in standard deviations of D from their
mean (`Normalize` in `qusac_jax.qusac.layers`). The dynamics have an option of their own,
`DynamicsConfig.normalize_inputs`.

Axes: B observations, O observation size.
"""

import jax
import jax.numpy as jnp

from qusac_jax.qusac import networks
from qusac_jax.qusac.parts import Learner


def follow(learner: Learner, observation: jax.Array, num_before: jax.Array | int) -> Learner:
    """The learner with new observations of D in its statistics; unchanged if it has none.

    The statistics change by little, and in all networks at once, so that these stay consistent.

    Args:
        learner: whose statistics are those of the observations that D has held.
        observation: `[B, O]`, new in D.
        num_before: `[]`, number of observations that the statistics stand for. With the size of a
            full D, they are a moving average over about what it holds.

    Returns:
        The learner with the new statistics in all of its networks.
    """
    found = networks.statistics(learner.actor)
    if found is None or not len(observation):
        return learner
    mean, variance = found
    observation = jnp.asarray(observation, jnp.float32)
    share = len(observation) / (num_before + len(observation))
    # From the first one on, so that what is constant has the variance 0.
    moved = observation - observation[0]
    shift = observation[0] + jnp.mean(moved, axis=0) - mean
    growth = jnp.var(moved, axis=0) - variance + (1.0 - share) * jnp.square(shift)
    return _with_statistics(learner, mean + share * shift, variance + share * growth)


def taken_over(learner: Learner, old: Learner) -> Learner:
    """The learner with the statistics of an old one, if they have any."""
    found = networks.statistics(old.actor)
    if found is None:
        return learner
    return _with_statistics(learner, *found)


def _with_statistics(learner: Learner, mean: jax.Array, variance: jax.Array) -> Learner:
    networks_of = ("actor", "critic", "target_critic", "unet", "target_unet")
    return learner._replace(
        **{
            # No array twice, so that the learner can be donated.
            name: networks.with_statistics(params, jnp.copy(mean), jnp.copy(variance))
            for name in networks_of
            if (params := getattr(learner, name)) is not None
        }
    )
