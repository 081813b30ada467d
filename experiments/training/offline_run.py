"""The loop of an offline run: the agent learns from a dataset and its model (Algorithm 3).

Axes: R seeds, E evaluation episodes.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np

from experiments import calibration_figure, files, seeds
from experiments.evaluation import Evaluation
from experiments.run_reader import Curve
from experiments.training.run import Run
from experiments.training.setup import Setup
from experiments.training.termination_check import TerminationCheck
from qusac_jax import datasets, qusac
from qusac_jax.checkpoint import Checkpointer, CheckpointError
from qusac_jax.qusac import normalization, replay
from qusac_jax.qusac.dynamics import Dynamics
from qusac_jax.qusac.fitting import FitReport


class OfflineRun(Run):
    """R seeds trained side by side; `step` counts gradient updates per seed."""

    def __init__(self, setup: Setup, *, dataset: datasets.Dataset, dynamics: str | None):
        """The state of a run that has not begun, with the dataset as D.

        Args:
            setup: of the run; D is as large as the dataset.
            dataset: to learn from.
            dynamics: run directory whose fitted dynamics are taken; None to fit some.
        """
        super().__init__(setup)
        config, task = setup.config, setup.task
        self._dataset = dataset
        self._dynamics = dynamics
        self._updates_per_call = config.fit_every
        both = {"config": config, "task": task}
        self._fit = self._mapped(fit_dynamics, **both)
        self._roll_out = self._mapped(qusac.roll_out, donate=(0,), **both)
        self._learn = self._mapped(qusac.learn, donate=(0,), num_updates=config.fit_every, **both)
        self._values_at = self._mapped(qusac.diagnostics.values_at, **both)
        self._state = self._state._replace(replay=self._buffer(dataset.transitions()))
        if config.normalize_observations:
            self._state = self._mapped(_normalized, donate=(0,))(self._state)
        self._ends = TerminationCheck(config, task, len(self._seeds), self._mapped, is_shared=True)

    def prepare(self) -> None:
        """Fits the dynamics, or takes those of another run (Algorithm 3, line 2)."""
        if self._ends.is_needed:
            count = int(self._dataset.next_observation_known.sum())
            self._ends.update(self._known_replay(), count, "dataset")
            self._warn_of_ends()
        if self.step or not self._config.uses_model:
            return
        own = self._directory.path / "dynamics"
        source = pathlib.Path(self._dynamics) / "dynamics" if self._dynamics else own
        if self._dynamics or Checkpointer(own).steps():
            self._take_dynamics(source)
        else:
            self._fit_and_keep(own)
        errors = " ".join(f"{error:.3g}" for error in self._fit_mse.mean(axis=0))
        print(f"dynamics: held-out squared error of each member {errors}", flush=True)

    def _warn_of_ends(self) -> None:
        """Says how many ends of episodes the termination function cannot be compared with."""
        unknown = self._dataset.terminated & ~self._dataset.next_observation_known
        if unknown.any():
            files.warn(
                f"dataset: {unknown.sum()} of {self._dataset.terminated.sum()} ends of episodes "
                "could not be compared with the termination, as the file does not hold the "
                "observations that they led to; rollouts of the model end where it says"
            )

    def _fit_and_keep(self, path: pathlib.Path) -> None:
        print("fitting the dynamics", flush=True)
        # Keys of their own, so that a run with these dynamics and one that takes them are the same.
        state = self._state._replace(key=self._program_keys, replay=self._known_replay())
        dynamics, report = self._fit(state)
        self._note_fit(report)
        self._state = self._state._replace(dynamics=dynamics)
        fitted = self._processes.for_checkpoint(dynamics, self._placement)
        figures = self._processes.joined(self._fit_figures())
        Checkpointer(path).save(0, fitted, figures, self._dynamics_identity())

    def _take_dynamics(self, path: pathlib.Path) -> None:
        """Restores the fitted dynamics of a run on the same dataset with the same seeds."""
        is_own = path.parent == self._directory.path
        remedy = f"remove {path}, and they are fitted anew" if is_own else "leave it out"
        checkpointer = Checkpointer(path, remedy="put its files back")
        try:
            self._check_dynamics(path, checkpointer.metadata())
            own = self._state.dynamics
            like = self._processes.like(own, self._placement)
            restored = checkpointer.restore(like, self._fit_figures())
        except CheckpointError as error:
            raise ValueError(
                f"dynamics: those in {path.parent} cannot be read ({error}); {remedy}"
            ) from error
        # Through the host: what Orbax restores is committed to its device, and functions would be
        # compiled again for a state of committed and uncommitted arrays.
        taken = self._processes.own(restored.device, own, self._placement)
        self._state = self._state._replace(dynamics=seeds.placed(taken, self._placement))
        figures = jax.tree.map(self._processes.share, restored.host)
        self._fit_mse, self._fit_epochs = figures["mse"], figures["epochs"]

    def _check_dynamics(self, path: pathlib.Path, there: dict[str, Any]) -> None:
        """Raises `ValueError` if fitted dynamics are of a run with other values than this one."""
        here, there = files.flatten(self._dynamics_identity()), files.flatten(there)
        differing = [
            f"{name}: {there.get(name)!r} there, {here[name]!r} now"
            for name in here
            if there.get(name) != here[name]
        ]
        if differing:
            raise ValueError(
                f"dynamics: those in {path.parent} were fitted with other values "
                f"({'; '.join(differing)}); leave --dynamics out, or use the same values"
            )

    def _fit_figures(self) -> dict[str, np.ndarray]:
        return {"mse": self._fit_mse, "epochs": self._fit_epochs}

    def _dynamics_identity(self) -> dict[str, Any]:
        """What fitted dynamics depend on, as JSON gives it back."""
        return {
            "sha256": self._dataset.sha256,
            "action_low": self._dataset.action_low.tolist(),
            "action_high": self._dataset.action_high.tolist(),
            "seeds": self._processes.joined_lists(self._seeds),
            "num_members": self._config.num_members,
            "batch_size": self._config.fit_batch_size,
            "dynamics": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in dataclasses.asdict(self._config.dynamics).items()
            },
        }

    def _advance(self) -> dict[str, jax.Array]:
        """Rollouts, and the gradient updates until the next ones are due."""
        if qusac.schedule.offline(self.step, config=self._config).roll_out:
            self._state = self._roll_out(self._state)
        with self._speed.learning_step():
            self._state, metrics = self._learn(self._state)
            jax.block_until_ready(metrics)
        self.step += self._config.fit_every
        self._finite.check_metrics(self.step, metrics)
        apart = "rollouts and evaluations" if self._config.uses_model else "evaluations"
        self._announce_rate("updates", self._config.fit_every, without=apart)
        return metrics

    def _episode_columns(self, episodes: Evaluation) -> dict[str, np.ndarray]:
        """Scores, and what the critics expected of the episodes beside what came."""
        q, std = self._values_at(self._state, episodes.first_observation)
        columns = {
            "eval_discounted_return": episodes.discounted_return.mean(1),
            "expected_return": np.asarray(q).mean(1),
            "expected_std": np.asarray(std).mean(1),
        }
        reference = self._dataset.reference
        if reference is not None:
            scores = datasets.normalized_score(episodes.episode_return, reference)
            columns = {"eval_score": scores.mean(1), **columns}
        return columns

    def _summary(self, curves: Sequence[Curve]) -> dict[str, Any]:
        summary: dict[str, Any] = {"dataset": datasets.describe(self._dataset)}
        reference = self._dataset.reference
        if reference is not None:
            returns = np.array([curve.final_return for curve in curves])
            summary["final_scores"] = datasets.normalized_score(returns, reference).tolist()
        return summary

    def _counts(self) -> dict[str, Any]:
        return {"termination_disagreements": self._ends.state()} if self._ends.is_needed else {}

    def _draw(self) -> None:
        episodes = self._evaluator.run(self._state.actor)
        q, std = map(np.asarray, self._values_at(self._state, episodes.first_observation))
        all_seeds, *values = self._processes.joined(
            (np.asarray(self._seeds), q, std, episodes.discounted_return)
        )
        if not self._processes.is_first:
            return
        calibration_figure.draw(
            calibration_figure.Predictions(*values),
            all_seeds.tolist(),
            self._directory.path / "calibration.png",
            title=f"{self._setup.env}, {self._config.method}, step {self.step}",
            is_of_values=self._config.qvariance.is_of_values,
        )

    def _known_replay(self) -> replay.Buffer:
        """D without the transitions whose next observation is a stand-in; D itself if none is."""
        if self._dataset.next_observation_known.all():
            return self._state.replay
        return self._buffer(self._dataset.transitions(known_next_observations=True))

    def _buffer(self, transitions: qusac.Transition) -> replay.Buffer:
        """A buffer for each seed that holds these transitions."""
        return seeds.replicated(
            jax.tree.map(np.asarray, replay.full(transitions)), len(self._seeds), self._placement
        )


def _normalized(state: qusac.TrainState) -> qusac.TrainState:
    """The networks with the statistics of D, which nothing has observed before."""
    observation = state.replay.data.observation
    return state._replace(learner=normalization.follow(state.learner, observation, 0))


def fit_dynamics(
    state: qusac.TrainState, *, config: qusac.Config, task: qusac.Task
) -> tuple[Dynamics, FitReport]:
    """New dynamics fitted to D of a state; only they are returned, so that no buffer is copied."""
    fitted, report = qusac.fit(state, config=config, task=task)
    return cast(Dynamics, fitted.dynamics), report  # None is what `fit` refuses
