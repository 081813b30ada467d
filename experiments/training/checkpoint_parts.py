"""Reads parts of agents from checkpoints: most of their bytes can be data that models generated.

Axis: R seeds.
"""

from typing import Any

import jax
import numpy as np

from qusac_jax import qusac
from qusac_jax.checkpoint import LEFT_OUT, Checkpointer
from qusac_jax.qusac.networks import Params


def agents(
    checkpointer: Checkpointer,
    config: qusac.Config,
    task: qusac.Task,
    num_seeds: int,
    step: int | None = None,
) -> qusac.TrainState:
    """Agents without what their models have generated.

    Args:
        checkpointer: of the run.
        config: hyperparameters of the run.
        task: sizes of its environment.
        num_seeds: R.
        step: of the checkpoint; default the latest.

    Returns:
        NumPy arrays `[R, ...]`; `model_data`, `member_data` and `key` are None.

    Raises:
        CheckpointError: if the checkpoint is missing, damaged, or of another configuration or task.
    """
    there = _shapes(config, task, num_seeds)
    wanted = there._replace(
        model_data=_left_out(there.model_data),
        member_data=_left_out(there.member_data),
        key=LEFT_OUT,
    )
    read = checkpointer.restore_device(jax.tree.map(_unfilled, wanted), step=step)
    return read._replace(model_data=None, member_data=None, key=None)


def actors(
    checkpointer: Checkpointer, config: qusac.Config, task: qusac.Task, num_seeds: int, step: int
) -> Params:
    """Weights `[R, ...]` of the policies, of NumPy; arguments and errors are those of `agents`."""
    there = _shapes(config, task, num_seeds)
    wanted: qusac.TrainState = _left_out(there)
    wanted = wanted._replace(learner=wanted.learner._replace(actor=there.actor))
    return checkpointer.restore_device(jax.tree.map(_unfilled, wanted), step=step).actor


def _shapes(config: qusac.Config, task: qusac.Task, num_seeds: int) -> qusac.TrainState:
    keys = jax.ShapeDtypeStruct((num_seeds,), jax.random.key(0).dtype)
    init = lambda key: qusac.init(key, config=config, task=task)
    return jax.eval_shape(jax.vmap(init), keys)


def _left_out(tree: Any) -> Any:
    return jax.tree.map(lambda _: LEFT_OUT, tree)


def _unfilled(x: Any) -> Any:
    """An array for a checkpoint to be read into, which takes no memory; or what is left out."""
    return x if x is LEFT_OUT else np.broadcast_to(np.zeros((), x.dtype), x.shape)
