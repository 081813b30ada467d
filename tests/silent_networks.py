"""An agent of one state and one action whose networks all say 0, for one update by hand."""

import jax
import jax.numpy as jnp

from qusac_jax.qusac import parts
from qusac_jax.qusac.config import Config
from tests.networks import constant

CONFIG = Config(
    num_members=2,
    num_critics=2,
    batch_size=64,
    actor_hidden=(16,),
    critic_hidden=(8, 8),
    unet_hidden=(8, 8),
    discount=0.5,
    temperature_learning_rate=0.01,
    local_max_decay=0.1,
    target_rate=0.1,
)
ZEROS = jnp.zeros((64, 1))  # a batch of the state 0, or of its action
KEY = jax.random.key(3)


def learner():
    """Actor, critics and U-net say 0, their targets too."""
    learner = parts.init(jax.random.key(0), CONFIG, 1, 1)
    zero = lambda params: constant(params, 0.0)
    return learner._replace(
        actor=zero(learner.actor),
        critic=zero(learner.critic),
        target_critic=zero(learner.target_critic),
        unet=zero(learner.unet),
        target_unet=zero(learner.target_unet),
        log_temperature=jnp.log(jnp.float32(1e-6)),
    )
