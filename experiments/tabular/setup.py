"""From the flags of `experiments.tabular` to what a run is made of."""

from collections.abc import Sequence
from typing import NamedTuple

import jax

from experiments.tabular import catalogue, memory
from qusac_jax._fields import check_choice
from qusac_jax.sparse import Sparse
from qusac_jax.tabular import agent, environments, experiment

# The paper's settings (section 5.2, appendix C.1).
_EPISODES, _SEVEN_ROOM_EPISODES = 1000, 5000
_DEEP_SEA_MIN_LOCAL, _MIN_LOCAL = -0.05, 0.0

# How often a whole run reports and can be stopped.
_CHUNKS = 250
_SHORT_LENGTH, _FEWEST_CHUNKS, _CHUNKS_PER_ROW = 10, 50, 10


class Setup(NamedTuple):
    """What a run is made of."""

    environment: environments.Environment
    config: experiment.Config
    seeds: Sequence[int]  # R independent runs
    length: int  # L of DeepSea, 0 elsewhere

    @property
    def label(self) -> str:
        """What it is called in all that is printed."""
        length = f" {self.length}" if self.length else ""
        return f"{self.environment.name}{length} {self.config.agent.method}"


def make_environment(options, length: int) -> environments.Environment:
    """The environment of the flags, other than `toy`.

    Raises:
        ValueError: if there is none such, or it would not fit into memory.
    """
    if catalogue.has_length(options.env):  # before it is built, in dense form
        memory.check_deep_sea(length)
    return catalogue.make(
        options.env,
        length=length,
        size=options.size,
        map_file=options.map,
        support=options.support,
        timed=options.timed,
    )


def make_config(
    options, environment: environments.Environment, *, method: str, length: int
) -> experiment.Config:
    """The paper's settings for the environment, where the flags say nothing else."""
    is_sea = catalogue.has_length(options.env)
    min_local = options.min_local
    if min_local is None:
        min_local = _DEEP_SEA_MIN_LOCAL if is_sea else _MIN_LOCAL
    num_episodes = options.num_episodes
    if num_episodes is None:
        num_episodes = _SEVEN_ROOM_EPISODES if options.env == "seven_room" else _EPISODES
    seed_axis = options.seed_axis
    check_choice("seed_axis", seed_axis, ("auto", *experiment.SEED_AXES))
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
        noise_precision=environment.noise_precision,
        seed_axis=seed_axis,
        num_chunks=_num_chunks(options, length),
    )


def _num_chunks(options, length: int) -> int:
    """More where episodes take long, so that stopping a run takes seconds."""
    if not catalogue.has_length(options.env):
        return _CHUNKS
    return _FEWEST_CHUNKS if length <= _SHORT_LENGTH else _CHUNKS_PER_ROW * length


def check_run(options, setup: Setup) -> None:
    """Raises `ValueError` if a run cannot be done or, without --memory, does not fit in memory."""
    environment, config = setup.environment, setup.config
    if isinstance(environment.transition, Sparse):
        what = f"{environment.name!r} is sparse, as with --support or --timed or of many states"
        if config.agent.method == "moments":
            raise ValueError(
                f"method 'moments' needs a dense env, but {what}; leave --support out where that "
                "makes it dense, or choose another method"
            )
        if options.solver == "lu":
            raise ValueError(
                f"solver 'lu' is read in a dense env alone, but {what}, and always solved by "
                "BiCGStab; leave --solver out"
            )
    if not options.memory:
        memory.check(environment, config, len(setup.seeds))
