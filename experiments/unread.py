"""Hyperparameters that a command line or its file sets and that nothing of its run reads."""

import dataclasses
from collections.abc import Collection, Iterator

from experiments import files
from qusac_jax import qusac

_OF_RISK = {"risk", "risk_schedule", "risk_awaits_reward"}
_OF_UNET = {"unet_hidden", "unet_learning_rate", "clip_u", "local_max_decay", "unet_steps"}
_OF_ROLLOUTS = {
    "fit_every",
    "roll_out_every",
    "rollouts_per_step",
    "rollout_length",
    "random_first_actions",
    "retain_refreshes",
    "real_ratio",
    "num_members",
}


def warn(config: qusac.Config, given: Collection[str], *, is_offline: bool) -> None:
    """Warns of each hyperparameter of a command line or its file that has no effect.

    It is no mistake: a suite passes the same hyperparameters to all of its methods.

    Args:
        config: of the run.
        given: the fields that they name, from `config_file.given_fields`.
        is_offline: whether the run learns from a dataset, F updates in one call.
    """
    method = config.qvariance
    if _is_risk_zero(config) and method.estimates_u:
        files.warn(f"method {config.method!r} only logs its uncertainty: risk is 0")
    if config.uses_model and config.num_real == config.batch_size:
        files.warn(
            f"the models are rolled out for nothing: with real_ratio {config.real_ratio:g} batches "
            "hold only D; use a smaller one, such as 0.5"
        )
    looking = {"critic_steps"} | ({"unet_steps"} if config.uses_unet else set())
    for name in sorted(set(given) & looking):
        steps = getattr(config, name)
        if steps > config.rollout_length:
            files.warn(
                f"config.{name} {steps} counts as {config.rollout_length}: no target looks further "
                "than its rollout; use a larger rollout_length"
            )
    said: set[str] = set()
    for group, why in _unread(config, is_offline):
        for name in sorted(set(given) & group - said):
            files.warn(f"config.{name} has no effect: {why}")
        said |= group


def names(config: qusac.Config, *, is_offline: bool) -> set[str]:
    """Hyperparameters that have no effect on a run; arguments as for `warn`."""
    return set().union(*(group for group, _ in _unread(config, is_offline)))


def _unread(config: qusac.Config, is_offline: bool) -> Iterator[tuple[set[str], str]]:
    """Fields that are not read, and why."""
    method = config.qvariance
    if not config.uses_model:
        of_dynamics = {f"dynamics.{field.name}" for field in dataclasses.fields(config.dynamics)}
        of_rollouts = _OF_ROLLOUTS - {"fit_every"} if is_offline else _OF_ROLLOUTS
        yield of_rollouts | of_dynamics, "critic_data 'replay' fits and rolls out no dynamics"
    elif not config.dynamics.reward_prior_scale:
        yield {"dynamics.reward_scale"}, "dynamics.reward_prior_scale 0 is no prior over rewards"
    if config.uses_model and config.roll_out_every > config.fit_every:
        yield {"roll_out_every"}, f"models are rolled out at each fit, every {config.fit_every}"
    if not method.estimates_u:
        yield _OF_RISK, f"method {config.method!r} has no uncertainty for λ to weigh"
    if _is_risk_zero(config):
        yield {"relative_risk"}, "risk is 0"
    if config.risk_schedule is not None:
        yield {"risk"}, f"risk_schedule {config.risk_schedule} takes its place"
    if not config.uses_unet:
        yield _OF_UNET, f"method {config.method!r} trains no U-net"
    if not method.compares_actions:
        yield {"gap_samples"}, f"method {config.method!r} compares no actions"
    if config.penalty is None:
        yield {"penalty_scale"}, "there is no penalty"
    if config.regularizer is None:
        yield {"regularizer_weight"}, "there is no regularizer"


def _is_risk_zero(config: qusac.Config) -> bool:
    return config.risk == 0 and config.risk_schedule is None
