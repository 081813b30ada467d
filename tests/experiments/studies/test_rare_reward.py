"""The probe of models on rare rewards, where the answer is known: all data are rewarded."""

import jax
import numpy as np
import pytest

from experiments.studies import rare_reward
from qusac_jax import environments
from qusac_jax.qusac.config import Config, DynamicsConfig


@pytest.mark.parametrize(("name", "cosine"), [("pendulum", 0), ("cartpole_swingup", 1)])
def test_upright_transitions_are_rewarded_and_chained(name, cosine):
    env = environments.make(name, seed=0)
    rare = rare_reward.upright(env, name, 20, np.random.default_rng(0))
    assert (rare.reward > 0.5).all()
    assert (rare.observation[:, cosine] > 0.97).all()
    # Two in a row from each start that keeps the reward.
    chained = (rare.next_observation[:-1] == rare.observation[1:]).all(axis=1)
    assert chained.sum() >= 5


@pytest.mark.slow
def test_a_reward_that_is_everywhere_is_learned():
    env = environments.make("pendulum", seed=0)
    rng = np.random.default_rng(0)
    train, near = (rare_reward.upright(env, "pendulum", count, rng) for count in (400, 50))
    config = Config(
        num_members=2,
        dynamics=DynamicsConfig(hidden=(16,)),
        batch_size=32,
        replay_capacity=400,
        warmup_steps=3,
    )
    task = environments.spec("pendulum").task()
    first, *_, last = rare_reward.measure(config, task, train, near, near, 3)
    assert last["reward"] == pytest.approx(1.0, abs=0.05)
    assert last["upright error"] == last["data error"] < first["upright error"]
    assert jax.tree.all(jax.tree.map(np.isfinite, last))


def test_mistakes_are_one_line_and_code_2(capsys):
    assert rare_reward.main(["rare_reward", "--nll_beta=2"]) == 2
    assert "nll_beta must lie in [0, 1]" in capsys.readouterr().err
