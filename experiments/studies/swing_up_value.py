"""What swinging up is worth: `python -m experiments.studies.swing_up_value`.

The pendulum of the suite pays nothing until it stands, hundreds of steps after it has hung at
rest, and on the way the action cost has to be paid. Its state has two numbers, so that value
iteration on a grid finds the best that any agent can do. Prints for each discount and action cost
the optimal values of hanging at rest, where an agent that does nothing has 0, and of standing. They
are those of the grid, which smooths; so beside them is a lower bound on the optimum from hanging:
the discounted return, costs included, of the policy that is greedy for them. Then that policy's
return in 1,000 steps, without the cost, and the number of steps before its first reward.

Axes: H angles, V velocities, A actions.
"""

import functools
import itertools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import cli, markdown
from qusac_jax import environments

_TRANSITIONS = 200  # of a random policy, from which the exact dynamics are read off
_MAX_VELOCITY = 10.0  # rad/s; 8.9 at the bottom reach the top without torque or damping
_STANDS = np.cos(np.deg2rad(8))  # the suite's reward is 1 from this height on, else 0
_ACTIONS = np.linspace(-1.0, 1.0, 9)
_EPISODE = 1_000  # steps


class Pendulum(NamedTuple):
    """θ' = θ + dt ω' with ω' = gravity sin θ + inertia ω + torque a; θ = 0 stands."""

    gravity: float
    inertia: float
    torque: float
    dt: float

    def step(self, angle: Any, velocity: Any, action: Any) -> tuple[Any, Any]:
        """The next angle and velocity, over any leading axes."""
        velocity = self.gravity * np.sin(angle) + self.inertia * velocity + self.torque * action
        return angle + self.dt * velocity, velocity


class Grid(NamedTuple):
    """Where steps from the states of a grid lead, for bilinear interpolation."""

    angle: np.ndarray  # [H], from -π, without π
    velocity: np.ndarray  # [V]
    corner: tuple[jax.Array, jax.Array]  # [H, V, A] the next state's cell
    weight: tuple[jax.Array, jax.Array]  # [H, V, A] and where in it, in [0, 1]
    reward: jax.Array  # [H, V, A] without action cost


class Solution(NamedTuple):
    """Of one discount and action cost."""

    bottom: float  # optimal value, hanging at rest
    top: float  # optimal value, standing at rest
    earned: float  # discounted return of the greedy policy from the bottom, with action cost
    task_return: float  # of that policy, undiscounted and without action cost
    first: int | None  # steps until its first reward; None if there is none


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_multi_float("discount", [0.99, 0.995], "discounts", 0.0, 0.9999, **define)
    flags.DEFINE_multi_float("action_cost", [0.0, 0.01, 0.03, 0.05], "costs", 0.0, **define)
    flags.DEFINE_integer("points", 361, "of the grid along each axis", 21, 2_001, **define)
    return values


def identify() -> Pendulum:
    """The suite's pendulum, from transitions of a random policy; exact but for rounding."""
    env = environments.make("pendulum", seed=0, action_cost=0.0)
    rng = np.random.default_rng(0)
    observation, _ = env.reset()
    rows = []
    for _ in range(_TRANSITIONS):
        action = rng.uniform(-1, 1, 1)
        following, *_ = env.step(action)
        rows.append((*observation, *action, *following))
        observation = following
    env.close()
    cosine, sine, velocity, action, next_cosine, next_sine, next_velocity = np.array(rows).T
    inputs = np.stack([sine, velocity, action], axis=1)
    weights, *_ = np.linalg.lstsq(inputs, next_velocity, rcond=None)
    turned = np.angle((next_cosine + 1j * next_sine) * (cosine - 1j * sine))
    dt = float(np.dot(turned, next_velocity) / np.dot(next_velocity, next_velocity))
    return Pendulum(*map(float, weights), dt=dt)


