"""The loop of an online run: act, learn, evaluate, save (Algorithm 2).

Axes: R seeds, E evaluation episodes, O observation size, D action size. The agent's functions are
written for one seed and mapped over R here; the environments step on the host.
"""

import functools
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from experiments import plot
from experiments.evaluation import Evaluation, evaluate
from experiments.run_directory import RunDirectory
from experiments.speed import Speed
from qusac_jax import environments
from qusac_jax.checkpoint import Checkpointer
from qusac_jax.policy import save_policy
from qusac_jax.qusac import agent
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.replay import Transition

# Evaluation environments draw their initial states from seeds that no training run uses.
_EVAL_SEED_OFFSET = 1_000_003


class OnlineRun:
    """R seeds trained side by side; `step` counts environment steps per seed."""

    def __init__(
        self,
        directory: RunDirectory,
        env: str,
        config: Config,
        *,
        seeds: Sequence[int],
        num_steps: int,
        action_cost: float,
        termination: environments.TerminationFn,
        eval_every: int,
        eval_episodes: int,
        checkpoint_every: int,
        devices: Sequence[Any],
    ):
        """Builds environments and the state of a run that has not begun."""
        self._directory = directory
        self._env_name = env
        self._config = config
        self._seeds = list(seeds)
        self._num_steps = num_steps
        self._action_cost = action_cost
        self._eval_every = eval_every
        self._checkpoint_every = checkpoint_every
        self._env = environments.VectorEnvironment(env, self._seeds, action_cost=action_cost)
        self._eval_env = environments.VectorEnvironment(
            env,
            [
                (_EVAL_SEED_OFFSET * (s + 1) + e) % 2**32
                for s in self._seeds
                for e in range(eval_episodes)
            ],
            action_cost=action_cost,
        )
        spec = self._env.spec
        task = agent.Task(spec.observation_size, spec.action_size, termination)
        self._task = task
        self._checkpointer = Checkpointer(directory.checkpoints)
        self._speed = Speed()

        # With several devices, the same for inputs and outputs: what a function returns then fits
        # what the next call expects, and nothing is compiled twice.
        sharding = _seed_sharding(len(self._seeds), devices)
        placed: dict[str, Any] = {}
        if sharding is not None:
            placed = {"in_shardings": sharding, "out_shardings": sharding}

        def mapped(function: Callable[..., Any], donate: tuple[int, ...] = (0,), **static: Any):
            batched = jax.vmap(functools.partial(function, **static))
            return jax.jit(batched, donate_argnums=donate, **placed)

        self._collect = mapped(agent.collect, config=config, task=task)
        self._train_step = mapped(agent.train_step, config=config, task=task)
        self._refresh = mapped(agent.refresh, config=config, task=task)
        self._diagnose = mapped(agent.diagnose, (), config=config, task=task)
        self._act = mapped(agent.act, (), config=config, task=task)
        self._finite_parts = mapped(agent.finite_parts, ())

        # Seed s gives the same run alone and among others: its keys depend on s only.
        keys = jax.vmap(lambda seed: jax.random.split(jax.random.key(seed), 3))(
            jnp.asarray(self._seeds)
        )
        init = mapped(agent.init, (), config=config, task=task)
        self._state: agent.TrainState = init(keys[:, 0])
        self.step = 0
        self._observation = self._env.reset()
        self._action = np.asarray(
            self._act(self._state.learner.actor, self._observation, keys[:, 1])
        )
        self._diagnosis_keys = keys[:, 2]
        num_seeds = len(self._seeds)
        self._fit_mse = np.full((num_seeds, config.num_members), np.nan, np.float32)
        self._fit_epochs = np.zeros(num_seeds, np.int32)
        self._last_return = np.full((2, num_seeds), np.nan)
        self._rewarded_steps = np.zeros(num_seeds, np.int64)

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
        restored = restore(self._state, self._host_state())
        if restored.step > self._num_steps:
            raise ValueError(
                f"num_steps is {self._num_steps}, but {restored.step} steps are done in "
                f"{directory.path}; use --num_steps={restored.step} or more"
            )
        directory.check_checkpoint(restored.step, restored.metadata)
        self._state, host = restored.device, restored.host
        self._observation = self._env.set_state(host["env"])
        self._eval_env.set_state(host["eval_env"])
        # Everything that can be wrong with the checkpoint has been checked: now files may change.
        directory.rewind(restored.metadata["metrics_size"], restored.step)
        self._checkpointer.delete_after(restored.step)
        directory.accept(restored.step)
        self._action = host["action"]
        self._fit_mse, self._fit_epochs = host["fit_mse"], host["fit_epochs"]
        self._last_return, self._rewarded_steps = host["last_return"], host["rewarded_steps"]
        self.step = restored.step
        self._speed.restore(restored.metadata.get("speed", {}), self.step)
        print(f"continuing at step {self.step}", flush=True)

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
        bar = tqdm(
            total=self._num_steps,
            initial=self.step,
            unit="step",
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        )
        with bar:
            if self.step == 0:
                self._evaluate(bar, {})
            metrics: dict[str, jax.Array] = {}
            while self.step < self._num_steps:
                metrics = self._environment_step()
                bar.update()
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
        """Writes the policy, summary.json and the learning curve."""
        config = self._config
        save_policy(
            self._directory.path / "policy",
            self._state.learner.actor,
            hidden=config.actor_hidden,
            action_size=self._task.action_size,
            metadata={"env": self._env_name, "seeds": self._seeds, "step": self.step},
        )
        final = self._run_episodes()
        rate = self._speed.learning_rate()
        updates = config.updates_per_step * len(self._seeds)
        self._directory.write_summary(
            {
                **about,
                "seeds": self._seeds,
                "steps": self.step,
                "final_returns": final.episode_return.mean(1).tolist(),
                "final_task_returns": final.episode_task_return.mean(1).tolist(),
                "rewarded_steps": self._rewarded_steps.tolist(),
                "updates_per_second": None if rate is None else rate * updates,
                "compilations": self._speed.compilations(),
            }
        )
        plot.plot_learning_curves(
            [self._directory.path], self._directory.path / "learning_curve.png"
        )
        self._directory.close()
        self._checkpointer.close()

    def record_video(self, path: pathlib.Path) -> None:
        """Writes an mp4 of one episode of the first seed with the mean action."""
        actor = jax.tree.map(lambda x: x[0], self._state.learner.actor)
        act = jax.jit(functools.partial(agent.act, config=self._config, task=self._task))
        environments.record_video(
            self._env_name,
            lambda observation: np.asarray(act(actor, observation)),
            path,
            action_cost=self._action_cost,
        )

    def _environment_step(self) -> dict[str, jax.Array]:
        """One step of every environment and what follows from it; returns update metrics."""
        config = self._config
        result = self._env.step(self._action)
        host_arrays: tuple[Any, ...] = (
            self._observation,
            self._action,
            result.reward,
            result.next_observation,
            result.terminated,
        )
        transition = Transition(*host_arrays)
        self._rewarded_steps += result.reward > config.reward_threshold
        ended = ~np.isnan(result.episode_return)
        self._last_return[0, ended] = result.episode_return[ended]
        self._last_return[1, ended] = result.episode_task_return[ended]
        self.step += 1
        metrics: dict[str, jax.Array] = {}
        if self.step < config.warmup_steps:
            self._state, action = self._collect(self._state, transition, result.observation)
        else:
            if config.uses_model and (self.step - config.warmup_steps) % config.fit_every == 0:
                self._state, report = self._refresh(self._state)
                self._fit_mse = np.asarray(report.holdout_mse)
                self._fit_epochs = np.asarray(report.epochs)
                self._check_finite("held-out error of the dynamics", self._fit_mse)
                self._check_finite("loss of the dynamics", np.asarray(report.train_loss))
            with self._speed.learning_step():
                self._state, action, metrics = self._train_step(
                    self._state, transition, result.observation
                )
                action = np.asarray(action)
        self._observation, self._action = result.observation, np.asarray(action)
        if not np.isfinite(self._action).all():
            # Causes before consequences: in the order of the update.
            order = ("local_uncertainty", "unet_loss", "critic_loss", "mean_q", "actor_loss")
            for name in [n for n in order if n in metrics]:
                self._check_finite(name, np.asarray(metrics[name]))
            self._check_finite("action", self._action)
        return metrics

    def _check_finite(self, name: str, value: np.ndarray) -> None:
        if not np.isfinite(value).all():
            steps = self._checkpointer.steps()
            good = f"the last good checkpoint is {steps[-1]}" if steps else "there is no checkpoint"
            rows = np.isfinite(value).reshape(len(self._seeds), -1)
            seeds = [seed for seed, row in zip(self._seeds, rows, strict=True) if not row.all()]
            raise ValueError(
                f"training diverged at step {self.step}: {name} is not finite for seeds {seeds}; "
                f"{good} in {self._directory.checkpoints}. Try smaller learning rates or risk"
            )

    def _check_state(self) -> None:
        """Raises `ValueError` if a checkpoint of the present state could not be continued."""
        for name, finite in self._finite_parts(self._state).items():
            self._check_finite(name, np.where(finite, 0.0, np.nan))

    def _run_episodes(self) -> Evaluation:
        actor = self._state.learner.actor
        return evaluate(self._eval_env, lambda obs: self._act(actor, obs), len(self._seeds))

    def _evaluate(self, bar: tqdm, metrics: dict[str, jax.Array]) -> None:
        """Evaluates, logs a row per seed, prints a line."""
        rate = self._speed.pace(self.step)
        update = {name: np.asarray(value) for name, value in metrics.items()}
        for name, value in update.items():
            self._check_finite(name, value)
        keys = jax.vmap(lambda k: jax.random.fold_in(k, self.step))(self._diagnosis_keys)
        values = jax.tree.map(np.asarray, self._diagnose(self._state, keys))
        episodes = self._run_episodes()
        rows = []
        for i, seed in enumerate(self._seeds):
            row = {
                "step": self.step,
                "seed": seed,
                "eval_return": episodes.episode_return[i].mean(),
                "eval_task_return": episodes.episode_task_return[i].mean(),
                "eval_return_min": episodes.episode_return[i].min(),
                "eval_return_max": episodes.episode_return[i].max(),
                "train_return": self._last_return[0, i],
                "train_task_return": self._last_return[1, i],
                "rewarded_steps": self._rewarded_steps[i],
                **{name: value[i] for name, value in sorted(values.items())},
                "fit_epochs": self._fit_epochs[i],
                **{f"holdout_mse_{n}": mse for n, mse in enumerate(self._fit_mse[i])},
            }
            # The same columns in every row, also in those before the first update.
            for name in ("actor_loss", "critic_loss", "unet_loss", "local_uncertainty"):
                row[name] = update[name][i] if name in update else np.nan
            rows.append({name: float(value) for name, value in row.items()})
        timing = {
            "steps_per_second": rate,
            "learning_steps_per_second": self._speed.learning_rate(),
        }
        self._directory.log(rows, {name: value for name, value in timing.items() if value})
        mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        bar.set_postfix(
            {
                "return": f"{mean['eval_return']:.1f}",
                "Q": f"{mean['mean_q']:.2f}",
                "sqrtU": f"{mean['mean_sqrt_u']:.3g}",
                "alpha": f"{mean['alpha']:.2g}",
            }
        )
        if bar.disable:
            left = tqdm.format_interval((self._num_steps - self.step) / rate) if rate else "?"
            print(
                f"step {self.step}: return {mean['eval_return']:.1f} "
                f"(task {mean['eval_task_return']:.1f}), Q {mean['mean_q']:.2f}, "
                f"sqrt(U) {mean['mean_sqrt_u']:.3g}, alpha {mean['alpha']:.2g}; "
                f"{rate:.1f} steps/s, {left} left",
                flush=True,
            )
        for message in breaches(self.step, rows):
            bar.write(message, file=sys.stderr)
        self._speed.look(self.step)

    def _host_state(self) -> dict[str, Any]:
        return {
            "env": self._env.state(),
            "eval_env": self._eval_env.state(),
            "action": self._action,
            "fit_mse": self._fit_mse,
            "fit_epochs": self._fit_epochs,
            "last_return": self._last_return,
            "rewarded_steps": self._rewarded_steps,
        }

    def _save(self) -> None:
        self._check_state()
        metadata = {
            "metrics_size": self._directory.metrics_size(),
            "identity": self._directory.identity(),
            "speed": self._speed.state(),
        }
        self._checkpointer.save(self.step, self._state, self._host_state(), metadata)


def breaches(step: int, rows: Sequence[dict[str, float]]) -> list[str]:
    """A warning for each row of metrics.csv whose U is larger than its inputs allow.

    Args:
        step: of the rows; at 0 nothing has been learned, and nothing is said.
        rows: with `seed`, `max_sqrt_u` and `sqrt_u_bound`, NaN without a U-net.
    """
    return [
        f"warning: step {step}, seed {row['seed']:.0f}: sqrt(U) reaches {row['max_sqrt_u']:.3g}, "
        f"{row['max_sqrt_u'] / row['sqrt_u_bound'] - 1:.1%} more than the "
        f"{row['sqrt_u_bound']:.3g} that the local uncertainty allows"
        for row in rows
        if step and row["max_sqrt_u"] > 1.001 * row["sqrt_u_bound"] > 0  # more than rounding
    ]


def _seed_sharding(num_seeds: int, devices: Sequence[Any]) -> jax.sharding.NamedSharding | None:
    """The leading axis spread over the devices, if they divide it evenly; None for one device."""
    if len(devices) == 1 or num_seeds % len(devices):
        return None
    mesh = jax.sharding.Mesh(np.asarray(devices), ("seeds",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("seeds"))
