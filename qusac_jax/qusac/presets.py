"""Algorithms of the paper's comparison as values of `Config`, and the sizes to run them at."""

import dataclasses
import types
from collections.abc import Mapping

from qusac_jax import _fields
from qusac_jax.qusac.config import Config

_MBPO = Config(method="ensemble_mean", risk=0.0, num_critics=2, critic_data="model")
# Batches half of D, half of model data: the data mixing of appendix E.1.
_OFFLINE_MBPO = dataclasses.replace(_MBPO, real_ratio=0.5)

PRESETS: Mapping[str, Config] = types.MappingProxyType(
    {
        # Algorithm 2 with the online hyperparameters.
        "qusac": Config(),
        # Janner et al. (2019): clipped double Q-learning on D_model, no use of uncertainty.
        "mbpo": _MBPO,
        # Yu et al. (2020), as the paper implements it for its offline comparison (appendix E.1).
        "mopo": dataclasses.replace(_OFFLINE_MBPO, penalty="mopo"),
        # Yu et al. (2021): conservative critics on model data.
        "combo": dataclasses.replace(_OFFLINE_MBPO, regularizer="combo"),
        # Haarnoja et al. (2018): the same without a model, one update per step on D.
        "sac": Config(
            method="ensemble_mean",
            risk=0.0,
            num_critics=2,
            critic_data="replay",
            updates_per_step=1,
        ),
    }
)
# paper: the tables of appendix D.1. small: what a laptop does, about a sixth of the work per step.
SIZES: tuple[str, ...] = ("paper", "small")


def get(name: str, size: str = "paper") -> Config:
    """The preset of that name.

    Args:
        name: a key of `PRESETS`.
        size: one of `SIZES`.

    Raises:
        ValueError: if there is no such preset or size.
    """
    _fields.check_choice("preset", name, tuple(PRESETS))
    _fields.check_choice("size", size, SIZES)
    return PRESETS[name] if size == "paper" else small(PRESETS[name])


def small(config: Config) -> Config:
    """The same algorithm with smaller networks, batches and model data."""
    return dataclasses.replace(
        config,
        batch_size=128,
        critic_hidden=(128, 128),
        unet_hidden=(128, 128),
        dynamics=dataclasses.replace(config.dynamics, hidden=(128, 128, 128)),
        fit_every=500,
        rollouts_per_step=100,
    )
