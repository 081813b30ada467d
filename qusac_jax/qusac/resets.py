"""Networks that begin anew, on all that D and the models know.

With many gradient updates a step, networks fit the first data so long that they may not be able to
learn from later ones: on the pendulum an agent with good models hung for 12,000 steps, and a new
one swung up 1,000 steps later. With `Config.reset_every` actor, critics and U-net are drawn anew
now and then, as by Nikishin et al. (2022), "The Primacy Bias in Deep Reinforcement Learning". D,
the models, the temperature and λ's place in its schedule stay.
"""

import chex
import jax

from qusac_jax.qusac import normalization, parts
from qusac_jax.qusac.config import Config
from qusac_jax.task import Task


def is_due(learner: parts.Learner, config: Config) -> jax.Array:
    """Whether the networks have had `reset_every` updates, `[]` bool."""
    return learner.since_reset >= config.reset_every


def renewed(
    learner: parts.Learner, key: chex.PRNGKey, *, config: Config, task: Task
) -> parts.Learner:
    """A learner with new networks and optimisers, which keeps what it knows of its task.

    Args:
        learner: whose temperature, number of counted updates, largest local uncertainty and
            statistics of observations stay.
        key: consumed.
        config: hyperparameters.
        task: the environment's sizes.

    Returns:
        The learner; no array of it is there twice.
    """
    new = parts.init(key, config, task.observation_size, task.action_size)
    new = normalization.taken_over(new, learner)
    return new._replace(
        log_temperature=learner.log_temperature,
        local_max=learner.local_max,
        num_updates=learner.num_updates,
    )
