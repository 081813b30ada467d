"""Tabular policy optimization under a belief: optimistic policy iteration (OFU) and PSRL.

Policies are deterministic, `[S]` integers. Axes: S states, A actions, N sampled MDPs.
"""

import dataclasses
import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import _fields, _likely_paths, _sparse_products, linear, moments, posterior, sparse
from qusac_jax._checks import check_key
from qusac_jax._fields import Check, check_choice, checked
from qusac_jax._next_values import next_mean
from qusac_jax._posterior_checks import check_posterior
from qusac_jax._problem_checks import check_actions
from qusac_jax._sparse_products import Flow

METHODS = (
    "ensemble_mean",
    "ensemble_var",
    "pombu",
    "exact_ube",
    "upper_bound",
    "moments",
    "psrl",
)
SOLVERS = ("warm", "lu")

_TIE_TOLERANCE = 1e-6  # of the largest score; float32 solutions are hardly more precise
_LEAST_STATES = 256  # for likely paths: with 181, plans take longer (docs/results/tabular.md)
_SAMPLING = ("ensemble_var", "pombu", "exact_ube", "upper_bound")
_WITH_MEMBER_VALUES = ("ensemble_var", "exact_ube", "upper_bound")
_PROPAGATING = ("pombu", "exact_ube", "upper_bound")

# The methods whose results depend on a field of `Config`; all depend on those not named here, but
# for `solver`, which has no influence where the environment is sparse.
READ_BY = {
    "risk": (*_SAMPLING, "moments"),
    "num_members": _SAMPLING,
    "min_local": _PROPAGATING,
}


_discount = Check(
    lambda value: _fields.is_finite(value) and 0 <= float(np.float32(value)) < 1,
    "be in [0, 1) in float32",  # beliefs may be of float32
    "with 1, a policy that never terminates has no values",
)


@dataclasses.dataclass(frozen=True)
class Config:
    """How an agent chooses its policy. The defaults are the paper's (appendix C.1)."""

    method: str = "exact_ube"  # one of `METHODS`
    discount: float = checked(0.99, _discount)
    # lambda of eq. (9), policy_opt; positive seeks, negative avoids
    risk: float = checked(1.0, _fields.finite)
    num_members: int = checked(5, _fields.integer(1))  # N
    # u_min, least uncertainty reward; -0.05 for DeepSea
    min_local: float = checked(0.0, _fields.finite)
    max_steps: int = checked(40, _fields.integer(1))  # of policy iteration
    solver: str = "warm"  # warm-started BiCGStab with LU as its fallback, or lu; sparse: warm

    def __post_init__(self):
        """Raises `ValueError` naming the field, its value and what is allowed."""
        check_choice("method", self.method, METHODS)
        check_choice("solver", self.solver, SOLVERS)
        _fields.check_fields(self)


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


class Plan(NamedTuple):
    """Result of policy iteration."""

    policy: jax.Array  # [S] actions
    warm_start: WarmStart  # for the next call
    evaluation: Evaluation  # of the policy before the last improvement that was computed
    steps: jax.Array  # [] of policy iteration that were computed
    period: jax.Array  # [] of the cycle that it ended in: 1 = converged, 0 = cut off before
    unsolved: jax.Array  # [] as in `Evaluation`, of all steps together


def init_warm_start(num_states: int, config: Config, dtype=jnp.float32) -> WarmStart:
    """Zeros, for the first call of `optimize`."""
    members = jnp.zeros((config.num_members, num_states), dtype)
    return WarmStart(members[0], members, members[0])


def optimize(
    belief: posterior.Posterior,
    policy: jax.Array,
    warm_start: WarmStart,
    key: chex.PRNGKey,
    *,
    config: Config,
) -> Plan:
    """Policy iteration on Q + risk * sqrt(U) (eq. (9), policy_opt), or on one sample (PSRL).

    Q is that of the posterior mean MDP (Q-bar), and U is estimated as in Algorithm 1.

    MDPs are sampled once. At most `config.max_steps` policies are evaluated; where the greedy map
    returns to a policy that it has seen, the rest of its cycle is stepped through without
    evaluating it again. Ties are broken at random, in the same way in each step.

    Args:
        belief: over transitions and rewards.
        policy: `[S]` actions to start from.
        warm_start: solutions to start from, in the belief's dtype or cast to it; without influence
            on the result beyond the solver's tolerance.
        key: consumed.
        config: static.

    Returns:
        A `Plan`.

    Raises:
        ValueError: for a policy of a wrong shape or dtype, a warm start of wrong shapes, an invalid
            key, and outside `jit` for actions outside 0 .. A-1.
    """
    check_key(key)
    policy = _checked(belief, policy)
    cold = init_warm_start(len(policy), config, belief.reward_mean.dtype)
    for name, start, zeros in zip(WarmStart._fields, warm_start, cold, strict=True):
        if jnp.shape(start) != zeros.shape:
            raise ValueError(
                f"warm_start.{name} must have shape {zeros.shape}, got {jnp.shape(start)}; start "
                "from init_warm_start(S, config)"
            )
    warm_start = jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), warm_start, cold)
    return _optimize(belief, policy, warm_start, key, config=config)