def make_grid(pendulum: Pendulum, points: int) -> Grid:
    """All that value iteration reads of the pendulum.

    Args:
        pendulum: its dynamics.
        points: V, and one more than H as the two ends of a turn are one; rounded up to an odd
            number so that states of rest are on the grid.
    """
    points += 1 - points % 2
    angle = np.linspace(-np.pi, np.pi, points)[:-1]
    velocity = np.linspace(-_MAX_VELOCITY, _MAX_VELOCITY, points)
    states = np.meshgrid(angle, velocity, _ACTIONS, indexing="ij")
    next_angle, next_velocity = pendulum.step(*states)
    column = (next_angle + np.pi) / (2 * np.pi) * len(angle) % len(angle)
    row = (np.clip(next_velocity, velocity[0], velocity[-1]) - velocity[0]) / (
        velocity[1] - velocity[0]
    )
    left = np.floor(column).astype(int) % len(angle)
    below = np.minimum(np.floor(row).astype(int), len(velocity) - 2)
    return Grid(
        angle,
        velocity,
        corner=(jnp.asarray(left), jnp.asarray(below)),
        weight=(jnp.asarray(column - np.floor(column)), jnp.asarray(row - below)),
        reward=jnp.asarray(np.cos(next_angle) >= _STANDS, float),
    )


@functools.partial(jax.jit, static_argnames="iterations")
def action_values(
    grid: Grid, discount: jax.Array, action_cost: jax.Array, *, iterations: int
) -> jax.Array:
    """Optimal values `[H, V, A]`, by value iteration."""
    reward = grid.reward - action_cost * jnp.square(jnp.asarray(_ACTIONS))
    (left, below), (right_share, above_share) = grid.corner, grid.weight
    right = (left + 1) % len(grid.angle)

    def backup(_: Any, q: jax.Array) -> jax.Array:
        value = q.max(axis=-1)
        along = lambda row: (1 - right_share) * value[left, row] + right_share * value[right, row]
        return reward + discount * (
            (1 - above_share) * along(below) + above_share * along(below + 1)
        )

    return jax.lax.fori_loop(0, iterations, backup, jnp.zeros_like(grid.reward))


def solve(pendulum: Pendulum, grid: Grid, discount: float, action_cost: float) -> Solution:
    """The optimum, and an episode of the policy that is greedy for it.

    Args:
        pendulum: its dynamics.
        grid: of it.
        discount: γ, below 1.
        action_cost: ρ; ρ a² is taken off the reward.
    """
    # What is still to come after them is worth less than a thousandth.
    iterations = int(np.ceil(np.log(1e-3 * (1 - discount)) / np.log(max(discount, 0.5))))
    q = np.asarray(action_values(grid, discount, action_cost, iterations=iterations))
    nearest = lambda angle, velocity: (
        round((angle + np.pi) / (2 * np.pi) * len(grid.angle)) % len(grid.angle),
        int(np.abs(grid.velocity - velocity).argmin()),
    )
    angle, velocity, rewarded, earned = np.pi, 0.0, [], 0.0
    for step in range(_EPISODE):
        best = _ACTIONS[q[nearest(angle, velocity)].argmax()]
        angle, velocity = pendulum.step(angle, velocity, best)
        rewarded.append(np.cos(angle) >= _STANDS)
        earned += discount**step * (rewarded[-1] - action_cost * best**2)
    return Solution(
        bottom=float(q[nearest(np.pi, 0.0)].max()),
        top=float(q[nearest(0.0, 0.0)].max()),
        earned=float(earned),
        task_return=float(np.sum(rewarded)),
        first=int(np.argmax(rewarded)) if any(rewarded) else None,
    )


def run(options: Any) -> None:
    """Measures as the flags say and prints the table."""
    for name in ("discount", "action_cost"):  # the bounds of a flag let NaN through
        values = getattr(options, name)
        if not np.all(np.isfinite(values)):
            raise ValueError(f"{name} must be finite, got {values}; leave that one out")
    pendulum = identify()
    grid = make_grid(pendulum, options.points)
    columns = ["discount", "action cost", "hanging", "standing", "earned", "return"]
    print(markdown.head([*columns, "first reward"]))
    for discount, action_cost in itertools.product(options.discount, options.action_cost):
        found = solve(pendulum, grid, discount, action_cost)
        first = "never" if found.first is None else str(found.first)
        cells = (
            f"{discount:g}",
            f"{action_cost:g}",
            f"{found.bottom:.2f}",
            f"{found.top:.1f}",
            f"{found.earned:.2f}",
            f"{found.task_return:.0f}",
            first,
        )
        print(markdown.row(cells), flush=True)


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and prints the table; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__)


if __name__ == "__main__":
    sys.exit(main())
