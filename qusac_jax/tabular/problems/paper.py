"""The problems of the paper: the toy example of Figure 1, DeepSea and the N-room grid.

Axes: S states, A actions. Missing mass of a transition row ends the episode.
"""

import itertools
import numbers
from typing import NamedTuple

import numpy as np

from qusac_jax._checks import check_count
from qusac_jax.tabular.environment import Environment, from_arrays
from qusac_jax.tabular.problems.gridworlds import MOVES

_MOVE_COST = 0.01  # of going right in each row of DeepSea, over all L rows
_DEEP_SEA_SOLVED = 0.5  # between the return of 0.99 with the goal's reward and at most 0 without
_ROOM_REWARDS = (0.1, 0.01, 1.0)  # at the centres of the first, middle and last room
_SEVEN_ROOM = (7, 5, 5, 40, 0.95)  # the paper's: rooms, cells a side, a row, steps, success
_SEVEN_ROOM_RETURN = 19.0  # that the paper's regret refers to


class ToyBelief(NamedTuple):
    """The finite belief of Figure 1: equally likely Markov reward processes."""

    transition: np.ndarray  # [4, 4, 1, 4] the combinations of delta and beta
    reward: np.ndarray  # [4, 4, 1]
    policy: np.ndarray  # [4, 1] the only policy
    discount: float


def toy() -> ToyBelief:
    """The Markov reward process of Figure 1, with the probabilities of its caption.

    State 0 leads to state 1 with probability 1 - delta and to 2 with delta; 2 leads to 3 with beta
    and else ends; 1 and 3 end. Only 3 has a reward, of 100.
    """
    members = []
    for delta, beta in itertools.product((0.7, 0.6), (0.5, 0.4)):
        transition = np.zeros((4, 1, 4))
        transition[0, 0, 1:3] = 1 - delta, delta
        transition[2, 0, 3] = beta
        members.append(transition)
    reward = np.zeros((4, 4, 1))
    reward[:, 3] = 100.0
    return ToyBelief(np.stack(members), reward, np.ones((4, 1)), 1.0)


def deep_sea(length: int, *, stochastic: bool = False) -> Environment:
    """DeepSea (section 5.2, appendix C.2): go right in each of L rows to find the only reward.

    State row * L + column; action 1 goes right and costs 0.01 / L, action 0 goes left. The last
    row ends the episode, with reward 1 for going right in the last column.

    Args:
        length: L, at least 2; S = L^2.
        stochastic: the stochastic variant of bsuite: going right fails with probability 1 / L (it
            then stays in its column, at the same cost), and rewards in the first and last state of
            the last row have standard normal noise.

    Returns:
        An `Environment`. Its regret counts the episodes that were not solved, as the paper's does;
        of the stochastic variant, which the best policy does not always solve, it is the shortfall.

    Raises:
        ValueError: if `length` is less than 2.

    Source: Osband et al. (2019), "Deep exploration via randomized value functions".
    """
    length = check_count("length", length, 2)
    row, column = np.divmod(np.arange(length**2), length)
    inner = np.flatnonzero(row < length - 1)
    below = (row + 1) * length
    left = below + np.maximum(column - 1, 0)
    right = below + np.minimum(column + 1, length - 1)
    failure = 1 / length if stochastic else 0.0
    transition = np.zeros((length**2, 2, length**2))
    transition[inner, 0, left[inner]] = 1.0
    transition[inner, 1, right[inner]] = 1 - failure
    transition[inner, 1, (below + column)[inner]] += failure
    reward = np.zeros((length**2, 2))
    reward[:, 1] = -_MOVE_COST / length
    reward[column == length - 1, 1] += 1.0  # only its last row can be reached in the last column
    reward_std = None
    if stochastic:
        reward_std = np.zeros((length**2, 2))
        reward_std[[-length, -1]] = 1.0
    return from_arrays(
        transition,
        reward,
        0,
        episode_length=length,
        name="deep_sea_stochastic" if stochastic else "deep_sea",
        solved_return=_DEEP_SEA_SOLVED,
        reward_std=reward_std,
        cells=np.stack([row, column], -1),
        regret="shortfall" if stochastic else "unsolved",
    )


