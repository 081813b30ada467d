"""What an evaluation leaves behind: rows of metrics.csv, a line on the console, warnings.

Axis: R seeds.
"""

import sys
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from experiments.evaluation import Evaluation

# More than this factor above its bound is more than rounding.
_BOUND_TOLERANCE = 1.001
# Of the last update, in every row of metrics.csv, also in those before the first update.
_UPDATE_COLUMNS = ("actor_loss", "critic_loss", "unet_loss", "local_uncertainty")

Row = dict[str, float]


def rows(
    step: int,
    seeds: Sequence[int],
    episodes: Evaluation,
    values: dict[str, np.ndarray],
    update: dict[str, np.ndarray],
) -> list[Row]:
    """A row of metrics.csv for each seed.

    Args:
        step: of the evaluation.
        seeds: R.
        episodes: of the evaluation.
        values: further columns, `[R]` each, in their order.
        update: metrics of the last gradient update, `[R]` each; empty before the first.
    """
    nothing = np.full(len(seeds), np.nan)
    columns = {
        "step": np.full(len(seeds), step),
        "seed": np.asarray(seeds),
        "eval_return": episodes.episode_return.mean(1),
        "eval_task_return": episodes.episode_task_return.mean(1),
        "eval_return_min": episodes.episode_return.min(1),
        "eval_return_max": episodes.episode_return.max(1),
        **values,
        **{name: update.get(name, nothing) for name in _UPDATE_COLUMNS},
    }
    return [{name: float(column[i]) for name, column in columns.items()} for i in range(len(seeds))]


def tell(bar: tqdm, rows: Sequence[Row], rate: float, seconds_left: float | None) -> None:
    """Tells a person how a run is doing: in the progress bar, or as a line without one.

    Args:
        bar: of the run, disabled where nobody looks.
        rows: of the evaluation.
        rate: steps per second and seed since the last one.
        seconds_left: until the run ends; None if that is not known.
    """
    step = int(rows[0]["step"])
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    bar.set_postfix(
        {
            "return": f"{mean['eval_return']:.1f}",
            "Q": f"{mean['mean_q']:.2f}",
            "sqrtU": f"{mean['mean_sqrt_u']:.3g}",
            "alpha": f"{mean['alpha']:.2g}",
        }
    )
    score = f", score {mean['eval_score']:.1f} %" if "eval_score" in mean else ""
    if bar.disable:
        left = "?" if seconds_left is None else tqdm.format_interval(seconds_left)
        print(
            f"step {step}: return {mean['eval_return']:.1f} "
            f"(task {mean['eval_task_return']:.1f}){score}, Q {mean['mean_q']:.2f}, "
            f"sqrt(U) {mean['mean_sqrt_u']:.3g}, alpha {mean['alpha']:.2g}; "
            f"{rate:.1f} steps/s, {left} left",
            flush=True,
        )
    for message in exceeded_bounds(step, rows):
        bar.write(message, file=sys.stderr)


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
