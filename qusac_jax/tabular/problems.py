"""Environments that tabular agents are compared on, beside those of the paper.

Small ones are arrays `[S, A, S]` of which agents know nothing; large ones are sparse, and agents
are told which successors are possible (`environments.with_support` does that for small ones).

Axes: S states, A actions, K successors.
"""

from collections.abc import Sequence

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from qusac_jax._checks import check_count
from qusac_jax.tabular import environments
from qusac_jax.tabular.environments import Environment

_DENSE_STATES = 1000  # up to which an environment is an array
_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right
_ACROSS = ((2, 3), (2, 3), (0, 1), (0, 1))  # where a slip leads, for each of them
_REWARD_TIMES = (1, 3, 10, 30, 100)  # of the discounting chain


def _build(next_state, probability, reward, start, **about) -> Environment:
    if len(reward) > _DENSE_STATES:
        return environments.from_sparse(next_state, probability, reward, start, **about)
    transition = np.zeros((*np.shape(reward), len(reward) + 1))
    pair = np.indices(next_state.shape)[:2]
    np.add.at(transition, (*pair, next_state), probability)
    return environments.from_arrays(transition[..., :-1], reward, start, **about)


def _check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value}")


def river_swim(num_states: int = 6, *, episode_length: int = 20) -> Environment:
    """RiverSwim: swim against the current to the large reward at the right bank.

    Action 0 goes left and always succeeds; action 1 goes right with probability 0.35 (0.6 in the
    first state), stays with 0.6 (0.4) and is carried left with 0.05; in the last state it stays
    with 0.6 and is carried left with 0.4. Reward 0.005 for going left in the first state, 1 for
    going right in the last. Episodes start in the first state.

    Args:
        num_states: S, at least 2.
        episode_length: steps.

    Source: Osband, Russo and Van Roy (2013), "(More) efficient reinforcement learning via posterior
    sampling", after Strehl and Littman (2008).
    """
    num_states = check_count("num_states", num_states, 2)
    state = np.arange(num_states)
    left, right = np.maximum(state - 1, 0), np.minimum(state + 1, num_states - 1)
    next_state = np.stack([np.stack([left] * 3, -1), np.stack([left, state, right], -1)], 1)
    probability = np.tile([[1.0, 0.0, 0.0], [0.05, 0.6, 0.35]], (num_states, 1, 1))
    probability[0, 1] = 0.0, 0.4, 0.6
    probability[-1, 1] = 0.4, 0.6, 0.0
    reward = np.zeros((num_states, 2))
    reward[0, 0], reward[-1, 1] = 0.005, 1.0
    name = "river_swim" if num_states == 6 else f"river_swim_{num_states}"
    return _build(next_state, probability, reward, 0, episode_length=episode_length, name=name)


def chain(num_states: int = 5, *, slip: float = 0.2, episode_length: int = 100) -> Environment:
    """The chain of Strens: go forward to a large reward, or back for a small one.

    Action 0 goes to the next state, with reward 10 for doing so in the last, where it stays. Action
    1 goes back to the first state, with reward 2. With probability `slip`, the other one happens.

    Args:
        num_states: S, at least 2.
        slip: in [0, 1].
        episode_length: steps.

    Source: Strens (2000), "A Bayesian framework for reinforcement learning".
    """
    num_states = check_count("num_states", num_states, 2)
    _check_probability("slip", slip)
    forward = np.minimum(np.arange(num_states) + 1, num_states - 1)
    next_state = np.stack([np.stack([forward, 0 * forward], -1)] * 2, 1)
    happens = np.array([[1 - slip, slip], [slip, 1 - slip]])  # [A, what happens]
    gain = np.zeros((num_states, 1, 2))
    gain[-1, 0, 0], gain[..., 1] = 10.0, 2.0
    name = "chain" if num_states == 5 else f"chain_{num_states}"
    return _build(
        next_state,
        np.broadcast_to(happens, next_state.shape),
        (happens * gain).sum(-1),
        0,
        episode_length=episode_length,
        name=name,
    )


