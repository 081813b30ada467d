"""How the variance U of Q is estimated: one function per method, and the table of methods.

`METHODS` is Algorithm 1's `qvariance` (line 4) for the deep agent. A method of one's own is a
`Method` in a module of one's own, and `Config(method="MODULE:NAME")` names it.

Variances over members divide by N - 1, so that few members do not look certain; one member
alone has variance 0. Axes: N members, B batch, J actions per next state.
"""

import types
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qusac_jax import _importing

# A thousandth of a standard deviation, squared: about the least that members of a good model differ
# by. In units of the deviation, all U would be far below 1, and the U-net's errors where little is
# known, which the UBE multiplies by about fifty, would exceed U where much is known.
_DISAGREEMENT_UNIT = 1e-6

# In standard deviations: members that agree to within this need not learn more. As they predict no
# more noise than the errors that they still make, they would otherwise disagree by a fixed share of
# it however well a region is known, and the path there would promise more than what is new at its
# end.
_NEGLIGIBLE_NOISE = 0.03


class Values(NamedTuple):
    """What is known about B pairs (s, a), for a method to read its uncertainty off."""

    # For methods that do not ask the model; None for the others.
    q: jax.Array | None = None  # [N, B] value of each critic group at (s, a)
    # For methods that ask each member of the model what it expects; None for the others.
    # [groups, N, J, B], as for `gap`, one group on shared data; 0 where a member expects an end.
    next_q: jax.Array | None = None
    reward: jax.Array | None = None  # [N, B] mean rewards
    change: jax.Array | None = None  # [N, B, O] mean changes of the observation, in units of D's
    noise: jax.Array | None = None  # [N, B, O] their standard deviations, of each member's Gaussian


class Method(NamedTuple):
    """A way to estimate U(s, a) `[B]` from `Values`.

    At most one of `local` and `direct` is there; with neither, U is 0.
    """

    # What a UBE propagates, and a U-net learns to: γ² times the local uncertainty, plus the
    # variance of the reward where that is not part of it. Of `Values` and γ.
    local: Callable[[Values, float], jax.Array] | None = None
    direct: Callable[[Values], jax.Array] | None = None  # U itself, differentiable
    min_groups: int = 1  # critic groups that it takes to disagree
    min_models: int = 0  # members of the model that it takes to disagree
    reads_next_values: bool = False  # of the critics, at what each member expects
    compares_actions: bool = False  # whether it needs several actions per next state
    is_of_values: bool = True  # whether U is a variance of values, in squared units of the return
    # Of U, for the U-net, whose symlog tells values above 1 apart by their ratio and values below
    # by their difference.
    unit: float = 1.0

    @property
    def estimates_u(self) -> bool:
        """Whether U is anything but 0."""
        return self.local is not None or self.direct is not None

    @property
    def asks_model(self) -> bool:
        """Whether it reads what each member of the model expects to come next."""
        return self.min_models > 0


def member_variance(x: jax.Array) -> jax.Array:
    """Unbiased variance over the leading member axis, `[N, ...] -> [...]`."""
    return jnp.var(x, axis=0, ddof=min(1, x.shape[0] - 1))


def ensemble_var(q: jax.Array) -> jax.Array:
    """Variance of the critics at (s, a), eq. (12), modified_rewards.

    The whole estimate of U for `ensemble_var`, and the local uncertainty w_ub that
    `upper_bound` propagates.

    Args:
        q: `[N, B]` members' values.

    Returns:
        `[B]`, at least 0.
    """
    return member_variance(q)


def pombu(next_q_mean: jax.Array) -> jax.Array:
    """Variance over members of the next step's mean value: ŵ, for w of eq. (4), pombu_rewards.

    The paper's equation (11), which has no label, before modified_rewards.

    Args:
        next_q_mean: `[N, B]` mean over the critics of Q(s'_i, a'_i), with s'_i the mean prediction
            of member i and a'_i drawn from the policy.

    Returns:
        `[B]`, at least 0.
    """
    return member_variance(next_q_mean)


def gap(next_q: jax.Array) -> jax.Array:
    """Aleatoric variance that pombu mistakes for epistemic, g of Theorem 2 (appendix B.3).

    E_i[Var_a'(Q_i(s'_i, a') - mean_j Q_j(s'_i, a'))], with the variance over actions drawn from
    the policy at member i's next state.

    Args:
        next_q: `[N, N, J, B]`: critic i's value, leading, of J actions at member j's next state.

    Returns:
        `[B]`, at least 0.
    """
    difference = next_q - jnp.mean(next_q, axis=0)
    own = jnp.diagonal(difference, axis1=0, axis2=1)  # [J, B, N]
    return jnp.mean(jnp.var(own, axis=0, ddof=1), axis=-1)


