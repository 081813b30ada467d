"""Known answers: optimal values by value iteration, and finite horizons by time in the state.

Axes: S states, A actions, T steps.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import _checks, _memory, _problem_checks
from qusac_jax._next_values import next_mean
from qusac_jax.sparse import Sparse
from qusac_jax.tabular.environment import Environment, from_sparse, with_support

# Bytes on the host for each successor: next states, probabilities, sorting them.
_TIMED_BYTES = 48


class Optimal(NamedTuple):
    """Optimal values of an MDP."""

    v: jax.Array  # [S]
    q: jax.Array  # [S, A]
    policy: jax.Array  # [S] greedy actions
    residual: jax.Array  # [] max |V - max_a Q|
    error: jax.Array  # [] bound of max |V - optimal V|; infinity for discount 1
    iterations: jax.Array  # []


def solve_optimal(
    transition: chex.Array | Sparse,
    reward: chex.Array,
    discount: chex.Numeric,
    *,
    tolerance: float = 1e-6,
    max_iterations: int = 100_000,
) -> Optimal:
    """Optimal values by value iteration.

    Args:
        transition: `[S, A, S]` probabilities of the next state, or a `Sparse`; rows sum to at most
            1, the rest ends the episode.
        reward: `[S, A]` expected rewards. Results have their dtype, or that of the probabilities
            where rewards are whole numbers.
        discount: in [0, 1]; 1 needs an MDP in which the best policy terminates.
        tolerance: largest error of the values relative to the largest value, >= 0 and finite; the
            iteration stops once the residual guarantees it, or is mere rounding.
        max_iterations: at least 1; the iteration stops after as many in any case, which `residual`
            shows.

    Returns:
        An `Optimal`.

    Raises:
        ValueError: for wrong shapes, a `tolerance` or `max_iterations` out of range, and outside
            `jit` for bad values.
    """
    _checks.check_real(transition=transition, reward=reward, discount=discount)
    given = transition.probability if isinstance(transition, Sparse) else transition
    probability = jnp.asarray(given)
    reward = jnp.asarray(reward)
    # As whole numbers, probabilities would be cut off to 0.
    dtype = reward.dtype if jnp.issubdtype(reward.dtype, jnp.floating) else probability.dtype
    dtype = jnp.promote_types(dtype, jnp.float32)
    probability, reward = probability.astype(dtype), reward.astype(dtype)
    if isinstance(transition, Sparse):
        next_state = _checks.integers("transition.next_state", transition.next_state)
        transition = Sparse(next_state, probability)
    else:
        transition = probability
    _checks.check_scalars(discount=discount)
    _problem_checks.check_shapes(transition, reward, num_batch_axes=0)
    _checks.check_real(tolerance=tolerance)
    _checks.check_scalars(tolerance=tolerance)
    if not 0 <= float(tolerance) < np.inf:
        raise ValueError(f"tolerance must be a finite number of at least 0, got {tolerance!r}")
    if _checks.is_concrete(*jax.tree.leaves((transition, reward, discount))):
        _checks.check_discount(discount)
        _problem_checks.check_transition(transition)
        _checks.check_finite("reward", reward)
    return _solve_optimal(
        transition,
        reward,
        jnp.asarray(discount, dtype),
        tolerance=float(tolerance),
        max_iterations=_checks.check_count("max_iterations", max_iterations),
    )


@functools.partial(jax.jit, static_argnames=("tolerance", "max_iterations"))
def _solve_optimal(transition, reward, discount, *, tolerance, max_iterations) -> Optimal:
    rounding = 4 * jnp.finfo(reward.dtype).eps

    def backup(v):
        return reward + discount * next_mean(transition, v)

    def proceed(carry):
        count, v, residual = carry
        size = jnp.max(jnp.abs(v))
        allowed = jnp.maximum(tolerance * (1 - discount), rounding) * size
        return (count < max_iterations) & (residual > allowed)

    def improve(carry):
        count, v, _ = carry
        new = backup(v).max(-1)
        return count + 1, new, jnp.max(jnp.abs(new - v))

    zero = jnp.zeros((), int)
    start = (zero, jnp.zeros_like(reward[:, 0]), jnp.asarray(jnp.inf, reward.dtype))
    iterations, v, _ = jax.lax.while_loop(proceed, improve, start)
    q = backup(v)
    residual = jnp.max(jnp.abs(q.max(-1) - v))
    # Banach's bound; what is left is rounding, which grows in the same way.
    error = jnp.where(discount < 1, residual / (1 - discount), jnp.inf)  # 0 / 0 with discount 1
    return Optimal(v, q, jnp.argmax(q, -1), residual, error, iterations)


def with_time(environment: Environment) -> Environment:
    """The environment with the time in its states, so that its policies may depend on it.

    State t * S + s is state s after t steps, and an episode ends after `episode_length` of them: it
    is terminated there, not truncated. The MDP is acyclic, as the theory of the UBE assumes.

    Args:
        environment: of T steps.

    Returns:
        A sparse environment of T * S states.

    Raises:
        ValueError: if it does not fit into memory.
    """
    num_states, steps = environment.num_states, environment.episode_length
    next_state, probability = with_support(environment).transition
    _memory.check(
        _TIMED_BYTES * steps * next_state.size,
        f"{environment.name} with the time in its {steps * num_states:,} states",
        "use a smaller one, or one with shorter episodes",
        is_on_host=True,
    )
    layer = np.arange(steps)[:, None, None, None]
    inside = (next_state >= 0) & (next_state < num_states)
    following = (layer + 1) * num_states + next_state
    ends = ~inside | (layer == steps - 1)
    following = np.where(ends, np.where(next_state < 0, -1, steps * num_states), following)
    repeated = lambda x: None if x is None else np.tile(x, (steps, 1))
    shape = (steps, *probability.shape)
    return from_sparse(
        following.reshape(-1, *next_state.shape[1:]),
        np.broadcast_to(probability, shape).reshape(-1, *next_state.shape[1:]),
        repeated(environment.reward),
        np.concatenate([environment.start, np.zeros((steps - 1) * num_states)]),
        episode_length=steps,
        name=f"{environment.name}_timed",
        optimal_return=environment.optimal_return,
        solved_return=environment.solved_return,
        reward_std=repeated(environment.reward_std),
        regret=environment.regret,
    )