@functools.partial(jax.jit, static_argnames="config")
def _optimize(belief, policy, warm_start, key, *, config) -> Plan:
    key_sample, key_tie = jax.random.split(key)
    mean, members = _sample_models(belief, key_sample, config)
    preference = jax.random.uniform(key_tie, belief.reward_mean.shape)
    likely = _likeliest(mean)
    evaluate = functools.partial(_evaluate, belief, mean, members, likely, config=config)
    history = jnp.full((config.max_steps + 1, len(policy)), -1, policy.dtype).at[0].set(policy)

    def improve(now: _Iteration) -> _Iteration:
        evaluation, warm_start = evaluate(now.history[now.step], now.warm_start)
        greedy = _greedy(evaluation, preference, config.risk).astype(now.history.dtype)
        seen = jnp.all(now.history == greedy[None], -1)
        return _Iteration(
            step=now.step + 1,
            history=now.history.at[now.step + 1].set(greedy),
            period=jnp.where(jnp.any(seen), now.step + 1 - jnp.argmax(seen), 0),
            warm_start=warm_start,
            evaluation=evaluation,
            unsolved=now.unsolved + evaluation.unsolved,
        )

    def proceed(now: _Iteration) -> jax.Array:
        return (now.step < config.max_steps) & (now.period == 0)

    zeros = jnp.zeros_like(belief.reward_mean)
    zero, none = jnp.zeros((), int), jnp.zeros((), jnp.int32)
    evaluation = Evaluation(zeros, zeros, zeros, zeros[0, 0], none)
    start = _Iteration(zero, history, zero, warm_start, evaluation, none)
    end = jax.lax.while_loop(proceed, improve, start)
    # `max_steps` steps along the cycle that ends at `end.step` end here:
    left = jnp.where(end.period > 0, (config.max_steps - end.step) % jnp.maximum(end.period, 1), 0)
    last = jnp.where(left > 0, end.step - end.period + left, end.step)
    policy = end.history[last]
    return Plan(policy, end.warm_start, end.evaluation, end.step, end.period, end.unsolved)


class _Iteration(NamedTuple):
    """Where policy iteration is."""

    step: jax.Array  # [] improvements so far
    history: jax.Array  # [max_steps + 1, S] policies, -1 in those to come
    period: jax.Array  # [] steps since the last policy was met before, 0 if it is new
    warm_start: WarmStart
    evaluation: Evaluation  # of the policy before the last
    unsolved: jax.Array  # [] int32, systems that were not solved


def evaluate(
    belief: posterior.Posterior, policy: jax.Array, key: chex.PRNGKey, *, config: Config
) -> Evaluation:
    """Mean values and epistemic variance of a policy `[S]` (Algorithm 1).

    Arguments and errors are those of `optimize`, without `warm_start`; returns an `Evaluation`.
    """
    check_key(key)
    return _evaluate_cold(belief, _checked(belief, policy), key, config=config)


@functools.partial(jax.jit, static_argnames="config")
def _evaluate_cold(belief, policy, key, *, config) -> Evaluation:
    mean, members = _sample_models(belief, key, config)
    warm_start = init_warm_start(len(policy), config, belief.reward_mean.dtype)
    return _evaluate(belief, mean, members, _likeliest(mean), policy, warm_start, config=config)[0]


def _checked(belief, policy):
    check_posterior(belief)
    return check_actions(policy, *belief.reward_mean.shape)


def _sample_models(belief, key, config):
    """The MDP that Q comes from, and the ensemble or None (Algorithm 1 line 2)."""
    if config.method == "psrl":
        transition, reward = posterior.sample(belief, key, 1)
        return posterior.Mdp(sparse.member(transition, 0), reward[0]), None
    if config.method in _SAMPLING:
        return posterior.mean(belief), posterior.sample(belief, key, config.num_members)
    return posterior.mean(belief), None


def _likeliest(mean):
    """Where each pair most likely leads; None where following it costs more than it saves."""
    if isinstance(mean.transition, sparse.Sparse) or len(mean.reward) < _LEAST_STATES:
        return None
    return _likely_paths.likeliest(mean.transition)


def _greedy(evaluation, preference, risk):
    score = evaluation.mean_q + risk * jnp.sqrt(jnp.maximum(evaluation.variance, 0.0))
    is_best = score >= score.max(-1, keepdims=True) - _TIE_TOLERANCE * jnp.max(jnp.abs(score))
    return jnp.argmax(jnp.where(is_best, preference, -1.0), -1)


def _evaluate(belief, mean, members, likely, policy, warm_start, *, config):
    """Lines 3 and 4 of Algorithm 1 for a deterministic policy."""
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
    if config.method not in _PROPAGATING:
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
        columns = [mean_v, member_v, (member_v - mean_v[None]) ** 2]
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
        next_v, next_member_v, next_square = jnp.moveaxis(products, -1, 0)
        gap = next_square - (next_member_v - next_v) ** 2
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