def exact_ube(next_q: jax.Array) -> jax.Array:
    """Local uncertainty whose propagation gives the posterior variance, u of Theorem 1.

    w - g in the words of Theorem 2 and appendix B.3; equal to u of eq. (7), bellman_exact_reward.
    Clipped at 0, as the U-net represents variances only.

    Args:
        next_q: `[N, N, J, B]` as for `gap`; w's expectation over actions is the mean over J.

    Returns:
        `[B]`, at least 0.
    """
    mean_at_own_state = jnp.mean(next_q, axis=(0, 2))  # [N, B]
    return jnp.maximum(pombu(mean_at_own_state) - gap(next_q), 0.0)


def disagreement(change: jax.Array) -> jax.Array:
    """Variance over members of the next observation that they expect, mean over its components.

    Counts what the model does not know, whether or not it matters for rewards, as SOMBRL
    (Sukhija et al., 2025) and OpAX (2023) do; the paper has no such method. A component counts for
    at most 1, the variance of the changes in D themselves: no more than that can be unknown, even
    where no member has any idea. Without that limit, rollouts far outside D make U 10,000 times as
    large, and nothing else is learned.

    Args:
        change: `[N, B, O]` expected s' - s of each member, in deviations of those in D.

    Returns:
        `[B]`, in [0, 1].
    """
    return jnp.mean(jnp.minimum(member_variance(change), 1.0), axis=-1)


def information_gain(change: jax.Array, noise: jax.Array) -> jax.Array:
    """What a transition would tell about the dynamics, in nats: mean over its components.

    1/2 log(1 + epistemic variance / aleatoric variance), the bound of OpAX (Sukhija et al., 2023);
    the paper has no such method. The variance over members is compared with the noise that they
    predict. What no model can get right, such as a cart that hits the end of its rail, they take
    for noise: however much they disagree there, little can be learned. A small constant is added to
    the noise: where a change is known to much better than 3 % of a standard deviation, little can
    be learned, too.

    Args:
        change: `[N, B, O]` expected s' - s of each member, in deviations of those in D.
        noise: `[N, B, O]` its standard deviation by each member, in the same.

    Returns:
        `[B]`, at least 0.
    """
    aleatoric = jnp.mean(jnp.square(noise), axis=0) + _NEGLIGIBLE_NOISE**2
    return 0.5 * jnp.mean(jnp.log1p(member_variance(change) / aleatoric), axis=-1)


def _propagated_upper_bound(values: Values, discount: float) -> jax.Array:
    """γ² times w_ub of eq. (12), modified_rewards; the critics' variance contains the rewards'."""
    return discount**2 * ensemble_var(_given(values.q))


def _propagated_pombu(values: Values, discount: float) -> jax.Array:
    """Variance of the rewards (appendix B.1) plus γ² times ŵ of eq. (11), w-hat."""
    local = pombu(jnp.mean(_given(values.next_q), axis=0)[:, 0])
    return member_variance(_given(values.reward)) + discount**2 * local


def _propagated_exact_ube(values: Values, discount: float) -> jax.Array:
    """Variance of the rewards (appendix B.1) plus γ² u of eq. (7), bellman_exact_reward."""
    local = exact_ube(_given(values.next_q))
    return member_variance(_given(values.reward)) + discount**2 * local


def _propagated_disagreement(values: Values, discount: float) -> jax.Array:
    """The disagreement in place of γ² times a local uncertainty: no value is looked ahead to."""
    del discount
    return disagreement(_given(values.change))


def _propagated_information_gain(values: Values, discount: float) -> jax.Array:
    """The information gain, likewise."""
    del discount
    return information_gain(_given(values.change), _given(values.noise))


def _critics_variance(values: Values) -> jax.Array:
    """The critics' variance itself, as an estimate of U."""
    return ensemble_var(_given(values.q))


def _given(x: jax.Array | None) -> jax.Array:
    if x is None:
        raise ValueError("the method reads values that were not computed for it; see `Method`")
    return x


METHODS: Mapping[str, Method] = types.MappingProxyType(
    {
        "ensemble_mean": Method(),
        "ensemble_var": Method(direct=_critics_variance, min_groups=2),
        "upper_bound": Method(local=_propagated_upper_bound, min_groups=2),
        "pombu": Method(local=_propagated_pombu, min_models=2, reads_next_values=True),
        "exact_ube": Method(
            local=_propagated_exact_ube,
            min_groups=2,
            min_models=2,
            reads_next_values=True,
            compares_actions=True,
        ),
        "disagreement": Method(
            local=_propagated_disagreement,
            min_models=2,
            is_of_values=False,
            unit=_DISAGREEMENT_UNIT,
        ),
        "information_gain": Method(
            local=_propagated_information_gain, min_models=2, is_of_values=False
        ),
    }
)


def find(name: str, what: str = "method") -> Method:
    """The method of this name.

    Args:
        name: a key of `METHODS`, or `MODULE:NAME` of a `Method` elsewhere, which imports, and so
            executes, that module.
        what: the argument that it was given for, for the message.

    Raises:
        ValueError: if there is none.
    """
    is_one = lambda value: isinstance(value, Method)
    return _importing.find(name, what, METHODS, kind="qusac.uncertainty.Method", is_one=is_one)
