"""Fits the probabilistic ensemble by maximum likelihood (Algorithms 2, line 6, and 3, line 2).

Every `holdout_every`-th slot of the buffer is never trained on, in any fit, so the held-out error
is honest although the weights carry over from fit to fit. What is evaluated, kept and returned is
not the weights that the gradient steps lead to but their exponential moving average since the fit
began. At Adam's constant learning rate the weights do not settle: each member would keep the noise
of its last few batches, so that members would disagree even where data are plentiful. As the
variances were fitted to the larger errors of the unaveraged weights, they are scaled down, per
member and target, until their mean on held-out data is the mean squared error there.

Array shapes do not depend on how full the buffer is, so nothing recompiles as it grows.

Axes: N members, B batch, O observation size, A action size.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from qusac_jax.qusac import fitting_data, networks, replay
from qusac_jax.qusac.config import DynamicsConfig
from qusac_jax.qusac.dynamics import Dynamics, optimizer, scale_termination_inputs
from qusac_jax.qusac.dynamics_network import DynamicsNetwork, termination_logits

# Held-out examples that are predicted at once.
_HOLDOUT_CHUNK = 256


class FitReport(NamedTuple):
    """How a fit went."""

    holdout_mse: jax.Array  # [N] held-out squared error, mean over (s' - s, r) in raw units
    train_loss: jax.Array  # [N] mean `weighted_nll` of the last epoch
    epochs: jax.Array  # [] int32, epochs run


class _Problem(NamedTuple):
    """What all epochs of a fit read."""

    model: DynamicsNetwork
    config: DynamicsConfig
    batch_size: int
    dynamics: Dynamics  # as it was, with the scaling of the inputs that this fit uses
    buffer: replay.Buffer
    num_train: jax.Array  # [] slots to train on
    num_steps: jax.Array  # [] gradient steps of an epoch
    # [N, max_train] which training slot stands for each, None without a bootstrap.
    bootstrap: jax.Array | None


class _Weights(NamedTuple):
    """What a gradient step changes."""

    params: networks.Params
    opt_state: optax.OptState
    average: networks.Params  # of the weights of this fit, not yet corrected for its start at 0
    total_loss: jax.Array  # [N] over the steps of the epoch


class _Progress(NamedTuple):
    """Where a fit is."""

    params: networks.Params
    opt_state: optax.OptState
    average: networks.Params  # as in `_Weights`
    best_params: networks.Params  # averaged ones
    best_mse: jax.Array  # [N, O + 1] or [N, 1] lowest held-out errors, as the stop rule sees them
    has_improved: jax.Array  # [] whether any member has, in this fit
    kept_mse: jax.Array  # [N] held-out error of the best weights, mean over targets
    kept_scale: jax.Array  # [N, O + 1] noise_scale of the best weights
    train_loss: jax.Array  # [N]
    stale: jax.Array  # [] epochs since a member improved
    epoch: jax.Array  # []
    key: chex.PRNGKey


def fit(
    model: DynamicsNetwork,
    dynamics: Dynamics,
    buffer: replay.Buffer,
    key: chex.PRNGKey,
    *,
    config: DynamicsConfig,
    batch_size: int,
) -> tuple[Dynamics, FitReport]:
    """Trains all members on the buffer, each on its own shuffles of it or of its bootstrap.

    Training stops when for `patience` epochs no member has lowered its held-out error of any
    target, a component of s' - s or the reward, by the share `improvement`, compared with the
    lowest until its last improvement, whose weights it keeps. In the mean over targets,
    a reward that cannot be predicted yet would hide that the states still improve. The first epoch
    is always accepted: against the weights from before it, which fit the previous data, the
    comparison would freeze the model while the data changes.

    With `stop_rule` "mean", the errors are means over targets, and the first epoch, too, must
    improve on those before the fit. All members keep their weights of the last epoch in which any
    of them improved, or of the last epoch if none did, and are compared with their lowest errors
    until it.

    However large the data, a fit ends after `max_epochs` epochs, or the whole epochs that
    `max_steps` gradient steps suffice for; the next call continues from there.

    Args:
        model: the module.
        dynamics: where to start from.
        buffer: with at least two transitions.
        key: consumed.
        config: hyperparameters.
        batch_size: B.

    Returns:
        The fitted ensemble and a report.
    """
    dynamics = fitting_data.with_statistics(dynamics, buffer, config)
    num_train = buffer.size - fitting_data.num_holdout(buffer, config)
    num_steps = (num_train + batch_size - 1) // batch_size
    bootstrap = None
    if config.bootstrap:
        key, key_bootstrap = jax.random.split(key)
        shape = (model.num_members, fitting_data.max_train(buffer, config))
        bootstrap = jax.random.randint(key_bootstrap, shape, 0, num_train)
    problem = _Problem(model, config, batch_size, dynamics, buffer, num_train, num_steps, bootstrap)
    num_epochs = jnp.clip(config.max_steps // jnp.maximum(num_steps, 1), 1, config.max_epochs)

    def unfinished(progress: _Progress) -> jax.Array:
        return (progress.stale < config.patience) & (progress.epoch < num_epochs)

    run_epoch = functools.partial(_run_epoch, problem)
    end = jax.lax.while_loop(unfinished, run_epoch, _start(problem, key))
    fitted = dynamics._replace(
        params=end.best_params, opt_state=end.opt_state, noise_scale=end.kept_scale
    )
    return fitted, FitReport(end.kept_mse, end.train_loss, end.epoch)


def _start(problem: _Problem, key: chex.PRNGKey) -> _Progress:
    num_members, dynamics = problem.model.num_members, problem.dynamics
    if problem.config.stop_rule == "mean":
        before = _judged(problem.config, _holdout_errors(problem, dynamics.params)[0])
    else:
        before = jnp.full((num_members, problem.model.observation_size + 1), jnp.inf, jnp.float32)
    return _Progress(
        params=dynamics.params,
        opt_state=dynamics.opt_state,
        average=jax.tree.map(jnp.zeros_like, dynamics.params),
        best_params=dynamics.params,
        best_mse=before,
        has_improved=jnp.bool_(False),
        kept_mse=jnp.zeros(num_members, jnp.float32),
        kept_scale=dynamics.noise_scale,
        train_loss=jnp.zeros(num_members, jnp.float32),
        stale=jnp.int32(0),
        epoch=jnp.int32(0),
        key=key,
    )


def _run_epoch(problem: _Problem, progress: _Progress) -> _Progress:
    """One pass over the training slots, and what the held-out ones say about it."""
    key, key_shuffle = jax.random.split(progress.key)
    num_members, config = problem.model.num_members, problem.config
    order = fitting_data.shuffle(
        key_shuffle, problem.num_train, fitting_data.max_train(problem.buffer, config), num_members
    )
    start = _Weights(
        progress.params, progress.opt_state, progress.average, jnp.zeros(num_members, jnp.float32)
    )
    step = functools.partial(_gradient_step, problem, order)
    end = jax.lax.fori_loop(0, problem.num_steps, step, start)

    count = (progress.epoch + 1) * problem.num_steps
    averaged = optax.tree.bias_correction(end.average, config.ema_decay, count)
    progress = _keep_better(problem, progress, averaged)
    return progress._replace(
        params=end.params,
        opt_state=end.opt_state,
        average=end.average,
        train_loss=end.total_loss / jnp.maximum(problem.num_steps, 1),
        epoch=progress.epoch + 1,
        key=key,
    )


def _gradient_step(
    problem: _Problem, order: jax.Array, i: jax.Array, weights: _Weights
) -> _Weights:
    """Step i of an epoch that visits the training slots in the order `[N, max_train]`."""
    config = problem.config
    index = i * problem.batch_size + jnp.arange(problem.batch_size)
    rank = jnp.take(order, index, axis=1, mode="clip")
    if problem.bootstrap is not None:
        rank = jnp.take_along_axis(problem.bootstrap, rank, axis=1)
    slots = fitting_data.training_slots(rank, config)
    is_there = (index < problem.num_train).astype(jnp.float32)
    loss = functools.partial(_loss, problem, slots, is_there)
    (_, per_member), grads = jax.value_and_grad(loss, has_aux=True)(weights.params)
    updates, opt_state = optimizer(config.learning_rate).update(grads, weights.opt_state)
    params = optax.apply_updates(weights.params, updates)
    average = optax.incremental_update(params, weights.average, 1.0 - config.ema_decay)
    return _Weights(params, opt_state, average, weights.total_loss + per_member)


def _loss(
    problem: _Problem, slots: jax.Array, is_there: jax.Array, params: networks.Params
) -> tuple[jax.Array, jax.Array]:
    """Sum over members `[]`, and the members' losses `[N]`, on the slots `[N, B]`."""
    beta = problem.config.nll_beta
    inputs, targets = fitting_data.read(problem.dynamics, problem.buffer, slots)
    mean, log_var = networks.apply(problem.model, params, inputs)
    nll = jnp.mean(weighted_nll(mean, log_var, targets, beta), axis=-1)
    per_member = jnp.sum(nll * is_there, axis=-1) / jnp.sum(is_there)
    total = jnp.sum(per_member)
    if problem.config.learn_termination:
        # Other weights than those of the means and variances, which it therefore leaves alone.
        total += _termination_loss(problem, slots, is_there, params)
    return total, per_member


