"""Hyperparameters of QU-SAC and its relatives, checked when they are set."""

import dataclasses
import difflib
import math
from typing import Literal, get_args

Method = Literal["ensemble_mean", "ensemble_var", "upper_bound", "pombu", "exact_ube"]
CriticData = Literal["member", "model", "replay"]

METHODS: tuple[str, ...] = get_args(Method)
# Methods that learn U by solving a UBE; the others read it off the critics or do without.
UBE_METHODS = ("upper_bound", "pombu", "exact_ube")


@dataclasses.dataclass(frozen=True)
class Config:
    """One agent's hyperparameters; the defaults are the paper's online table (appendix D).

    Seven defaults depart from it, for reasons measured in BUILD_NOTES.md: `critic_init_gain=10.0`,
    `nll_beta=0.0`, `fit_stop_per_target=False`, `fit_ema_decay=0.0`, `clip_u=False` and
    `gap_samples=10` are the paper's and its first code's, which had no `fit_max_steps`.

    Hashable, so that it can be a static argument of a jitted function. Every field is a
    command-line flag, `--config.FIELD=VALUE`.

    Raises:
        ValueError: at construction, naming the field, its value and the remedy.
    """

    # How the variance of the values is estimated and used.
    method: Method = "upper_bound"  # qvariance of Algorithm 1
    risk: float = 1.0  # λ of eq. (8): positive seeks uncertainty, negative avoids it
    num_members: int = 5  # N, dynamics models and critic groups
    num_critics: int = 1  # M, critics per group; a group's value is their minimum
    critic_data: CriticData = "member"  # member: D_1..D_N, model: D_model, replay: D (no model)
    gap_samples: int = 4  # actions per next state in the gap term of exact_ube
    num_unets: int = 1  # U-nets; their minimum is U (1 in the paper)
    clip_u: bool = True  # cap U-net targets at the largest U that the local uncertainty allows
    local_max_decay: float = 1e-3  # decay per update of the running maximum behind that cap

    # Soft actor-critic.
    discount: float = 0.99  # γ in [0, 1)
    batch_size: int = 256  # B, for every network
    updates_per_step: int = 10  # G, gradient updates per environment step
    actor_hidden: tuple[int, ...] = (128, 128)
    critic_hidden: tuple[int, ...] = (256, 256)
    unet_hidden: tuple[int, ...] = (256, 256)
    actor_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    unet_learning_rate: float = 3e-4
    temperature_learning_rate: float = 3e-4
    target_rate: float = 0.005  # τ, Polyak step of the target critics per update
    unet_target_rate: float = 0.005  # the same of the target U-net (in the paper it is τ, too)
    initial_temperature: float = 1.0  # α at the start
    target_entropy: float | None = None  # None: minus the action size
    critic_init_gain: float = 1.0  # of the orthogonal weights; the paper has 10
    unet_init_gain: float = 1.0

    # Data from the environment.
    replay_capacity: int = 100_000  # of D
    warmup_steps: int = 5_000  # steps under the initial policy before anything is trained

    # Dynamics ensemble.
    dynamics_hidden: tuple[int, ...] = (200, 200, 200, 200)
    dynamics_learning_rate: float = 1e-3
    dynamics_init_scale: float = 2.0  # widens the truncated-normal weights
    reward_prior_scale: float = 0.0  # random functions added to the members' rewards; 0: none
    fit_every: int = 250  # F, environment steps between model fits
    fit_patience: int = 1  # epochs without a better member before the fit stops
    fit_improvement: float = 0.01  # relative decrease of held-out error that counts as better
    fit_max_epochs: int = 50
    fit_max_steps: int = 2_500  # per fit, in whole epochs, at least one; the paper's F x G updates
    fit_stop_per_target: bool = True  # whether one better target counts; False: only their mean
    fit_ema_decay: float = 0.99  # averages the weights of a fit's steps; 0: those of the last step
    holdout_every: int = 20  # every 20th slot of D is held out: 5 %
    nll_beta: float = 0.75  # 0: maximum likelihood (the paper); above, rare targets count for more
    normalize_inputs: bool = False  # scale the dynamics' inputs by the statistics of D

    # Model rollouts.
    rollouts_per_step: int = 400  # L, so L x F rollouts per refresh
    rollout_length: int = 5  # k
    retain_refreshes: int = 1  # Δ, refreshes before D_model is overwritten

    # Only for the log: a transition with a larger reward counts as rewarded.
    reward_threshold: float = 0.5

    def __post_init__(self) -> None:
        """Checks every field."""
        _check_choice("method", self.method, METHODS)
        _check_choice("critic_data", self.critic_data, get_args(CriticData))
        if not 0 <= self.discount < 1:
            raise ValueError(
                f"discount must lie in [0, 1), got {self.discount}; "
                "0.99 is the paper's, 1 would make values infinite"
            )
        if not 0 <= self.fit_ema_decay < 1:
            raise ValueError(
                f"fit_ema_decay must lie in [0, 1), got {self.fit_ema_decay}; 0.99 averages over "
                "about 100 steps, 0 takes the weights of the last step"
            )
        for name in _POSITIVE_INTEGERS:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        for name in _POSITIVE_REALS:
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a positive finite number, got {value!r}")
        for name in ("actor_hidden", "critic_hidden", "unet_hidden", "dynamics_hidden"):
            sizes = getattr(self, name)
            if not isinstance(sizes, tuple) or not all(isinstance(s, int) and s > 0 for s in sizes):
                raise ValueError(
                    f"{name} must be a tuple of positive layer sizes such as (256, 256), "
                    f"got {sizes!r}"
                )
        if self.target_entropy is not None and not math.isfinite(self.target_entropy):
            raise ValueError(f"target_entropy must be finite, got {self.target_entropy}")
        if not math.isfinite(self.risk):
            raise ValueError(f"risk must be finite, got {self.risk}")
        if not (math.isfinite(self.reward_prior_scale) and self.reward_prior_scale >= 0):
            raise ValueError(
                f"reward_prior_scale must be finite and at least 0, got {self.reward_prior_scale}; "
                "0 is the paper's, 10 explores the sparse pendulum"
            )
        for name in (
            "target_rate",
            "unet_target_rate",
            "local_max_decay",
            "fit_improvement",
            "nll_beta",
        ):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if self.warmup_steps < 3 or self.warmup_steps > self.replay_capacity:
            # The first fit sees one transition fewer, and holds the first of them out.
            raise ValueError(
                f"warmup_steps must lie in [3, replay_capacity = {self.replay_capacity}], got "
                f"{self.warmup_steps}; the model needs data to fit and to hold out"
            )
        if self.holdout_every < 2:
            raise ValueError(
                f"holdout_every must be at least 2, got {self.holdout_every}; "
                "20 holds out 5 % of the data"
            )
        if self.gap_samples < 2:
            raise ValueError(
                f"gap_samples must be at least 2, got {self.gap_samples}; "
                "a variance over actions needs two of them"
            )
        if self.method in ("ensemble_var", "upper_bound") and self.num_groups < 2:
            raise ValueError(
                f"method {self.method!r} needs at least two critic groups that can disagree, got "
                f"num_members {self.num_members} with critic_data {self.critic_data!r}; use "
                "num_members 2 or more with critic_data 'member', or method 'ensemble_mean'"
            )
        if self.method == "exact_ube" and self.uses_model and self.num_groups < 2:
            raise ValueError(
                "method 'exact_ube' needs at least two critic groups, or its gap term is always 0, "
                f"got num_members {self.num_members} with critic_data {self.critic_data!r}; use "
                "num_members 2 or more with critic_data 'member', or method 'pombu'"
            )
        if self.method in ("pombu", "exact_ube") and (not self.uses_model or self.num_members < 2):
            raise ValueError(
                f"method {self.method!r} needs at least two dynamics models that can disagree, got "
                f"num_members {self.num_members} with critic_data {self.critic_data!r}; use "
                "num_members 2 or more with critic_data 'member' or 'model'"
            )

    @property
    def uses_model(self) -> bool:
        """Whether dynamics are learned and rolled out."""
        return self.critic_data != "replay"

    @property
    def uses_unet(self) -> bool:
        """Whether a U-net is trained."""
        return self.method in UBE_METHODS

    @property
    def num_groups(self) -> int:
        """Groups of M critics: one per member on D_1..D_N, a single one on shared data."""
        return self.num_members if self.critic_data == "member" else 1

    @property
    def u_per_local(self) -> float:
        """1 / (1 - γ²): the largest U per unit of propagated local uncertainty."""
        return 1.0 / (1.0 - self.discount**2)


_POSITIVE_INTEGERS = (
    "num_members",
    "num_critics",
    "num_unets",
    "batch_size",
    "updates_per_step",
    "replay_capacity",
    "fit_every",
    "fit_patience",
    "fit_max_epochs",
    "fit_max_steps",
    "rollouts_per_step",
    "rollout_length",
    "retain_refreshes",
)
_POSITIVE_REALS = (
    "actor_learning_rate",
    "critic_learning_rate",
    "unet_learning_rate",
    "temperature_learning_rate",
    "dynamics_learning_rate",
    "initial_temperature",
    "critic_init_gain",
    "unet_init_gain",
    "dynamics_init_scale",
)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"{name} {value!r} is unknown; {hint}choose from {', '.join(choices)}")
