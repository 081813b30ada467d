"""What is due when: the outer loops of Algorithms 2 (online) and 3 (offline), as pure functions.

What happens every F steps is decided here, on the host, from plain integers. Inside a compiled
step it would be a `cond`, which under `vmap` over seeds computes both branches at every step.
"""

from typing import NamedTuple

from qusac_jax.qusac.config import Config


class Due(NamedTuple):
    """What a step asks for, in this order."""

    refresh: bool  # fit the dynamics and roll them out: `refresh`
    learn: bool  # G gradient updates: `learn`, or within `train_step`


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
