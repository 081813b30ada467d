"""Tabular experiments of the paper: the toy example, DeepSea and the 7-room environment.

Examples:
  python -m experiments.tabular --env=toy
  python -m experiments.tabular --env=deep_sea --length=20 --method=exact_ube --num_seeds=5
  python -m experiments.tabular --env=seven_room --method=psrl --num_seeds=10
  python -m experiments.tabular --env=deep_sea --figure --published=deep_sea.csv
  python -m experiments.tabular --env=seven_room --inspect --inspect_episodes=100,500,1000
"""

import csv
import dataclasses
import json
import math
import pathlib
import sys
import time
from typing import Any

import jax
import numpy as np
from absl import flags
from tqdm import tqdm

from experiments import tabular_figures
from qusac_jax import ube
from qusac_jax.tabular import agent, environments, experiment

ENVIRONMENTS = ("toy", "deep_sea", "deep_sea_stochastic", "seven_room")
_PUBLISHED_METHODS = ("exact_ube", "pombu", "ensemble_var", "psrl")
_INTERRUPTED = 130  # exit code of a shell command ended by Ctrl-C


def make_flags() -> flags.FlagValues:
    """The flags of this command, apart from those of other modules."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_boolean("help", False, "Print this text.", short_name="h", **define)
    flags.DEFINE_string("env", "deep_sea", f"One of {', '.join(ENVIRONMENTS)}.", **define)
    flags.DEFINE_string("method", "exact_ube", f"One of {', '.join(agent.METHODS)}.", **define)
    flags.DEFINE_integer("length", 10, "L of DeepSea; it has L * L states.", **define)
    flags.DEFINE_integer("num_seeds", 5, "Independent runs.", **define)
    flags.DEFINE_integer("seed", 0, "First seed; the others follow it.", **define)
    flags.DEFINE_integer(
        "num_episodes", None, "Default: the paper's 1000 (DeepSea) or 5000 (7-room).", **define
    )
    flags.DEFINE_float("discount", 0.99, "Of the agent, in [0, 1).", **define)
    flags.DEFINE_float("risk", 1.0, "Lambda: positive seeks uncertainty.", **define)
    flags.DEFINE_integer("num_members", 5, "N, MDPs sampled per update.", **define)
    flags.DEFINE_float(
        "min_local",
        None,
        "u_min. Default: the paper's -0.05 (DeepSea) or 0 (7-room).",
        **define,
    )
    flags.DEFINE_string("solver", "warm", f"One of {', '.join(agent.SOLVERS)}.", **define)
    flags.DEFINE_string(
        "seed_axis",
        "auto",
        "vmap (all seeds at once), map (in turn) or auto: map on CPU, else vmap.",
        **define,
    )
    flags.DEFINE_string("workdir", None, "Default: runs/tabular/<env>...", **define)
    flags.DEFINE_boolean("figure", False, "Run and draw the paper's comparison.", **define)
    flags.DEFINE_list("methods", list(_PUBLISHED_METHODS), "Compared with --figure.", **define)
    flags.DEFINE_list(
        "lengths", ["10", "15", "20", "25", "30", "35", "40"], "Of DeepSea in --figure.", **define
    )
    flags.DEFINE_string("published", None, "CSV of published results to overlay.", **define)
    flags.DEFINE_boolean("inspect", False, "Draw where the agent is uncertain.", **define)
    flags.DEFINE_list("inspect_episodes", ["100", "500", "1000"], "When to look.", **define)
    return values


def make_environment(name: str, length: int) -> environments.Environment:
    """The environment of a flag value."""
    if name == "deep_sea":
        return environments.deep_sea(length)
    if name == "deep_sea_stochastic":
        return environments.deep_sea(length, stochastic=True)
    if name == "seven_room":
        return environments.rooms()
    raise ValueError(f"env must be one of {', '.join(ENVIRONMENTS)}, got {name!r}")


def make_config(options, *, method: str, length: int) -> experiment.Config:
    """The paper's settings for the environment, where the flags say nothing else."""
    is_sea = options.env.startswith("deep_sea")
    min_local = options.min_local
    if min_local is None:
        min_local = -0.05 if is_sea else 0.0
    num_episodes = options.num_episodes
    if num_episodes is None:
        num_episodes = 1000 if is_sea else 5000
    seed_axis = options.seed_axis
    if seed_axis == "auto":
        seed_axis = "map" if jax.default_backend() == "cpu" else "vmap"
    return experiment.Config(
        agent=agent.Config(
            method=method,
            discount=options.discount,
            risk=options.risk,
            num_members=options.num_members,
            min_local=min_local,
            solver=options.solver,
        ),
        num_episodes=num_episodes,
        count_weight=float(length) if is_sea else 1.0,
        seed_axis=seed_axis,
    )


