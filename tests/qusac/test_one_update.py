"""One update of networks whose outputs are known: its terms by hand."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import diagnostics, estimates, multistep, networks
from qusac_jax.qusac import learner as learner_lib
from qusac_jax.qusac import parts as parts_lib
from qusac_jax.task import Transition
from tests import silent_networks
from tests.networks import constant, rising
from tests.silent_networks import CONFIG, KEY, ZEROS

learner = pytest.fixture(silent_networks.learner)

# One state that leads to itself and pays 1.
LOOP = Transition(ZEROS, ZEROS, jnp.ones(64), ZEROS, jnp.zeros(64, bool))
STEPS = jax.tree.map(
    lambda x: jnp.broadcast_to(x, (CONFIG.num_groups, *x.shape)), multistep.single(LOOP)
)


@functools.partial(jax.jit, static_argnames="config")
def update(learner, config=CONFIG):
    return learner_lib.update(learner, STEPS, LOOP, None, KEY, config=config)


@pytest.mark.parametrize("temperature", [1e-6, 2.0])
def test_critics_learn_from_the_less_of_their_targets_and_the_entropy(learner, temperature):
    learner = learner._replace(
        target_critic=constant(learner.target_critic, [[6.0], [8.0]]),  # [M, 1], of each member
        log_temperature=jnp.log(jnp.float32(temperature)),
    )
    actor = networks.Actor(CONFIG.actor_hidden, 1)
    key_critic = jax.random.split(KEY, 3)[1]
    _, log_prob = networks.sample_action(actor, learner.actor, STEPS.next_observation, key_critic)
    _, metrics = update(learner)
    target = 1.0 + 0.5 * (6.0 - temperature * np.asarray(log_prob))  # [N, B]
    # Each of the two critics of a member says 0.
    expected = 2 * np.mean(target**2, axis=-1).sum()
    np.testing.assert_allclose(metrics["critic_loss"], expected, rtol=1e-5)


def test_the_unet_learns_from_its_target_network(learner):
    # Members say -1 and 1: their variance is 2, and a quarter of it is propagated.
    learner = learner._replace(
        critic=constant(learner.critic, jnp.array([-1.0, 1.0])[:, None, None]),
        unet=constant(learner.unet, np.log(5.0)),
        target_unet=constant(learner.target_unet, np.log(20.0)),
        local_max=jnp.float32(100.0),
    )
    after, metrics = update(learner)
    target = 0.25 * 2.0 + 0.25 * 20.0
    np.testing.assert_allclose(
        metrics["unet_loss"], (np.log1p(target) - np.log1p(5.0)) ** 2, rtol=1e-5
    )
    np.testing.assert_allclose(after.local_max, 90.0, rtol=1e-6)  # nothing as uncertain was met


@pytest.mark.parametrize("risk", [1.0, -1.0])
def test_the_actor_follows_the_unet(learner, risk):
    # U rises with the action, nothing else depends on it: Adam's first step is its learning rate.
    unet = rising(constant(learner.unet, 0.0), 1.0, feature=1)
    after, _ = update(learner._replace(unet=unet), dataclasses.replace(CONFIG, risk=risk))
    mean = after.actor["params"]["MLP_0"]["Dense_1"]["bias"][0]
    np.testing.assert_allclose(mean, risk * CONFIG.actor_learning_rate, rtol=1e-3)


@pytest.mark.parametrize(("is_relative", "weight"), [(False, 1.5), (True, 1.5 / 4.0)])
def test_the_actor_weighs_uncertainty_as_the_config_says(learner, is_relative, weight):
    still = {"critic_learning_rate": 1e-9, "unet_learning_rate": 1e-9, "local_max_decay": 1e-9}
    config = dataclasses.replace(CONFIG, risk=1.5, relative_risk=is_relative, **still)
    learner = learner._replace(
        critic=constant(learner.critic, 5.0),
        unet=constant(learner.unet, np.log(4.0)),
        local_max=jnp.float32(12.0),  # allows a sqrt(U) of sqrt(12 / (1 - 0.25)) = 4
    )
    _, metrics = update(learner, config)
    np.testing.assert_allclose(metrics["actor_loss"], -(5.0 + weight * 2.0), rtol=1e-4)


def test_entropy_falls_to_minus_the_size_of_actions(learner):
    # tanh of a standard normal has the entropy 0.67, above -1.
    after, _ = update(learner._replace(log_temperature=jnp.zeros(())))
    np.testing.assert_allclose(after.log_temperature, -0.01, rtol=1e-3)


def test_targets_follow_at_their_rate(learner):
    learner = learner._replace(
        target_critic=constant(learner.target_critic, 3.0),
        target_unet=constant(learner.target_unet, 3.0),
    )
    after, _ = update(learner)
    for now, old, new in (
        (after.target_critic, learner.target_critic, after.critic),
        (after.target_unet, learner.target_unet, after.unet),
    ):
        expected = jax.tree.map(lambda x, y: 0.9 * x + 0.1 * y, old, new)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), now, expected)
    assert float(jnp.abs(after.critic["params"]["MLP_0"]["Dense_2"]["bias"]).min()) > 0.0


@pytest.mark.parametrize("risk", [1.5, -1.5])
def test_what_attracts_is_value_and_uncertainty(learner, risk):
    parts = parts_lib.build(dataclasses.replace(CONFIG, risk=risk), 1)
    learner = learner._replace(
        critic=constant(learner.critic, 5.0), unet=constant(learner.unet, np.log(4.0))
    )
    found = estimates.attraction(parts, learner, ZEROS, KEY)
    np.testing.assert_allclose(found, 5.0 + risk * 2.0, rtol=1e-6)


@pytest.mark.parametrize("slopes", [(1.0, 1.0), (1.0, -1.0)])
def test_what_is_logged_of_values(learner, slopes):
    # Members say 1 + g x and 3 + h x, log U is log 4 + x, of an x that is as far below 0 as above.
    critic = constant(learner.critic, jnp.array([1.0, 3.0])[:, None, None])
    critic = rising(critic, jnp.array(slopes)[:, None], feature=0)
    unet = rising(constant(learner.unet, np.log(4.0)), 1.0, feature=0)
    learner = learner._replace(critic=critic, unet=unet, local_max=jnp.float32(12.0))
    observation = jnp.array([[-1.0], [1.0]])
    x = np.tanh(np.tanh(1.0)) * np.array([-1.0, 1.0])
    found = diagnostics.describe_values(parts_lib.build(CONFIG, 1), learner, observation, KEY)
    difference = 2.0 + (slopes[1] - slopes[0]) * x
    expected = {
        "mean_q": 2.0,
        "mean_sqrt_u": np.mean(2.0 * np.exp(x / 2)),
        "max_sqrt_u": 2.0 * np.exp(x[1] / 2),
        "sqrt_u_bound": 4.0,  # of 12 / (1 - 0.25)
        "critic_spread": np.sqrt(np.mean(difference**2 / 2)),
        "critic_spread_centered": np.sqrt(np.mean((difference - 2.0) ** 2 / 2)),
        "alpha": 1e-6,
        "risk": 1.0,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("changes", "weight"),
    [({"risk_schedule": "linear:-1:1:4"}, 0.5), ({"relative_risk": True}, 1.5 / 4.0)],
)
def test_what_attracts_weighs_uncertainty_as_the_actor_does(learner, changes, weight):
    parts = parts_lib.build(dataclasses.replace(CONFIG, risk=1.5, **changes), 1)
    learner = learner._replace(
        critic=constant(learner.critic, 5.0),
        unet=constant(learner.unet, np.log(4.0)),
        local_max=jnp.float32(12.0),  # allows a sqrt(U) of 4
        num_updates=jnp.int32(3),
    )
    found = estimates.attraction(parts, learner, ZEROS, KEY)
    np.testing.assert_allclose(found, 5.0 + weight * 2.0, rtol=1e-5)
