"""Evaluation episodes of several seeds beside each other."""

import numpy as np
import pytest

from experiments.evaluation import check_video, evaluate
from qusac_jax import environments

ENV = "gym:tests.short_env:Short-v0"


def test_seeds_do_not_disturb_each_other():
    # Episodes end after different numbers of steps; nothing of that may reach the other seed.
    seeds = [5, 6, 7, 8]  # two of each of two runs
    policy = lambda observation: np.sin(7.0 * observation[..., :1])
    together = environments.VectorEnvironment(ENV, seeds)
    alone = [environments.VectorEnvironment(ENV, part) for part in (seeds[:2], seeds[2:])]
    lengths = set()
    for _ in range(4):
        result = evaluate(together, policy, num_seeds=2, discount=0.9)
        for i, env in enumerate(alone):
            expected = evaluate(env, policy, num_seeds=1, discount=0.9)
            np.testing.assert_array_equal(result.episode_return[i], expected.episode_return[0])
            np.testing.assert_array_equal(
                result.episode_task_return[i], expected.episode_task_return[0]
            )
        lengths.update(np.round(result.episode_return.ravel(), 6))
    assert len(lengths) == 16  # every episode its own


def test_returns_are_those_of_one_whole_episode():
    env, other = (environments.VectorEnvironment(ENV, [3]) for _ in range(2))
    push = lambda observation: np.ones_like(observation[..., :1])
    result = evaluate(env, push, num_seeds=1, discount=0.9)
    np.testing.assert_array_equal(result.first_observation, other.reset()[None])
    steps = [other.step(np.ones((1, 1)))]
    while np.isnan(steps[-1].episode_return[0]):
        steps.append(other.step(np.ones((1, 1))))
    rewards = [step.reward[0] for step in steps]
    assert 1 < len(rewards) < 13  # terminated
    np.testing.assert_allclose(result.episode_return, [[np.sum(rewards)]], rtol=1e-6)
    weights = 0.9 ** np.arange(len(rewards))
    np.testing.assert_allclose(result.discounted_return, [[weights @ rewards]], rtol=1e-6)


def test_what_is_stepped_on_the_device_and_does_not_draw_itself_is_refused():
    check_video("functional:tests.pendulum:Drawn")
    with pytest.raises(ValueError, match="is stepped on the device; leave --video out"):
        check_video("functional:tests.pendulum:Pendulum")
