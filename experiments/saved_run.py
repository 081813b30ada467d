"""A run read again: what it was, and what it had learned where it was saved.

Axis: R seeds.
"""

import functools
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp

from experiments import config_file, files, kept_policies, run_kind, seeds
from experiments.training import checkpoint_parts, run_flags
from qusac_jax import datasets, environments, qusac
from qusac_jax.checkpoint import Checkpointer
from qusac_jax.policy import load_actor
from qusac_jax.qusac.networks import Params

_REMEDY = "pass the workdir of a run of experiments.online, offline or collect"
_NEEDED = ("env", "method", "preset", "seed", "num_seeds", "config")


class SavedRun:
    """An online, offline or collect run, finished or not; nothing of it is changed."""

    def __init__(self, path: str | os.PathLike[str]):
        """Reads config.json and builds the environment once to look.

        Raises:
            ValueError: if there is no such run, it is a tabular one, or of another version.
        """
        self.path = pathlib.Path(path)
        if not self.path.is_dir():
            raise ValueError(f"run {str(path)!r} is no directory; {_REMEDY}")
        if not (self.path / "config.json").is_file():
            raise ValueError(f"run {str(path)!r} has no config.json; {_REMEDY}")
        self.about = about = files.read_json(self.path / "config.json", _REMEDY)
        if run_kind.is_tabular(about):
            raise ValueError(
                f"run {str(path)!r} is a tabular one, whose metrics.csv has the exact returns of "
                "its policies; `python -m experiments.tabular --inspect` draws its uncertainty"
            )
        missing = [name for name in _NEEDED if name not in about]
        if missing:
            raise ValueError(
                f"run {str(path)!r} has no {', '.join(missing)} in config.json; {_REMEDY}"
            )
        _check_kinds(self.path, about)
        self.config = config_file.of_run(self.path, argument="run", remedy=_REMEDY)
        self.spec = environments.spec(about["env"], about.get("action_cost"))
        self.seeds = list(range(about["seed"], about["seed"] + about["num_seeds"]))
        self._checkpointer = Checkpointer(
            self.path / "checkpoints", remedy="name another of the run's checkpoints"
        )

    @functools.cached_property
    def task(self) -> qusac.Task:
        """With the termination of the run, which may import a module that its user named."""
        return run_flags.task_of(self.about.get("termination"), self.spec, self.config)

    @property
    def reference(self) -> datasets.ScoreReference | None:
        """The returns of 0 and 100 percent, of an offline run whose dataset has them."""
        reference = (self.about.get("dataset") or {}).get("reference")
        if not reference:
            return None
        try:
            return datasets.ScoreReference(**reference)
        except TypeError as error:
            raise ValueError(
                f"run {str(self.path)!r}: config.json has a damaged reference ({reference!r}); "
                f"{_REMEDY}"
            ) from error

    def index(self, seed_index: int) -> int:
        """The index itself; raises `ValueError` if there is no such seed."""
        if not 0 <= seed_index < len(self.seeds):
            raise ValueError(
                f"seed_index must lie in [0, {len(self.seeds)}), got {seed_index}; the run has the "
                f"seeds {self.seeds}"
            )
        return seed_index

    def checkpoints(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        return self._checkpointer.steps()

    def checkpoint(self, step: int | None) -> int:
        """The step itself, of None the last one; raises `ValueError` if it has no checkpoint."""
        steps = self.checkpoints()
        if not steps:
            raise ValueError(
                f"run {str(self.path)!r} has no checkpoint; wait for its first, or put them back"
            )
        if step is not None and step not in steps:
            raise ValueError(f"step must be one of {steps}, the run's checkpoints, got {step}")
        return steps[-1] if step is None else step

    def state(self, step: int) -> qusac.TrainState:
        """The agent's state `[R, ...]` in a checkpoint.

        Raises:
            ValueError: if the checkpoint is missing or damaged.
        """
        init = seeds.mapped(qusac.init, config=self.config, task=self.task)
        like = init(seeds.keys(self.seeds, 1)[:, 0])
        return self._checkpointer.restore_device(like, step=step)

    def agent(self, step: int) -> qusac.TrainState:
        """The same without what its models have generated, which may be most of it.

        `model_data`, `member_data` and `key` are None.

        Raises:
            ValueError: if the checkpoint is missing or damaged.
        """
        read = checkpoint_parts.agents(
            self._checkpointer, self.config, self.task, len(self.seeds), step
        )
        return jax.tree.map(jnp.asarray, read)

    def actor(self, step: int | None = None) -> tuple[int, Params]:
        """The weights of the policies.

        Args:
            step: of a checkpoint, of the final policy, or of a policy that a collect run kept; None
                for the last there is.

        Returns:
            The step, and leaves `[R, ...]`.

        Raises:
            ValueError: if there is none, or it is damaged.
        """
        final, checkpoints, kept = (
            self._final_step(),
            self.checkpoints(),
            kept_policies.steps(self.path),
        )
        there = sorted({*checkpoints, *kept} | ({final} if final is not None else set()))
        if not there:
            raise ValueError(
                f"run {str(self.path)!r} has neither a checkpoint nor a policy; wait for its first "
                "checkpoint, or put its files back"
            )
        step = there[-1] if step is None else step
        task = self.spec.task("never")  # of a policy, only sizes count
        init = lambda: qusac.init(jax.random.key(0), config=self.config, task=task)
        one = jax.eval_shape(init).actor
        if step == final:  # much smaller than a checkpoint
            actor = load_actor(self.path)[0]
            self._check_sizes(actor, one)
            return step, actor
        if step in kept:
            actor = kept_policies.load(self.path, step, one)
            return step, jax.tree.map(lambda x: x[None], actor)
        if step in checkpoints:
            actor = checkpoint_parts.actors(
                self._checkpointer, self.config, task, len(self.seeds), step
            )
            return step, actor
        raise ValueError(f"step must be one of {there}, where {self.path} was saved, got {step}")

    def _check_sizes(self, actor: Params, one: Params) -> None:
        """Raises `ValueError` unless a final policy `[R, ...]` is of this environment and seeds."""
        shapes = lambda tree, seeds: sorted((*seeds, *x.shape) for x in jax.tree.leaves(tree))
        if shapes(actor, ()) != shapes(one, (len(self.seeds),)):
            raise ValueError(
                f"run {str(self.path)!r}: its policy is of other sizes or seeds than config.json "
                f"and {self.spec.name!r} have, so that one of them has changed since; put it back, "
                "or train anew"
            )

    def _final_step(self) -> int | None:
        path = self.path / "policy" / "policy.json"
        return files.read_count(path, "step", _REMEDY) if path.is_file() else None


def _check_kinds(path: pathlib.Path, about: dict[str, Any]) -> None:
    """Raises `ValueError` if a value in config.json has another type than it should."""
    kinds = {
        "env": (str,),
        "seed": (int,),
        "num_seeds": (int,),
        "termination": (str, type(None)),
        "dataset": (dict, type(None)),
    }
    for name, kind in kinds.items():
        if not isinstance(about.get(name), kind):
            raise ValueError(
                f"run {str(path)!r}: {name} in config.json is {about.get(name)!r}, which is no "
                f"{name}; {_REMEDY}"
            )
