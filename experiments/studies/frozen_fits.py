"""How well models fit data that do not change: `experiments.studies.frozen_fits RUN`.

New models are fitted to D of a saved run, several times in a row as a run does it: as they were set
there, and with other hyperparameters if `--config_file` names some. No step, no policy, no chance
of exploration: that compares settings of the models in minutes.

Prints for each fit the error of the members' mean predictions on what fits hold out, averaged over
members: root mean square over the components of the observation, and of the worst of them, both in
standard deviations of the changes in D (1: no better than always predicting the mean change), the
noise that they predict over that error, the mean log density of a component in those deviations,
and what they make of the reward.

Axes: N members, B held-out transitions, O observation size.
"""

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import cli, markdown
from experiments.saved_run import SavedRun
from experiments.studies import frozen
from qusac_jax import qusac
from qusac_jax.qusac import agent, diagnostics, fitting_data, model


class Row(NamedTuple):
    """How one fit went."""

    fit: int  # from 1
    epochs: int
    error: float  # of the observation, root mean square over components, in deviations of change
    worst: float  # of the component with the largest error
    noise: float  # predicted, over the error: both root mean squares, geometric mean of components
    density: float  # mean logarithm of the predicted one of a component, in those deviations
    rewarded: float  # mean predicted reward of rewarded transitions; NaN where none is held out
    false: float  # share of the other transitions with a prediction above half the threshold


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_integer("fits", 3, "in a row, each from where the last one ended", 1, **define)
    frozen.define_flags(values, seed_of="the new models")
    return values


def measure(
    saved: SavedRun,
    old: qusac.TrainState,
    config: qusac.Config,
    *,
    fits: int,
    seed: int,
) -> Iterator[Row]:
    """Fits new models to D.

    Args:
        saved: the run.
        old: its state, of one seed, for D; not donated.
        config: of the new models.
        fits: how many in a row.
        seed: of their weights and of the fits.

    Raises:
        ValueError: if the configuration has no models, or does not go with D.
    """
    if not config.uses_model:
        raise ValueError("critic_data 'replay' uses no model, so that there is nothing to fit")
    frozen.check_fixed(saved.config, config, ("replay_capacity",))
    key_init, key_fit = jax.random.split(jax.random.key(seed))
    state = agent.init(key_init, config=config, task=saved.task)
    state = state._replace(replay=jax.tree.map(jnp.copy, old.replay), key=key_fit)
    fit = jax.jit(functools.partial(agent.fit, config=config, task=saved.task), donate_argnums=0)
    for number in range(1, fits + 1):
        state, result = fit(state)
        yield _row(number, int(result.epochs), saved, state, config)


def _row(
    number: int, epochs: int, saved: SavedRun, state: qusac.TrainState, config: qusac.Config
) -> Row:
    assert state.dynamics is not None
    size = int(state.replay.size)
    slots = fitting_data.holdout_slots(state.replay, config.dynamics)
    slots = slots[slots < size]
    data = jax.tree.map(lambda x: x[slots], state.replay.data)
    mean, std = model.predict(
        state.dynamics, data.observation, data.action, config=config, task=saved.task
    )
    unit = np.asarray(state.dynamics.change_std)
    errors = np.asarray(mean[..., :-1] - data.next_observation) / unit  # [N, B, O]
    std = np.asarray(std[..., :-1]) / unit
    error = np.sqrt(np.mean(np.square(errors), axis=(0, 1)))
    noise = np.sqrt(np.mean(np.square(std), axis=(0, 1)))
    density = -0.5 * np.square(errors / std) - np.log(std) - 0.5 * np.log(2 * np.pi)
    threshold = saved.about.get("reward_threshold", diagnostics.REWARD_THRESHOLD)
    is_rewarded = np.asarray(data.reward) > threshold
    reward = np.asarray(mean[..., -1])  # [N, B]
    return Row(
        number,
        epochs,
        float(np.sqrt(np.mean(np.square(error)))),
        float(error.max()),
        float(np.exp(np.mean(np.log(noise / error)))),
        float(density.mean()),
        float(reward[:, is_rewarded].mean()) if is_rewarded.any() else float("nan"),
        float(np.mean(reward[:, ~is_rewarded] > threshold / 2)),
    )


def run(options: Any, paths: Sequence[str]) -> None:
    """Fits as the flags say and prints the table."""
    saved, step, old, other = frozen.load(options, paths)
    configs = {"as it was": saved.config}
    if options.config_file is not None:
        if not saved.config.uses_model:
            del configs["as it was"]  # there is D to learn from, and were no models
        configs[frozen.changes(saved.config, other) or "the same"] = other
    print(f"{saved.spec.name}, step {step}, {int(old.replay.size)} transitions")
    columns = [
        *("settings", "fit", "epochs", "error", "worst", "noise / error", "log density"),
        *("rewarded, predicted", "false rewards"),
    ]
    print(markdown.head(columns, texts=("settings",)))
    for name, config in configs.items():
        for row in measure(saved, old, config, fits=options.fits, seed=options.seed):
            frozen.print_row(
                name,
                row.fit,
                row.epochs,
                f"{row.error:.3f}",
                f"{row.worst:.3f}",
                f"{row.noise:.2f}",
                f"{row.density:.2f}",
                f"{row.rewarded:.2f}",
                f"{row.false:.4f}",
            )


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and prints the table; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__, positional="a run directory")


if __name__ == "__main__":
    sys.exit(main())
