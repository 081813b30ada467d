"""An online run that keeps the policy of every evaluation."""

from typing import Any

import jax
import numpy as np

from experiments import files, kept_policies
from experiments.training.online_run import OnlineRun
from qusac_jax import qusac


class CollectRun(OnlineRun):
    """One seed, whose actor at each evaluation is among `kept_policies`."""

    def _evaluate(self, metrics: dict[str, jax.Array]) -> None:
        super()._evaluate(metrics)
        actor = jax.tree.map(lambda x: np.asarray(x)[0], self._state.actor)
        kept_policies.save(self._directory.path, self.step, actor)

    def evaluations(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps and mean returns of all evaluations so far, `[n]` each."""
        path = self._directory.path / "metrics.csv"
        columns = files.read_columns(path, ("step", "eval_return"))
        return columns["step"].astype(int), columns["eval_return"]

    def actor(self, step: int) -> Any:
        """The actor's weights at an evaluation.

        Raises:
            ValueError: if its file is missing or damaged.
        """
        like = jax.tree.map(lambda x: x[0], self._state.actor)
        return kept_policies.load(self._directory.path, step, like)

    def transitions(self, num_steps: int) -> qusac.Transition:
        """The first transitions that the environment gave, `[num_steps, ...]` in NumPy.

        D must have room for all steps, or it has written over them.
        """
        return jax.tree.map(lambda x: np.asarray(x[0, :num_steps]), self._state.replay.data)
