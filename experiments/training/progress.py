"""How a run is doing, for a person: a progress bar where one is looked at, or lines."""

import contextlib
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from tqdm import tqdm

from experiments import durations
from experiments.training.metrics_rows import Row

# More than this factor above its bound is more than rounding.
_BOUND_TOLERANCE = 1.001


class Progress:
    """Of a run. Says nothing on processes that are not the first."""

    def __init__(self, num_steps: int, *, is_first: bool):
        """Nothing is shown yet.

        Args:
            num_steps: of the run.
            is_first: whether this process is the one that speaks.
        """
        self._num_steps, self._is_first = num_steps, is_first
        self._bar: tqdm | None = None  # while it trains
        self._has_announced = False  # how fast it learns

    @contextlib.contextmanager
    def shown(self, step: int) -> Iterator[None]:
        """Within it, there is a bar, which begins at a step."""
        self._bar = tqdm(
            total=self._num_steps,
            initial=step,
            unit="step",
            disable=not (sys.stderr.isatty() and self._is_first),
            dynamic_ncols=True,
        )
        try:
            with self._bar:
                yield
        finally:
            self._bar = None

    def advance(self, count: int) -> None:
        """So many steps have been done."""
        if self._bar is not None:
            self._bar.update(count)

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Says in the bar, which stands still meanwhile, what is done."""
        if self._bar is not None:
            self._bar.set_description_str(what)
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.set_description_str("")

    def announce(self, rate: float | None, step: int, unit: str, *, without: str) -> None:
        """Says once, as soon as it is known, how fast it learns and what is left.

        Args:
            rate: units per second; None if it is not known.
            step: of the run, in that unit.
            unit: in the plural.
            without: what the time that is left leaves out.
        """
        if rate is None or self._has_announced:
            return
        self._has_announced = True
        left = durations.in_words((self._num_steps - step) / rate)
        print(f"{rate:.3g} {unit}/s here: about {left} are left without {without}", flush=True)

    def tell(self, rows: Sequence[Row], rate: float, seconds_left: float | None) -> None:
        """Tells how it is doing: in the bar, or as a line without one.

        Args:
            rows: of an evaluation.
            rate: steps per second and seed since the one before.
            seconds_left: until the run ends; None if that is not known.
        """
        if not self._is_first:
            return
        step = int(rows[0]["step"])
        mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        if self._bar is not None:
            self._bar.set_postfix(
                {
                    "return": f"{mean['eval_return']:.1f}",
                    "Q": f"{mean['mean_q']:.2f}",
                    "sqrtU": f"{mean['mean_sqrt_u']:.3g}",
                    "alpha": f"{mean['alpha']:.2g}",
                }
            )
        score = f", score {mean['eval_score']:.1f} %" if "eval_score" in mean else ""
        if self._bar is None or self._bar.disable:
            left = "?" if seconds_left is None else tqdm.format_interval(seconds_left)
            print(
                f"step {step}: return {mean['eval_return']:.1f} "
                f"(task {mean['eval_task_return']:.1f}){score}, Q {mean['mean_q']:.2f}, "
                f"sqrt(U) {mean['mean_sqrt_u']:.3g}, alpha {mean['alpha']:.2g}; "
                f"{rate:.1f} steps/s, {left} left",
                flush=True,
            )
        for message in exceeded_bounds(step, rows):
            tqdm.write(message, file=sys.stderr)


def exceeded_bounds(step: int, rows: Sequence[Row]) -> list[str]:
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
        if step and row["max_sqrt_u"] > _BOUND_TOLERANCE * row["sqrt_u_bound"] > 0
    ]
