"""How well a saved agent knows what it does not know: `python -m experiments.calibration RUN`.

RUN is the workdir of an online or offline run that has a checkpoint. At states of real episodes,
the critics' values, their deviations from member to member and sqrt(U) are compared with the
discounted returns that follow in the environment and in each member's model, all with the
policy's own draws and entropy bonus.

Writes step_STEP.png and .csv and prints a table with a column for each seed.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from experiments import calibration_figure, cli, files, markdown, run_command
from experiments.calibration import comparison
from experiments.calibration.comparison import Returns

_FEWEST = 3  # values that a correlation says something about


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_integer("step", None, "of the checkpoint; default the last", **define)
    flags.DEFINE_integer("episodes", 20, "in the environment, per seed of the run", 1, **define)
    flags.DEFINE_integer("points", 5, "states of each episode", 1, **define)
    flags.DEFINE_integer("draws", 16, "rollouts of each member's model per state", 2, **define)
    run_command.define_flags(values, seed_of="episodes and rollouts", folder="calibration")
    return values


def run(options: Any, paths: Sequence[str]) -> None:
    """Measures as the flags say, prints and draws."""
    saved = run_command.open_run(options, paths)
    cli.check_seeds(options.seed, max(len(saved.seeds), options.episodes))
    step = saved.checkpoint(options.step)
    output = pathlib.Path(options.output or saved.path / "calibration")
    picture, numbers = output / f"step_{step}.png", output / f"step_{step}.csv"
    for path in (picture, numbers):
        files.check_writable(path)
    returns = comparison.measure(
        saved,
        saved.agent(step),
        num_episodes=options.episodes,
        num_points=options.points,
        num_draws=options.draws,
        seed=options.seed,
    )
    is_of_values = saved.config.qvariance.is_of_values
    rows = statistics(returns, is_of_values=is_of_values)
    header = ("what", *(f"seed {seed}" for seed in saved.seeds))
    files.write_csv(numbers, header, ((name, *values) for name, values in rows.items()))
    predictions = calibration_figure.Predictions(returns.value, returns.std, returns.real)
    calibration_figure.draw(
        predictions,
        saved.seeds,
        picture,
        _spreads(returns),
        title=f"{saved.spec.name}, {saved.config.method}, step {step}",
        is_of_values=is_of_values,
    )
    left = saved.config.discount**returns.length
    num_points = returns.real.shape[1] // options.episodes
    print(
        f"{saved.spec.name}, step {step}: returns of {returns.length} steps, from {num_points} "
        f"state{'s' * (num_points > 1)} of each of {options.episodes} episodes"
    )
    if num_points < options.points:
        print(f"{options.points} were wanted; later ones are cut off, or end, before so many steps")
    if left > 2 * comparison.TAIL:
        print(f"{left:.0%} of an even stream of rewards comes after the last of them")
    if not is_of_values:
        print(f"U of {saved.config.method!r} is no variance of values: see its correlations alone")
    print(table(saved.seeds, rows))
    print(f"\npicture and numbers -> {picture}, {numbers}")


def statistics(returns: Returns, *, is_of_values: bool = True) -> dict[str, np.ndarray]:
    """Statistics `[R]` by name; NaN where one cannot be computed.

    A Gaussian with standard deviation sqrt(U) has 68 and 95 % within one and two of them. Where U
    is no variance of values, these shares are left out.
    """
    num_members = returns.member.shape[1]
    model_mean = returns.member.mean(1)
    deviation = returns.member - model_mean[:, None]
    # A member deviates less from the mean of N members, to which it contributes, than from the
    # posterior mean: hence Bessel's correction.
    unbiased = deviation * np.sqrt(num_members / (num_members - 1 or np.nan))
    spread, std = _spread(returns), returns.std
    # Standard deviation of a member's mean return, the noise of a finite number of draws included.
    noisy = np.sqrt(np.square(std) + _noise(returns))[:, None]
    error = np.where(np.isfinite(returns.real), returns.value - returns.real, np.nan)
    rows = {
        "expected return": _mean(returns.value),
        "sqrt(U)": _mean(std),
        "real return": _mean(returns.real),
        "real: correlation of sqrt(U) and error": _correlations(std, np.abs(error)),
        "real: within 1 sqrt(U)": _within(error, std),
        "real: within 2 sqrt(U)": _within(error, 2 * std),
        "models: return": _mean(model_mean),
        "models: std over members": _mean(spread),
        "models: correlation of sqrt(U) and std": _correlations(std, spread),
        "models: within 1 sqrt(U)": _within(unbiased, noisy),
        "models: within 2 sqrt(U)": _within(unbiased, 2 * noisy),
    }
    if not is_of_values:
        rows = {name: values for name, values in rows.items() if "within" not in name}
    if returns.member_value.shape[1] == num_members > 1:
        critic = returns.member_value - returns.value[:, None]
        rows["critics: std over members"] = _mean(returns.member_value.std(1, ddof=1))
        rows["critics: correlation of deviations with the models'"] = _correlations(
            critic, deviation
        )
    return rows


def table(seeds: Sequence[int], rows: dict[str, np.ndarray]) -> str:
    """Markdown, a column for each seed; rows without any finite value are left out."""
    lines = [markdown.head(["", *(f"seed {seed}" for seed in seeds)], texts=("",))]
    for name, values in rows.items():
        if np.isfinite(values).any():
            lines.append(markdown.row([name, *(f"{value:.3g}" for value in values)]))
    return "\n".join(lines)


def _spread(returns: Returns) -> np.ndarray:
    """Standard deviation over members `[R, P]`, less what the draws alone would make of it."""
    if returns.member.shape[1] < 2:
        return np.full_like(returns.std, np.nan)
    return np.sqrt(np.maximum(returns.member.var(1, ddof=1) - _noise(returns), 0.0))


def _noise(returns: Returns) -> np.ndarray:
    """Variance `[R, P]` that the finite number of draws gives a member's mean return."""
    return np.mean(np.square(returns.member_error), axis=1)


def _spreads(returns: Returns) -> calibration_figure.Spreads | None:
    """What is drawn of the members; None without critics and models of each."""
    if not returns.member_value.shape[1] == returns.member.shape[1] > 1:
        return None
    return calibration_figure.Spreads(
        returns.std,
        _spread(returns),
        returns.member - returns.member.mean(1, keepdims=True),
        returns.member_value - returns.value[:, None],
    )


def _mean(values: np.ndarray) -> np.ndarray:
    """Over all but the leading axis, of what is finite; NaN where nothing is."""
    flat = values.reshape(len(values), -1)
    return np.ma.masked_invalid(flat).mean(1).filled(np.nan)


def _within(error: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Share of errors within the bound, of each seed."""
    inside = (np.abs(error) <= bound).astype(float)
    return _mean(np.where(np.isfinite(error + bound), inside, np.nan))


def _correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson's, of each seed."""
    return np.array([_correlation(x.ravel(), y.ravel()) for x, y in zip(a, b, strict=True)])


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    kept = np.isfinite(a) & np.isfinite(b)
    a, b = a[kept], b[kept]
    if len(a) < _FEWEST or not (np.ptp(a) and np.ptp(b)):
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and measures; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__, positional="a run directory")
