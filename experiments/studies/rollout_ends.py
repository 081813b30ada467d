"""What critics say along the rollouts that they learn from: `experiments.studies.rollout_ends RUN`.

The last state of a rollout that is cut off is one that targets ask critics about and that no critic
learns a value of, unless a rollout passes there earlier (Sims et al., 2024, "The Edge-of-Reach
Problem in Offline Model-Based Reinforcement Learning", arXiv 2402.12527). If that were where values
go wrong, critics would differ there more than at the states before, and be further from what the
models pay.

Rolls the policy of a saved run out in its members' models as D_1..D_N are made, from states of D
(`--config_file` may make the rollouts longer). Prints for each place in them, the last one being
what the last step leads to: the share of rollouts that come so far, how far critics of one pair are
apart (their deviation, and that without what they differ in everywhere), Q, the discounted return
in the models, which has no entropy bonus, and the share of states outside of the range of D.

Axes: S states, T steps, N members, O observation size.
"""

import dataclasses
import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import flags

from experiments import cli
from experiments.studies import frozen, frozen_data
from qusac_jax import qusac
from qusac_jax.qusac import losses, networks
from qusac_jax.qusac import parts as parts_lib
from qusac_jax.task import Task


class Row(NamedTuple):
    """One place in the rollouts; means over those that come so far."""

    place: int  # steps from the start
    share: float  # of rollouts that come so far
    spread: float  # of the critics, deviation over members
    centered: float  # the same, each critic less its mean over the states of all places
    value: float  # Q of the mean action
    model_return: float  # discounted, of the policy's draws
    outside: float  # share of states with a component outside of D's range


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_integer("states", 400, "of D, to begin in", 2, **define)
    flags.DEFINE_integer("rollouts", 8, "from each state, for the return", 1, **define)
    frozen.define_flags(values, seed_of="what is drawn")
    return values


def measure(
    state: qusac.TrainState,
    config: qusac.Config,
    task: Task,
    *,
    states: int,
    num_draws: int,
    seed: int,
) -> Iterator[Row]:
    """A row for each place.

    Args:
        state: of one seed.
        config: hyperparameters.
        task: the environment's sizes and termination.
        states: S, of D, rounded up to give each member as many.
        num_draws: rollouts from each state of a place, for the return.
        seed: of what is drawn.

    Raises:
        ValueError: for an agent without critics of several members.
    """
    if config.num_groups < 2:
        raise ValueError(
            f"critics of the run differ in nothing: critic_data is {config.critic_data!r} and "
            f"num_members {config.num_members}; pass a run with critic_data 'member' and several"
        )
    key_slots, key_roll, key = jax.random.split(jax.random.key(seed), 3)
    slots = jax.random.randint(key_slots, (states,), 0, state.replay.size)
    both = {"config": config, "task": task}
    observation, is_there = jax.jit(functools.partial(_places, **both))(
        state, state.replay.data.observation[slots], key_roll
    )
    q = jax.jit(functools.partial(_member_values, **both))(state, observation)
    offset = jnp.sum(jnp.where(is_there, q, 0.0), (1, 2)) / jnp.maximum(jnp.sum(is_there), 1)
    model_return = jax.jit(
        functools.partial(frozen_data.discounted_in_models, num_draws=num_draws, **both)
    )
    spread, centered = (jnp.std(x, axis=0, ddof=1) for x in (q, q - offset[:, None, None]))
    outside = _outside(state, config, observation)
    for place, there in enumerate(is_there):
        count = jnp.sum(there)
        mean = lambda x, there=there, count=count: float(jnp.sum(jnp.where(there, x, 0.0)) / count)
        came = model_return(state, observation[place], jax.random.fold_in(key, place))
        yield Row(
            place,
            float(count / len(there)),
            mean(spread[place]),
            mean(centered[place]),
            mean(jnp.mean(q[:, place], axis=0)),
            mean(came),
            mean(outside[place]),
        )


def _places(
    state: qusac.TrainState,
    start: jax.Array,
    key: jax.Array,
    *,
    config: qusac.Config,
    task: Task,
) -> tuple[jax.Array, jax.Array]:
    """Observations `[T + 1, S, O]` of rollouts, and whether they come so far `[T + 1, S]`."""
    rolled, alive = frozen.roll(
        state,
        start,
        key,
        config=config,
        task=task,
        steps=config.rollout_length,
        num_draws=1,
        randomize_members=False,
    )
    observation = jnp.concatenate([rolled.observation, rolled.next_observation[-1:]])
    goes_on = alive & ~rolled.terminated
    return observation, jnp.concatenate([alive, goes_on[-1:]])


def _member_values(
    state: qusac.TrainState, observation: jax.Array, *, config: qusac.Config, task: Task
) -> jax.Array:
    """Q of the mean action by each group of critics: `[T, S, O]` to `[N, T, S]`."""
    parts = parts_lib.build(config, task.action_size)
    flat = observation.reshape(-1, observation.shape[-1])
    action = networks.mean_action(parts.actor, state.actor, flat)
    q = losses.group_value(networks.apply(parts.critic, state.learner.critic, flat, action))
    return q.reshape(len(q), *observation.shape[:-1])


def _outside(state: qusac.TrainState, config: qusac.Config, observation: jax.Array) -> jax.Array:
    """Whether a component lies outside of D's range: `[T, S, O]` to `[T, S]`."""
    known = frozen.with_range(state, config)
    least, most = known.least[:-1], known.most[:-1]
    return jnp.any((observation < least) | (observation > most), axis=-1)


def run(options: Any, paths: Sequence[str]) -> None:
    """Measures as the flags say and prints the table."""
    found = frozen.load(options, paths)
    others = [field.name for field in dataclasses.fields(qusac.Config)]
    others.remove("rollout_length")
    frozen.check_fixed(found.saved.config, found.config, others)
    frozen.print_head(
        found, "place", "come so far", "critics apart", "centered", "Q", "in the models", "outside"
    )
    counts = {"states": options.states, "num_draws": options.rollouts, "seed": options.seed}
    for row in measure(found.state, found.config, found.saved.task, **counts):
        frozen.print_row(
            row.place,
            f"{row.share:.2f}",
            f"{row.spread:.2f}",
            f"{row.centered:.2f}",
            f"{row.value:.1f}",
            f"{row.model_return:.1f}",
            f"{row.outside:.3f}",
        )


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and prints the table; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__, positional="a run directory")


if __name__ == "__main__":
    sys.exit(main())