def weighted_nll(
    mean: jax.Array, log_var: jax.Array, target: jax.Array, beta: float | jax.Array
) -> jax.Array:
    """Negative log-likelihood times the predicted variance to the power `beta`, elementwise.

    Under plain likelihood (`beta` = 0) a target weighs on the mean with its inverse variance. A
    sparse reward, seen a few times among thousands of nearly noise-free targets, is then explained
    by a large variance and not by the mean. With 1, the means are fitted by squared error.

    Args:
        mean: `[...]` of the Gaussian.
        log_var: `[...]`, its log variance.
        target: `[...]`.
        beta: in [0, 1].

    Returns:
        `[...]` twice the loss, without its constant; no gradient flows through the weight.

    Source: Seitzer et al. (2022), "On the Pitfalls of Heteroscedastic Uncertainty Estimation".
    """
    nll = jnp.square(mean - target) * jnp.exp(-log_var) + log_var
    return nll * jax.lax.stop_gradient(jnp.exp(beta * log_var))


def _termination_loss(
    problem: _Problem, slots: jax.Array, is_there: jax.Array, params: networks.Params
) -> jax.Array:
    """Cross-entropy of the members' ends `[]`, summed over members, on the slots `[N, B]`."""
    batch = jax.tree.map(lambda x: x[slots], problem.buffer.data)
    inputs = scale_termination_inputs(
        problem.dynamics, batch.observation, batch.action, batch.next_observation
    )
    logits = termination_logits(problem.model, params, inputs)
    loss = optax.sigmoid_binary_cross_entropy(logits, batch.terminated)
    return jnp.sum(loss * is_there) / jnp.sum(is_there)


