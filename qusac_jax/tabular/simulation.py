"""An environment on the device: episodes acted in it, and exact expected returns.

Axes: P policies, S states, A actions, K successors, T steps of an episode at most.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import _sparse_products, posterior
from qusac_jax._checks import ROW_TOLERANCE, check_key
from qusac_jax._problem_checks import check_actions
from qusac_jax.sparse import Sparse
from qusac_jax.tabular.environment import Environment


class DeviceEnvironment(NamedTuple):
    """The arrays of an environment on the device, with what drawing from them takes."""

    cumulative: jax.Array  # [S, A, S], or [S, A, K] if sparse: cumulative transition rows
    transition: jax.Array | Sparse  # [S, A, S], or of K successors if sparse
    reward: jax.Array  # [S, A]
    reward_std: jax.Array  # [S, A]
    noise_precision: jax.Array  # [] that agents assume
    cumulative_start: jax.Array  # [S]
    start: jax.Array  # [S]


def to_device(environment: Environment) -> DeviceEnvironment:
    """Puts an environment's arrays on the device, in float32."""
    put = lambda x: jnp.asarray(x, jnp.float32)
    given, reward_std = environment.transition, environment.reward_std
    if isinstance(given, Sparse):
        rows = given.probability
        transition = Sparse(jnp.asarray(given.next_state), put(rows))
    else:
        rows, transition = given, put(given)
    return DeviceEnvironment(
        cumulative=put(np.cumsum(rows, -1)),
        transition=transition,
        reward=put(environment.reward),
        reward_std=put(0 * environment.reward if reward_std is None else reward_std),
        noise_precision=put(environment.noise_precision),
        cumulative_start=put(np.cumsum(environment.start)),
        start=put(environment.start),
    )


def act(
    environment: DeviceEnvironment, policy: jax.Array, key: chex.PRNGKey, *, episode_length: int
) -> tuple[posterior.Transitions, jax.Array]:
    """Plays one episode.

    Args:
        environment: on the device.
        policy: `[S]` actions.
        key: consumed.
        episode_length: T.

    Returns:
        The transitions `[T]`, whose next state is S where the episode terminated (not where it was
        truncated after T steps), and `[T]` whether the step took place.

    Raises:
        ValueError: if the policy does not fit, or the key is none.
    """
    check_key(key)
    num_states, num_actions = environment.reward.shape
    policy = check_actions(policy, num_states, num_actions)
    key_start, key_steps, key_noise = jax.random.split(key, 3)
    first = _draw(environment.cumulative_start, jax.random.uniform(key_start))

    def step(state, uniform):
        is_running = state < num_states
        valid_state = jnp.minimum(state, num_states - 1)
        action = policy[valid_state]
        next_state = _draw(environment.cumulative[valid_state, action], uniform)
        if isinstance(environment.transition, Sparse):
            successors = environment.transition.next_state[valid_state, action]
            next_state = jnp.append(successors, num_states)[next_state]
        reward = environment.reward[valid_state, action]
        observed = (valid_state, action, reward, next_state)
        next_state = jnp.where(is_running, next_state, num_states)
        return next_state, (posterior.Transitions(*observed), is_running)

    uniforms = jax.random.uniform(key_steps, (episode_length,))
    transitions, happened = jax.lax.scan(step, first, uniforms)[1]
    noise = jax.random.normal(key_noise, (episode_length,))
    noise *= environment.reward_std[transitions.state, transitions.action]
    return transitions._replace(reward=transitions.reward + noise), happened


def _draw(cumulative, uniform):
    """Index of the outcome; the number of outcomes where the missing mass was drawn."""
    # Rounding must not make mass go missing where none is.
    is_whole = cumulative[-1] > 1 - ROW_TOLERANCE
    threshold = jnp.where(is_whole, uniform * cumulative[-1], uniform)
    last = jnp.where(is_whole, len(cumulative) - 1, len(cumulative))
    return jnp.minimum(jnp.sum(cumulative <= threshold), last).astype(jnp.int32)


def expected_return(
    environment: DeviceEnvironment, policies: jax.Array, *, episode_length: int
) -> jax.Array:
    """Exact expected undiscounted returns `[P]` of policies `[P, S]`.

    If dense, one matrix product per step for all policies: taken one by one, each would need its
    own copy of the transitions. If sparse, one policy after another.

    Raises:
        ValueError: if the policies do not fit.
    """
    policies = check_actions(policies, *environment.reward.shape, are_several=True)
    if isinstance(environment.transition, Sparse):
        return _sparse_expected_return(environment, policies, episode_length)
    choice = policies.T[:, None]

    def back(_, value):
        next_value = jnp.einsum("sat,tp->sap", environment.transition, value, precision="highest")
        return jnp.take_along_axis(environment.reward[..., None] + next_value, choice, 1)[:, 0]

    zeros = jnp.zeros(choice[:, 0].shape, environment.reward.dtype)
    value = jax.lax.fori_loop(0, episode_length, back, zeros)
    return jnp.matmul(environment.start, value, precision="highest")


def _sparse_expected_return(environment, policies, episode_length):
    state = jnp.arange(len(environment.start))

    def one(policy):
        flow = _sparse_products.chosen(environment.transition, policy)
        reward = environment.reward[state, policy]
        back = lambda _, value: reward + _sparse_products.propagate(flow, value)
        value = jax.lax.fori_loop(0, episode_length, back, 0 * reward)
        return jnp.matmul(environment.start, value, precision="highest")

    return jax.lax.map(one, policies)
