"""Error of `solve_exact` against the number N of sampled MDPs, on random layered MDPs.

The exact variance is that of `solve_moments`. Example:
  python -m experiments.tabular_moments --path=docs/moments.png
"""

import pathlib
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import cli, tabular_figures
from qusac_jax import posterior, ube

SIZES = (5, 10, 30, 100, 300, 1000, 3000, 10000)


def layered_belief(
    rng: np.random.Generator, *, num_layers: int = 3, width: int = 2, num_actions: int = 2
) -> posterior.Posterior:
    """A random belief over MDPs whose steps lead to the next layer or out."""
    num_states = num_layers * width
    concentration = np.zeros((num_states, num_actions, num_states + 1))
    for state in range(num_states):
        first = (state // width + 1) * width
        targets = [*range(first, min(first + width, num_states)), num_states]
        size = (len(targets), num_actions)
        concentration[state, :, targets] = rng.gamma(1.0, size=size) + 0.2
    belief = posterior.init(num_states, num_actions, concentration=concentration)
    return belief._replace(
        reward_mean=jnp.asarray(rng.normal(size=belief.reward_mean.shape), jnp.float32)
    )


def errors(seed: int, *, discount: float = 0.9) -> list[float]:
    """Relative error of U, root mean square over (s, a), for each size."""
    rng = np.random.default_rng(seed)
    belief = layered_belief(rng)
    policy = jnp.asarray(rng.dirichlet(np.ones(2), 6), jnp.float32)
    exact = ube.solve_moments(belief, policy, discount).q
    keys = jax.random.split(jax.random.key(seed), len(SIZES))
    result = []
    for size, key in zip(SIZES, keys, strict=True):
        samples = posterior.sample(belief, key, size)
        estimate = ube.solve_exact(
            samples.transition, samples.reward, policy, discount, min_local=None
        ).q
        result.append(float(jnp.sqrt(jnp.mean((estimate / exact - 1) ** 2))))
    return result


def main(argv: Sequence[str] = sys.argv) -> int:
    """Prints the errors and draws them; returns the exit code."""
    options = flags.FlagValues()
    flags.DEFINE_string("path", "runs/moments.png", "Of the figure.", flag_values=options)
    flags.DEFINE_integer("num_seeds", 5, "Random MDPs.", 1, flag_values=options)

    def run() -> None:
        table = np.array([errors(seed) for seed in range(options.num_seeds)])
        for size, error in zip(SIZES, table.mean(0), strict=True):
            print(f"N = {size:5d}: relative error {error:.4f}")
        path = tabular_figures.draw_errors(SIZES, table, pathlib.Path(options.path))
        print(f"figure -> {path}")

    return cli.run_with(run, options, argv, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
