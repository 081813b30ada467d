"""Algorithms of the paper's comparison as values of `Config`, and the sizes to run them at."""

import dataclasses
import types
from collections.abc import Mapping

from qusac_jax import _fields
from qusac_jax.qusac.config import Config, DynamicsConfig


def _mbpo(config: Config) -> Config:
    """Clipped double Q-learning on D_model instead, without a use of uncertainty."""
    return dataclasses.replace(
        config,
        method="ensemble_mean",
        risk=0.0,
        risk_schedule=None,
        risk_awaits_reward=False,
        num_critics=2,
        critic_data="model",
    )


# Algorithm 2 with the online hyperparameters, and what was found to be better. In units of the
# data, a component that changes a thousand times less weighs as much in the models' loss, and the
# bounds of their variances fit every task. Critics that learn for long from rollouts of an outdated
# policy expect rewards that no model predicts: rollouts are renewed every 500 updates, with fewer
# at once in proportion. λ begins at the paper's 1 and is let go of once there is a reward: kept up,
# it outweighs for good what a reward that is hard to master pays.
_QUSAC = Config(
    risk_schedule="linear:1:0:200000",
    risk_awaits_reward=True,
    roll_out_every=50,
    dynamics=DynamicsConfig(normalize_inputs="deviation", normalize_targets=True),
)
_SAC = Config(
    method="ensemble_mean", risk=0.0, num_critics=2, critic_data="replay", updates_per_step=1
)
# Algorithm 2 as the paper's table (appendix D.1) and what its authors say of their code have it.
# The critics' gain is that of their later code, whose learning curves are published. Models read
# units of D in their first code; appendix E.1 has that offline only.
_PAPER = Config(
    clip_u=False,
    gap_samples=10,
    dynamics=DynamicsConfig(
        normalize_inputs="deviation",
        bootstrap=True,
        nll_beta=0.0,
        stop_rule="mean",
        max_epochs=10**6,
        max_steps=10**9,
        ema_decay=0.0,
    ),
)
# Not of the paper, for sparse rewards: seeks what the model knows least until there is a reward,
# and lets go of that within 10,000 steps. Rollouts are long, and every second starts by value while
# rewards are rare. Observations are of the scale of 1 for all networks, whatever their units. A
# reward that takes hundreds of steps and the cost of each is worth next to nothing at a discount of
# 0.99.
_EXPLORE = Config(
    method="information_gain",
    discount=0.995,
    risk_schedule="linear:20:0.5:100000",
    risk_awaits_reward=True,
    relative_risk=True,
    critic_steps=5,
    unet_steps=10,
    roll_out_every=50,
    rollouts_per_step=200,
    rollout_length=10,
    rollout_starts="values",
    random_first_actions=0.2,
    normalize_observations=True,
    dynamics=DynamicsConfig(
        normalize_inputs="range", normalize_targets=True, clip_observations=True
    ),
)
# Batches half of D, half of model data: the data mixing of appendix E.1.
_OFFLINE_MBPO = dataclasses.replace(_mbpo(_QUSAC), real_ratio=0.5)

PRESETS: Mapping[str, Config] = types.MappingProxyType(
    {
        "qusac": _QUSAC,
        "explore": _EXPLORE,
        # The same with the paper's variance. Values can differ only if members expect different
        # rewards where they have no data: a prior, as in the paper's tabular belief.
        "explore_upper_bound": dataclasses.replace(
            _EXPLORE,
            method="upper_bound",
            random_first_actions=0.0,  # the one run with them did not learn the cart-pole
            unet_steps=1,  # the critics' U differs enough from state to state
            dynamics=dataclasses.replace(_EXPLORE.dynamics, reward_prior_scale=1.0),
        ),
        "paper": _PAPER,
        "paper_mbpo": _mbpo(_PAPER),
        # Its SAC takes as many updates per step as the agents with a model.
        "paper_sac": dataclasses.replace(_SAC, updates_per_step=10),
        # Janner et al. (2019).
        "mbpo": _mbpo(_QUSAC),
        # Yu et al. (2020), as the paper implements it for its offline comparison (appendix E.1).
        "mopo": dataclasses.replace(_OFFLINE_MBPO, penalty="mopo"),
        # Yu et al. (2021): conservative critics on model data.
        "combo": dataclasses.replace(_OFFLINE_MBPO, regularizer="combo"),
        # Haarnoja et al. (2018): the same without a model, one update per step on D.
        "sac": _SAC,
    }
)
# paper: the tables of appendices D.1 and E.1. small: what a laptop does.
SIZES: tuple[str, ...] = ("paper", "small")


def get(name: str, size: str = "paper", *, is_offline: bool = False) -> Config:
    """The preset of that name.

    Args:
        name: a key of `PRESETS`.
        size: one of `SIZES`.
        is_offline: whether it learns from a dataset (Algorithm 3).

    Raises:
        ValueError: if there is no such preset or size.
    """
    _fields.check_choice("preset", name, PRESETS)
    _fields.check_choice("size", size, SIZES)
    config = offline(PRESETS[name]) if is_offline else PRESETS[name]
    return config if size == "paper" else small(config, is_offline=is_offline)


def offline(config: Config) -> Config:
    """The same algorithm with the offline hyperparameters of appendix E.1.

    λ becomes -1 where uncertainty is used. The table names no U-net, which gets the critics' sizes.
    Not of the table, in all presets: predictions stay inside the range of the data, and the one fit
    ends when five epochs have made no member better, or after 100. What a preset does for sparse
    rewards online is as in `qusac` here.
    """
    return dataclasses.replace(
        config,
        risk=-1.0 if config.risk else 0.0,
        risk_schedule=None,
        risk_awaits_reward=False,
        relative_risk=False,
        discount=0.99,
        batch_size=512,
        actor_hidden=(256, 256, 256),
        critic_hidden=(256, 256, 256),
        unet_hidden=(256, 256, 256),
        actor_learning_rate=3e-5,
        replay_capacity=1_000_000,
        real_ratio=0.5,
        fit_every=1_000,
        roll_out_every=0,
        rollouts_per_step=50,
        rollout_length=15,
        rollout_starts="uniform",
        random_first_actions=0.0,
        normalize_observations=False,
        critic_steps=1,
        unet_steps=1,
        retain_refreshes=5,
        # One fit, on all of the data, until it is done.
        dynamics=dataclasses.replace(
            config.dynamics,
            normalize_inputs="deviation",
            clip_observations=True,
            reward_prior_scale=0.0,
            patience=5,
            max_epochs=100,
            max_steps=10**6,
        ),
    )


def small(config: Config, *, is_offline: bool = False) -> Config:
    """The same algorithm with smaller networks, batches and model data."""
    length = min(config.rollout_length, 5) if is_offline else config.rollout_length
    return dataclasses.replace(
        config,
        batch_size=128,
        actor_hidden=(128, 128),
        critic_hidden=(128, 128),
        unet_hidden=(128, 128),
        dynamics=dataclasses.replace(config.dynamics, hidden=(128, 128, 128)),
        fit_every=config.fit_every if is_offline else 500,
        # With half as many fits, rollouts are as fresh as at the paper's sizes.
        roll_out_every=config.rollout_interval if config.uses_model and not is_offline else 0,
        rollouts_per_step=5 if is_offline else 500 // length,
        rollout_length=length,
    )
