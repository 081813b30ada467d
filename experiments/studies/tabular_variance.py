"""Estimates of the variance of Q against the posterior's own, on the beliefs along real runs.

An agent acts; after some episodes, MDPs are drawn from its belief, and the variance of their Q
under its policy, which is what every estimate means to be, is compared with the estimates. Example:
  python -m experiments.studies.tabular_variance --path=docs/images/tabular_variance.png
"""

import dataclasses
import functools
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from absl import flags
from matplotlib.figure import Figure

from experiments import cli, markdown, path_flag, style
from qusac_jax import _lu, linear, posterior
from qusac_jax._next_values import next_mean, next_variance
from qusac_jax.tabular import agent, environments, experiment

_MANY = 500  # members of an ensemble that is nearly without noise
_NO_BOUND = -1e9
_DRAWN = {  # the estimates of the picture, as titles and names
    "exact_ube, N = 5": "exact_ube",
    "pombu, N = 5": "pombu",
    "ensemble_var, N = 5": "ensemble_var",
    "moments": "moments",
}


class Problem(NamedTuple):
    """Where an agent acts, and after which episodes its belief is looked at."""

    environment: environments.Environment
    config: experiment.Config
    episodes: tuple[int, ...]


class Belief(NamedTuple):
    """What is known of the values of one belief."""

    episode: int
    policy: np.ndarray  # [S]
    mean_q: np.ndarray  # [S, A] of the mean MDP
    true: np.ndarray  # [S, A] variance of Q by Monte Carlo
    bias: np.ndarray  # [S, A] mean of Q by Monte Carlo minus `mean_q`
    missed: np.ndarray  # [S] share of the true variance that the UBE without a bound misses
    expected_missed: np.ndarray  # [S] the same to first order, by eq. (4) of docs/moments.md
    estimates: dict[str, np.ndarray]  # [S, A] each


def problems(method: str) -> dict[str, Problem]:
    """DeepSea, its stochastic variant and the 7-room with the paper's settings."""
    sea = experiment.Config(
        agent=agent.Config(method=method, min_local=-0.05), count_weight=10.0, num_chunks=1
    )
    room = experiment.Config(agent=agent.Config(method=method), num_chunks=1)
    return {
        "deep_sea": Problem(environments.deep_sea(10), sea, (5, 10, 15, 20, 50, 200)),
        "deep_sea_stochastic": Problem(
            environments.deep_sea(10, stochastic=True), sea, (5, 10, 15, 20, 50, 200)
        ),
        "seven_room": Problem(environments.rooms(), room, (20, 100, 200, 400, 600, 800, 1000)),
    }


@functools.partial(jax.jit, static_argnames="num_draws")
def _draw_q(belief, policy, discount, key, num_draws):
    """Q `[num_draws, S, A]` of MDPs from the belief, and with the values of the next MDP."""
    mdps = posterior.sample(belief, key, num_draws)
    state = jnp.arange(len(policy))

    def solve(mdp):
        reward = mdp.reward[state, policy][:, None]
        return linear.solve(mdp.transition[state, policy], reward, discount).x[:, 0]

    v = jax.lax.map(solve, mdps)
    back_up = jax.vmap(lambda mdp, v: mdp.reward + discount * next_mean(mdp.transition, v))
    return back_up(mdps, v), back_up(mdps, jnp.roll(v, 1, 0))


def draw_q(belief, policy, discount: float, key, num_draws: int, *, batch: int = 500):
    """Q `[num_draws, S, A]` of MDPs drawn from a belief, in batches.

    The second result pairs the row and the reward of each MDP with the values of another one: how
    Q would vary if they were independent.
    """
    keys = jax.random.split(key, math.ceil(num_draws / batch))
    parts = [jax.device_get(_draw_q(belief, policy, discount, k, batch)) for k in keys]
    return tuple(np.concatenate(part)[:num_draws] for part in zip(*parts, strict=True))


