"""Posterior variance of values in closed form, without sampling (derived in docs/moments.md).

Axes: S states, A actions.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from qusac_jax import _bicgstab, _control, _likely_paths, _lu, linear
from qusac_jax._belief import Posterior
from qusac_jax._checks import check_discount, check_real, check_scalars, is_concrete
from qusac_jax._next_values import average, next_mean, next_variance, with_derivative_of
from qusac_jax._posterior_checks import check_posterior
from qusac_jax._problem_checks import check_policy, check_result

_LEAST_PRECISION = 1e-30  # of a reward; its variance is finite in float32
_MAX_ITERATIONS = 60  # of the surprises, after which LU takes over


class Moments(NamedTuple):
    """Posterior mean and variance of the values of a policy."""

    v: jax.Array  # [S] variance of V
    q: jax.Array  # [S, A] variance of Q
    local_v: jax.Array  # [S] variance of one step's surprise, without discount and reward term
    local_q: jax.Array  # [S, A]
    mean_v: jax.Array  # [S] mean of V
    mean_q: jax.Array  # [S, A] mean of Q
    covariance: jax.Array  # [S, S] covariance of V between states
    residual: jax.Array  # [] largest residual of the systems
    # Expected discounted steps in the mean MDP, or growth of the surprises in cycles where that is
    # larger; infinity if singular or divergent.
    condition: jax.Array  # []


def solve_moments(posterior: Posterior, policy: chex.Array, discount: chex.Numeric) -> Moments:
    """Exact posterior mean and variance of the values under a Dirichlet-normal belief.

    For acyclic (layered) MDPs this is what `solve_exact` converges to as N grows. The surprise at a
    state, r + discount * p V minus its mean, is uncorrelated between states, so that with the
    fundamental matrix Z = (I - discount * mean P)^-1 and the variances d of the surprises, Cov[V] =
    Z diag(d) Z^T. d is linear in Cov[V] by the second moments of the Dirichlet; one more S x S
    system gives it.

    With cycles, V depends on the row p(s, a) again after coming back to s, and the correlation that
    this causes is ignored. The result is then the variance to first order in the posterior
    covariance of the rows (the delta method around the mean MDP) plus those higher-order terms that
    an acyclic MDP has: it is right in the limit of much data, and an approximation before. Along
    runs of the tabular agents, where a row without data leads everywhere, its standard deviations
    are within 3 % of Monte Carlo, those of UBEs off by factors (docs/results/tabular.md). With too
    little data the surprises of a cycle would grow without end, which `condition` shows: infinity.

    Args:
        posterior: a `Posterior` without a `support`. Zero concentrations rule out transitions,
            which is how an acyclic structure is expressed.
        policy: `[S, A]` action probabilities; rows sum to 1.
        discount: in [0, 1].

    Returns:
        `Moments`, in O(A S^3) operations. Not clipped: with cycles, variances may be negative.

    Raises:
        ValueError: for wrong shapes or a posterior with a `support`, and outside `jit` for bad
            values or an ill-conditioned system.
    """
    check_real(policy=policy, discount=discount)
    _check_dense(posterior)
    dtype = posterior.reward_mean.dtype
    policy = jnp.asarray(policy, dtype)
    check_scalars(discount=discount)
    if policy.shape != posterior.reward_mean.shape:
        raise ValueError(
            f"policy must have the posterior's shape [S, A] = {posterior.reward_mean.shape}, got "
            f"{policy.shape}"
        )
    if not is_concrete(policy, discount, *jax.tree.leaves(posterior)):
        return _solve_moments(posterior, policy, jnp.asarray(discount, dtype))
    check_policy(policy)
    for name, least in (("concentration", 0.0), ("reward_precision", _LEAST_PRECISION)):
        with jax.ensure_compile_time_eval():  # a belief that a jitted function closes over
            smallest = float(jnp.min(getattr(posterior, name)))
        if not smallest >= least:
            raise ValueError(f"posterior.{name} must be at least {least}, got {smallest}")
    check_discount(discount)
    result = _solve_moments(posterior, policy, jnp.asarray(discount, dtype))
    if is_concrete(*result):
        check_result(result)
    return result


def _check_dense(posterior):
    check_posterior(posterior)
    if posterior.support is not None:
        raise ValueError(
            "posterior has a support, whose covariances solve_moments does not compute sparsely; "
            "use solve_exact on samples of it"
        )


@jax.jit
def _solve_moments(posterior, policy, discount) -> Moments:
    strength = posterior.concentration.sum(-1)  # [S, A]
    transition, ending = _mean_rows(posterior.concentration, strength)
    reward, reward_variance = posterior.reward_mean, 1 / posterior.reward_precision
    num_states = len(policy)
    flow = average("sat,sa->st", transition, policy)
    identity = jnp.eye(num_states, dtype=flow.dtype)
    rhs = jnp.concatenate([(policy * reward).sum(-1)[:, None], identity], 1)
    bellman = linear.solve(flow, rhs, discount)
    mean_v, inverse = bellman.x[:, 0], bellman.x[:, 1:]

    # Var[p V] for V with mean m and covariance C is, by the second moments of the Dirichlet,
    #   (p (m^2 + diag C) - (p m)^2 - p C p) / (strength + 1) + p C p, p the mean row,
    # whose first part is the surprise. diag C and p C p are linear in d.
    next_inverse = average("sat,tu->sau", transition, inverse)
    diagonal = average("sat,tu->sau", transition, inverse**2)
    quadratic = next_inverse**2
    scale = 1 / (strength + 1)
    next_v = next_mean(transition, mean_v)
    known = scale * next_variance(transition, mean_v, next_v, ending)
    # A variance too; [S, A, S], to be multiplied by d.
    within = diagonal - quadratic
    unknown = scale[..., None] * with_derivative_of(within, jnp.maximum(within, 0.0))

    # d = base + gain d. `gain` is nilpotent if nothing is visited twice.
    weight = policy**2
    base = (weight * (reward_variance + discount**2 * known)).sum(-1)
    gain = discount**2 * average("sa,sau->su", weight, unknown)
    surprises = linear.solve(gain, base[:, None], 1.0)
    surprise = surprises.x[:, 0]

    local_q = known + average("sau,u->sa", unknown, surprise)
    covariance = average("su,u,tu->st", inverse, surprise, inverse)
    # Coming back to s, the policy meets the surprise of (s, a) again; zero without cycles.
    state = jnp.arange(num_states)
    again = 2 * discount * policy * next_inverse[state, :, state]
    q = (1 + again) * (reward_variance + discount**2 * local_q)
    q = q + discount**2 * average("sau,u->sa", quadratic, surprise)
    return Moments(
        v=jnp.diagonal(covariance),
        q=q,
        local_v=(weight * local_q).sum(-1),
        local_q=local_q,
        mean_v=mean_v,
        mean_q=reward + discount * next_v,
        covariance=covariance,
        residual=jnp.maximum(bellman.residual, surprises.residual),
        condition=jnp.maximum(bellman.condition, surprises.condition),
    )


def _mean_rows(concentration: jax.Array, strength: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean transition `[S, A, S]`, and the probability `[S, A]` of the end, however small."""
    mean = concentration / strength[..., None]
    return mean[..., :-1], mean[..., -1]


