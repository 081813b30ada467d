"""What is due when: the outer loops of Algorithms 2 (online) and 3 (offline), as pure functions.

What happens every F steps is decided here, on the host, from plain integers. Inside a compiled
step it would be a `cond`, which under `vmap` over seeds computes both branches at every step.
"""

from typing import NamedTuple

from qusac_jax.qusac.config import Config


class Due(NamedTuple):
    """What a step asks for, in this order."""

    refresh: bool  # new rollouts, online after a fit of the dynamics: `refresh`
    learn: bool  # gradient updates: `learn`, or within `train_step`


def online(step: int, *, config: Config) -> Due:
    """What is due at an environment step (Algorithm 2).

    A refresh comes before the step's own transition is stored, so the first fit sees one
    transition fewer than the warm-up has steps.

    Args:
        step: number of environment steps taken, this one included; 1 for the first.
        config: hyperparameters.

    Returns:
        What to do with the transition of this step, beside storing it and acting (line 11).
    """
    if step < config.warmup_steps:
        return Due(refresh=False, learn=False)
    is_multiple = (step - config.warmup_steps) % config.fit_every == 0  # line 5
    return Due(refresh=config.uses_model and is_multiple, learn=True)  # lines 6-10, 12-16


def offline(update: int, *, config: Config) -> Due:
    """What is due before a gradient update of offline training (Algorithm 3).

    The dynamics are fitted once before the first update (line 2), so that a refresh only rolls them
    out again, from states of the dataset: `roll_out` takes the place of `refresh`.

    Args:
        update: number of gradient updates done, g of line 3; 0 before the first.
        config: hyperparameters; `fit_every` is F.

    Returns:
        What to do now. Up to the next refresh there are F updates: `learn(num_updates=F)`.
    """
    return Due(refresh=config.uses_model and update % config.fit_every == 0, learn=True)  # line 4