@jax.jit
def first_order(belief: posterior.Posterior, policy: jax.Array, discount: float):
    """The delta method (docs/moments.md): variance of Q, and defect of the UBE, `[S, A]` each."""
    mean, strength = posterior.mean(belief), belief.concentration.sum(-1)
    state = jnp.arange(len(policy))
    system = jnp.eye(len(policy)) - discount * mean.transition[state, policy]
    inverse = _lu.solve(system, jnp.eye(len(policy)))
    mean_v = inverse @ mean.reward[state, policy]
    spread = next_variance(mean.transition, mean_v, next_mean(mean.transition, mean_v))
    surprise = 1 / belief.reward_precision + discount**2 * spread / (strength + 1)
    reach = jnp.einsum("sat,tu->sau", mean.transition, inverse, precision="highest")
    chosen = jax.nn.one_hot(policy, mean.reward.shape[1])
    defect = 2 * discount * chosen * reach[state, :, state] * surprise
    return surprise + defect + discount**2 * (reach**2) @ surprise[state, policy], defect


def look(belief, policy, config: agent.Config, key, num_draws: int, episode: int) -> Belief:
    """Draws from a belief and estimates its variances."""
    key_draw, key_few, key_many = jax.random.split(key, 3)
    q, independent = draw_q(belief, policy, config.discount, key_draw, num_draws)
    few = functools.partial(dataclasses.replace, config)
    many = functools.partial(dataclasses.replace, config, num_members=_MANY)
    moments = agent.evaluate(belief, policy, key_few, config=few(method="moments"))
    estimates = {
        "rows independent of values": independent.var(0, dtype=float),
        "moments": moments.variance,
    }
    for method in ("exact_ube", "pombu", "ensemble_var"):
        for name, make, k in ((method, few, key_few), (f"{method}, many", many, key_many)):
            evaluation = agent.evaluate(belief, policy, k, config=make(method=method))
            estimates[name] = evaluation.variance
    unbounded = many(method="exact_ube", min_local=_NO_BOUND)
    unbounded = agent.evaluate(belief, policy, key_many, config=unbounded)
    estimates["exact_ube, many, no bound"] = unbounded.variance
    estimates["first order"], defect = first_order(belief, policy, config.discount)
    true, state = q.var(0, dtype=float), np.arange(len(policy))
    true_v = true[state, policy]
    flow = posterior.mean(belief).transition[state, policy]
    expected = linear.solve(flow, defect[state, policy][:, None], config.discount**2).x[:, 0]
    mean_q = np.asarray(moments.mean_q)
    return Belief(
        episode,
        np.asarray(policy),
        mean_q,
        true,
        q.mean(0, dtype=float) - mean_q,
        1 - np.asarray(unbounded.variance)[state, policy] / true_v,
        np.asarray(expected) / true_v,
        {name: np.asarray(values, float) for name, values in estimates.items()},
    )


def follow(problem: Problem, seed: int, num_draws: int) -> list[Belief]:
    """Acts, and looks at the belief after some episodes."""
    last = max(problem.episodes)
    config = dataclasses.replace(
        problem.config, num_episodes=last, num_chunks=last // math.gcd(*problem.episodes)
    )
    begun = experiment.begin(problem.environment, [seed], config=config)
    beliefs = []
    for progress in experiment.advance(problem.environment, begun, config=config):
        if (episode := progress.num_episodes) in problem.episodes:
            state = jax.tree.map(lambda leaf: leaf[0], progress.state)
            key = jax.random.fold_in(jax.random.key(seed), episode)
            beliefs.append(look(state.belief, state.policy, config.agent, key, num_draws, episode))
    return beliefs


def deviations(belief: Belief, name: str) -> np.ndarray:
    """Estimated standard deviation of Q `[S, A]` over the true one."""
    return np.sqrt(np.maximum(belief.estimates[name], 0) / belief.true)


def agreement(belief: Belief, name: str) -> float:
    """Share of states whose greedy action is that of the true variance."""
    score = belief.mean_q + np.sqrt(np.maximum(belief.estimates[name], 0))
    best = (belief.mean_q + np.sqrt(belief.true)).argmax(-1)
    return float(np.mean(score.argmax(-1) == best))


