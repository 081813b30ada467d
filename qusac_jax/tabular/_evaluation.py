"""Values and epistemic variance of a deterministic policy (Algorithm 1, lines 2 to 4).

`config` is the `Config` of `qusac_jax.tabular.agent`. Axes: S states, A actions, N sampled MDPs.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qusac_jax import _likely_paths, _sparse_products, linear, moments, posterior, sparse
from qusac_jax._next_values import next_mean
from qusac_jax._sparse_products import Flow

# Methods that sample an ensemble, and those of them that propagate an uncertainty reward.
SAMPLING = ("ensemble_var", "pombu", "exact_ube", "upper_bound")
PROPAGATING = ("pombu", "exact_ube", "upper_bound")

_WITH_MEMBER_VALUES = ("ensemble_var", "exact_ube", "upper_bound")
_LEAST_STATES = 256  # for likely paths: with 181, plans take longer (docs/results/tabular.md)


class WarmStart(NamedTuple):
    """Solutions of the last step, from which the next solves start."""

    mean: jax.Array  # [S] value in the mean MDP
    members: jax.Array  # [N, S] value in each member
    next_u: jax.Array  # [S] propagated variance at the policy's actions


class Evaluation(NamedTuple):
    """What the agent believes about its policy."""

    mean_q: jax.Array  # [S, A] Q of the mean MDP; of the sampled one for psrl
    variance: jax.Array  # [S, A] estimate of the epistemic variance of Q; 0 for psrl
    # [S, A] propagated: reward variance + discount^2 u, clipped, of `moments` not clipped; of
    # `ensemble_var`, which propagates nothing, the variance itself; 0 without an estimate.
    uncertainty_reward: jax.Array
    # [] infinity where the variance of `moments` diverges, or a sparse system was not solved; else
    # 0, or the condition of `moments`. Values may lose accuracy unseen where machine epsilon /
    # (1 - discount) is above 1 %.
    condition: jax.Array
    # [] solves (of the mean MDP, of the members, of the variance) that BiCGStab did not finish; 0
    # where the belief is dense and LU takes over.
    unsolved: jax.Array


def sample_models(belief, key, config):
    """The MDP that Q comes from, and the ensemble or None (Algorithm 1 line 2)."""
    if config.method == "psrl":
        transition, reward = posterior.sample(belief, key, 1)
        return posterior.Mdp(sparse.member(transition, 0), reward[0]), None
    if config.method in SAMPLING:
        return posterior.mean(belief), posterior.sample(belief, key, config.num_members)
    return posterior.mean(belief), None


def likeliest(mean):
    """Where each pair most likely leads; None where following it costs more than it saves."""
    if isinstance(mean.transition, sparse.Sparse) or len(mean.reward) < _LEAST_STATES:
        return None
    return _likely_paths.likeliest(mean.transition)


def evaluate_policy(belief, mean, members, likely, policy, warm_start, *, config):
    """Lines 3 and 4 of Algorithm 1.

    Args:
        belief: over transitions and rewards.
        mean: of `sample_models`, like `members`.
        members: the ensemble or None.
        likely: of `likeliest`.
        policy: `[S]` actions.
        warm_start: solutions to start from.
        config: static.

    Returns:
        An `Evaluation`, and the `WarmStart` of the next call.
    """
    pair, discount = (jnp.arange(len(policy)), policy), config.discount
    chosen = jax.tree.map(lambda x: x[pair], likely)
    solve = functools.partial(_solve, policy=policy, likely=chosen, solver=config.solver)
    mean_flow = _flow_of_one(mean.transition, policy)

    def solve_mean(rhs, discount, start):
        x, fell_back = solve(mean_flow, rhs[None], discount, start[None])
        return x[0], fell_back

    mean_v, unsolved = solve_mean(mean.reward[pair], discount, warm_start.mean)
    mean_q = mean.reward + discount * next_mean(mean.transition, mean_v)
    warm_start = warm_start._replace(mean=mean_v)
    if config.method == "moments":
        result = moments.solve_moments_of_actions(belief, likely, policy, discount)
        reward = 1 / belief.reward_precision + discount**2 * result.local_q
        return _evaluation(mean_q, result.q, reward, unsolved, result.condition), warm_start
    if members is None:
        nothing = jnp.zeros_like(mean_q)
        return _evaluation(mean_q, nothing, nothing, unsolved), warm_start
    if config.method in _WITH_MEMBER_VALUES:
        flow = _flow_of_members(members.transition, policy)
        rewards = members.reward[:, *pair]
        member_v, fell_back = solve(flow, rewards, discount, warm_start.members)
        warm_start = warm_start._replace(members=member_v)
        unsolved += fell_back
    reward = _uncertainty_reward(members, warm_start.members, mean_v, config)
    if config.method not in PROPAGATING:
        return _evaluation(mean_q, reward, reward, unsolved), warm_start
    next_u, fell_back = solve_mean(reward[pair], discount**2, warm_start.next_u)
    variance = reward + discount**2 * next_mean(mean.transition, next_u)
    warm_start = warm_start._replace(next_u=next_u)
    return _evaluation(mean_q, variance, reward, unsolved + fell_back), warm_start


def _evaluation(
    mean_q, variance, uncertainty_reward, unsolved, condition: jax.Array | float = 0.0
) -> Evaluation:
    condition = jnp.where(unsolved > 0, jnp.inf, jnp.asarray(condition, mean_q.dtype))
    return Evaluation(mean_q, variance, uncertainty_reward, condition, unsolved)


def _flow_of_one(transition, policy):
    """What `_solve` takes of an MDP: the rows of all actions `[1, S, A, S]`, or a `Flow`."""
    if isinstance(transition, sparse.Sparse):
        return _sparse_products.chosen(transition, policy)
    return transition[None]


def _flow_of_members(transition, policy):
    """The same of N members."""
    if isinstance(transition, sparse.Sparse):
        return _sparse_products.chosen_of_members(transition, policy)
    return transition


def _uncertainty_reward(members, member_v, mean_v, config):
    """What is propagated `[S, A]` (appendix B.3), as in `ube` but for a deterministic policy.

    The moments of Q_i(s', a') then need products with only three vectors, taken in one pass.
    """
    discount = config.discount
    columns = [mean_v if config.method == "pombu" else member_v]
    if config.method == "exact_ube":
        difference = member_v - mean_v[None]
        columns = [mean_v, difference, difference**2]
    columns = jnp.stack([jnp.broadcast_to(column, member_v.shape) for column in columns], -1)
    if isinstance(members.transition, sparse.Sparse):
        each = jax.vmap(next_mean, (None, 1), 2)  # of the vectors
        products = _sparse_products.over_members(each, members.transition, columns)
    else:
        # Vectors last: this layout is several times faster on CPU than vectors first.
        products = jnp.einsum("nsat,ntk->nsak", members.transition, columns, precision="highest")
    reward_variance = members.reward.var(0)
    if config.method in ("ensemble_var", "upper_bound"):
        variance = (members.reward + discount * products[..., 0]).var(0)
        if config.method == "ensemble_var":
            return variance
        return jnp.maximum(reward_variance + discount**2 * variance, config.min_local)
    local = products[..., 0].var(0)
    if config.method == "exact_ube":
        # Not from the means of two values: where these are large, that loses the difference.
        gap = products[..., 2] - products[..., 1] ** 2
        local = local - gap.mean(0)
    return jnp.maximum(reward_variance + discount**2 * local, config.min_local)


def _solve(flow, rhs, discount, start, *, policy, likely, solver):
    """Solutions `[N, S]`, and 1 if BiCGStab did not get there; 0 where LU then does."""
    if isinstance(flow, Flow):
        solution = linear.solve_warm(flow, rhs, discount, start)
        return solution.x, solution.fell_back.astype(jnp.int32)
    done = jnp.zeros((), jnp.int32)
    if solver == "warm":
        given = {"policy": policy, "likely": likely}
        return linear.solve_warm(flow, rhs, discount, start, **given).x, done
    rows = flow[:, jnp.arange(len(policy)), policy]
    solve = jax.vmap(linear.solve, in_axes=(0, 0, None))
    return solve(rows, rhs[..., None], discount).x[..., 0], done
