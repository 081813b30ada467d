"""Episodes of a run's policies in environments of their own.

Axes: R seeds, E evaluation episodes, O observation size, A action size.
"""

from collections.abc import Callable

from experiments import evaluation, seeds
from experiments.evaluation import Evaluation
from experiments.run_setup import Setup
from qusac_jax import environments, qusac
from qusac_jax.qusac.networks import Params

# Evaluation environments draw their initial states from seeds that no training run uses.
_SEED_OFFSET = 1_000_003


class Evaluator:
    """E environments for each of R seeds, and episodes with the mean action in them."""

    def __init__(self, setup: Setup, placement: seeds.Placement | None):
        """Builds the environments.

        Args:
            setup: of the run.
            placement: of the policies' weights.
        """
        self._setup = setup
        self.envs = self._make(lambda seed: seed)
        self._act = seeds.mapped(
            qusac.act, placement=placement, config=setup.config, task=setup.task
        )

    def run(self, actor: Params) -> Evaluation:
        """One episode in every environment.

        Args:
            actor: weights `[R, ...]` of the policies.
        """
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
