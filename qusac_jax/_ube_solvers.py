"""The solvers of `qusac_jax.ube`, compiled and without its checks, and what they return.

Values are solved for as differences from those of the mean MDP, with which they share their leading
digits. Axes: S states, A actions, N ensemble members.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qusac_jax import _members, _sparse_products, linear
from qusac_jax._next_values import (
    Forms,
    flow_of,
    local_part,
    local_uncertainty,
    mean_of_members,
    next_distance,
    next_mean,
    next_moments,
    over_actions,
)
from qusac_jax.sparse import Sparse


class Values(NamedTuple):
    """Values of a policy in one MDP."""

    v: jax.Array  # [S]
    q: jax.Array  # [S, A]
    residual: jax.Array  # [] max |V - r_pi - discount * P_pi V|
    # Expected discounted steps from the worst state; inf if singular, or not solved (`Sparse`).
    condition: jax.Array  # []


class Variance(NamedTuple):
    """Epistemic variance of the values of a policy under a belief over MDPs."""

    v: jax.Array  # [S] variance of V
    q: jax.Array  # [S, A] variance of Q
    local_v: jax.Array  # [S] local uncertainty: no discount, no reward term, no clipping
    local_q: jax.Array  # [S, A]
    residual: jax.Array  # [] largest residual of all systems
    condition: jax.Array  # [] largest of all MDPs, as in `Values`


class Decomposition(NamedTuple):
    """Variance of the next state's value in the mean MDP: total = epistemic + aleatoric."""

    total_v: jax.Array  # [S]
    epistemic_v: jax.Array  # [S] w of eq. (4), pombu_rewards
    aleatoric_v: jax.Array  # [S]
    total_q: jax.Array  # [S, A]
    epistemic_q: jax.Array  # [S, A]
    aleatoric_q: jax.Array  # [S, A]
    residual: jax.Array  # [] of the values in the mean MDP, as in `Values`
    condition: jax.Array  # [] likewise


@jax.jit
def solve_bellman(transition, reward, policy, discount) -> Values:
    if isinstance(transition, Sparse):
        transition = _sparse_products.columns(transition)
    solution = linear.solve(
        flow_of(transition, policy), over_actions(policy, reward)[:, None], discount
    )
    v = solution.x[:, 0]
    q = reward + discount * next_mean(transition, v)
    return Values(v, q, solution.residual, solution.condition)


@functools.partial(jax.jit, static_argnames="form")
def solve_ube(
    transition, reward, policy, discount, mean_transition, mean_reward, min_local=None, *, form
) -> Variance:
    mean_transition = mean_of_members(transition) if mean_transition is None else mean_transition
    if isinstance(mean_transition, Sparse):
        mean_transition = _sparse_products.columns(mean_transition)
    mean_reward = _members.mean(reward) if mean_reward is None else mean_reward
    mean = solve_bellman(mean_transition, mean_reward, policy, discount)
    mean_value, distance_of = Forms(mean.v, mean.q), _distance_of(mean_transition, mean.v)

    def of_member(transition, reward):
        distance = distance_of(transition)
        solved = _solve_difference(transition, reward - mean_reward, policy, discount, distance)
        difference = Forms(solved.v, solved.q)
        part = local_part(form, transition, policy, difference, mean_value, distance)
        return part, solved.residual, solved.condition

    parts, residual, condition = _sparse_products.over_columns(of_member, transition, reward)
    local = local_uncertainty(form, parts, mean_transition, policy, mean_value)
    reward_v = _members.variance(over_actions(policy, reward)) + discount**2 * local.v
    reward_q = _members.variance(reward) + discount**2 * local.q
    if min_local is not None:
        reward_v, reward_q = jnp.maximum(reward_v, min_local), jnp.maximum(reward_q, min_local)
    v, q, solution = _propagate(mean_transition, policy, discount, reward_v, reward_q)
    largest = lambda members, *others: functools.reduce(jnp.maximum, others, members.max())
    return Variance(
        v,
        q,
        local.v,
        local.q,
        largest(residual, mean.residual, solution.residual),
        largest(condition, mean.condition, solution.condition),
    )


def _distance_of(mean_transition, mean_v) -> Callable:
    """A function of a member's transition: `[S, A]` (P_i - P) V, with V and P of the mean MDP."""
    centre = next_mean(mean_transition, mean_v)
    rounding = next_distance(mean_transition, mean_v, centre)  # of the centre
    return lambda transition: next_distance(transition, mean_v, centre) - rounding


def _solve_difference(transition, reward, policy, discount, distance) -> Values:
    """A member's values less those of the mean MDP, with which they share their leading digits.

    The difference D = V_i - V is a value, too: (I - discount P_i) D is the policy's mean of
    r_i - r + discount (P_i - P) V.

    Args:
        transition: P_i.
        reward: `[S, A]` r_i - r.
        policy: `[S, A]`.
        discount: in [0, 1].
        distance: `[S, A]` (P_i - P) V.
    """
    return solve_bellman(transition, reward + discount * distance, policy, discount)


def _propagate(transition, policy, discount, reward_v, reward_q):
    """V- and Q-form of U = reward + discount^2 P U, for uncertainty rewards of both forms.

    They share one matrix, hence one factorization.
    """
    flow = flow_of(transition, policy)
    rhs = jnp.stack([reward_v, over_actions(policy, reward_q)], -1)
    solution = linear.solve(flow, rhs, discount**2)
    v, next_u = solution.x.T
    return v, reward_q + discount**2 * next_mean(transition, next_u), solution


@jax.jit
def ensemble_variance(transition, reward, policy, discount) -> Variance:
    mean_transition, mean_reward = mean_of_members(transition), _members.mean(reward)
    if isinstance(mean_transition, Sparse):
        mean_transition = _sparse_products.columns(mean_transition)
    mean = solve_bellman(mean_transition, mean_reward, policy, discount)
    distance_of = _distance_of(mean_transition, mean.v)

    def of_member(transition, reward):
        distance = distance_of(transition)
        return _solve_difference(transition, reward - mean_reward, policy, discount, distance)

    members = _sparse_products.over_columns(of_member, transition, reward)
    v, q = _members.variance(members.v), _members.variance(members.q)
    largest = lambda members, mean: jnp.maximum(members.max(), mean)
    residual = largest(members.residual, mean.residual)
    return Variance(v, q, v, q, residual, largest(members.condition, mean.condition))


@jax.jit
def decompose(transition, reward, policy, discount) -> Decomposition:
    mean_transition = mean_of_members(transition)
    mean = solve_bellman(mean_transition, _members.mean(reward), policy, discount)
    value, distance_of = Forms(mean.v, mean.q), _distance_of(mean_transition, mean.v)
    variance_of = lambda transition: next_moments(transition, policy, value)[1]

    def of_member(transition):
        distance = distance_of(transition)
        return Forms(over_actions(policy, distance), distance), variance_of(transition)

    total = variance_of(mean_transition)
    means, variances = _sparse_products.over_columns(of_member, transition)
    epistemic = jax.tree.map(_members.variance, means)
    aleatoric = jax.tree.map(_members.mean, variances)
    in_v, in_q = zip(total, epistemic, aleatoric, strict=True)
    return Decomposition(*in_v, *in_q, mean.residual, mean.condition)
