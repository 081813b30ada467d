"""Gridworlds: drawn as a map, or random mazes.

Axes: S states.
"""

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from qusac_jax._checks import check_count
from qusac_jax.tabular.environment import Environment
from qusac_jax.tabular.problems._build import build, check_probability

UP, DOWN, LEFT, RIGHT = range(4)  # the actions
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # rows and columns that each leads on
_ACROSS = ((LEFT, RIGHT), (LEFT, RIGHT), (UP, DOWN), (UP, DOWN))  # where a slip leads


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
    check_probability("success", success)
    lines = text.strip("\n").split("\n")
    width = max(len(line) for line in lines)
    board = np.array([list(line.ljust(width)) for line in lines])
    unknown = set(np.unique(board)) - set("#SGH. ")
    if unknown:
        raise ValueError(
            "text must hold only '#', 'S', 'G', 'H', '.' and blanks, got "
            f"{''.join(sorted(unknown))!r}"
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
    target = np.stack([number[tuple((cells + 1 + move).T)] for move in MOVES], -1)  # [S, 4]
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
    return build(
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


def maze(side: int = 10, *, success: float = 0.9, loops: float = 0.1, seed: int = 0) -> Environment:
    """A random maze: start in one corner, the goal in the opposite one.

    Rooms on a grid are joined by a random spanning tree, and by some of the other doors.

    Args:
        side: rooms along a side, at least 2; 10 make 206 states, 224 over 1e5.
        success: as for `grid`.
        loops: share of the doors that the tree leaves closed and that are opened nevertheless.
        seed: of the random doors, at least 0.

    Returns:
        An `Environment` with the map's cells.

    Raises:
        ValueError: naming the argument and its value.
    """
    side = check_count("side", side, 2)
    seed = check_count("seed", seed, 0)
    check_probability("loops", loops)
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
