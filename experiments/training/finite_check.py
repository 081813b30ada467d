"""Whether what a run computes is finite; a run that diverged ends, and says what broke first.

Axis: R seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qusac_jax import qusac
from qusac_jax.qusac.fitting import FitReport

# Where a value that is not finite shows first: in the order of the update.
_CAUSES = ("local_uncertainty", "unet_loss", "critic_loss", "mean_q", "actor_loss")


# A square of a reward beyond 1e19 is infinite in float32.
_REMEDY = "smaller learning rates or risk, or, where they are huge, rewards divided by a constant"


class FiniteCheck:
    """Raises `ValueError` that names the value, the step and the seeds."""

    def __init__(
        self, run_seeds: Sequence[int], last_good: Callable[[], str], mapped: Callable[..., Any]
    ):
        """Nothing has been looked at.

        Args:
            run_seeds: R.
            last_good: says where the run can be continued from.
            mapped: `seeds.mapped` with the placement of the run.
        """
        self._seeds = list(run_seeds)
        self._last_good = last_good
        self._finite_parts = mapped(qusac.diagnostics.finite_parts)

    def check_fit(self, step: int, fit: FitReport) -> None:
        """Checks the report `[R, ...]` of a fit of the dynamics."""
        remedy = "a smaller dynamics.learning_rate, or dynamics.clip_observations"
        self._check(step, "held-out error of the dynamics", fit.holdout_mse, remedy)
        self._check(step, "loss of the dynamics", fit.train_loss, remedy)

    def check_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Of a gradient update, `[R]` each."""
        for name, value in metrics.items():
            self._check(step, name, value)

    def check_action(self, step: int, action: np.ndarray, metrics: Mapping[str, Any]) -> None:
        """The next action `[R, A]`; the metrics of the update before it may name the cause."""
        if not np.isfinite(action).all():
            self.check_metrics(step, {name: metrics[name] for name in _CAUSES if name in metrics})
            self._check(step, "action", action)

    def check_state(self, step: int, state: qusac.TrainState) -> None:
        """Everything that the agents are, `[R, ...]`."""
        for name, finite in self._finite_parts(state).items():
            self._check(step, name, np.where(finite, 0.0, np.nan))

    def _check(self, step: int, name: str, value: Any, remedy: str = _REMEDY) -> None:
        finite = np.isfinite(np.asarray(value))
        if not finite.all():
            rows = finite.reshape(len(self._seeds), -1)
            wrong = [seed for seed, row in zip(self._seeds, rows, strict=True) if not row.all()]
            raise ValueError(
                f"training diverged at step {step}: {name} is not finite for seeds {wrong}; "
                f"{self._last_good()}. Try {remedy}"
            )