def queue(
    capacity: int = 50,
    *,
    arrival: float = 0.4,
    service: Sequence[float] = (0.3, 0.6),
    cost: Sequence[float] = (0.0, 0.3),
    episode_length: int = 200,
) -> Environment:
    """A single-server queue whose service rate is chosen in each step.

    State n is the number of customers. In a step, one arrives with probability `arrival` and one is
    served with the probability of the action; both may happen. A full queue turns customers away.
    The reward is minus n / capacity and minus the action's cost. Episodes start empty.

    Args:
        capacity: largest number of customers, at least 1; S = capacity + 1.
        arrival: probability of an arrival.
        service: `[A]` probabilities of a service.
        cost: `[A]` costs of a step.
        episode_length: steps.

    Source: Puterman (1994), "Markov decision processes", section 3.7.
    """
    capacity = check_count("capacity", capacity)
    rates, costs = np.asarray(service, float), np.asarray(cost, float)
    if rates.ndim != 1 or rates.shape != costs.shape or not rates.size:
        raise ValueError(
            f"service and cost must have one length A, got shapes {rates.shape} and {costs.shape}"
        )
    for name, values in (("arrival", [arrival]), ("service", rates)):
        for value in values:
            _check_probability(name, value)
    length = np.arange(capacity + 1)[:, None]  # [S, 1]
    steps = np.array([-1, 0, 1])
    up = arrival * (1 - rates) * (length < capacity)
    down = (1 - arrival) * rates * (length > 0)
    probability = np.stack([down, 1 - up - down, up], -1)  # [S, A, 3]
    next_state = np.clip(length[..., None] + steps, 0, capacity)
    reward = -length / capacity - costs
    name = "queue" if capacity == 50 else f"queue_{capacity}"
    return _build(
        np.broadcast_to(next_state, probability.shape),
        probability,
        reward,
        0,
        episode_length=episode_length,
        name=name,
    )


def grid(
    text: str,
    *,
    success: float = 1.0,
    episode_length: int | None = None,
    name: str = "grid",
) -> Environment:
    """A gridworld from a map, one line of text for each row.

    `#` is a wall, `S` a start (with several, each is equally likely), `G` a goal with reward 1, `H`
    a hole, and `.` or a blank is free. Entering a goal or a hole ends the episode. Actions are up,
    down, left, right; with probability 1 - `success` one goes across instead, to either side alike.
    Walls and the edge stop.

    Args:
        text: the map.
        success: probability in [0, 1].
        episode_length: steps; by default twice the shortest way to a goal, and at least 20.
        name: for reports.

    Returns:
        An `Environment`.

    Raises:
        ValueError: for other characters, or a map without a start or a reachable goal.
    """
    _check_probability("success", success)
    lines = text.strip("\n").split("\n")
    width = max(len(line) for line in lines)
    board = np.array([list(line.ljust(width)) for line in lines])
    unknown = set(np.unique(board)) - set("#SGH. ")
    if unknown:
        raise ValueError(
            f"text must hold only '#', 'S', 'G', 'H', '.' and blanks, got {sorted(unknown)}"
        )
    is_state = (board == "S") | (board == ".") | (board == " ")
    cells = np.argwhere(is_state)
    num_states = len(cells)
    start = board[is_state] == "S"
    if not start.any():
        raise ValueError("text must have an 'S', where episodes start, got none")
    # Number of each cell: walls -1, holes S, goals S + 1; with a wall around.
    number = np.where(board == "#", -1, np.where(board == "G", num_states + 1, num_states))
    number[is_state] = np.arange(num_states)
    number = np.pad(number, 1, constant_values=-1)
    own = np.arange(num_states)[:, None]
    target = np.stack([number[tuple((cells + 1 + move).T)] for move in _MOVES], -1)  # [S, 4]
    target = np.where(target < 0, own, target)
    steps = _steps_to_goal(target, num_states)
    if not np.isfinite(steps[start]).all():
        raise ValueError("text must have a 'G' that every 'S' has a way to, got none for some")
    happens = np.stack([target, *(target[:, side] for side in np.transpose(_ACROSS))], -1)
    probability = np.broadcast_to([success, *[(1 - success) / 2] * 2], happens.shape)
    reward = np.sum(probability * (happens == num_states + 1), -1)
    if success == 1:
        happens, probability = happens[..., :1], probability[..., :1]
    if episode_length is None:
        episode_length = max(20, 2 * int(steps[start].max()))
    return _build(
        np.minimum(happens, num_states),
        probability,
        reward,
        start / start.sum(),
        episode_length=episode_length,
        name=name,
        cells=cells,
    )


