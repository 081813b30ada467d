"""Hyperparameters of QU-SAC and its relatives, checked when they are set."""

import dataclasses
from typing import Any, Literal, get_args

from qusac_jax import _fields
from qusac_jax._fields import checked
from qusac_jax.qusac import penalties, regularizers, uncertainty
from qusac_jax.qusac import risk as risk_lib
from qusac_jax.qusac.multistep import MOST_STEPS

CriticData = Literal["member", "model", "replay"]
InputScale = Literal["no", "deviation", "range"]
StopRule = Literal["target", "mean"]
RolloutStarts = Literal["uniform", "values"]

# The first fit sees one transition fewer than the warm-up has steps, and holds the first of them
# out.
LEAST_WARMUP = 3
_MOST = 10**9  # what is counted in 32 bits


@dataclasses.dataclass(frozen=True)
class DynamicsConfig:
    """The ensemble of dynamics models and how it is fitted (appendix D.1).

    Some defaults depart from the paper and the authors' code; the preset `paper` has theirs, and
    BUILD_NOTES.md the reasons.

    Raises:
        ValueError: at construction, naming the field, its value and the remedy.
    """

    hidden: tuple[int, ...] = checked((200, 200, 200, 200), _fields.layer_sizes)  # of each member
    learning_rate: float = checked(1e-3, _fields.positive)  # of Adam
    # B of a fit; 0: the agent's. With n times the batch, n times the learning rate, max_steps / n
    # and ema_decay ** n, a fit learns as much in fewer steps, which is faster on an accelerator.
    batch_size: int = checked(0, _fields.integer(0, "0 is the agent's batch_size"))
    init_scale: float = checked(2.0, _fields.positive)  # widens the truncated-normal weights
    # no: raw inputs; deviation: minus D's mean, divided by its standard deviation; range: minus the
    # middle of its range, divided by its width / sqrt(12), so that what is rare in D is close.
    normalize_inputs: InputScale = "no"
    # Targets, changes of the observation and rewards, are divided by their standard deviations in
    # D; with a reward_prior_scale, rewards keep their own units, which are those of the prior.
    normalize_targets: bool = checked(False, _fields.boolean)
    # Observations in rollouts are clipped to the range of those in D, per dimension.
    # `Task.termination` is asked about the prediction before, a learned one about what is stored.
    clip_observations: bool = checked(False, _fields.boolean)
    # Rewards in rollouts are clipped to the range of those in D, beyond which a reward prior then
    # has no effect.
    clip_rewards: bool = checked(False, _fields.boolean)
    # Members learn from D when an episode ends; rollouts ask them instead of `Task.termination`.
    learn_termination: bool = checked(False, _fields.boolean)
    # β of the β-NLL loss; 0: maximum likelihood (the paper's), above 0 rare targets count for more.
    nll_beta: float = checked(0.75, _fields.fraction)
    # Each member trains on a sample of D with replacement, drawn anew for each fit.
    bootstrap: bool = checked(False, _fields.boolean)
    # Random functions added to the members' rewards, in units of the largest reward that a step is
    # known to have, which is `reward_scale` or that of D; 0: none.
    reward_prior_scale: float = checked(
        0.0, _fields.at_least(0, "0 is the paper's, 1 is what explore_upper_bound uses")
    )
    # Largest reward of a step that is known before there is one in D. Read with a reward prior.
    reward_scale: float = checked(1.0, _fields.positive)
    # One slot of D in this many is held out.
    holdout_every: int = checked(20, _fields.integer(2, "20 holds out 5 % of the data", most=_MOST))
    # Early stopping: epochs without an improvement of any member after which a fit ends.
    patience: int = checked(1, _fields.integer(1, most=_MOST))
    # The held-out error that must improve: target, that of any target; mean, the mean over targets.
    stop_rule: StopRule = "target"
    improvement: float = checked(0.01, _fields.fraction)  # least relative decrease of that error
    max_epochs: int = checked(50, _fields.integer(1, most=_MOST))  # per fit
    # Gradient steps per fit, in whole epochs, at least one epoch; 2,500 is the paper's F x G.
    max_steps: int = checked(2_500, _fields.integer(1, most=_MOST))
    # Decay of the exponential moving average of a fit's weights; 0: the weights of the last step.
    ema_decay: float = checked(
        0.99,
        _fields.below_one(
            "0.99 averages over about 100 steps, 0 takes the weights of the last step"
        ),
    )

    def __post_init__(self) -> None:
        """Checks every field."""
        _fields.check_choice("normalize_inputs", self.normalize_inputs, get_args(InputScale))
        _fields.check_choice("stop_rule", self.stop_rule, get_args(StopRule))
        _fields.check_fields(self)


