"""Returns of a saved run's policies, with intervals, and a video of an episode.

    python -m experiments.evaluate RUN [--episodes=20] [--step=STEP] [--seed_index=i] [--video]

RUN is the workdir of an online, offline or collect run, finished or not. The policy is the last one
that was saved, or that of --step. Actions are the mean ones; --sampled draws them.
Initial states are the same for every run and seed: those of --seed, --seed + 1, ...

Prints a table with 95 % intervals: of a seed's mean over its episodes, and of the mean over seeds.
Writes step_STEP.json with all returns (step_STEP_seed_SEED.json of one --seed_index, with _sampled
in the name for --sampled), and for --video step_STEP_seed_SEED.mp4 and .gif, of the mean action.
"""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags

from experiments import cli, evaluation, files, markdown, results, run_command, seeds
from experiments.saved_run import SavedRun
from qusac_jax import datasets, environments, qusac
from qusac_jax.qusac.networks import Params

_MOST_COPIES = 25  # of the environment at once, per seed: simulators take memory


@dataclasses.dataclass(frozen=True)
class Scores:
    """What the policies of a run got."""

    run: str
    env: str
    step: int
    seeds: list[int]  # R
    first_episode_seed: int
    is_sampled: bool  # actions were drawn, not the mean ones
    returns: np.ndarray  # [R, E] with action cost
    task_returns: np.ndarray  # [R, E] without
    scores: np.ndarray | None  # [R, E] percent; None without reference returns


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_integer("episodes", 20, "per seed of the run", 1, **define)
    flags.DEFINE_integer("step", None, "at which the policy was saved; default the last", **define)
    flags.DEFINE_integer(
        "seed_index", None, "which seed of the run; default all, and the first in videos", **define
    )
    flags.DEFINE_boolean("sampled", False, "draw actions from the policy", **define)
    flags.DEFINE_boolean("video", False, "write the first episode as mp4 and GIF", **define)
    run_command.define_flags(values, seed_of="the first episode", folder="evaluation")
    return values


def run(options: Any, paths: Sequence[str]) -> None:
    """Evaluates as the flags say, prints and writes."""
    saved = run_command.open_run(options, paths)
    if options.video:
        evaluation.check_video(saved.spec.name)
    indices = list(range(len(saved.seeds)))
    if options.seed_index is not None:
        indices = [saved.index(options.seed_index)]
    step, actor = saved.actor(options.step)
    actor = jax.tree.map(lambda x: np.asarray(x)[indices], actor)
    output = pathlib.Path(options.output or saved.path / "evaluation")
    part = "" if options.seed_index is None else f"_seed_{saved.seeds[options.seed_index]}"
    how = "_sampled" if options.sampled else ""
    path = output / f"step_{step}{part}{how}.json"
    files.check_writable(path)
    sampled = {"is_sampled": options.sampled}
    scores = score(saved, step, actor, indices, options.episodes, options.seed, **sampled)
    print(table(scores))
    files.write_json(path, _as_json(scores))
    print(f"returns -> {path}")
    if options.video:
        path = output / f"step_{step}_seed_{scores.seeds[0]}.mp4"
        evaluation.record(
            saved.spec.name,
            jax.tree.map(lambda x: x[0], actor),
            path,
            config=saved.config,
            task=saved.spec.task("never"),
            action_cost=saved.spec.action_cost,
            seed=options.seed,
        )
        print(f"video -> {path} and .gif")


def score(
    saved: SavedRun,
    step: int,
    actor: Params,
    indices: Sequence[int],
    num_episodes: int,
    first_seed: int,
    *,
    is_sampled: bool = False,
) -> Scores:
    """Runs episodes.

    Args:
        saved: the run.
        step: at which the policies were saved.
        actor: their weights, leaves `[R, ...]`, of some seeds of the run.
        indices: R, which seeds these are.
        num_episodes: E per seed.
        first_seed: of the environments.
        is_sampled: whether actions are drawn, not the mean ones.
    """
    num_rounds = -(-num_episodes // _MOST_COPIES)
    copies = -(-num_episodes // num_rounds)
    task = saved.spec.task("never")  # of a policy, only sizes count
    act = seeds.mapped(qusac.act, config=saved.config, task=task)
    rounds = []
    # New copies each round: what follows a copy's first episode may depend on the policy.
    for first in range(first_seed, first_seed + num_rounds * copies, copies):
        environment = environments.vector(
            saved.spec.name,
            [first + e for _ in indices for e in range(copies)],
            action_cost=saved.spec.action_cost,
        )
        policy = functools.partial(act, actor)
        if is_sampled:
            policy = _sampled(policy, [saved.seeds[i] for i in indices], first)
        rounds.append(evaluation.evaluate(environment, policy, len(indices)))
        environment.close()
    returns, task_returns = (
        np.concatenate([getattr(one, name) for one in rounds], axis=1)[:, :num_episodes]
        for name in ("episode_return", "episode_task_return")
    )
    reference = saved.reference
    return Scores(
        run=str(saved.path),
        env=saved.spec.name,
        step=step,
        seeds=[saved.seeds[i] for i in indices],
        first_episode_seed=first_seed,
        is_sampled=is_sampled,
        returns=returns,
        task_returns=task_returns,
        scores=None if reference is None else datasets.normalized_score(returns, reference),
    )


def _sampled(
    act: Callable[[np.ndarray, jax.Array], Any], run_seeds: Sequence[int], first: int
) -> Callable[[np.ndarray], Any]:
    """A policy that draws its actions, each seed of the run with keys of its own."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(seeds.keys(run_seeds, 1)[:, 0], first)
    split = jax.jit(jax.vmap(jax.random.split))

    def policy(observation: np.ndarray) -> Any:
        nonlocal keys
        keys, now = split(keys).T
        return act(observation, now)

    return policy


def table(scores: Scores) -> str:
    """Markdown table, a line per seed and one for all of them."""
    columns = {"return": scores.returns, "without action cost": scores.task_returns}
    if scores.scores is not None:
        columns["score in %"] = scores.scores
    count = scores.returns.shape[1]
    lines = [
        f"{scores.env}, step {scores.step}: {count} episode{'s' * (count > 1)} per seed"
        f"{' with sampled actions' * scores.is_sampled}"
        f"{', mean with 95 % interval' * (count > 1)}",
        markdown.head(["seed", *columns, "least", "largest return"], texts=("seed",)),
    ]
    rows = [
        (str(seed), [x[i] for x in columns.values()], scores.returns[i])
        for i, seed in enumerate(scores.seeds)
    ]
    if len(scores.seeds) > 1:
        rows.append(("mean of seeds", [x.mean(1) for x in columns.values()], scores.returns))
    for name, values, returns in rows:
        cells = [results.plus_minus(x.mean(), results.half_interval(x)) for x in values]
        cells += [f"{returns.min():.1f}", f"{returns.max():.1f}"]
        lines.append(markdown.row([name, *cells]))
    return "\n".join(lines)


def _as_json(scores: Scores) -> dict[str, Any]:
    described = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in dataclasses.asdict(scores).items()
        if value is not None
    }
    described["mean_return"] = scores.returns.mean(1).tolist()
    half = [results.half_interval(row) for row in scores.returns]
    described["mean_return_half_interval"] = [None if np.isnan(h) else float(h) for h in half]
    return described


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and evaluates; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__, positional="a run directory")


if __name__ == "__main__":
    sys.exit(main())
