"""Facts about the environments that can be counted or worked out by hand."""

import numpy as np
import pytest

from qusac_jax.tabular import environments


def follow(environment, actions):
    """State and return after some actions in a deterministic environment; None once it ended."""
    state, total = int(np.argmax(environment.start)), 0.0
    for action in actions:
        total += environment.reward[state, action]
        row = environment.transition[state, action]
        state = int(np.argmax(row)) if row.sum() > 0 else None
    return state, total


def test_toy_members_are_the_four_combinations():
    belief = environments.toy()
    np.testing.assert_allclose(belief.transition[:, 0, 0, 2], [0.7, 0.7, 0.6, 0.6])
    np.testing.assert_allclose(belief.transition[:, 2, 0, 3], [0.5, 0.4, 0.5, 0.4])
    np.testing.assert_allclose(belief.transition[:, 0].sum(-1), 1.0)


@pytest.mark.parametrize("length", [2, 5, 10])
def test_deep_sea_pays_only_for_always_right(length):
    environment = environments.deep_sea(length)
    assert environment.num_states == length**2
    state, total = follow(environment, [1] * length)
    assert state is None
    np.testing.assert_allclose(total, 1 - 0.01)  # L steps at 0.01 / L
    np.testing.assert_allclose(environment.optimal_return, 0.99)
    for wrong in range(length):
        actions = [1] * length
        actions[wrong] = 0
        state, total = follow(environment, actions)
        assert state is None
        np.testing.assert_allclose(total, -0.01 * (length - 1) / length)


def test_stochastic_deep_sea_fails_to_go_right_one_time_in_length():
    environment = environments.deep_sea(4, stochastic=True)
    np.testing.assert_allclose(environment.transition[5, 1, [9, 10]], [0.25, 0.75])
    np.testing.assert_allclose(environment.transition[5, 0, 8], 1.0)
    np.testing.assert_allclose(environment.transition[0, 1, [4, 5]], [0.25, 0.75])
    np.testing.assert_allclose(environment.transition[7, 1, 11], 1.0)  # the wall in both cases
    np.testing.assert_array_equal(np.flatnonzero(environment.reward_std[:, 0]), [12, 15])
    # All of the first L - 1 steps must succeed; the reward of the last is paid for trying.
    np.testing.assert_allclose(environment.optimal_return, 0.75**3 - 0.01, atol=0.01)


def test_seven_rooms_are_the_paper_s():
    environment = environments.rooms()
    assert environment.num_states == 181
    np.testing.assert_allclose(environment.transition.sum(-1), 1.0)
    rewarded = np.flatnonzero(environment.reward.max(-1))
    cells = {tuple(environment.cells[s].tolist()): environment.reward[s].tolist() for s in rewarded}
    # Snake of 5 x 5 rooms with one cell of wall between: five to the right, one down, one back.
    assert cells == {(2, 2): [0.1] * 4, (2, 20): [0.01] * 4, (8, 20): [1.0] * 4}
    assert tuple(environment.cells[np.argmax(environment.start)]) == (2, 20)
    goal = rewarded[-1]
    np.testing.assert_allclose(environment.transition[goal, :, goal], 1.0)


def test_a_step_in_a_corner_and_in_the_open():
    environment = environments.rooms()
    index = {tuple(cell): state for state, cell in enumerate(environment.cells.tolist())}
    corner, right, below = index[0, 0], index[0, 1], index[1, 0]
    np.testing.assert_allclose(environment.transition[corner, 0, corner], 1.0)  # into the wall
    np.testing.assert_allclose(environment.transition[corner, 3, [right, below]], [0.95, 0.05])
    middle = index[1, 1]
    others = [index[1, 0], index[1, 2], index[2, 1]]
    np.testing.assert_allclose(environment.transition[middle, 0, index[0, 1]], 0.95)
    np.testing.assert_allclose(environment.transition[middle, 0, others], 0.05 / 3)
    door, left_of_door = index[2, 5], index[2, 4]
    np.testing.assert_allclose(environment.transition[door, 2, left_of_door], 0.95)
    np.testing.assert_allclose(environment.transition[door, 0, door], 1.0)


def test_from_arrays_finds_the_best_return():
    # Two steps in one state: 1 for staying (action 0) or 3 for leaving (action 1): stay, leave.
    transition = np.zeros((1, 2, 1))
    transition[0, 0, 0] = 1.0
    environment = environments.from_arrays(transition, [[1.0, 3.0]], 0, episode_length=2)
    assert environment.optimal_return == 4.0
    np.testing.assert_array_equal(environment.start, [1.0])


GOOD = {"transition": np.full((2, 2, 2), 0.5), "reward": np.zeros((2, 2)), "start": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": [1.5, -0.5]}, "start must be a state or a distribution"),
        ({"start": 0.5}, "start must be a state in 0 .. 1, got 0.5"),
        ({"reward_std": -np.ones((2, 2))}, "reward_std must be finite and not negative"),
        ({"reward_std": np.ones(2)}, r"reward_std must have shape \[S, A\]"),
        ({"transition": np.full((2, 2, 3), 0.3)}, r"transition must have shape \[S, A, S\]"),
        ({"transition": np.full((2, 2, 2), 0.6)}, "rows must sum to at most 1, got .* 1.2"),
        ({"transition": np.full((2, 2, 2), -0.1)}, "must hold probabilities, got -0.1"),
        ({"transition": np.full((2, 2, 2), np.nan)}, "transition must be finite"),
        ({"reward": np.zeros((2, 3))}, r"reward must have shape \[S, A\]"),
        ({"reward": np.full((2, 2), np.inf)}, "reward must be finite"),
        ({"start": 2}, r"start must be a state in 0 .. 1, got 2"),
        ({"start": "a"}, "start must be a state or a distribution, got array"),
        ({"start": None}, "start must be a state or a distribution, got array"),
        ({"optimal_return": "a"}, "optimal_return must be finite or None, got 'a'"),
        ({"start": [0.5, 0.6]}, "start must be a state or a distribution .* sum of 1.1"),
        ({"episode_length": 0}, "episode_length must be an integer of at least 1, got 0"),
        ({"episode_length": 2.7}, "episode_length must be an integer of at least 1, got 2.7"),
        ({"optimal_return": float("nan")}, "optimal_return must be finite or None, got nan"),
        ({"cells": [[0, 0]]}, r"cells must have shape \[S, 2\]"),
    ],
)
def test_bad_arrays_are_named(change, message):
    arguments = {**GOOD, "episode_length": 3, **change}
    with pytest.raises(ValueError, match=message):
        environments.from_arrays(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: environments.deep_sea(1), "length must be an integer of at least 2, got 1"),
        (lambda: environments.deep_sea(2.5), "length must be an integer of at least 2, got 2.5"),
        (lambda: environments.rooms(2), "num_rooms must be an integer of at least 3, got 2"),
        (lambda: environments.rooms(room_size=4), "room_size must be odd"),
        (lambda: environments.rooms(success=0.0), r"success must be in \(0, 1\], got 0.0"),
        (lambda: environments.rooms(success="a"), r"success must be in \(0, 1\], got 'a'"),
    ],
)
def test_bad_sizes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
