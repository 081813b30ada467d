"""What a U-net says, and what its policy meets: `experiments.studies.frozen_u RUN`.

The agent of a saved run learns on from the D and the models that it has, without a step in the
environment and without a fit, and with other hyperparameters if `--config_file` names some. With
nothing new to know, U should come to what the policy meets in the models: the discounted sum of
what the UBE propagates along their rollouts. But a policy is drawn to where the U-net is too high,
and U may stay above it.

Prints, each 5,000 updates, for states of D and the policy's actions: sqrt(U) of the U-net and of
rollouts, the ratio of the two U (medians), their rank correlation, and what is propagated at the
start and after 100 steps of the rollouts.

Axes: S states, T steps, O observation size.
"""

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from absl import flags

from experiments import cli
from experiments.saved_run import SavedRun
from experiments.studies import frozen
from qusac_jax import qusac
from qusac_jax.qusac import agent, estimates, model, parts

_LINE = 5_000  # updates between two lines
_LATER = 100  # steps, for the last column
# What the saved weights, models and D decide.
_FIXED = (
    "method",
    "dynamics",
    "num_members",
    "num_critics",
    "critic_data",
    "discount",
    "normalize_observations",
    "actor_hidden",
    "critic_hidden",
    "unet_hidden",
    "replay_capacity",
)


class Row(NamedTuple):
    """One line of the table."""

    updates: int
    unet_std: float  # sqrt(U) by the U-net, median over states
    rollout_std: float  # sqrt(U) of the rollouts, likewise
    ratio: float  # of U, likewise
    rank_correlation: float  # of U over states, Spearman's; NaN where all are alike
    first: float  # propagated at the first step, likewise
    later: float  # and after `_LATER` steps


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_integer("num_updates", 20_000, "gradient updates; 0: none", 0, **define)
    flags.DEFINE_integer("states", 400, "of D, to begin in", 2, **define)
    flags.DEFINE_integer("rollouts", 8, "from each of them", 1, **define)
    frozen.define_flags(values, seed_of="what is drawn")
    return values


def old_agent(
    saved: SavedRun, old: qusac.TrainState, config: qusac.Config, seed: int
) -> qusac.TrainState:
    """The agent as it was saved, with empty buffers of the model for this configuration.

    Args:
        saved: the run.
        old: its state, of one seed.
        config: of it from now on.
        seed: of what is drawn from now on.

    Raises:
        ValueError: if the configuration does not go with the saved weights and D.
    """
    frozen.check_fixed(saved.config, config, _FIXED)
    if not config.uses_unet:
        raise ValueError(
            f"method {config.method!r} trains no U-net; pass a run of another, such as "
            "--method=upper_bound"
        )
    state = agent.init(jax.random.key(seed), config=config, task=saved.task)
    kept = state._replace(learner=old.learner, dynamics=old.dynamics, replay=old.replay)
    return jax.tree.map(jnp.copy, kept)


def measure(
    saved: SavedRun,
    state: qusac.TrainState,
    config: qusac.Config,
    *,
    num_updates: int,
    states: int,
    num_draws: int,
    line: int = _LINE,
) -> Iterator[Row]:
    """Learns on, refreshing rollouts as often as a run does, and compares.

    Args:
        saved: the run.
        state: from `old_agent`; donated.
        config: of it.
        num_updates: rounded up to whole refreshes; 0 compares what was saved.
        states: of D, drawn once.
        num_draws: from each.
        line: updates between two rows, rounded likewise.
    """
    compared = jax.jit(
        functools.partial(compare, config=config, task=saved.task, num_draws=num_draws)
    )
    key_run, key_slots, key = jax.random.split(state.key, 3)
    state = state._replace(key=key_run)
    slots = jax.random.randint(key_slots, (states,), 0, state.replay.size)
    observation = state.replay.data.observation[slots]
    yield _row(0, *compared(state, observation, key))
    for done, learned, _ in frozen.learn_on(
        state, config, saved.task, num_updates=num_updates, line=line
    ):
        yield _row(done, *compared(learned, observation, key))


def compare(
    state: qusac.TrainState,
    observation: jax.Array,
    key: jax.Array,
    *,
    config: qusac.Config,
    task: qusac.Task,
    num_draws: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """U by the U-net and by rollouts, and what is propagated along them.

    Args:
        state: of an agent with a U-net and a model.
        observation: `[S, O]` where to begin.
        key: consumed.
        config: hyperparameters.
        task: the environment's sizes.
        num_draws: rollouts from each state.

    Returns:
        U `[S]` of the U-net, means over the policy's actions; U `[S]` of the rollouts; and `[T, S]`
        propagated.
    """
    assert state.dynamics is not None
    built, learner = parts.build(config, task.action_size), state.learner
    predict = model.predictor(state.dynamics, config, task)
    count = len(observation)
    steps = max(frozen.horizon(config.discount**2), _LATER + 1)
    key_roll, key_local = jax.random.split(key)
    flat = frozen.roll(
        state,
        observation,
        key_roll,
        config=config,
        task=task,
        steps=steps,
        num_draws=num_draws,
        randomize_members=True,
    )

    def at_step(step: Any) -> jax.Array:
        (transition, is_alive), key = step
        local = estimates.propagated_uncertainty(built, learner, transition, predict, key)
        return jnp.where(is_alive, local, 0.0)

    local = jax.lax.map(at_step, (flat, jax.random.split(key_local, len(flat[1]))))  # [T, padded]
    by_state = functools.partial(frozen.by_state, count=count, num_draws=num_draws)
    of_rollouts = by_state(jnp.tensordot(config.discount ** (2 * jnp.arange(len(local))), local, 1))
    first = jax.tree.map(lambda x: x[0], flat[0])
    no_q = jnp.zeros((1, 1, first.observation.shape[0]))  # nothing that a U-net reads
    std = estimates.value_std(built, learner, first.observation, first.action, no_q)
    return by_state(jnp.square(std)), of_rollouts, by_state(local)


def _row(done: int, of_unet: jax.Array, of_rollouts: jax.Array, local: jax.Array) -> Row:
    return Row(
        done,
        float(jnp.median(jnp.sqrt(of_unet))),
        float(jnp.median(jnp.sqrt(of_rollouts))),
        float(jnp.median(of_unet / jnp.maximum(of_rollouts, jnp.finfo(of_rollouts.dtype).tiny))),
        float(np.corrcoef(*(scipy.stats.rankdata(x) for x in (of_unet, of_rollouts)))[0, 1]),
        float(jnp.median(local[0])),
        float(jnp.median(local[_LATER])),
    )


def run(options: Any, paths: Sequence[str]) -> None:
    """Learns on as the flags say and prints the table."""
    found = frozen.load(options, paths)
    state = old_agent(found.saved, found.state, found.config, options.seed)
    frozen.print_head(
        found,
        "updates",
        "sqrt(U), U-net",
        "rollouts",
        "ratio of U",
        "rank correlation",
        "propagated at first",
        f"after {_LATER} steps",
    )
    counts = {
        "num_updates": options.num_updates,
        "states": options.states,
        "num_draws": options.rollouts,
    }
    for row in measure(found.saved, state, found.config, **counts):
        frozen.print_row(
            row.updates,
            f"{row.unet_std:.2f}",
            f"{row.rollout_std:.2f}",
            f"{row.ratio:.2f}",
            f"{row.rank_correlation:.2f}",
            f"{row.first:.3g}",
            f"{row.later:.3g}",
        )


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and prints the table; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__, positional="a run directory")


if __name__ == "__main__":
    sys.exit(main())
