"""Sizes at which everything that a deep run does happens within a few dozen steps."""

import dataclasses

from qusac_jax.qusac.config import Config


def small(config: Config) -> Config:
    """A config or preset in small sizes, with the number of members and critics that it has."""
    return dataclasses.replace(
        config,
        batch_size=16,
        updates_per_step=2,
        actor_hidden=(8,),
        critic_hidden=(8,),
        unet_hidden=(8,),
        replay_capacity=64,
        warmup_steps=8,
        fit_every=4,
        roll_out_every=min(config.roll_out_every, 2),
        rollouts_per_step=3,
        rollout_length=2,
        dynamics=dataclasses.replace(config.dynamics, hidden=(8, 8), max_epochs=3),
    )
