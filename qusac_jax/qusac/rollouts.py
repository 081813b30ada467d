"""k-step model rollouts, member-consistent and member-randomized (Algorithm 2, line 8).

Axes: N members, B rollouts per member, K rollout length, O observation size, A action size.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from qusac_jax.qusac import dynamics as dynamics_lib
from qusac_jax.qusac import multistep, replay
from qusac_jax.qusac.dynamics_network import DynamicsNetwork
from qusac_jax.qusac.penalties import Penalty
from qusac_jax.qusac.starts import Starts
from qusac_jax.task import TerminationFn, Transition

Policy = Callable[[jax.Array, chex.PRNGKey], jax.Array]
# Of rollouts `[K, N, B, ...]`: with what a U-net learns of the steps that follow.
LookAhead = Callable[[Transition, chex.PRNGKey], multistep.Ahead]
ModelData = replay.Buffer[Transition] | replay.Buffer[multistep.Ahead]

# Rollouts that advance together: enough to fill matrix units, few enough to stay in a CPU's cache.
CHUNK = 2_000


def rollout(
    model: DynamicsNetwork,
    dynamics: dynamics_lib.Dynamics,
    policy: Policy,
    termination: TerminationFn,
    start: jax.Array,
    key: chex.PRNGKey,
    *,
    length: int,
    randomize_members: bool,
    random_first_actions: float = 0.0,
    penalty: Penalty | None = None,
) -> tuple[Transition, jax.Array]:
    """Rolls the policy through the learned dynamics, sampling next states and rewards.

    Member-consistent rollouts stay with the member they start with. Member-randomized ones are
    assigned anew at every step: a random permutation gives each member the same number, so every
    rollout meets a uniformly drawn member without any prediction being made and thrown away.
    Either way a rollout keeps its place `[:, n, b]`.

    Args:
        model: the dynamics module.
        dynamics: its weights.
        policy: `(observation [N, B, O], key) -> action [N, B, A]`.
        termination: `(observation, action, next_observation) -> done`, over leading axes.
        start: `[N, B, O]` first observations.
        key: consumed.
        length: K.
        randomize_members: True for member-randomized rollouts, False for member-consistent ones.
        random_first_actions: share of the rollouts that take a uniform action first, in [0, 1].
        penalty: subtracted from the rewards; a function of all members' predictions at a pair.
            None: no penalty.

    Returns:
        Transitions `[K, N, B, ...]` and a mask `[K, N, B]`, false after a predicted termination.
    """

    num_members, per_member, observation_size = start.shape
    num_rollouts = num_members * per_member
    first_action = None
    if random_first_actions:
        key, key_first = jax.random.split(key)
        action_size = jax.eval_shape(policy, start, key).shape[-1]
        shape = (*start.shape[:-1], action_size)
        first_action = _first_actions(key_first, random_first_actions, shape)

    def step(carry: tuple[jax.Array, jax.Array], now: tuple[jax.Array, _Draws]):
        observation, alive = carry
        is_first_step, draws = now
        action = policy(observation, draws.key_action)
        if first_action is not None:
            is_random, uniform = first_action
            action = jnp.where(is_first_step & is_random, uniform, action)
        mean, std = dynamics_lib.predict(
            model, dynamics, *_placed((observation, action), draws.order)
        )
        mean, std = _placed((mean, std), draws.inverse)
        drawn = mean + std * draws.noise.reshape(mean.shape)
        # Before it is clipped: D may never have been where episodes end.
        done = termination(observation, action, drawn[..., :-1])
        drawn = dynamics_lib.clip(dynamics, drawn)
        next_observation, reward = drawn[..., :-1], drawn[..., -1]
        if penalty is not None:
            flat = lambda x: x.reshape(-1, x.shape[-1])
            # Every member at every pair, whoever rolls it out: [N, N B, O + 1].
            all_members = dynamics_lib.predict(model, dynamics, flat(observation), flat(action))
            reward -= penalty(*all_members).reshape(reward.shape)
        transition = Transition(observation, action, reward, next_observation, done)
        return (next_observation, alive & ~done), (transition, alive)

    alive = jnp.ones(start.shape[:-1], bool)
    draw = functools.partial(
        _draw,
        num_rollouts=num_rollouts,
        num_outputs=observation_size + 1,
        randomize_members=randomize_members,
    )
    draws = jax.vmap(draw)(jax.random.split(key, length))
    steps = jnp.arange(length) == 0, draws
    _, (transitions, mask) = jax.lax.scan(step, (start, alive), steps)
    return transitions, mask


class _Draws(NamedTuple):
    """What a step of N B rollouts takes from chance."""

    key_action: chex.PRNGKey
    noise: jax.Array  # [N * B * (O + 1)] standard normal
    order: jax.Array | None  # [N * B] which rollout each place is given; None where all stay
    inverse: jax.Array | None  # [N * B] the place that each rollout is given


def _placed(arrays: tuple[jax.Array, ...], order: jax.Array | None) -> tuple[jax.Array, ...]:
    """Each `[N, B, ...]` with the rollout `order[i]` at place i of the N B."""
    if order is None:
        return arrays
    return tuple(x.reshape(order.size, -1)[order].reshape(x.shape) for x in arrays)


def _first_actions(
    key: chex.PRNGKey, share: float, shape: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    """Which rollouts take a random action first, `[N, B, 1]`, and uniform ones `[N, B, A]`."""
    key_which, key_action = jax.random.split(key)
    which = jax.random.bernoulli(key_which, share, (*shape[:-1], 1))
    return which, jax.random.uniform(key_action, shape, jnp.float32, -1.0, 1.0)


def _draw(
    key: chex.PRNGKey,
    *,
    num_rollouts: int,
    num_outputs: int,
    randomize_members: bool,
) -> _Draws:
    """Of one step. For all steps before the first, and flat: XLA on CPU is five times as fast."""
    key_action, key_noise, key_order = jax.random.split(key, 3)
    order = inverse = None
    if randomize_members:
        order = jax.random.permutation(key_order, num_rollouts)
        inverse = jnp.argsort(order)
    noise = jax.random.normal(key_noise, (num_rollouts * num_outputs,), jnp.float32)
    return _Draws(key_action, noise, order, inverse)


def num_chunks(num_rollouts: int, num_members: int) -> tuple[int, int]:
    """Into how many chunks, of how many rollouts each, `num_rollouts` are cut.

    Every chunk has as many for each member; the total is `num_rollouts`, rounded up to that.
    """
    chunks = -(-num_rollouts // CHUNK)
    per_member = -(-num_rollouts // (chunks * num_members))
    return chunks, per_member * num_members


def refill(
    roll_out: Callable[..., tuple[Transition, jax.Array]],
    starts: Starts,
    model_data: ModelData,
    member_data: replay.Buffer[multistep.Steps] | None,
    key: chex.PRNGKey,
    *,
    num_members: int,
    num_rollouts: int,
    critic_steps: int,
    discount: float,
    look_ahead: LookAhead | None = None,
) -> tuple[ModelData, replay.Buffer[multistep.Steps] | None]:
    """Adds new rollouts to D_model and to D_1..D_N.

    Args:
        roll_out: `(start [N, B, O], key, randomize_members=...)`, `rollout` with all else given.
        starts: where they start, of `qusac_jax.qusac.starts`.
        model_data: D_model, receives member-randomized rollouts, `num_rollouts` rounded up by
            `num_chunks`.
        member_data: D_1..D_N with leaves `[N, ...]`, each receives as many member-consistent ones;
            None where nobody reads them.
        key: consumed.
        num_members: N.
        num_rollouts: made at once, see `state.num_rollouts`.
        critic_steps: the most steps that D_1..D_N take as one.
        discount: γ, of these.
        look_ahead: what D_model holds of a rollout, for a U-net that looks several steps ahead;
            None for its transitions.

    Returns:
        The two buffers.
    """
    chunks, size = num_chunks(num_rollouts, num_members)

    def rolled(key: chex.PRNGKey, per_member: int, randomize: bool) -> Any:
        key_start, key_roll = jax.random.split(key)
        start = starts(key_start, num_members * per_member).reshape(num_members, per_member, -1)
        return roll_out(start, key_roll, randomize_members=randomize)

    def chunk(carry, key: chex.PRNGKey):
        model_data, member_data = carry
        key_randomized, key_consistent, key_ahead = jax.random.split(key, 3)
        transitions, mask = rolled(key_randomized, size // num_members, True)
        stored = transitions if look_ahead is None else look_ahead(transitions, key_ahead)
        model_data = replay.add(model_data, *jax.tree.map(_flat_steps(3), (stored, mask)))
        if member_data is not None:
            transitions, mask = rolled(key_consistent, size, False)
            steps = multistep.along(transitions, critic_steps, discount)
            by_member = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (steps, mask))
            flat = jax.tree.map(jax.vmap(_flat_steps(2)), by_member)
            member_data = jax.vmap(replay.add)(member_data, *flat)
        return (model_data, member_data), None

    (model_data, member_data), _ = jax.lax.scan(
        chunk, (model_data, member_data), jax.random.split(key, chunks)
    )
    return model_data, member_data


def _flat_steps(num_axes: int) -> Callable[[jax.Array], jax.Array]:
    return lambda x: x.reshape(-1, *x.shape[num_axes:])
