"""The tabular tasks of bsuite (Osband et al., 2020, "Behaviour suite for reinforcement learning").

Axes: S states, A actions.
"""

import numpy as np

from qusac_jax._checks import check_count
from qusac_jax.tabular.environment import Environment, from_arrays
from qusac_jax.tabular.problems._build import build

_REWARD_TIMES = (1, 3, 10, 30, 100)  # of the discounting chain


def bandit(num_arms: int = 11, *, seed: int = 0) -> Environment:
    """The bandit of bsuite: one step, and rewards from 0 to 1 in a random order.

    Args:
        num_arms: A, at least 2.
        seed: of the order; that of bsuite's `mapping_seed`.
    """
    num_arms = check_count("num_arms", num_arms, 2)
    order = np.random.RandomState(seed).choice(num_arms, num_arms, replace=False)
    reward = np.linspace(0, 1, num_arms)[order][None]
    return from_arrays(np.zeros((1, num_arms, 1)), reward, 0, episode_length=1, name="bandit")


def catch(rows: int = 10, columns: int = 5) -> Environment:
    """Catch of bsuite: a ball falls, and a paddle in the last row has to be below it.

    Actions are left, stay, right. The reward at the end is 1 for a catch and else -1. The state is
    (row of the ball, its column, column of the paddle), the ball's column random at the start.

    Args:
        rows: at least 2.
        columns: at least 1.
    """
    rows, columns = check_count("rows", rows, 2), check_count("columns", columns)
    shape = (rows - 1, columns, columns)  # the last row is the end
    row, ball, paddle = np.indices(shape).reshape(3, -1, 1)
    moved = np.clip(paddle + np.array([-1, 0, 1]), 0, columns - 1)  # [S, A]
    size = rows - 1
    is_last = row == size - 1
    following = np.ravel_multi_index((np.minimum(row + 1, size - 1), ball, moved), shape)
    next_state = np.where(is_last, len(row), following)
    reward = np.where(is_last, np.where(moved == ball, 1.0, -1.0), 0.0)
    start = np.zeros(shape)
    start[0, :, columns // 2] = 1 / columns
    return build(
        next_state[..., None],
        np.ones((*next_state.shape, 1)),
        reward,
        start.ravel(),
        episode_length=size,
        name="catch",
    )


def discounting_chain(bonus: int = 0) -> Environment:
    """The discounting chain of bsuite: the first action chooses when the reward comes.

    Action i leads to a reward of 1 after 1, 3, 10, 30 or 100 steps, all of which an episode has;
    one of them is 1.1.

    Args:
        bonus: the action whose reward is larger, in 0 .. 4; bsuite's `mapping_seed` modulo 5.
    """
    if check_count("bonus", bonus, 0) > 4:
        raise ValueError(f"bonus must be in 0 .. 4, got {bonus}")
    steps, num_actions = _REWARD_TIMES[-1], len(_REWARD_TIMES)
    # State 0, then the states after 1 .. 99 steps in each context.
    context, time = np.divmod(np.arange(num_actions * (steps - 1)), steps - 1)
    time = time + 1
    num_states = 1 + len(time)
    gain = 1.0 + 0.1 * (np.arange(num_actions) == bonus)
    reward = np.zeros((num_states, num_actions))
    reward[1:] = np.where(time + 1 == np.array(_REWARD_TIMES)[context], gain[context], 0)[:, None]
    reward[0, 0] = gain[0]  # after one step
    next_state = np.zeros((num_states, num_actions), int)
    next_state[0] = 1 + np.arange(num_actions) * (steps - 1)
    own = 1 + np.arange(len(time))
    next_state[1:] = np.where(time == steps - 1, num_states, own + 1)[:, None]
    return build(
        next_state[..., None],
        np.ones((*next_state.shape, 1)),
        reward,
        0,
        episode_length=steps,
        name="discounting_chain",
    )


def umbrella(length: int = 20) -> Environment:
    """The umbrella chain of bsuite: the first action decides the reward at the end.

    Action 1 takes an umbrella, action 0 leaves it, in the first step only. After `length` steps the
    reward is 1 if the umbrella was needed and taken, or neither, and else -1. The other rewards are
    1 or -1 at random, here normal noise of the same variance. The state is (time, whether it is
    needed, whether it is there), the last two random at the start.

    Args:
        length: steps, at least 1.
    """
    length = check_count("length", length)
    shape = (length, 2, 2)
    time, need, have = np.indices(shape).reshape(3, -1, 1)
    taken = np.where(time == 0, np.arange(2), have)  # [S, A]
    is_last = time == length - 1
    following = np.ravel_multi_index((np.minimum(time + 1, length - 1), need, taken), shape)
    next_state = np.where(is_last, len(time), following)
    reward = np.where(is_last, np.where(taken == need, 1.0, -1.0), 0.0)
    start = np.zeros(shape)
    start[0] = 1 / 4
    return build(
        next_state[..., None],
        np.ones((*next_state.shape, 1)),
        reward,
        start.ravel(),
        episode_length=length,
        name=f"umbrella_{length}",
        reward_std=np.where(is_last, 0.0, 1.0) * np.ones_like(reward),
    )
