"""The checkpoints of a run: whether it can continue from one, and what they say beside arrays."""

from typing import Any

import numpy as np

from experiments.training.setup import Setup
from qusac_jax import environments, qusac
from qusac_jax.checkpoint import Checkpointer, Restored


class RunCheckpoints:
    """Checkpoints that fit the files of a run's directory."""

    restarts_env: bool  # they hold no environments: episodes of a continued run begin anew

    def __init__(self, setup: Setup):
        """Of a run; nothing is read or written."""
        self._directory = setup.directory
        self._is_first = setup.processes.is_first
        self._num_steps = setup.num_steps
        self._checkpointer = Checkpointer(
            setup.directory.checkpoints, max_to_keep=setup.keep_checkpoints
        )
        self.restarts_env = setup.restarts_env
        self._began_anew_at: list[int] = []  # steps

    def can_continue(self, mode: str) -> bool:
        """Whether there is a checkpoint; if not, the files of a run that begins are made ready.

        Args:
            mode: latest, latest_good (skip damaged ones) or never.

        Raises:
            ValueError: with mode never, if there is one; if there are results without one.
        """
        steps = self._checkpointer.steps()
        if not steps:
            if self._is_first:
                self._start_over(mode)
            return False
        if mode == "never":
            raise ValueError(
                f"resume is 'never', but {self._directory.path} has checkpoints at steps {steps}; "
                "choose another workdir, or leave --resume out to continue"
            )
        return True

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
            directory.rewind(0, -1)
        directory.accept(0)

    def restore(self, mode: str, state: qusac.TrainState, host: dict[str, Any]) -> Restored:
        """Reads a checkpoint that this run can continue from; changes no files.

        Args:
            mode: latest or latest_good.
            state: of the agents, in the structure, shapes and shardings to restore.
            host: NumPy arrays in the structure to restore.

        Raises:
            CheckpointError: if the checkpoint cannot be read.
            ValueError: if it is of another run, of a later step, or without the environments.
        """
        restore = (
            self._checkpointer.restore_latest_good
            if mode == "latest_good"
            else self._checkpointer.restore
        )
        restored = restore(state, host)
        path = self._directory.path
        if restored.step > self._num_steps:
            raise ValueError(
                f"num_steps is {self._num_steps}, but {restored.step} steps are done in {path}; "
                f"use --num_steps={restored.step} or more"
            )
        self._directory.check_checkpoint(restored.step, restored.metadata)
        if restored.metadata.get("resume_env") == "restart" and not self.restarts_env:
            raise ValueError(
                f"resume_env is 'exact', but checkpoint {restored.step} in {path} does not hold "
                "its environments; continue with --resume_env=restart"
            )
        return restored

    def accept(self, restored: Restored) -> None:
        """Forgets what the run did after a checkpoint that it goes on from."""
        self._began_anew_at = list(restored.metadata.get("restarts", []))
        if self.restarts_env:
            self._began_anew_at.append(restored.step)
        self._directory.rewind(restored.metadata["metrics_size"], restored.step)
        self._checkpointer.delete_after(restored.step)
        self._directory.accept(restored.step)

    def save(
        self, step: int, state: qusac.TrainState, host: dict[str, Any], metadata: dict[str, Any]
    ) -> None:
        """Writes a checkpoint.

        Args:
            step: of the run.
            state: of the agents.
            host: NumPy arrays in fixed shapes.
            metadata: what else the run needs, JSON-compatible.
        """
        about = {
            "metrics_size": self._directory.metrics_size(),
            "identity": self._directory.identity(),
            **metadata,
        }
        if self.restarts_env:
            about |= {"resume_env": "restart", "restarts": self._began_anew_at}
        self._checkpointer.save(step, state, host, about)

    def env_state(self, env: environments.AnyVector) -> dict[str, np.ndarray]:
        """What a checkpoint holds of environments; nothing if their episodes begin anew."""
        if not self.restarts_env:
            return env.state()
        on_device = isinstance(env, environments.DeviceVector)
        names = env.state() if on_device else environments.STATE_FIELDS
        return {name: np.zeros(0) for name in names}

    def summary(self) -> dict[str, Any]:
        """What summary.json says of them."""
        return {"episodes_began_anew_at": self._began_anew_at} if self.restarts_env else {}

    def last_good(self) -> str:
        """Says where a run that diverged can be continued from."""
        steps = self._checkpointer.steps()
        good = f"the last good checkpoint is {steps[-1]}" if steps else "there is no checkpoint"
        return f"{good} in {self._directory.checkpoints}"

    def close(self) -> None:
        """Waits for what is being written."""
        self._checkpointer.close()
