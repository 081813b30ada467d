"""What the pendulum's optimum is worth, against values that are known."""

import numpy as np
import pytest

from experiments.studies import swing_up_value
from qusac_jax import environments

POINTS = 101


@pytest.fixture(scope="module")
def pendulum():
    return swing_up_value.identify()


@pytest.fixture(scope="module")
def grid(pendulum):
    return swing_up_value.make_grid(pendulum, POINTS)


def test_the_dynamics_are_those_of_the_suite(pendulum):
    env = environments.make("pendulum", seed=7, action_cost=0.0)
    (cosine, sine, velocity), _ = env.reset()
    angle, rng = np.arctan2(sine, cosine), np.random.default_rng(1)
    for _ in range(20):
        action = rng.uniform(-1, 1, 1)
        (cosine, sine, following), *_ = env.step(action)
        angle, velocity = pendulum.step(angle, velocity, action[0])
        np.testing.assert_allclose(velocity, following, atol=1e-4)
        np.testing.assert_allclose([np.cos(angle), np.sin(angle)], [cosine, sine], atol=1e-4)


def test_rewards_are_those_of_the_suite(grid):
    standing = int(np.abs(grid.angle).argmin())
    at_rest = len(grid.velocity) // 2
    assert grid.velocity[at_rest] == 0.0
    assert np.asarray(grid.reward)[standing, at_rest].min() == 1.0
    assert np.asarray(grid.reward)[0, at_rest].max() == 0.0  # hangs


def test_standing_is_worth_a_reward_in_every_step(pendulum, grid):
    free = swing_up_value.solve(pendulum, grid, 0.9, 0.0)
    assert free.top == pytest.approx(10.0, abs=2e-3)
    assert 0.0 <= free.bottom < 1e-3  # hundreds of steps away


@pytest.mark.slow
def test_costs_make_swinging_up_worth_less_and_prohibitive_ones_nothing(pendulum, grid):
    free, dear, prohibitive = (
        swing_up_value.solve(pendulum, grid, 0.99, cost) for cost in (0.0, 0.05, 10.0)
    )
    assert free.bottom > dear.bottom > 0.0
    # No policy earns more than the optimum, but for what the grid smooths.
    assert 0.5 * free.bottom < free.earned < 1.5 * free.bottom
    assert prohibitive.earned == 0.0
    assert prohibitive.bottom == pytest.approx(0.0, abs=1e-6)
    assert free.task_return > 500.0
    assert free.first is not None
    assert free.first > 100
    assert (prohibitive.task_return, prohibitive.first) == (0.0, None)


@pytest.mark.parametrize("argument", ["--discount=nan", "--action_cost=nan", "--action_cost=inf"])
def test_mistakes_are_one_line_and_code_2(argument, capsys):
    name = argument.removeprefix("--").partition("=")[0]
    assert swing_up_value.main(["swing_up_value", "--points=21", argument]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {name} must be finite, got [")
    assert err.count("\n") == 1