def run_one(options, *, method: str, length: int, workdir: pathlib.Path) -> bool:
    """Runs a method and writes metrics.csv and summary.json; False if it was interrupted."""
    environment = make_environment(options.env, length)
    config = make_config(options, method=method, length=length)
    if options.num_seeds < 1:
        raise ValueError(f"num_seeds must be at least 1, got {options.num_seeds}")
    seeds = range(options.seed, options.seed + options.num_seeds)
    ticks = []
    label = f"{environment.name} {length} {method}" if length else f"{environment.name} {method}"
    with tqdm(total=config.num_episodes, desc=label, unit="ep", file=sys.stderr) as bar:

        def on_progress(done, _):
            ticks.append((done, time.perf_counter()))
            bar.update(done - bar.n)

        result = experiment.run(environment, seeds, config=config, on_progress=on_progress)
    write_metrics(workdir / "metrics.csv", seeds, result)
    (first, start), (last, end) = ticks[0], ticks[-1]  # the first tick includes compilation
    summary = {
        "method": method,
        "env": environment.name,
        "length": length or None,
        "num_seeds": len(seeds),
        "seeds": list(seeds),
        "num_episodes": int(result.regret.shape[1]),
        "total_regret": result.regret.sum(1).tolist(),
        "learning_time": [
            None if math.isnan(episode) else episode
            for episode in experiment.learning_time(result.solved)
        ],
        "seconds_per_episode": (end - start) / max(last - first, 1) / len(seeds),
    }
    (workdir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(
        f"{label}: total regret {np.mean(summary['total_regret']):.1f}, learning time "
        f"{_mean_learning_time(summary['learning_time'])}, "
        f"{summary['seconds_per_episode']:.4f} s per episode -> {workdir}"
    )
    return summary["num_episodes"] == config.num_episodes


def _mean_learning_time(times: list) -> str:
    learned = [time for time in times if time is not None]
    mean = f"{np.mean(learned):.1f}" if learned else "-"
    return mean if len(learned) == len(times) else f"{mean} ({len(learned)} of {len(times)} seeds)"


def write_metrics(path: pathlib.Path, seeds, result: experiment.Result) -> None:
    """One row per seed and episode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    total = np.cumsum(result.regret, 1)
    fields = {
        "return": result.metrics.episode_return,
        "expected_return": result.metrics.expected_return,
        "regret": result.regret,
        "total_regret": total,
        "solved": result.solved.astype(int),
        "policy_steps": result.metrics.steps,
    }
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seed", "episode", *fields])
        for row, seed in enumerate(seeds):
            for episode in range(total.shape[1]):
                values = [f"{array[row, episode]:.7g}" for array in fields.values()]
                writer.writerow([seed, episode, *values])


def print_toy() -> None:
    """Table 1 of the paper, and the variance of the enumerated values beside it."""
    belief = environments.toy()
    exact = ube.solve_exact(*belief, min_local=None)
    pombu = ube.solve_pombu(*belief)
    enumerated = ube.ensemble_variance(*belief)
    print("state      u(s)      w(s)      W(s)      U(s)  variance by enumeration")
    for s in (0, 2):
        values = (exact.local_v, pombu.local_v, pombu.v, exact.v, enumerated.v)
        print(f"s{s}   " + " ".join(f"{float(value[s]):9.4f}" for value in values))


def run_figure(options, workdir: pathlib.Path) -> bool:
    """Runs what is not yet in `workdir` and draws the comparison; False if interrupted."""
    is_sea = options.env.startswith("deep_sea")
    lengths = _integers("lengths", options.lengths) if is_sea else [0]
    for method in options.methods:
        for length in lengths:  # mistakes show before the work starts
            make_config(options, method=method, length=length)
            make_environment(options.env, length)
    published = tabular_figures.read_published(options.published) if options.published else None
    for length in lengths:
        for method in options.methods:
            place = workdir / (f"{method}_{length}" if is_sea else method)
            if (place / "summary.json").exists():
                print(f"{place} is there, skipped; delete it to run it again")
            elif not run_one(options, method=method, length=length, workdir=place):
                return False
    runs = tabular_figures.read_runs(workdir)
    draw = tabular_figures.draw_deep_sea if is_sea else tabular_figures.draw_rooms
    print(f"figure -> {draw(runs, published, workdir / 'figure.png')}")
    return True


def run_inspect(options, workdir: pathlib.Path) -> None:
    """Runs one seed and draws heat maps after some episodes."""
    moments = sorted(set(_integers("inspect_episodes", options.inspect_episodes)))
    if not moments or moments[0] < 1:
        raise ValueError(f"inspect_episodes must be positive, got {options.inspect_episodes}")
    length = options.length if options.env != "seven_room" else 0
    environment = make_environment(options.env, length)
    options.num_episodes = moments[-1]
    config = make_config(options, method=options.method, length=length)
    chunk = math.gcd(*moments)
    config = dataclasses.replace(config, num_chunks=moments[-1] // chunk)
    seen = []
    with tqdm(total=moments[-1], unit="ep", file=sys.stderr) as bar:

        def on_progress(done, state):
            bar.update(done - bar.n)
            if done in moments:
                one = jax.tree.map(lambda leaf: leaf[0], state)
                evaluation = agent.evaluate(
                    one.belief, one.policy, jax.random.key(options.seed), config=config.agent
                )
                look = tabular_figures.Look(
                    done, *jax.device_get((one.policy, one.visits, *evaluation[:3]))
                )
                seen.append(look)

        experiment.run(environment, [options.seed], config=config, on_progress=on_progress)
    workdir.mkdir(parents=True, exist_ok=True)
    title = f"{environment.name}, {options.method}"
    path = tabular_figures.draw_looks(environment, seen, workdir / "inspect.png", title)
    print(f"heat maps -> {path}")


def _integers(name: str, texts: list[str]) -> list[int]:
    try:
        return [int(text) for text in texts]
    except ValueError:
        raise ValueError(f"{name} must be integers separated by commas, got {texts}") from None


def run(options) -> int:
    """Does what the flags ask for; returns the exit code."""
    if options.env == "toy":
        print_toy()
        return 0
    if options.env not in ENVIRONMENTS:
        make_environment(options.env, options.length)
    is_sea = options.env.startswith("deep_sea")
    name = f"{options.env}_{options.length}" if is_sea else options.env
    default = {
        options.figure: f"{options.env}_figure",
        options.inspect: f"{name}_{options.method}_inspect",
    }.get(True, f"{name}_{options.method}")
    workdir = pathlib.Path(options.workdir or f"runs/tabular/{default}")
    if options.figure:
        return 0 if run_figure(options, workdir) else _INTERRUPTED
    if options.inspect:
        run_inspect(options, workdir)
        return 0
    length = options.length if is_sea else 0
    is_done = run_one(options, method=options.method, length=length, workdir=workdir)
    runs = tabular_figures.read_runs(workdir)
    print(f"figure -> {tabular_figures.draw_regret(runs, workdir / 'regret.png')}")
    return 0 if is_done else _INTERRUPTED


def main(argv: list[str]) -> int:
    """Parses flags and runs; mistakes are one line on stderr and exit code 2."""
    options = make_flags()
    try:
        extra = options(argv)[1:]
        if options.help:
            print(f"{__doc__}{options.get_help()}")
            return 0
        if extra:
            raise ValueError(f"flags must be written --name=value, got {' '.join(extra)}")
        return run(options)
    except (ValueError, flags.Error, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv))