class ActionMoments(NamedTuple):
    """The part of `Moments` that planning needs, under a deterministic policy."""

    q: jax.Array  # [S, A] variance of Q
    local_q: jax.Array  # [S, A] as in `Moments`
    condition: jax.Array  # [] as in `Moments`


def solve_moments_of_actions(
    posterior: Posterior, likely: _likely_paths.Likely | None, policy: jax.Array, discount: float
) -> ActionMoments:
    """`solve_moments` for a deterministic policy, in a third of the operations.

    Only the rows of the policy's actions have a part in the values, so that discount * P Z = Z - I
    replaces a product of matrices, and the surprises are found without forming their system. Where
    the problem is deterministic and its prior is even, all inverses and products follow paths.

    Args:
        posterior: a `Posterior`, as for `solve_moments`.
        likely: `[S, A]` each, of the mean transition; None to follow no paths.
        policy: `[S]` actions.
        discount: in [0, 1).

    Returns:
        `ActionMoments`. Takes (8 / 3 + 2 (A - 1)) S^3 operations, on paths S^2 log S.

    Raises:
        ValueError: for a support; nothing else is checked.
    """
    _check_dense(posterior)
    num_states, num_actions = posterior.reward_mean.shape
    state = jnp.arange(num_states)
    strength = posterior.concentration.sum(-1)
    transition, ending = _mean_rows(posterior.concentration, strength)
    reward_variance, scale = 1 / posterior.reward_precision, 1 / (strength + 1)
    others = (policy[:, None] + jnp.arange(1, num_actions)[None]) % num_actions  # [S, A-1]
    pairs = state[:, None], others
    inverse, next_of_others = _fundamental(transition, likely, (state, policy), pairs, discount)
    flow = transition[state, policy]
    next_inverse = (
        (inverse - jnp.eye(num_states, dtype=flow.dtype)) / discount if discount else flow
    )
    square, next_square = inverse**2, next_inverse**2
    rhs = jnp.stack([posterior.reward_mean[state, policy], jnp.ones(num_states, flow.dtype)])
    mean_v, steps = average("st,nt->ns", inverse, rhs)
    known = scale * next_variance(transition, mean_v, next_mean(transition, mean_v), ending)

    base = (reward_variance + discount**2 * known)[state, policy]
    weight = discount**2 * scale[state, policy]
    solve = _surprises_by_lu if likely is None else _surprises
    surprise, growth = solve(flow, square, next_square, weight, base)

    quadratic = (
        jnp.zeros_like(known).at[state, policy].set(average("su,u->s", next_square, surprise))
    )
    quadratic = quadratic.at[pairs].set(average("sau,u->sa", next_of_others**2, surprise))
    spread = next_mean(transition, average("su,u->s", square, surprise)) - quadratic
    local_q = known + scale * jnp.maximum(spread, 0.0)
    again = jnp.zeros_like(known).at[state, policy].set(2 * discount * jnp.diagonal(next_inverse))
    q = (1 + again) * (reward_variance + discount**2 * local_q) + discount**2 * quadratic
    both = jnp.stack([steps, growth])
    condition = jnp.where(jnp.all(both > linear.LEAST_STEPS), jnp.max(both), jnp.inf)
    return ActionMoments(q, local_q, condition)


