"""Episodes of a run's policies in environments of their own.

Axes: R seeds, E evaluation episodes, O observation size, A action size.
"""

from collections.abc import Callable
from concurrent import futures
from typing import Any

import jax
import numpy as np

from experiments import evaluation, seeds
from experiments.evaluation import Evaluation
from experiments.training.setup import Setup
from qusac_jax import environments, qusac
from qusac_jax.qusac.networks import Params

# Seeds of evaluation environments begin here, those of training at 0.
_SEED_OFFSET = 1_000_003


class Evaluator:
    """E environments for each of R seeds, and episodes with the mean action in them.

    Actions are computed on the CPU: for a step of a few environments, the way to an accelerator and
    back takes longer, and there they would wait for the learning that goes on meanwhile.
    """

    def __init__(self, setup: Setup, placement: seeds.Placement | None):
        """Builds the environments.

        Args:
            setup: of the run.
            placement: of the policies' weights.
        """
        self._setup = setup
        self._placement = placement
        self.envs = self._make(lambda seed: seed)
        self._device = _cpu()
        self._act = seeds.mapped(qusac.act, config=setup.config, task=setup.task)
        self._player = futures.ThreadPoolExecutor(1, "evaluation")

    def run(self, actor: Params) -> Evaluation:
        """One episode in every environment.

        Args:
            actor: weights `[R, ...]` of the policies.
        """
        return self._play(self._copy(actor))

    def begin(self, actor: Params) -> futures.Future[Evaluation]:
        """As `run`, which goes on after this returns if the environments have their own processes.

        Nothing else may be done with the environments until there is a result. An exception comes
        with it.
        """
        if isinstance(self.envs, environments.ProcessVector):
            return self._player.submit(self._play, self._copy(actor))
        done: futures.Future[Evaluation] = futures.Future()
        done.set_result(self.run(actor))
        return done

    def close(self) -> None:
        """Waits for what has begun, and frees the environments."""
        self._player.shutdown()
        self.envs.close()

    def _copy(self, actor: Params) -> Params:
        """The weights where actions are computed; what learns on may write over its own."""
        on_host = jax.tree.map(np.array, seeds.cropped(actor, self._placement))
        return jax.device_put(on_host, self._device)

    def _play(self, actor: Params) -> Evaluation:
        return evaluation.evaluate(
            self.envs,
            lambda observation: self._act(actor, observation),
            len(self._setup.seeds),
            self._setup.config.discount,
        )

    def restart(self, step: int) -> None:
        """Begins all episodes anew, from initial states that the run has not seen.

        Args:
            step: of the run.
        """
        self.envs.close()
        self.envs = self._make(lambda seed: seeds.later(seed, step))

    def _make(self, seed_of: Callable[[int], int]) -> environments.AnyVector:
        setup = self._setup
        return environments.vector(
            setup.env,
            [
                seed_of((_SEED_OFFSET * (s + 1) + e) % 2**32)
                for s in setup.seeds
                for e in range(setup.eval_episodes)
            ],
            action_cost=setup.action_cost,
            num_processes=setup.env_processes,
        )


def _cpu() -> Any:
    """A CPU of this process; its default device where JAX was told to have no CPU."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]
