"""What every run of the agent does, whatever it learns from: evaluate, log, save, resume, report.

A program says in a subclass of `Run` how a step goes and which host state it has beside the
agent's. Axes: R seeds, E evaluation episodes, O observation size, A action size. The agent's
functions are written for one seed and mapped over R here.
"""

import abc
import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from experiments import evaluation, processes, seeds
from experiments.evaluation import Evaluation
from experiments.run_reader import Curve
from experiments.training import metrics_rows, outcome
from experiments.training.checkpoints import RunCheckpoints
from experiments.training.evaluator import Evaluator
from experiments.training.finite_check import FiniteCheck
from experiments.training.progress import Progress
from experiments.training.setup import Setup
from experiments.training.speed import Speed
from qusac_jax import environments, qusac
from qusac_jax.qusac.fitting import FitReport


class Run(abc.ABC):
    """R seeds trained side by side; `step` counts the steps of the program per seed."""

    _Evaluator: type[Evaluator] = Evaluator
    # Whether it learns on while episodes of an evaluation are played; `_episode_columns` is then
    # asked of later agents.
    _learns_meanwhile = False

    def __init__(self, setup: Setup):
        """Builds evaluation environments and the state of a run that has not begun."""
        self._setup = setup
        self._directory = setup.directory
        self._config, self._task = setup.config, setup.task
        self._seeds = list(setup.seeds)
        self._num_steps = setup.num_steps
        self._processes = setup.processes
        self._placement = seeds.placement(len(self._seeds), setup.devices)
        self._mapped = functools.partial(seeds.mapped, placement=self._placement)
        self._evaluator = self._Evaluator(setup, self._placement)
        self._checkpoints = RunCheckpoints(setup)
        self._finite = FiniteCheck(self._seeds, self._checkpoints.last_good, self._mapped)
        self._speed = Speed(setup.trace)
        both = {"config": self._config, "task": self._task}
        self._diagnose = self._mapped(
            qusac.diagnostics.diagnose, reward_threshold=setup.reward_threshold, **both
        )
        self._init = self._mapped(qusac.init, **both)
        # One for the agent, one for the program, one for the diagnosis.
        keys = seeds.keys(self._seeds, 3)
        self._state: qusac.TrainState = self._init(keys[:, 0])
        self._program_keys, self._diagnosis_keys = keys[:, 1], keys[:, 2]
        self.step = 0
        self._progress = Progress(setup.num_steps, is_first=self._processes.is_first)
        self._begun: metrics_rows.Begun | None = None  # an evaluation that is not logged
        self._updates_per_call = self._config.updates_per_step  # of what `Speed` times
        self._fit_mse = np.full((len(self._seeds), self._config.num_members), np.nan, np.float32)
        self._fit_epochs = np.zeros(len(self._seeds), np.int32)

    def prepare(self) -> None:
        """What comes before the first step of this process; after `resume`."""
        return

    @abc.abstractmethod
    def _advance(self) -> dict[str, jax.Array]:
        """Takes one step or several, counts them in `step`, returns the last update's metrics."""

    def _host_state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the agent's state: NumPy arrays in fixed shapes."""
        return {}

    def _set_host_state(self, host: dict[str, Any]) -> None:
        """Continues from what `_host_state` returned."""
        del host

    def _metadata(self) -> dict[str, Any]:
        """What a checkpoint holds beside arrays; JSON-compatible."""
        return {}

    def _set_metadata(self, metadata: dict[str, Any]) -> None:
        """Continues from what `_metadata` returned."""
        del metadata

    def _look_at_data(self) -> None:
        """Checks of the transitions that have come since it was last called."""
        return

    def _episode_columns(self, episodes: Evaluation) -> dict[str, np.ndarray]:
        """Columns of metrics.csv about the evaluation, `[R]` each, beside its returns."""
        del episodes
        return {}

    def _training_columns(self) -> dict[str, np.ndarray]:
        """Columns of metrics.csv about the data that came in, `[R]` each."""
        return {}

    def _summary(self, curves: Sequence[Curve]) -> dict[str, Any]:
        """What summary.json holds beside what it always does; from the curve of each seed."""
        del curves
        return {}

    def _counts(self) -> dict[str, Any]:
        """What else summary.json holds, of the run or by seed: lists `[R]`, of all processes."""
        return {}

    def _draw(self) -> None:
        """Draws figures beside the learning curve; all processes call it, the first one draws."""
        return

    def resume(self, mode: str) -> None:
        """Continues from a checkpoint of the run directory, if it has one.

        Args:
            mode: latest, latest_good (skip damaged ones) or never.

        Raises:
            CheckpointError: if the checkpoint cannot be read.
            ValueError: with mode never, if there is one.
        """
        checkpoints = self._checkpoints
        if not checkpoints.can_continue(mode):
            return
        like = self._processes.like(self._state, self._placement)
        # Of all processes. Arrays without elements are not in the file, but taken from here.
        everyones = self._processes.joined(self._all_host_state())
        restored = checkpoints.restore(mode, like, everyones)
        self.step = restored.step
        self._state = self._processes.own(restored.device, self._state, self._placement)
        host = jax.tree.map(self._processes.share, restored.host)
        self._set_host_state(host)
        self._set_metadata(restored.metadata)
        if checkpoints.restarts_env:
            self._restart_environments()
        else:
            self._evaluator.envs.set_state(host["eval_env"])
        self._fit_mse, self._fit_epochs = host["fit_mse"], host["fit_epochs"]
        # Everything that can be wrong with the checkpoint has been checked: now files may change.
        checkpoints.accept(restored)
        self._speed.restore(restored.metadata["speed"], self.step)
        anew = ", with new episodes (--resume_env=restart)" if checkpoints.restarts_env else ""
        print(f"continuing at step {self.step}{anew}", flush=True)

    def _restart_environments(self) -> None:
        """Begins all episodes anew, from initial states that the run has not seen."""
        self._evaluator.restart(self.step)

    def train(self, stopped: Callable[[], int | None]) -> int | None:
        """Runs until `num_steps`, or until a signal comes, and saves what it did.

        Args:
            stopped: returns the number of a signal that came, or None.

        Returns:
            The signal's number, or None when all steps are done.

        Raises:
            ValueError: if the environment or the agent produces a value that is not finite.
        """
        number = stopped()
        if number is not None:  # nothing has been done that is not saved
            return number
        try:
            return self._train(stopped)
        except environments.FaultyEnvironmentError as error:
            good = self._checkpoints.last_good()
            step = self.step if self._begun is None else self._begun.step
            raise ValueError(f"{error}. At step {step} of the run; {good}") from error

    def _train(self, stopped: Callable[[], int | None]) -> int | None:
        with self._progress.shown(self.step), self._logged():
            if self.step == 0:
                self._evaluate({})
            while self.step < self._num_steps:
                before = self.step
                metrics = self._advance()
                self._progress.advance(self.step - before)
                if self._begun is not None and self._begun.episodes.done():
                    self._log_evaluation()
                if self.step % self._setup.eval_every == 0:
                    self._evaluate(metrics)
                elif self.step == self._num_steps:
                    self._evaluate_aside(metrics)
                number = stopped() if self._is_agreed_on(before) else None
                if number is not None:
                    self._save()
                    return number
                if self.step % self._setup.checkpoint_every == 0:
                    self._save()
            self._save()
        return None

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        """Within it, an evaluation that has begun is logged before an error ends the run."""
        try:
            yield
        except Exception:
            with contextlib.suppress(Exception):
                self._log_evaluation()
            raise

    def _is_agreed_on(self, before: int) -> bool:
        """Whether signals are answered after the steps from `before` to now."""
        every = processes.EVERY if self._processes.count > 1 else 1
        return before // every != self.step // every or self.step == self._num_steps

    def finish(self, about: dict[str, Any]) -> None:
        """Writes the policy, summary.json and the learning curve, of the seeds of all processes."""
        actor = self._processes.joined(seeds.cropped(self._state.actor, self._placement))
        about_seeds = {"seeds": self._seeds, "counts": self._counts()}
        joined = self._processes.joined_lists(about_seeds)
        if self._processes.is_first:
            rate = self._speed.learning_rate()
            updates = self._updates_per_call * len(joined["seeds"])
            more = {
                **joined["counts"],
                **self._checkpoints.summary(),
                "updates_per_second": None if rate is None else rate * updates,
                "compilations": self._speed.compilations(),
            }
            outcome.write(
                self._directory,
                actor,
                self._evaluator.envs.spec,
                hidden=self._config.actor_hidden,
                seeds=joined["seeds"],
                step=self.step,
                about=about,
                more=lambda curves: self._summary(curves) | more,
            )
        self._draw()
        self._checkpoints.close()

    def close(self) -> None:
        """Frees the environments; what was learned stays."""
        self._evaluator.close()

    def record_video(self, path: pathlib.Path) -> None:
        """Writes one episode of the first seed with the mean action, as an mp4 and a GIF."""
        evaluation.record(
            self._setup.env,
            jax.tree.map(lambda x: x[0], self._state.actor),
            path,
            config=self._config,
            task=self._task,
            action_cost=self._setup.action_cost,
        )
        self._directory.log_video(self.step, self._seeds[0], path)

    def _announce_rate(self, unit: str, count: int = 1, *, without: str = "evaluations") -> None:
        """Says once, as soon as it is known, how fast it learns and what is left.

        Args:
            unit: that `step` counts.
            count: how many of it are in what `Speed` times.
            without: what the time that is left leaves out.
        """
        rate = self._speed.learning_rate()
        rate = None if rate is None else rate * count
        self._progress.announce(rate, self.step, unit, without=without)

    def _note_fit(self, fit: FitReport) -> None:
        """Keeps how a fit of the dynamics went, for the log; raises `ValueError` if it diverged."""
        self._fit_mse = np.asarray(fit.holdout_mse)
        self._fit_epochs = np.asarray(fit.epochs)
        self._finite.check_fit(self.step, fit)

    def _evaluate(self, metrics: dict[str, jax.Array]) -> None:
        """Begins an evaluation of the agents as they are; they go on where that is possible."""
        self._log_evaluation()
        self._look_at_data()
        rate = self._speed.pace(self.step)
        update = {name: np.asarray(value) for name, value in metrics.items()}
        self._finite.check_metrics(self.step, update)
        keys = jax.vmap(lambda k: jax.random.fold_in(k, self.step))(self._diagnosis_keys)
        values = jax.tree.map(np.asarray, self._diagnose(self._state, keys))
        columns = {
            **self._training_columns(),
            **dict(sorted(values.items())),
            "fit_epochs": self._fit_epochs,
            **{f"holdout_mse_{n}": mse for n, mse in enumerate(self._fit_mse.T)},
        }
        episodes = self._evaluator.begin(self._state.actor)
        self._begun = metrics_rows.Begun(
            self.step,
            episodes,
            {name: np.array(column) for name, column in columns.items()},
            update,
            rate,
            self._speed.learning_rate(),
            self._speed.seconds_left(self.step, self._num_steps),
        )
        can_wait = self._learns_meanwhile and self._processes.count == 1  # others log together
        if episodes.done() or not can_wait:
            self._log_evaluation()
        self._speed.restart(self.step)

    def _log_evaluation(self) -> None:
        """Waits for the evaluation that has begun; logs a row per seed, prints a line."""
        begun = self._begun
        if begun is None:
            return
        episodes = begun.episodes.result()
        self._begun = None
        rows = metrics_rows.rows(begun, self._seeds, episodes, self._episode_columns(episodes))
        rows = [row for part in self._processes.gather(rows) for row in part]
        timing = {
            "steps_per_second": begun.rate,
            "learning_steps_per_second": begun.learning_rate,
        }
        self._directory.log(rows, {name: value for name, value in timing.items() if value})
        self._progress.tell(rows, begun.rate, begun.seconds_left)

    def _evaluate_aside(self, metrics: dict[str, jax.Array]) -> None:
        """An evaluation that a longer run would not have; it leaves its environments as before."""
        if self._checkpoints.restarts_env:  # they cannot be saved
            self._evaluate(metrics)
            return
        self._log_evaluation()
        before = self._evaluator.envs.state()
        self._evaluate(metrics)
        self._log_evaluation()
        self._evaluator.envs.set_state(before)

    def _all_host_state(self) -> dict[str, Any]:
        return {
            **self._host_state(),
            "eval_env": self._checkpoints.env_state(self._evaluator.envs),
            "fit_mse": self._fit_mse,
            "fit_epochs": self._fit_epochs,
        }

    def _save(self) -> None:
        """Writes a checkpoint, unless it could not be continued."""
        self._log_evaluation()
        self._finite.check_state(self.step, self._state)
        self._look_at_data()
        metadata = self._processes.joined_lists({"speed": self._speed.state(), **self._metadata()})
        host = self._processes.joined(self._all_host_state())
        state = self._processes.for_checkpoint(self._state, self._placement)
        self._checkpoints.save(self.step, state, host, metadata)
