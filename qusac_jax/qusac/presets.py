"""Algorithms of the paper's comparison as values of `Config`."""

import difflib

from qusac_jax.qusac.config import Config

PRESETS: dict[str, Config] = {
    # Algorithm 2 with the online hyperparameters.
    "qusac": Config(),
    # Janner et al. (2019): clipped double Q-learning on D_model, no use of uncertainty.
    "mbpo": Config(method="ensemble_mean", risk=0.0, num_critics=2, critic_data="model"),
    # Haarnoja et al. (2018): the same without a model, one update per step on D.
    "sac": Config(
        method="ensemble_mean",
        risk=0.0,
        num_critics=2,
        critic_data="replay",
        updates_per_step=1,
    ),
}


def get(name: str) -> Config:
    """The preset of that name.

    Raises:
        ValueError: if there is none.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"preset {name!r} is unknown; {hint}choose from {', '.join(PRESETS)}")
    return PRESETS[name]
