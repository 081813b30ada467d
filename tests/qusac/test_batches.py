"""Which transitions of a batch are taken for those of D."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import learner as learner_lib
from qusac_jax.qusac import multistep
from qusac_jax.qusac import parts as parts_lib
from qusac_jax.qusac.config import Config
from qusac_jax.task import Transition
from tests.networks import constant, rising

SIZES = {"batch_size": 8, "real_ratio": 0.25, "actor_hidden": (8,), "critic_hidden": (8, 8)}


@pytest.mark.slow
def test_the_regularizer_is_added_to_the_residuals_and_takes_the_first_for_real():
    config = Config(
        method="ensemble_mean",
        risk=0.0,
        critic_data="model",
        num_members=2,
        num_critics=2,
        regularizer="combo",
        regularizer_weight=0.5,
        **SIZES,
    )
    # Both critics say tanh(tanh(1)) of the two real transitions and minus that of the others, where
    # all episodes end without a reward.
    observation = jnp.array([1.0] * 2 + [-1.0] * 6)[:, None]
    batch = Transition(observation, 0 * observation, jnp.zeros(8), observation, jnp.ones(8, bool))
    groups = jax.tree.map(lambda x: x[None], multistep.single(batch))
    learner = parts_lib.init(jax.random.key(0), config, 1, 1)
    learner = learner._replace(critic=rising(constant(learner.critic, 0.0), 1.0, feature=0))
    _, metrics = learner_lib.update(learner, groups, batch, None, jax.random.key(1), config=config)
    value = np.tanh(np.tanh(1.0))
    expected = 2 * (value**2 + 0.5 * (-value - value))
    np.testing.assert_allclose(metrics["critic_loss"], expected, rtol=1e-5)


def test_the_unet_asks_the_critics_about_real_transitions_and_keeps_what_rollouts_know():
    config = Config(
        method="upper_bound", num_members=2, num_critics=1, unet_steps=3, discount=0.9, **SIZES
    )
    observation = jnp.arange(1.0, 9.0)[:, None] / 4
    batch = Transition(observation, 0 * observation, jnp.zeros(8), -observation, jnp.zeros(8, bool))
    known = multistep.ahead(batch, jnp.full(8, 7.0), 1, 0.9)
    known = known._replace(led_to=observation + 5.0, num_steps=jnp.full(8, 3, jnp.uint8))
    learner = parts_lib.init(jax.random.key(0), config, 1, 1)
    # Members say tanh(tanh(x)) and minus that: a variance of twice its square.
    slopes = jnp.array([1.0, -1.0])[:, None]
    learner = learner._replace(critic=rising(constant(learner.critic, 0.0), slopes, feature=0))
    parts = parts_lib.build(config, 1)
    found = learner_lib._ahead(parts, learner, known, None, jax.random.key(1))
    np.testing.assert_array_equal(found.observation, observation)
    local = 0.81 * 2 * np.tanh(np.tanh(observation[:2, 0])) ** 2
    np.testing.assert_allclose(found.propagated, [*local, *[7.0] * 6], rtol=1e-5)
    np.testing.assert_allclose(found.led_to, [*-observation[:2], *observation[2:] + 5.0])
    np.testing.assert_array_equal(found.num_steps, [1, 1, 3, 3, 3, 3, 3, 3])