def _steps_to_goal(target: np.ndarray, num_states: int) -> np.ndarray:
    """Fewest moves `[S]` into a goal, which is the target S + 1."""
    origin = np.repeat(np.arange(num_states), target.shape[1])
    size = num_states + 2
    backwards = scipy.sparse.csr_matrix(
        (np.ones(target.size), (target.ravel(), origin)), shape=(size, size)
    )
    distance = scipy.sparse.csgraph.dijkstra(backwards, indices=num_states + 1, unweighted=True)
    return distance[:num_states]


def maze(
    side: int = 224, *, success: float = 0.9, loops: float = 0.1, seed: int = 0
) -> Environment:
    """A random maze: start in one corner, the goal in the opposite one.

    Rooms on a grid are joined by a random spanning tree, and by some of the other doors.

    Args:
        side: rooms along a side, at least 2; the default has over 1e5 states.
        success: as for `grid`.
        loops: share of the doors that the tree leaves closed and that are opened nevertheless.
        seed: of the random doors.

    Returns:
        An `Environment` with the map's cells.
    """
    side = check_count("side", side, 2)
    _check_probability("loops", loops)
    rng = np.random.default_rng(seed)
    room = np.arange(side**2).reshape(side, side)
    pairs = [(room[:, :-1], room[:, 1:]), (room[:-1], room[1:])]
    one, other = (np.concatenate([x.ravel() for x in ends]) for ends in zip(*pairs, strict=True))
    weights = rng.uniform(1, 2, len(one))
    graph = scipy.sparse.csr_matrix((weights, (one, other)), shape=(side**2, side**2))
    tree = scipy.sparse.csgraph.minimum_spanning_tree(graph).tocoo()
    is_open = rng.random(len(one)) < loops
    board = np.full((2 * side - 1, 2 * side - 1), "#")
    board[::2, ::2] = "."
    for ends in ((tree.row, tree.col), (one[is_open], other[is_open])):
        (row, column), (next_row, next_column) = (np.divmod(end, side) for end in ends)
        board[row + next_row, column + next_column] = "."
    board[0, 0], board[-1, -1] = "S", "G"
    text = "\n".join("".join(line) for line in board)
    return grid(text, success=success, name=f"maze_{side}")


def bandit(num_arms: int = 11, *, seed: int = 0) -> Environment:
    """The bandit of bsuite: one step, and rewards from 0 to 1 in a random order.

    Args:
        num_arms: A, at least 2.
        seed: of the order; that of bsuite's `mapping_seed`.

    Source: Osband et al. (2020), "Behaviour suite for reinforcement learning".
    """
    num_arms = check_count("num_arms", num_arms, 2)
    order = np.random.RandomState(seed).choice(num_arms, num_arms, replace=False)
    reward = np.linspace(0, 1, num_arms)[order][None]
    return environments.from_arrays(
        np.zeros((1, num_arms, 1)), reward, 0, episode_length=1, name="bandit"
    )


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
    return _build(
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
    return _build(
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
    return _build(
        next_state[..., None],
        np.ones((*next_state.shape, 1)),
        reward,
        start.ravel(),
        episode_length=length,
        name=f"umbrella_{length}",
        reward_std=np.where(is_last, 0.0, 1.0) * np.ones_like(reward),
    )
