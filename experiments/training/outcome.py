"""What a finished run leaves in its directory: policy, summary.json, learning curve.

Axis: R seeds.
"""

from collections.abc import Callable, Sequence
from typing import Any

from experiments import figures, run_reader
from experiments.run_directory import RunDirectory
from experiments.run_reader import Curve
from qusac_jax import environments
from qusac_jax.policy import save_policy
from qusac_jax.qusac.networks import Params


def write(
    directory: RunDirectory,
    actor: Params,
    spec: environments.Spec,
    *,
    hidden: tuple[int, ...],
    seeds: list[int],
    step: int,
    about: dict[str, Any],
    more: Callable[[Sequence[Curve]], dict[str, Any]],
) -> None:
    """Writes them; the final returns are those of the last evaluation, as in plots and tables.

    Args:
        directory: of the run.
        actor: weights `[R, ...]`.
        spec: of the environment.
        hidden: layers of the actor.
        seeds: R.
        step: that is done.
        about: what summary.json begins with, JSON-compatible.
        more: what it holds beside that, from the curve of each seed.
    """
    save_policy(
        directory.path / "policy",
        actor,
        hidden=hidden,
        action_low=spec.action_low,
        action_high=spec.action_high,
        metadata={
            "env": spec.name,
            "action_cost": spec.action_cost,
            "seeds": seeds,
            "step": step,
        },
    )
    curves = run_reader.read_runs([directory.path])
    path = directory.path / "learning_curve.png"
    figures.draw_curves(curves, path, x="step", y="eval_return")
    # Last: to a suite, a run that has it is done.
    directory.write_summary(
        {
            **about,
            "seeds": seeds,
            "steps": step,
            "final_returns": [curve.final_return for curve in curves],
            "final_task_returns": [curve.final_task_return for curve in curves],
            **more(curves),
        }
    )
