"""The members' network: a Gaussian over what comes next, and how sure an episode is to end.

`qusac_jax.qusac.dynamics` holds its weights and scales what goes in. Axes: N members, B batch, O
observation size, A action size.
"""

from collections.abc import Sequence

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from qusac_jax.qusac import layers, networks

# Of the weights of random reward functions. The larger, the rougher the functions, and the more of
# them is left where there are data: docs/results/deep_decisions.md compares 2, 3 and 5.
_PRIOR_GAIN = 2.0
_PRIOR_HIDDEN = (64, 64)
# The part of the dynamics that learns when an episode ends.
_TERMINATION, _TERMINATION_HIDDEN = "termination", (64, 64)
# Soft bounds of the members' log variances. Learned bounds, which the loss of Chua et al. (2018)
# draws together, meet where most noise is alike, and no other noise can be expected then.
_MIN_LOG_VAR, _MAX_LOG_VAR = -10.0, 0.5


class DynamicsNetwork(nn.Module):
    """N Gaussian models of (s' - s, r) given (s, a).

    With `reward_prior_scale` > 0 every member's mean reward has a random function of its own added
    to it, which is never trained (Osband et al., 2018, "Randomized Prior Functions for Deep
    Reinforcement Learning"). What is trained has to take it away again and does so where there are
    data; elsewhere the members disagree, as draws from a posterior over rewards would. The standard
    deviation over members is 0.4 of the scale for inputs of norm 1 and 0.8 for large ones. The
    function is fixed in scaled inputs: where a fit changes their scale, it moves with the data.

    With `learn_termination` there are weights for `termination_logits`, too.
    """

    hidden: tuple[int, ...]
    observation_size: int
    num_members: int
    init_scale: float = 2.0
    reward_prior_scale: float = 0.0
    learn_termination: bool = False

    @nn.compact
    def __call__(self, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`[B, O + A]` or `[N, B, O + A]` -> mean and log variance, `[N, B, O + 1]` each."""
        size = self.observation_size + 1
        stack = (self.num_members,)
        output = layers.MLP(
            self.hidden,
            2 * size,
            stack,
            activation=nn.silu,
            kernel_init=_truncated_normal(self.init_scale),
            # Its errors are far below the rounding of the reduced precision that accelerators
            # default to. The other networks' are not, and they keep the default.
            precision="highest",
        )(inputs)
        mean, raw = jnp.split(output, 2, axis=-1)
        if self.reward_prior_scale:
            prior = layers.MLP(
                _PRIOR_HIDDEN,
                1,
                stack,
                kernel_init=layers.orthogonal(_PRIOR_GAIN),
                precision="highest",
                name="reward_prior",
            )(inputs)
            prior = jax.lax.stop_gradient(self.reward_prior_scale / _PRIOR_GAIN * prior)
            mean = mean.at[..., -1:].add(prior)
        if self.learn_termination and self.is_initializing():
            next_observation = inputs[..., : self.observation_size]
            _termination_head(self.num_members, _TERMINATION)(
                jnp.concatenate([inputs, next_observation], axis=-1)
            )
        # Extrapolated variances stay reasonable.
        raw = _MAX_LOG_VAR - jax.nn.softplus(_MAX_LOG_VAR - raw)
        return mean, _MIN_LOG_VAR + jax.nn.softplus(raw - _MIN_LOG_VAR)


def _termination_head(num_members: int, name: str | None = None) -> layers.MLP:
    return layers.MLP(
        _TERMINATION_HIDDEN, 1, (num_members,), nn.silu, precision="highest", name=name
    )


def termination_logits(
    model: DynamicsNetwork, params: networks.Params, inputs: jax.Array
) -> jax.Array:
    """How sure each member is that an episode ends, as log odds.

    Args:
        model: with `learn_termination`.
        params: its parameters.
        inputs: `[B, O + A + O]` or `[N, B, O + A + O]`: s, a and s', scaled.

    Returns:
        `[N, B]`.
    """
    head = {"params": params["params"][_TERMINATION]}
    return networks.apply(_termination_head(model.num_members), head, inputs)[..., 0]


def _truncated_normal(scale: float) -> nn.initializers.Initializer:
    """A normal with standard deviation scale / (2 sqrt(fan_in)), cut off at twice that."""

    def init(key: chex.PRNGKey, shape: Sequence[int], dtype=jnp.float32) -> jax.Array:
        std = scale / (2.0 * jnp.sqrt(shape[0]))
        return std * jax.random.truncated_normal(key, -2.0, 2.0, tuple(shape), dtype)

    return init
