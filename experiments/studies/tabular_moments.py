"""Error of `solve_exact` against the number N of sampled MDPs, on random layered MDPs.

The exact variance is that of `solve_moments`. Example:
  python -m experiments.studies.tabular_moments --path=docs/moments.png
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from absl import flags
from matplotlib.figure import Figure

from experiments import cli, markdown, path_flag, style
from qusac_jax import posterior, ube

SIZES = (5, 10, 30, 100, 300, 1000, 3000, 10000)

_LAYERS, _WIDTH, _ACTIONS = 3, 2, 2  # of the MDPs, states in a layer
_DISCOUNT = 0.9
_LEAST_CONCENTRATION = 0.2  # with much less, rows are nearly one-hot and variances heavy-tailed


def layered_belief(rng: np.random.Generator, *, dtype: Any = jnp.float32) -> posterior.Posterior:
    """A random belief over MDPs whose steps lead to the next layer or out.

    Any step may end the episode. Concentrations are at least `_LEAST_CONCENTRATION`, mean rewards
    standard normal, and rewards have a variance of 1.
    """
    num_states = _LAYERS * _WIDTH
    concentration = np.zeros((num_states, _ACTIONS, num_states + 1))
    for state in range(num_states):
        first = (state // _WIDTH + 1) * _WIDTH
        targets = [*range(first, min(first + _WIDTH, num_states)), num_states]
        size = (len(targets), _ACTIONS)
        concentration[state, :, targets] = rng.gamma(1.0, size=size) + _LEAST_CONCENTRATION
    belief = posterior.init(num_states, _ACTIONS, concentration=concentration, dtype=dtype)
    return belief._replace(
        reward_mean=jnp.asarray(rng.normal(size=belief.reward_mean.shape), dtype)
    )


def errors(seed: int) -> list[float]:
    """Relative error of U, root mean square over (s, a), for each size."""
    rng = np.random.default_rng(seed)
    belief = layered_belief(rng)
    num_states, num_actions = belief.reward_mean.shape
    policy = jnp.asarray(rng.dirichlet(np.ones(num_actions), num_states), jnp.float32)
    exact = ube.solve_moments(belief, policy, _DISCOUNT).q
    keys = jax.random.split(jax.random.key(seed), len(SIZES))
    result = []
    for size, key in zip(SIZES, keys, strict=True):
        samples = posterior.sample(belief, key, size)
        estimate = ube.solve_exact(
            samples.transition, samples.reward, policy, _DISCOUNT, min_local=None
        ).q
        result.append(float(jnp.sqrt(jnp.mean((estimate / exact - 1) ** 2))))
    return result


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    path_flag.define(values, "path", "runs/moments.png", "of the figure")
    flags.DEFINE_integer("num_seeds", 5, "random MDPs", 1, flag_values=values)
    return values


def run(options) -> None:
    """Prints the errors, of each MDP as soon as they are known, and draws them."""
    style.check_path(options.path)
    head = ["relative error of U", *(f"N = {size}" for size in SIZES)]
    print(markdown.head(head, texts=head[:1]), flush=True)
    rows = []
    for seed in range(options.num_seeds):
        rows.append(errors(seed))
        print(_row(f"MDP {seed}", rows[-1]), flush=True)
    table = np.array(rows)
    print(_row("mean", table.mean(0)))
    path = _draw(table, pathlib.Path(options.path))
    print(f"figure -> {path}")


def _row(name: str, errors: np.ndarray) -> str:
    return markdown.row([name, *(f"{error:.4f}" for error in errors)])


@matplotlib.rc_context(style.RC)
def _draw(errors: np.ndarray, path: pathlib.Path) -> pathlib.Path:
    """Errors `[R, len(SIZES)]` against N, with the slope of Monte Carlo."""
    figure = Figure((5, 3.5), layout="constrained")
    axes = figure.subplots()
    sizes = np.array(SIZES)
    axes.loglog(sizes, errors.T, color=style.COLORS["exact_ube"], alpha=0.3, linewidth=0.8)
    axes.loglog(
        sizes,
        errors.mean(0),
        "o-",
        color=style.COLORS["exact_ube"],
        label="exact_ube, mean of MDPs",
    )
    slope = errors.mean(0)[-1] * np.sqrt(sizes[-1] / sizes)
    axes.loglog(sizes, slope, "k--", alpha=0.6, label="slope −1/2")
    axes.set(xlabel="sampled MDPs N", ylabel="relative error of U")
    axes.legend()
    return style.save(figure, path)


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and runs; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__)


if __name__ == "__main__":
    sys.exit(main())