def table(name: str, beliefs: Sequence[Belief]) -> str:
    """What is measured in one environment, as Markdown."""
    head = ["estimate", *(f"after {belief.episode}" for belief in beliefs)]
    lines = [markdown.head(head, texts=head)]
    for estimate in beliefs[0].estimates:
        cells = []
        for belief in beliefs:
            low, median, high = np.quantile(deviations(belief, estimate), (0.05, 0.5, 0.95))
            agree = 100 * agreement(belief, estimate)
            cells.append(f"{median:.2f} ({low:.2f}, {high:.2f}), {agree:.0f} %")
        lines.append(markdown.row([estimate, *cells]))
    facts = {
        "true standard deviation of V": lambda b: np.median(np.sqrt(_of_policy(b, b.true))),
        "bias of the mean, in those": lambda b: np.median(_of_policy(b, b.bias / np.sqrt(b.true))),
        "share missed by exact_ube, many, no bound": lambda b: np.median(b.missed),
        "the same to first order": lambda b: np.median(b.expected_missed),
    }
    for fact, of in facts.items():
        lines.append(markdown.row([fact, *(f"{of(belief):.3g}" for belief in beliefs)]))
    return "\n".join([name, "", *lines, ""])


def _of_policy(belief: Belief, x: np.ndarray) -> np.ndarray:
    return x[np.arange(len(x)), belief.policy]


@matplotlib.rc_context({**style.RC, "axes.grid": False})
def draw(followed: dict[str, list[Belief]], path: pathlib.Path) -> pathlib.Path:
    """The ratio of standard deviations of V against state and episode."""
    figure = Figure(figsize=(11, 2.3 * len(followed)), layout="constrained")
    axes = figure.subplots(len(followed), len(_DRAWN), squeeze=False)
    image = None
    for row, (name, beliefs) in zip(axes, followed.items(), strict=True):
        for panel, (title, estimate) in zip(row, _DRAWN.items(), strict=True):
            ratio = np.stack([_of_policy(b, deviations(b, estimate)) for b in beliefs])
            shade = np.log2(np.maximum(ratio, 2.0**-9))
            image = panel.imshow(
                shade, cmap="RdBu_r", vmin=-2, vmax=2, aspect="auto", interpolation="nearest"
            )
            panel.set_yticks(range(len(beliefs)), [str(belief.episode) for belief in beliefs])
            panel.set(title=title, xlabel="state")
        row[0].set_ylabel(f"{name}\nafter episode")
    assert image is not None  # every caller follows something
    bar = figure.colorbar(image, ax=axes, ticks=range(-2, 3), extend="both", shrink=0.8)
    bar.ax.set_yticklabels(["1/4", "1/2", "1", "2", "4"])
    bar.set_label("estimated / true sd of V")
    return style.save(figure, path)


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    names = ", ".join(problems("moments"))
    path_flag.define(values, "path", "runs/variance.png", "of the figure")
    flags.DEFINE_list("envs", list(problems("moments")), f"of {names}", flag_values=values)
    flags.DEFINE_string("method", "moments", "of the agent that acts", flag_values=values)
    flags.DEFINE_integer("seed", 0, "of the run", 0, flag_values=values)
    flags.DEFINE_integer("num_draws", 10_000, "MDPs per belief", 2, flag_values=values)
    return values


def run(options) -> None:
    """Prints the tables and draws the picture."""
    known = problems(options.method)
    if not options.envs or not set(options.envs) <= set(known):
        raise ValueError(f"envs must be some of {', '.join(known)}, got {options.envs}")
    style.check_path(options.path)
    print(
        "Estimated over true standard deviation of Q: median (5 %, 95 % of state and action), and "
        "the share of states\nwhose greedy action is that of the true one.\n"
    )
    followed = {}
    for name in options.envs:
        followed[name] = follow(known[name], options.seed, options.num_draws)
        print(table(name, followed[name]), flush=True)
    print(f"figure -> {draw(followed, pathlib.Path(options.path))}")


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and runs; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__)


if __name__ == "__main__":
    sys.exit(main())
