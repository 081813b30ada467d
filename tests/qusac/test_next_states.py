"""One update by hand where a state leads to another one: which networks are asked, and where."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import learner as learner_lib
from qusac_jax.qusac import multistep
from qusac_jax.task import Transition
from tests import silent_networks
from tests.networks import constant, rising
from tests.silent_networks import CONFIG, KEY, ZEROS

learner = pytest.fixture(silent_networks.learner)
RATES = {"actor": 0.01, "critic": 0.02, "unet": 0.03, "temperature": 0.04}
RATED = dataclasses.replace(CONFIG, **{f"{x}_learning_rate": rate for x, rate in RATES.items()})
# From 0 to 1, where nothing is paid.
ONWARDS = Transition(ZEROS, ZEROS, jnp.zeros(64), ZEROS + 1.0, jnp.zeros(64, bool))
STEPS = jax.tree.map(
    lambda x: jnp.broadcast_to(x, (CONFIG.num_groups, *x.shape)), multistep.single(ONWARDS)
)
CERTAIN = jnp.array([0.0, -20.0])  # mean and log standard deviation of the policy


@functools.partial(jax.jit, static_argnames="config")
def update(learner, config=RATED):
    return learner_lib.update(learner, STEPS, ONWARDS, None, KEY, config=config)


@pytest.mark.parametrize("of", ["state", "action"])
def test_the_target_of_the_unet_is_at_the_next_state_and_the_action_there(learner, of):
    # The policy does tanh(5 tanh(x)) in the state x, and log U is 2 tanh(tanh(x or action)) above
    # log 4: in the state 0, both are 0.
    target_unet = constant(learner.target_unet, np.log(4.0))
    learner = learner._replace(
        actor=rising(constant(learner.actor, CERTAIN), 5.0, feature=0),
        unet=constant(learner.unet, np.log(5.0)),
        target_unet=rising(target_unet, 2.0, feature=0 if of == "state" else 1),
        local_max=jnp.float32(1e4),
    )
    _, metrics = update(learner)
    x = 1.0 if of == "state" else np.tanh(5.0 * np.tanh(1.0))
    target = 0.25 * 4.0 * np.exp(2.0 * np.tanh(np.tanh(x)))
    expected = (np.log1p(target) - np.log1p(5.0)) ** 2
    np.testing.assert_allclose(metrics["unet_loss"], expected, rtol=1e-4)


def test_the_target_of_the_critics_is_at_the_action_in_the_next_state(learner):
    # Target critics say 2 tanh(tanh(action)), the action as above.
    learner = learner._replace(
        actor=rising(constant(learner.actor, CERTAIN), 5.0, feature=0),
        target_critic=rising(learner.target_critic, 2.0, feature=1),
    )
    _, metrics = update(learner)
    target = 0.5 * 2.0 * np.tanh(np.tanh(np.tanh(5.0 * np.tanh(1.0))))
    np.testing.assert_allclose(metrics["critic_loss"], 4 * target**2, rtol=1e-3)


@pytest.mark.parametrize("slope", [1.0, -1.0])
def test_the_actor_follows_the_critics_and_not_their_targets(learner, slope):
    config = dataclasses.replace(RATED, risk=0.0)
    learner = learner._replace(
        critic=rising(learner.critic, slope, feature=1),
        target_critic=rising(learner.target_critic, -slope, feature=1),
    )
    after, _ = update(learner, config)
    mean = after.actor["params"]["MLP_0"]["Dense_1"]["bias"][0]
    np.testing.assert_allclose(mean, slope * RATES["actor"], rtol=1e-3)


def test_every_network_learns_at_its_own_rate(learner):
    # Adam's first step is the learning rate, whatever the slope of the loss.
    learner = learner._replace(
        actor=constant(learner.actor, CERTAIN),
        target_critic=constant(learner.target_critic, 3.0),
        critic=rising(learner.critic, 1.0, feature=1),
        target_unet=constant(learner.target_unet, 3.0),
        local_max=jnp.float32(1e4),
    )
    after, _ = update(learner)
    last = {"actor": "Dense_1", "critic": "Dense_2", "unet": "Dense_2"}
    for name, layer in last.items():
        before, now = (getattr(x, name)["params"]["MLP_0"][layer]["bias"] for x in (learner, after))
        moved = np.abs(now - before)[..., 0]
        np.testing.assert_allclose(moved, RATES[name], rtol=1e-2, err_msg=name)
