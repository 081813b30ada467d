"""Checks of what a user passes to `qusac_jax.ube`, and of what comes out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.csgraph

from qusac_jax import _sparse_products
from qusac_jax._checks import (
    ROW_TOLERANCE,
    check_discount,
    check_finite,
    check_real,
    check_scalars,
    integers,
    is_concrete,
)
from qusac_jax.sparse import Sparse

_MAX_ERROR = 1e-2  # expected relative error of values beyond which a result is refused
_ROUNDING_ERRORS = 4  # in machine epsilons and per state: what a row's sum can be off by


def check_shapes(
    transition, reward, policy=None, mean_transition=None, mean_reward=None, *, num_batch_axes: int
) -> None:
    """Raises `ValueError` unless ranks and sizes agree; works on tracers too."""
    lead = ("N",) * num_batch_axes

    def named(*axes):
        return "[" + ", ".join(axes) + "]"

    if isinstance(transition, Sparse):
        _check_sparse_shapes(transition, mean_transition, lead)
        rows, mean_shape = transition.probability.shape[:-1], None
    else:
        _check_dense_shape(transition, lead, named)
        rows, mean_shape = transition.shape[:-1], transition.shape[-3:]
        if isinstance(mean_transition, Sparse):
            raise ValueError("mean_transition must be an array, as transition is, got a Sparse")
    pair = rows[-2:]
    expected = {
        "reward": (reward, rows, named(*lead, "S", "A")),
        "policy": (policy, pair, "[S, A]"),
        "mean_reward": (mean_reward, pair, "[S, A]"),
    }
    if mean_shape is not None:
        expected["mean_transition"] = (mean_transition, mean_shape, "[S, A, S]")
    for name, (array, shape, axes) in expected.items():
        if array is not None and array.shape != shape:
            raise ValueError(
                f"{name} must have shape {axes} = {shape} to go with transition "
                f"{_shape(transition)}, got {array.shape}"
            )


def _shape(transition):
    return transition.probability.shape if isinstance(transition, Sparse) else transition.shape


def _check_dense_shape(transition, lead, named):
    rank = len(lead) + 3
    if transition.ndim != rank or transition.shape[-1] != transition.shape[-3]:
        raise ValueError(
            f"transition must have shape {named(*lead, 'S', 'A', 'S')}, got {transition.shape}"
        )
    if 0 in transition.shape:
        raise ValueError(
            f"transition must have at least one entry on each of the axes "
            f"{named(*lead, 'S', 'A', 'S')}, got {transition.shape}"
        )


def _check_sparse_shapes(transition, mean_transition, lead):
    """Raises `ValueError` unless the arrays of a `Sparse`, and of its mean, fit each other."""
    inner = (*"SAK",)
    for name, one, axes in (
        ("transition", transition, (*lead, *inner)),
        ("mean_transition", mean_transition, inner),
    ):
        if one is None:
            continue
        if not isinstance(one, Sparse):
            raise ValueError(f"{name} must be a Sparse, as transition is, got {type(one).__name__}")
        shape, own = one.probability.shape, one.next_state.shape
        if len(shape) != len(axes) or own not in (shape, shape[-3:]) or 0 in shape:
            raise ValueError(
                f"{name} must have a probability of shape [{', '.join(axes)}], no axis empty, and "
                f"a next_state of the same shape or [S, A, K], got {shape} and {own}"
            )
    pair = transition.probability.shape[-3:-1]
    if mean_transition is not None and mean_transition.probability.shape[:-1] != pair:
        raise ValueError(
            f"mean_transition must have shape [S, A, K] with [S, A] = {pair}, got "
            f"{mean_transition.probability.shape}"
        )


def check_problem(
    transition, reward, policy, discount, mean_transition=None, mean_reward=None
) -> None:
    """Raises `ValueError` unless the values make a problem that can be solved.

    For use outside `jit`. The solvers of `qusac_jax.ube` call it wherever they can.

    Args:
        transition: `[S, A, S]` or `[N, S, A, S]`, or a `Sparse`; rows of probabilities that sum to
            at most 1.
        reward: `[S, A]` or `[N, S, A]`; finite.
        policy: `[S, A]`; rows of probabilities that sum to 1.
        discount: in [0, 1]; with 1, the policy must terminate from every state.
        mean_transition: None, or one MDP's, like `transition`.
        mean_reward: None or `[S, A]`; finite.

    Raises:
        ValueError: naming the argument, its value and the remedy.
    """
    is_sparse = isinstance(transition, Sparse)
    check_real(transition=transition, reward=reward, policy=policy, discount=discount)
    means = {"mean_transition": mean_transition, "mean_reward": mean_reward}
    check_real(**{name: array for name, array in means.items() if array is not None})
    given = (transition, reward, policy, mean_transition, mean_reward)
    transition, reward, policy, mean_transition, mean_reward = arrays = list(map(_arrays, given))
    num_axes = (transition.probability if is_sparse else transition).ndim
    check_shapes(*arrays, num_batch_axes=int(num_axes > 3))
    check_scalars(discount=discount)
    check_discount(discount)
    check_policy(policy)
    for name, array in (("reward", reward), ("mean_reward", mean_reward)):
        if array is not None:
            check_finite(name, array)
    for name, array in (("transition", transition), ("mean_transition", mean_transition)):
        if array is not None:
            check_transition(array, name=name)
            if discount == 1:
                _check_terminates(array, np.asarray(policy, float), name)


def _arrays(value) -> Any:
    """Lists and numbers as arrays, also those of a `Sparse`; what has a dtype, and None, as is."""
    if isinstance(value, Sparse):
        return Sparse(*map(_arrays, value))
    return value if value is None or hasattr(value, "dtype") else np.asarray(value)


def check_transition(transition, *, name: str = "transition") -> None:
    """Raises `ValueError` unless the last axis holds probabilities that sum to at most 1.

    Of a `Sparse`, also unless its successors are what they can be.
    """
    if isinstance(transition, Sparse):
        _check_successors(transition, name)
        transition = transition.probability
    with jax.ensure_compile_time_eval():  # arrays that a jitted function closes over
        lowest, highest = float(jnp.min(transition)), float(jnp.max(jnp.sum(transition, -1)))
    if not np.isfinite(lowest + highest):
        raise ValueError(f"{name} must be finite, got NaN or infinity; remove those entries")
    if lowest < 0:
        raise ValueError(
            f"{name} must hold probabilities, got {lowest:.6g}; clip rounding errors at 0"
        )
    if highest > 1 + ROW_TOLERANCE:
        raise ValueError(
            f"{name} rows must sum to at most 1, got a row that sums to {highest:.6g}; normalize "
            "them, or leave mass out where the episode ends"
        )


def _check_successors(transition: Sparse, name: str) -> None:
    next_state = integers(f"{name}.next_state", transition.next_state)
    with jax.ensure_compile_time_eval():
        lowest, highest = int(jnp.min(next_state)), int(jnp.max(next_state))
        heaviest = 0.0
        if lowest == -1:
            heaviest = float(jnp.max(jnp.where(next_state == -1, transition.probability, 0.0)))
    if lowest < -1 or highest > transition.num_states:
        raise ValueError(
            f"{name}.next_state must be in -1 .. {transition.num_states} (-1 for no successor, S "
            f"for the terminal state), got values from {lowest} to {highest}"
        )
    if heaviest > 0:
        raise ValueError(
            f"{name}.probability must be 0 where next_state is -1, got {heaviest:.6g}; use S = "
            f"{transition.num_states} for the terminal state"
        )


def check_policy(policy) -> None:
    """Raises `ValueError` unless every row of `[S, A]` is a distribution over actions."""
    check_real(policy=policy)
    policy = np.asarray(policy)
    total = policy.sum(-1)
    worst = total[np.argmax(np.abs(total - 1))]
    # The comparisons are false for NaN.
    if not (np.all(policy >= 0) and np.abs(worst - 1) <= ROW_TOLERANCE):
        raise ValueError(
            "policy rows must be probabilities that sum to 1, got a row that sums to "
            f"{worst:.6g} and a smallest entry of {policy.min():.6g}; normalize the rows"
        )


def check_actions(
    policy, num_states: int, num_actions: int, *, are_several: bool = False
) -> jax.Array:
    """A deterministic policy, or several, as int32.

    Args:
        policy: `[S]` integers in 0 .. A-1, or `[P, S]`.
        num_states: S.
        num_actions: A.
        are_several: whether there are P of them.

    Raises:
        ValueError: unless it is one; of tracers, shape and kind count.
    """
    actions = integers("policy", policy)
    wanted = f"[P, S] = (P, {num_states})" if are_several else f"[S] = ({num_states},)"
    if actions.ndim != 1 + are_several or actions.shape[-1] != num_states:
        raise ValueError(
            f"policy must hold an action for each state, shape {wanted}, got {actions.shape}"
        )
    if is_concrete(actions) and actions.size:
        with jax.ensure_compile_time_eval():
            least, most = int(jnp.min(actions)), int(jnp.max(actions))
        if least < 0 or most >= num_actions:
            raise ValueError(
                f"policy must be in 0 .. {num_actions - 1}, got values from {least} to {most}"
            )
    return actions


def _check_terminates(transition, policy: np.ndarray, name: str) -> None:
    """Raises unless from each state a positive probability leads out of the MDP."""
    given = transition.probability if isinstance(transition, Sparse) else transition
    dtype = given.dtype if jnp.issubdtype(given.dtype, jnp.floating) else np.dtype(float)
    for flow in _flows(transition, policy):
        # Slow termination is for `check_result`, which knows the condition number.
        num_states = len(policy)
        eps = max(float(jnp.finfo(x).eps) for x in (dtype, flow.dtype))  # JAX may have rounded it
        rounding = min(ROW_TOLERANCE, _ROUNDING_ERRORS * num_states * eps)
        ends = np.asarray(flow.sum(-1)).ravel() < 1 - rounding
        # A search from the outside, against the transitions.
        outside = scipy.sparse.csr_matrix(ends.astype(flow.dtype))
        both = [[flow.T, None], [outside, np.zeros((1, 1))]]
        backwards = scipy.sparse.csr_matrix(scipy.sparse.bmat(both))
        backwards.eliminate_zeros()  # they would be edges
        reached = scipy.sparse.csgraph.breadth_first_order(
            backwards, num_states, return_predecessors=False
        )
        ends = np.isin(np.arange(num_states), reached)
        if not ends.all():
            raise ValueError(
                f"discount = 1 needs a policy that terminates from every state, but in {name} "
                f"{int((~ends).sum())} states never reach termination, for example state "
                f"{int(np.argmin(ends))}; lower discount below 1, or leave mass out of the rows "
                "where the episode ends"
            )


def _flows(transition, policy: np.ndarray):
    """Matrices `[S, S]` of each member's transitions under a policy."""
    if not isinstance(transition, Sparse):
        transition = np.asarray(transition)
        for member in transition.reshape(-1, *transition.shape[-3:]):
            yield scipy.sparse.csr_matrix(np.einsum("sat,sa->st", member, policy))
        return
    next_state, probability = map(np.asarray, transition)
    for i, member in enumerate(probability.reshape(-1, *probability.shape[-3:])):
        own = next_state if next_state.ndim == 3 else next_state[i]
        with jax.ensure_compile_time_eval():  # the arrays may be constants of a traced function
            flow = _sparse_products.under(Sparse(own, member), jnp.asarray(policy))
        yield _sparse_products.to_scipy(flow)


def check_result(result) -> None:
    """Raises `ValueError` if a result of `qusac_jax.ube` is not to be trusted.

    For use outside `jit`, on what came out of it.

    Args:
        result: anything with `residual` and `condition`. The relative error to be expected of V
            and Q is the machine epsilon of its dtype times `condition`; more than 1 % is refused.
            Sparse systems, which are solved up to a tolerance, lose more: errors up to nine times
            as large were seen. So do the forms "total" and "gap" of `solve_exact` where variances
            are small beside the squared values: they may be wrong altogether.

    Raises:
        ValueError: naming the numbers and the remedy.
    """
    condition = np.asarray(result.condition)
    error = np.max(np.finfo(condition.dtype).eps * condition)
    finite = all(np.all(np.isfinite(np.asarray(field))) for field in result)
    if not finite or error > _MAX_ERROR:
        raise ValueError(
            "the Bellman system is singular or ill-conditioned, was not solved, or holds NaN or "
            "infinity: "
            f"condition = {np.max(condition):.3g} expected discounted steps, residual = "
            f"{np.max(np.asarray(result.residual)):.3g}, dtype = {condition.dtype}; lower "
            "discount, make sure that the policy terminates and that the input is finite, or use "
            "float64"
        )
