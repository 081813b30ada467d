"""What the critics' loss asks for beside small residuals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import learner as learner_lib
from qusac_jax.qusac import multistep, networks
from qusac_jax.qusac import parts as parts_lib
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.regularizers import REGULARIZERS
from qusac_jax.task import Transition

IS_REAL = jnp.array([True, False, False])


def test_combo_by_hand():
    # Critic 0: (2 + 4) / 2 - 1 = 2; critic 1: (0 + -6) / 2 - 5 = -8.
    q = jnp.array([[[1.0, 2.0, 4.0], [5.0, 0.0, -6.0]]])
    np.testing.assert_allclose(REGULARIZERS["combo"](q, IS_REAL), 2.0 - 8.0)


def test_combo_lowers_values_on_model_data_and_raises_them_on_real_data():
    q = jax.random.normal(jax.random.key(0), (2, 2, 3))
    gradient = jax.grad(REGULARIZERS["combo"])(q, IS_REAL)
    expected = np.broadcast_to([-1.0, 0.5, 0.5], (2, 2, 3))  # the loss is minimized
    np.testing.assert_allclose(gradient, expected)


@pytest.mark.slow
def test_critics_trained_with_it_separate_the_first_transitions_of_a_batch_from_the_others():
    config = Config(
        method="ensemble_mean",
        risk=0.0,
        critic_data="model",
        num_members=2,
        num_critics=2,
        batch_size=8,
        real_ratio=0.25,
        regularizer="combo",
        regularizer_weight=0.5,
        actor_hidden=(8,),
        critic_hidden=(16, 16),
        critic_learning_rate=1e-2,
        discount=0.0,
    )
    assert config.num_real == 2
    observation = jnp.concatenate([jnp.ones((2, 1)), -jnp.ones((6, 1))])
    batch = Transition(observation, jnp.zeros((8, 1)), jnp.zeros(8), observation, jnp.ones(8, bool))
    groups = jax.tree.map(lambda x: x[None], multistep.single(batch))
    q = {}
    for name in (None, "combo"):
        changed = dataclasses.replace(config, regularizer=name)

        @jax.jit
        def run(learner, keys, config=changed):
            update = lambda learner, key: learner_lib.update(
                learner, groups, batch, None, key, config=config
            )
            return jax.lax.scan(update, learner, keys)[0]

        learner = parts_lib.init(jax.random.key(0), changed, 1, 1)
        learner = run(learner, jax.random.split(jax.random.key(1), 1_000))
        critic = networks.Critic(config.critic_hidden, 1, 2)
        q[name] = networks.apply(critic, learner.critic, observation, batch.action)[0]  # [M, B]
    np.testing.assert_allclose(q[None], 0.0, atol=0.02)
    # Per critic, f Q_D² + (1 - f) Q_M² + w (Q_M - Q_D) with f = 1/4 real data and w = 1/2 is
    # smallest at Q_D = w / (2 f) = 1 and Q_M = -w / (2 (1 - f)) = -1/3.
    np.testing.assert_allclose(q["combo"][:, :2], 1.0, atol=0.05)
    np.testing.assert_allclose(q["combo"][:, 2:], -1.0 / 3.0, atol=0.05)