def _fundamental(transition, likely, chosen, others, discount):
    """Z `[S, S]`, and mean P Z `[S, A-1, S]` for the pairs that were not chosen."""

    def by_products(_):
        flow = transition[chosen]
        inverse = linear.solve(flow, jnp.eye(len(flow), dtype=flow.dtype), discount).x
        return inverse, average("sat,tu->sau", transition[others], inverse)

    if likely is None:
        return by_products(None)
    of = lambda pairs: jax.tree.map(lambda x: x[pairs], likely)
    inverse, error = _likely_paths.inverse(of(chosen), discount)
    is_whole = _likely_paths.is_rounding(jnp.maximum(error, jnp.max(likely.unexplained)))
    by_paths = inverse, _likely_paths.next_rows(of(others), inverse)
    return _control.apply_if(~is_whole, by_products, by_paths)


def _surprises(flow, square, next_square, weight, base):
    """d of d = base + gain d `[S]`, and the same for a base of 1: how surprises grow in cycles."""
    both = jnp.stack([base, jnp.ones_like(base)])

    def without_gain(x):
        within = average("st,nt->ns", flow, average("st,nt->ns", square, x))
        return x - weight * (within - average("st,nt->ns", next_square, x))

    tolerance = 10 * float(jnp.finfo(base.dtype).eps)
    x, residual, _ = _bicgstab.solve(
        without_gain, both, both, tolerance=tolerance, max_iterations=_MAX_ITERATIONS
    )
    is_open = _bicgstab.is_open(x, residual, _bicgstab.norm(both), tolerance)
    by_lu = lambda _: _surprises_by_lu(flow, square, next_square, weight, base)
    return _control.apply_if(is_open, by_lu, x)


def _surprises_by_lu(flow, square, next_square, weight, base):
    """The same, `[2, S]`, from the system itself."""
    within = jnp.maximum(average("st,tu->su", flow, square) - next_square, 0.0)
    system = jnp.eye(len(base), dtype=base.dtype) - weight[:, None] * within
    return _lu.solve(system, jnp.stack([base, jnp.ones_like(base)], -1)).T