def rooms(
    num_rooms: int = 7,
    *,
    room_size: int = 5,
    rooms_per_row: int = 5,
    episode_length: int = 40,
    success: float = 0.95,
) -> Environment:
    """N-room grid (section 5.2, appendix C.2): rooms in snake order.

    Doors are in the middle of shared walls. Rewards belong to the state that the agent acts from:
    0.1 at the centre of the first room, 0.01 at the centre of the middle room, where episodes
    start, and 1 at the centre of the last, which is absorbing. Actions are up, down, left, right;
    one that is free is carried out with probability `success` and else leads to one of the other
    free neighbours, uniformly; one into a wall stays put.

    Args:
        num_rooms: at least 3; the default is the paper's 7-room, S = 181.
        room_size: cells along a side, odd.
        rooms_per_row: rooms in one row of the snake.
        episode_length: steps after which an episode is truncated.
        success: probability in (0, 1].

    Returns:
        An `Environment`. Its `optimal_return` is 19, to which the paper's regret refers, for the
        default rooms, and the best expected return otherwise.

    Raises:
        ValueError: naming the argument, its value and the remedy.

    Source: Domingues et al. (2021), rlberry.
    """
    num_rooms = check_count("num_rooms", num_rooms, 3)
    rooms_per_row = check_count("rooms_per_row", rooms_per_row)
    room_size = check_count("room_size", room_size)
    if room_size % 2 == 0:
        raise ValueError(f"room_size must be odd, so that rooms have a centre, got {room_size}")
    if not isinstance(success, numbers.Real) or not 0 < success <= 1:
        raise ValueError(f"success must be in (0, 1], got {success!r}")
    index, centres = _room_cells(num_rooms, room_size, rooms_per_row)
    goal, start = index[centres[-1]], index[centres[(num_rooms - 1) // 2]]
    transition = np.zeros((len(index), 4, len(index)))
    for (row, column), state in index.items():
        neighbours = [index.get((row + down, column + right)) for down, right in MOVES]
        for action, target in enumerate(neighbours):
            if state == goal or target is None:
                transition[state, action, state] = 1.0
                continue
            others = [s for s in neighbours if s is not None and s != target]
            transition[state, action, target] = success if others else 1.0
            for other in others:
                transition[state, action, other] = (1 - success) / len(others)
    reward = np.zeros((len(index), 4))
    reward[index[centres[0]]], reward[start], reward[goal] = _ROOM_REWARDS
    is_paper = (num_rooms, room_size, rooms_per_row, episode_length, success) == _SEVEN_ROOM
    return from_arrays(
        transition,
        reward,
        start,
        episode_length=episode_length,
        name="seven_room" if is_paper else f"{num_rooms}_room",
        optimal_return=_SEVEN_ROOM_RETURN if is_paper else None,
        cells=np.array(list(index)),
    )


def _room_cells(num_rooms: int, size: int, per_row: int):
    """State index of each free cell, and the centre of each room in snake order."""
    pitch, middle = size + 1, size // 2
    free, centres, doors = set(), [], []
    for room in range(num_rooms):
        room_row, place = divmod(room, per_row)
        room_column = place if room_row % 2 == 0 else per_row - 1 - place
        top, left = room_row * pitch, room_column * pitch
        free.update(itertools.product(range(top, top + size), range(left, left + size)))
        centres.append((top + middle, left + middle))
    for (row, column), (next_row, next_column) in itertools.pairwise(centres):
        doors.append(((row + next_row) // 2, (column + next_column) // 2))
    cells = sorted(free.union(doors))
    return {cell: state for state, cell in enumerate(cells)}, centres
