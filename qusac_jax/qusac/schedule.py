"""What is due when: the outer loops of Algorithms 2 (online) and 3 (offline), as pure functions.

What happens every F steps is decided here, on the host, from plain integers. Inside a compiled
step it would be a `cond`, which under `vmap` over seeds computes both branches at every step.
"""

from typing import NamedTuple

from qusac_jax.qusac.config import Config


class Due(NamedTuple):
    """What a step asks for, in this order."""

    refresh: bool  # a fit of the dynamics and new rollouts: `refresh`
    roll_out: bool  # new rollouts of the dynamics as they are: `roll_out`
    learn: bool  # gradient updates: `learn`, or within `train_step`


def online(step: int, *, config: Config) -> Due:
    """What is due at an environment step (Algorithm 2).

    Fits and rollouts come before the step's own transition is stored, so the first fit sees one
    transition fewer than the warm-up has steps.

    Args:
        step: number of environment steps taken, this one included; 1 for the first.
        config: hyperparameters.

    Returns:
        What to do with the transition of this step, beside storing it and acting (line 9).
    """
    if step < config.warmup_steps:
        return Due(refresh=False, roll_out=False, learn=False)
    since_fit = (step - config.warmup_steps) % config.fit_every
    refresh = config.uses_model and since_fit == 0  # line 5
    roll_out = config.uses_model and since_fit % config.rollout_interval == 0
    return Due(refresh=refresh, roll_out=roll_out and not refresh, learn=True)  # lines 6-8, 10-13


def offline(update: int, *, config: Config) -> Due:
    """What is due before a gradient update of offline training (Algorithm 3).

    The dynamics are fitted once before the first update (line 2); rollouts start at states of the
    dataset.

    Args:
        update: number of gradient updates done, g of line 3; 0 before the first.
        config: hyperparameters; its `rollout_interval` is F.

    Returns:
        What to do now. Up to the next rollouts there are F updates: `learn(num_updates=F)`.
    """
    is_due = config.uses_model and update % config.rollout_interval == 0  # line 4
    return Due(refresh=False, roll_out=is_due, learn=True)