def _keep_better(problem: _Problem, progress: _Progress, averaged: networks.Params) -> _Progress:
    """Takes over the averaged weights, of the members that the stop rule says."""
    config = problem.config
    mse, variance = _holdout_errors(problem, averaged)
    unit = problem.dynamics.target_std
    # Never up: one reward that nobody expected would make every predicted reward noisy.
    scale = jnp.sqrt(jnp.minimum(mse / variance, 1.0)) if config.ema_decay else jnp.ones_like(mse)
    judged = _judged(config, mse)
    improved = jnp.any(judged < progress.best_mse * (1.0 - config.improvement), axis=-1)  # [N]
    has_improved = progress.has_improved | jnp.any(improved)
    if config.stop_rule == "mean":  # all members or none
        counted = jnp.broadcast_to(jnp.any(improved), improved.shape)
        kept = counted | ~has_improved
    else:  # each by itself; the first epoch always counts
        improved |= progress.epoch == 0
        counted = kept = improved

    def keep(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(kept.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return progress._replace(
        best_params=jax.tree.map(keep, averaged, progress.best_params),
        # Not in other epochs: small gains add up.
        best_mse=jnp.where(
            counted[:, None], jnp.minimum(judged, progress.best_mse), progress.best_mse
        ),
        has_improved=has_improved,
        kept_mse=keep(jnp.mean(mse * unit**2, axis=-1), progress.kept_mse),
        kept_scale=keep(scale, progress.kept_scale),
        stale=jnp.where(jnp.any(improved), 0, progress.stale + 1),
    )


def _judged(config: DynamicsConfig, mse: jax.Array) -> jax.Array:
    """The errors `[N, O + 1]` as the stop rule compares them."""
    return jnp.mean(mse, axis=-1, keepdims=True) if config.stop_rule == "mean" else mse


def _holdout_errors(problem: _Problem, params: networks.Params) -> tuple[jax.Array, jax.Array]:
    """Errors on the slots that are held out.

    Returns:
        `[N, O + 1]` mean squared errors in units of `target_std`, and the means of the variances
        that the weights predict.
    """
    model, buffer = problem.model, problem.buffer
    num_holdout = fitting_data.num_holdout(buffer, problem.config)

    def add_chunk(i: jax.Array, totals: tuple[jax.Array, jax.Array]):
        index = i * _HOLDOUT_CHUNK + jnp.arange(_HOLDOUT_CHUNK)
        slots = fitting_data.holdout_slots_at(index, problem.config)
        slots = jnp.minimum(slots, buffer.data.reward.shape[0] - 1)
        inputs, targets = fitting_data.read(problem.dynamics, buffer, slots)
        mean, log_var = networks.apply(model, params, inputs)
        valid = (index < num_holdout)[:, None]
        add = lambda total, x: total + jnp.sum(jnp.where(valid, x, 0.0), axis=-2)
        return jax.tree.map(add, totals, (jnp.square(mean - targets), jnp.exp(log_var)))

    num_chunks = (num_holdout + _HOLDOUT_CHUNK - 1) // _HOLDOUT_CHUNK
    zeros = jnp.zeros((model.num_members, model.observation_size + 1), jnp.float32)
    totals = jax.lax.fori_loop(0, num_chunks, add_chunk, (zeros, zeros))
    return jax.tree.map(lambda total: total / jnp.maximum(num_holdout, 1), totals)
