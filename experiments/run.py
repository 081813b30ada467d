"""What every run of the agent does, whatever it learns from: evaluate, log, save, resume, report.

A program says in a subclass of `Run` how a step goes and which host state it has beside the
agent's. Axes: R seeds, E evaluation episodes, O observation size, A action size. The agent's
functions are written for one seed and mapped over R here.
"""

import abc
import contextlib
import functools
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from experiments import evaluation, plot, report, run_reader, seeds
from experiments.evaluation import Evaluation, evaluate
from experiments.run_directory import RunDirectory
from experiments.run_reader import Curve
from experiments.speed import Speed
from qusac_jax import environments, qusac
from qusac_jax.checkpoint import Checkpointer, Restored
from qusac_jax.policy import save_policy
from qusac_jax.qusac.fitting import FitReport

# Evaluation environments draw their initial states from seeds that no training run uses.
_EVAL_SEED_OFFSET = 1_000_003
# Where a value that is not finite shows first: in the order of the update.
_CAUSES = ("local_uncertainty", "unet_loss", "critic_loss", "mean_q", "actor_loss")


class Run(abc.ABC):
    """R seeds trained side by side; `step` counts the steps of the program per seed."""

    def __init__(
        self,
        directory: RunDirectory,
        env: str,
        config: qusac.Config,
        task: qusac.Task,
        *,
        run_seeds: Sequence[int],
        num_steps: int,
        action_cost: float,
        eval_every: int,
        eval_episodes: int,
        checkpoint_every: int,
        reward_threshold: float,
        devices: Sequence[Any],
        keep_checkpoints: int = 2,
        resume_env: str = "exact",
    ):
        """Builds evaluation environments and the state of a run that has not begun.

        With `resume_env` "restart", checkpoints do not hold the environments: their episodes begin
        anew when the run is continued.
        """
        self._directory = directory
        self._env_name = env
        self._config, self._task = config, task
        self._seeds = list(run_seeds)
        self._num_steps = num_steps
        self._action_cost = action_cost
        self._eval_every = eval_every
        self._checkpoint_every = checkpoint_every
        self._eval_episodes = eval_episodes
        self._eval_env = self._make_eval_env()
        self._restarts_env = resume_env == "restart"
        self._restarts: list[int] = []  # steps at which episodes began anew
        self._checkpointer = Checkpointer(directory.checkpoints, max_to_keep=keep_checkpoints)
        self._speed = Speed()
        self._placement = seeds.sharding(len(self._seeds), devices)
        self._mapped = functools.partial(seeds.mapped, placement=self._placement)
        both = {"config": config, "task": task}
        self._diagnose = self._mapped(
            qusac.diagnostics.diagnose, reward_threshold=reward_threshold, **both
        )
        self._act = self._mapped(qusac.act, **both)
        self._finite_parts = self._mapped(qusac.diagnostics.finite_parts)
        self._init = self._mapped(qusac.init, **both)
        # One for the agent, one for the program, one for the diagnosis.
        keys = seeds.keys(self._seeds, 3)
        self._state: qusac.TrainState = self._init(keys[:, 0])
        self._program_keys, self._diagnosis_keys = keys[:, 1], keys[:, 2]
        self.step = 0
        self._bar: tqdm | None = None  # while it trains
        self._updates_per_call = config.updates_per_step  # of what `Speed.learning_step` times
        self._fit_mse = np.full((len(self._seeds), config.num_members), np.nan, np.float32)
        self._fit_epochs = np.zeros(len(self._seeds), np.int32)

    def prepare(self) -> None:
        """What comes before the first step of this process; after `resume`."""
        return

    @abc.abstractmethod
    def _advance(self) -> dict[str, jax.Array]:
        """Takes one step or several, counts them in `step`, returns the last update's metrics."""

    @abc.abstractmethod
    def _host_state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the agent's state: NumPy arrays in fixed shapes."""

    @abc.abstractmethod
    def _set_host_state(self, host: dict[str, Any]) -> None:
        """Continues from what `_host_state` returned."""

    def _metadata(self) -> dict[str, Any]:
        """What a checkpoint holds beside arrays; JSON-compatible."""
        return {}

    def _set_metadata(self, metadata: dict[str, Any]) -> None:
        """Continues from what `_metadata` returned; from nothing for an older checkpoint."""
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

    def _draw(self) -> None:
        """Draws figures beside the learning curve."""
        return

    def resume(self, mode: str) -> None:
        """Continues from a checkpoint of the run directory, if it has one.

        Args:
            mode: latest, latest_good (skip damaged ones) or never.

        Raises:
            CheckpointError: if the checkpoint cannot be read.
            ValueError: with mode never, if there is one.
        """
        directory, steps = self._directory, self._checkpointer.steps()
        if not steps:
            self._start_over(mode)
            return
        if mode == "never":
            raise ValueError(
                f"resume is 'never', but {directory.path} has checkpoints at steps {steps}; "
                "choose another workdir, or leave --resume out to continue"
            )
        restore = (
            self._checkpointer.restore_latest_good
            if mode == "latest_good"
            else self._checkpointer.restore
        )
        restored = restore(self._state, self._all_host_state())
        if restored.step > self._num_steps:
            raise ValueError(
                f"num_steps is {self._num_steps}, but {restored.step} steps are done in "
                f"{directory.path}; use --num_steps={restored.step} or more"
            )
        directory.check_checkpoint(restored.step, restored.metadata)
        self._check_restarts(restored)
        self.step = restored.step
        self._state, host = restored.device, restored.host
        self._restarts = list(restored.metadata.get("restarts", []))
        self._set_host_state(host)
        self._set_metadata(restored.metadata)
        if self._restarts_env:
            self._restarts.append(self.step)
            self._restart_environments()
        else:
            self._eval_env.set_state(host["eval_env"])
        self._fit_mse, self._fit_epochs = host["fit_mse"], host["fit_epochs"]
        # Everything that can be wrong with the checkpoint has been checked: now files may change.
        directory.rewind(restored.metadata["metrics_size"], restored.step)
        self._checkpointer.delete_after(restored.step)
        directory.accept(restored.step)
        self._speed.restore(restored.metadata.get("speed", {}), self.step)
        anew = ", with new episodes (--resume_env=restart)" if self._restarts_env else ""
        print(f"continuing at step {self.step}{anew}", flush=True)

    def _check_restarts(self, restored: Restored) -> None:
        if restored.metadata.get("resume_env") == "restart" and not self._restarts_env:
            raise ValueError(
                f"resume_env is 'exact', but checkpoint {restored.step} in {self._directory.path} "
                "does not hold its environments; continue with --resume_env=restart"
            )

    def _restart_environments(self) -> None:
        """Begins all episodes anew, from initial states that the run has not seen."""
        self._eval_env.close()
        self._eval_env = self._make_eval_env(self._later_seed)

    def _later_seed(self, seed: int) -> int:
        """A seed for what begins at this step."""
        return int(np.random.SeedSequence([seed, self.step]).generate_state(1)[0])

    def _make_eval_env(
        self, seed_of: Callable[[int], int] = lambda seed: seed
    ) -> environments.AnyVector:
        return environments.vector(
            self._env_name,
            [
                seed_of((_EVAL_SEED_OFFSET * (s + 1) + e) % 2**32)
                for s in self._seeds
                for e in range(self._eval_episodes)
            ],
            action_cost=self._action_cost,
        )

    def _env_state(self, env: environments.AnyVector) -> dict[str, np.ndarray]:
        """What a checkpoint holds of environments; nothing if their episodes begin anew."""
        if not self._restarts_env:
            return env.state()
        return {name: np.zeros(0) for name in environments.STATE_FIELDS}

    def _start_over(self, mode: str) -> None:
        directory = self._directory
        if directory.metrics_size():
            was_saved = directory.last_step() > directory.previous.get("checkpoint_every", 0)
            if mode == "never" or was_saved or directory.read_summary():
                raise ValueError(
                    f"{directory.path} has results, but no checkpoint to continue from; "
                    "put its checkpoints back, or choose another workdir"
                )
            # Killed before the first checkpoint: everything happens again.
            directory.rewind(0, 0)
        directory.accept(0)

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
            raise ValueError(f"{error}. At step {self.step} of the run; {self._good()}") from error

    def _train(self, stopped: Callable[[], int | None]) -> int | None:
        bar = tqdm(
            total=self._num_steps,
            initial=self.step,
            unit="step",
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        )
        self._bar = bar
        with bar:
            if self.step == 0:
                self._evaluate(bar, {})
            while self.step < self._num_steps:
                before = self.step
                metrics = self._advance()
                bar.update(self.step - before)
                if self.step % self._eval_every == 0 or self.step == self._num_steps:
                    self._evaluate(bar, metrics)
                number = stopped()
                if number is not None:
                    self._save()
                    return number
                if self.step % self._checkpoint_every == 0:
                    self._save()
            self._save()
        return None

    def finish(self, about: dict[str, Any]) -> None:
        """Writes the policy, summary.json and the learning curve.

        The final returns are those of the last evaluation in metrics.csv, as in plots and tables.
        """
        config, spec = self._config, self._eval_env.spec
        save_policy(
            self._directory.path / "policy",
            self._state.actor,
            hidden=config.actor_hidden,
            action_low=spec.action_low,
            action_high=spec.action_high,
            metadata={
                "env": spec.name,
                "action_cost": spec.action_cost,
                "seeds": self._seeds,
                "step": self.step,
            },
        )
        curves = run_reader.read_runs([self._directory.path])
        rate = self._speed.learning_rate()
        updates = self._updates_per_call * len(self._seeds)
        self._directory.write_summary(
            {
                **about,
                "seeds": self._seeds,
                "steps": self.step,
                "final_returns": [curve.final_return for curve in curves],
                "final_task_returns": [curve.final_task_return for curve in curves],
                **self._summary(curves),
                **({"episodes_began_anew_at": self._restarts} if self._restarts_env else {}),
                "updates_per_second": None if rate is None else rate * updates,
                "compilations": self._speed.compilations(),
            }
        )
        plot.plot_learning_curves(
            [self._directory.path], self._directory.path / "learning_curve.png"
        )
        self._draw()
        self._checkpointer.close()

    def record_video(self, path: pathlib.Path) -> None:
        """Writes one episode of the first seed with the mean action, as an mp4 and a GIF."""
        evaluation.record(
            self._env_name,
            jax.tree.map(lambda x: x[0], self._state.actor),
            path,
            config=self._config,
            task=self._task,
            action_cost=self._action_cost,
        )
        self._directory.log_video(self.step, self._seeds[0], path)

    @contextlib.contextmanager
    def _busy(self, what: str) -> Iterator[None]:
        """Says in the bar, which stands still meanwhile, what is done."""
        if self._bar is not None:
            self._bar.set_description_str(what)
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.set_description_str("")

    def _note_fit(self, fit: FitReport) -> None:
        """Keeps how a fit of the dynamics went, for the log; raises `ValueError` if it diverged."""
        self._fit_mse = np.asarray(fit.holdout_mse)
        self._fit_epochs = np.asarray(fit.epochs)
        self._check_finite("held-out error of the dynamics", self._fit_mse)
        self._check_finite("loss of the dynamics", np.asarray(fit.train_loss))

    def _check_update(self, metrics: dict[str, jax.Array], action: np.ndarray) -> None:
        """Raises `ValueError` if the action is not finite, naming the cause."""
        if not np.isfinite(action).all():
            for name in [name for name in _CAUSES if name in metrics]:
                self._check_finite(name, np.asarray(metrics[name]))
            self._check_finite("action", action)

    def _check_finite(self, name: str, value: np.ndarray) -> None:
        if not np.isfinite(value).all():
            rows = np.isfinite(value).reshape(len(self._seeds), -1)
            wrong = [seed for seed, row in zip(self._seeds, rows, strict=True) if not row.all()]
            raise ValueError(
                f"training diverged at step {self.step}: {name} is not finite for seeds {wrong}; "
                f"{self._good()}. Try smaller learning rates or risk"
            )

    def _good(self) -> str:
        steps = self._checkpointer.steps()
        good = f"the last good checkpoint is {steps[-1]}" if steps else "there is no checkpoint"
        return f"{good} in {self._directory.checkpoints}"

    def _run_episodes(self) -> Evaluation:
        actor = self._state.actor
        return evaluate(
            self._eval_env,
            lambda observation: self._act(actor, observation),
            len(self._seeds),
            self._config.discount,
        )

    def _evaluate(self, bar: tqdm, metrics: dict[str, jax.Array]) -> None:
        """Evaluates, logs a row per seed, prints a line."""
        self._look_at_data()
        rate = self._speed.pace(self.step)
        update = {name: np.asarray(value) for name, value in metrics.items()}
        for name, value in update.items():
            self._check_finite(name, value)
        keys = jax.vmap(lambda k: jax.random.fold_in(k, self.step))(self._diagnosis_keys)
        values = jax.tree.map(np.asarray, self._diagnose(self._state, keys))
        episodes = self._run_episodes()
        rows = report.rows(
            self.step,
            self._seeds,
            episodes,
            {
                **self._episode_columns(episodes),
                **self._training_columns(),
                **dict(sorted(values.items())),
                "fit_epochs": self._fit_epochs,
                **{f"holdout_mse_{n}": mse for n, mse in enumerate(self._fit_mse.T)},
            },
            update,
        )
        timing = {
            "steps_per_second": rate,
            "learning_steps_per_second": self._speed.learning_rate(),
        }
        self._directory.log(rows, {name: value for name, value in timing.items() if value})
        report.tell(bar, rows, rate)
        self._speed.restart(self.step)

    def _all_host_state(self) -> dict[str, Any]:
        return {
            **self._host_state(),
            "eval_env": self._env_state(self._eval_env),
            "fit_mse": self._fit_mse,
            "fit_epochs": self._fit_epochs,
        }

    def _save(self) -> None:
        """Writes a checkpoint, unless it could not be continued."""
        for name, finite in self._finite_parts(self._state).items():
            self._check_finite(name, np.where(finite, 0.0, np.nan))
        self._look_at_data()
        metadata = {
            "metrics_size": self._directory.metrics_size(),
            "identity": self._directory.identity(),
            "speed": self._speed.state(),
            **self._metadata(),
        }
        if self._restarts_env:
            metadata |= {"resume_env": "restart", "restarts": self._restarts}
        self._checkpointer.save(self.step, self._state, self._all_host_state(), metadata)