@dataclasses.dataclass(frozen=True)
class Config:
    """One agent's hyperparameters; the defaults are the paper's online table (appendix D.1).

    Beside those of `DynamicsConfig`, three defaults depart from the authors' first code, for
    reasons measured in BUILD_NOTES.md: it has a larger `critic_init_gain`, `clip_u=False` and
    `gap_samples=10`.

    Hashable, so that it can be a static argument of a jitted function. Every field is a
    command-line flag, `--config.FIELD=VALUE`.

    Raises:
        ValueError: at construction, naming the field, its value and the remedy.
    """

    # How U is estimated, qvariance of Algorithm 1, line 4: one of `METHODS`, or MODULE:NAME of an
    # `uncertainty.Method` of your own.
    method: str = "upper_bound"
    risk: float = checked(1.0, _fields.finite)  # λ of eq. (9), policy_opt: > 0 seeks, < 0 avoids
    risk_schedule: str | None = None  # in place of risk: KIND:START:END:UPDATES, linear or cosine
    # The schedule begins when D has a positive reward: before, there is nothing to exploit.
    risk_awaits_reward: bool = checked(False, _fields.boolean)
    # λ multiplies sqrt(U) divided by the largest that the recent local uncertainty allows.
    relative_risk: bool = checked(False, _fields.boolean)
    num_members: int = checked(5, _fields.integer(1))  # N, dynamics models and critic groups
    num_critics: int = checked(1, _fields.integer(1))  # M per group, whose value is their minimum
    critic_data: CriticData = "member"  # member: D_1..D_N, model: D_model, replay: D (no model)
    # n of the critics' n-step targets along a member's rollout; no more than k has an effect.
    critic_steps: int = checked(
        1, _fields.integer(1, "1 is the paper's, 5 is what explore uses", most=MOST_STEPS)
    )
    # n of the U-net's n-step targets along a rollout in D_model; no more than k has an effect.
    # Above 1, local uncertainties are those that critics and members had when it was made.
    unet_steps: int = checked(
        1, _fields.integer(1, "1 is the paper's, 10 is what explore uses", most=MOST_STEPS)
    )
    gap_samples: int = checked(  # actions per next state in the gap term of exact_ube
        4, _fields.integer(2, "a variance over actions needs two of them")
    )
    clip_u: bool = checked(True, _fields.boolean)  # cap U-net targets at what local u allows
    local_max_decay: float = checked(1e-3, _fields.fraction)  # per update, of clip_u's maximum

    # Soft actor-critic.
    discount: float = checked(  # γ
        0.99, _fields.below_one("0.99 is the paper's, 1 would make values infinite")
    )
    batch_size: int = checked(256, _fields.integer(1))  # B, for every network
    updates_per_step: int = checked(10, _fields.integer(1))  # G, per environment step
    actor_hidden: tuple[int, ...] = checked((128, 128), _fields.layer_sizes)  # of the policy
    critic_hidden: tuple[int, ...] = checked((256, 256), _fields.layer_sizes)  # of each critic
    unet_hidden: tuple[int, ...] = checked((256, 256), _fields.layer_sizes)  # of the U-net
    actor_learning_rate: float = checked(3e-4, _fields.positive)  # of Adam
    critic_learning_rate: float = checked(3e-4, _fields.positive)  # of Adam
    unet_learning_rate: float = checked(3e-4, _fields.positive)  # of Adam
    temperature_learning_rate: float = checked(3e-4, _fields.positive)  # of Adam, on log α
    target_rate: float = checked(0.005, _fields.fraction)  # τ, Polyak step of targets per update
    initial_temperature: float = checked(1.0, _fields.positive)  # α at the start
    target_entropy: float | None = checked(None, _fields.finite_or_none)  # None: minus action size
    normalize_observations: bool = checked(False, _fields.boolean)  # by the statistics of D
    critic_init_gain: float = checked(1.0, _fields.positive)  # of the orthogonal weights
    regularizer: str | None = None  # of the critics: combo, or MODULE:NAME of your own, or None
    regularizer_weight: float = checked(  # relative to the squared residuals; combo: 2 β
        1.0, _fields.at_least(0, "1 weighs it as COMBO does with β = 0.5")
    )

    # Data.
    replay_capacity: int = checked(100_000, _fields.integer(1))  # of D
    warmup_steps: int = checked(  # steps under the initial policy before anything is trained
        5_000, _fields.integer(LEAST_WARMUP, "the model needs data to fit and to hold out")
    )
    real_ratio: float = checked(0.0, _fields.fraction)  # share of D in a batch; rest: model data

    # Dynamics ensemble and its rollouts.
    dynamics: DynamicsConfig = DynamicsConfig()
    # F, environment steps between model fits; offline, where there is one fit, updates between
    # rollouts.
    fit_every: int = checked(250, _fields.integer(1))
    # Environment steps between rollouts, counted from the last fit; 0: only after fits, which
    # rollouts always follow. In between, critics learn from rollouts of an earlier policy.
    roll_out_every: int = checked(0, _fields.integer(0, "0 is the paper's, 50 is qusac's"))
    # L, per environment step (offline, per update) and buffer; those for all steps up to the next
    # rollouts are made at once.
    rollouts_per_step: int = checked(400, _fields.integer(1))
    rollout_length: int = checked(5, _fields.integer(1))  # k
    # uniform: anywhere in D, as in the paper; values: while rewards are rare, up to every second
    # one at a state drawn by the rank of its Q + λ sqrt(U).
    rollout_starts: RolloutStarts = "uniform"
    # Share of the rollouts whose first action is uniform, so that critics and U-net also learn the
    # values of actions that the policy would not take.
    random_first_actions: float = checked(0.0, _fields.fraction)
    # Δ: buffers keep what this many last times of rolling out made, more where rollouts end early.
    retain_refreshes: int = checked(1, _fields.integer(1))
    # Taken off the rewards of rollouts: mopo, or MODULE:NAME of your own, or None.
    penalty: str | None = None
    penalty_scale: float = checked(  # λ of that penalty
        1.0, _fields.at_least(0, "1 is the paper's for MOPO, 0 takes nothing off")
    )

    def __post_init__(self) -> None:
        """Checks every field and what must go together."""
        uncertainty.find(self.method)
        _fields.check_choice("critic_data", self.critic_data, get_args(CriticData))
        _fields.check_choice("rollout_starts", self.rollout_starts, get_args(RolloutStarts))
        _fields.check_fields(self)
        if not isinstance(self.dynamics, DynamicsConfig):
            raise ValueError(f"dynamics must be a DynamicsConfig, got {self.dynamics!r}")
        if self.warmup_steps > self.replay_capacity:
            raise ValueError(
                f"warmup_steps must lie in [{LEAST_WARMUP}, replay_capacity = "
                f"{self.replay_capacity}], got {self.warmup_steps}; lower it, or raise "
                "replay_capacity"
            )
        if self.risk_schedule is not None:
            risk_lib.parse(self.risk_schedule)
        if self.risk_awaits_reward and self.risk_schedule is None:
            raise ValueError(
                "risk_awaits_reward holds back a risk_schedule, and there is none; give one, such "
                "as linear:1:0:100000, or set risk_awaits_reward=False"
            )
        if self.relative_risk and not self.uses_unet:
            propagating = [name for name, one in uncertainty.METHODS.items() if one.local]
            raise ValueError(
                f"relative_risk needs a method that propagates local uncertainties, got "
                f"{self.method!r}; use one of {', '.join(propagating)}, or relative_risk=False"
            )
        self._check_rollouts()
        self._check_steps_ahead()
        self._check_enough_to_disagree()
        self._check_penalty_and_regularizer()

    def _check_rollouts(self) -> None:
        if not self.uses_model and self.rollout_starts != "uniform":
            raise ValueError(
                f"rollout_starts {self.rollout_starts!r} is of rollouts, and critic_data 'replay' "
                "has none; use 'model' or 'member', or rollout_starts 'uniform'"
            )

    def _check_steps_ahead(self) -> None:
        if self.critic_steps > 1 and self.critic_data != "member":
            raise ValueError(
                f"critic_steps {self.critic_steps} look ahead in a member's rollouts, got "
                f"critic_data {self.critic_data!r}; use 'member', or critic_steps 1"
            )

    def _check_enough_to_disagree(self) -> None:
        method = self.qvariance
        given = f"got num_members {self.num_members} with critic_data {self.critic_data!r}"
        num_models = self.num_members if self.uses_model else 0
        if num_models < method.min_models:
            raise ValueError(
                f"method {self.method!r} needs at least two dynamics models that can disagree, "
                f"{given}; use num_members 2 or more with critic_data 'member' or 'model'"
            )
        if self.num_groups < method.min_groups:
            raise ValueError(
                f"method {self.method!r} needs at least two critic groups that can disagree, "
                f"{given}; use num_members 2 or more with critic_data 'member', or another method"
            )

    def _check_penalty_and_regularizer(self) -> None:
        if self.penalty is not None:
            penalties.find(self.penalty)
            if not self.uses_model:
                raise ValueError(
                    f"penalty {self.penalty!r} is taken off the rewards of model rollouts, which "
                    f"critic_data 'replay' does without; use critic_data 'model' or 'member', or "
                    "leave the penalty out"
                )
        if self.real_ratio and not self.num_real:
            raise ValueError(
                f"real_ratio {self.real_ratio} of batch_size {self.batch_size} is no transition; "
                f"use 0, or at least {1 / self.batch_size}"
            )
        if self.regularizer is not None:
            regularizers.find(self.regularizer)
            if not (self.uses_model and 0 < self.num_real < self.batch_size):
                raise ValueError(
                    f"regularizer {self.regularizer!r} compares real and model transitions of a "
                    f"batch, got critic_data {self.critic_data!r} with real_ratio "
                    f"{self.real_ratio} of batch_size {self.batch_size}; use critic_data 'model' "
                    "or 'member' with a real_ratio such as 0.5"
                )

    @property
    def qvariance(self) -> uncertainty.Method:
        """How U is estimated, line 4 of Algorithm 1."""
        return uncertainty.find(self.method)

    @property
    def uses_model(self) -> bool:
        """Whether dynamics are learned and rolled out."""
        return self.critic_data != "replay"

    @property
    def rollout_interval(self) -> int:
        """Environment steps, offline updates, between rollouts."""
        return min(self.roll_out_every or self.fit_every, self.fit_every)

    @property
    def fit_batch_size(self) -> int:
        """B of a fit, per member."""
        return self.dynamics.batch_size or self.batch_size

    @property
    def num_real(self) -> int:
        """Transitions of D in a batch beside model data; they come first."""
        return round(self.real_ratio * self.batch_size)

    @property
    def uses_unet(self) -> bool:
        """Whether a U-net is trained."""
        return self.qvariance.local is not None

    @property
    def actions_drawn(self) -> int:
        """J, actions drawn at each next state that a member expects."""
        return self.gap_samples if self.qvariance.compares_actions else 1

    @property
    def unet_looks_ahead(self) -> bool:
        """Whether the U-net learns from several steps of rollouts as one."""
        return self.uses_unet and min(self.unet_steps, self.rollout_length) > 1

    @property
    def num_groups(self) -> int:
        """Groups of M critics: one per member on D_1..D_N, a single one on shared data."""
        return self.num_members if self.critic_data == "member" else 1

    @property
    def num_model_buffers(self) -> int:
        """Buffers that rollouts go into: D_model, and D_1..D_N for critics that have their own."""
        return 1 + (self.num_members if self.critic_data == "member" else 0)

    def largest_u(self, local: Any) -> Any:
        """The largest U, if no more than `local` is propagated at any step: local / (1 - γ²)."""
        return 1.0 / (1.0 - self.discount**2) * local
