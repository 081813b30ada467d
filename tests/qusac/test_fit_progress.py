"""What a fit of the dynamics keeps from epoch to epoch, and from fit to fit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import dynamics as dynamics_lib
from qusac_jax.qusac import fitting, fitting_data, networks, replay
from tests.linear_gaussian import CAPACITY, CONFIG, MODEL, fit, fresh, linear_gaussian


def begun():
    """A fit before its first epoch, of weights `[N, O + 1]` that are nothing else."""
    zeros = jnp.zeros((3, 3))
    return fitting._Progress(
        params=zeros,
        opt_state=None,
        average=zeros,
        best_params=zeros,
        best_mse=jnp.full((3, 3), jnp.inf),
        has_improved=jnp.bool_(False),
        kept_mse=jnp.zeros(3),
        kept_scale=jnp.ones((3, 3)),
        train_loss=jnp.zeros(3),
        stale=jnp.int32(0),
        epoch=jnp.int32(0),
        key=None,
    )


def stale_epochs(monkeypatch, errors, **options):
    """Epochs without an improvement after each epoch, where all held-out errors are as given."""
    said = lambda _, weights: (weights, jnp.full_like(weights, 2.0))
    monkeypatch.setattr(fitting, "_holdout_errors", said)
    config = dataclasses.replace(CONFIG, improvement=0.01, **options)
    problem = fitting._Problem(MODEL, config, 1, fresh(), None, 1, 1, None)
    progress, stale = begun(), []
    for epoch, error in enumerate(errors):
        progress = progress._replace(epoch=epoch)
        progress = fitting._keep_better(problem, progress, jnp.full((3, 3), error))
        stale.append(int(progress.stale))
    return stale, float(progress.best_params[0, 0])


def test_every_epoch_is_shuffled_anew(monkeypatch):
    keys, shuffle = [], fitting_data.shuffle

    def noted(key, *sizes):
        jax.debug.callback(lambda data: keys.append(tuple(data.tolist())), jax.random.key_data(key))
        return shuffle(key, *sizes)

    monkeypatch.setattr(fitting_data, "shuffle", noted)
    config = dataclasses.replace(CONFIG, max_epochs=3, patience=3, improvement=0.0)
    buffer = replay.full(linear_gaussian(jax.random.key(0), 64))
    options = {"config": config, "batch_size": 32}
    _, report = fitting.fit(MODEL, fresh(), buffer, jax.random.key(1), **options)
    jax.block_until_ready(report)
    jax.effects_barrier()
    assert len(keys) == int(report.epochs) == 3
    assert len(set(keys)) == 3


@pytest.mark.parametrize("stop_rule", ["target", "mean"])
def test_gains_that_are_small_add_up(monkeypatch, stop_rule):
    errors = [0.994**epoch for epoch in range(7)]  # two of them are more than a percent
    stale, kept = stale_epochs(monkeypatch, errors, stop_rule=stop_rule)
    assert stale == [0, 1, 0, 1, 0, 1, 0]
    np.testing.assert_allclose(kept, errors[-1], rtol=1e-6)


def test_each_member_keeps_its_best_weights_with_their_errors_and_noise(monkeypatch):
    # Weights that are their own held-out errors: the second of member 0 are the best, the fourth of
    # member 1, the first of member 2. All variances are 2, units of the targets 1, 1 and 3.
    said = lambda _, weights: (weights, jnp.full_like(weights, 2.0))
    monkeypatch.setattr(fitting, "_holdout_errors", said)
    errors = np.array([[1, 0.5, 0.8, 0.6, 0.6], [1, 1, 1, 0.125, 0.9], [8, 9, 9, 9, 9]])
    dynamics = fresh()._replace(target_std=jnp.array([1.0, 1.0, 3.0]))
    problem = fitting._Problem(MODEL, CONFIG, 1, dynamics, None, 1, 1, None)
    progress = begun()
    stale = []
    for epoch, error in enumerate(errors.T):
        weights = jnp.broadcast_to(jnp.asarray(error, jnp.float32)[:, None], (3, 3))
        progress = fitting._keep_better(problem, progress._replace(epoch=epoch), weights)
        stale.append(int(progress.stale))
    assert stale == [0, 0, 1, 0, 1]
    best = np.array([0.5, 0.125, 8.0])
    np.testing.assert_allclose(progress.best_params[:, 0], best)
    np.testing.assert_allclose(progress.kept_mse, best * (1 + 1 + 9) / 3, rtol=1e-6)
    np.testing.assert_allclose(progress.kept_scale[:, 0], [0.5, 0.25, 1.0], rtol=1e-6)


def test_the_held_out_error_is_that_of_all_held_out_slots():
    # 600 slots, more than are predicted at once; those after the first 256 have other rewards.
    data = linear_gaussian(jax.random.key(0), 1_200)
    slot = jnp.arange(1_200)
    is_other = (slot % 2 == 0) & (slot >= 512)
    data = data._replace(reward=jnp.where(is_other, 10.0, data.reward))
    buffer = replay.add(replay.init(CAPACITY, 2, 1), data)
    dynamics, report = fit(fresh(), buffer, jax.random.key(1), max_epochs=1, holdout_every=2)
    mean, _ = dynamics_lib.predict(MODEL, dynamics, data.observation, data.action)
    outcome = jnp.concatenate([data.next_observation, data.reward[:, None]], axis=1)
    error = jnp.mean(jnp.square(mean - outcome)[:, ::2], axis=(1, 2))
    np.testing.assert_allclose(report.holdout_mse, error, rtol=1e-4)


def test_a_fit_goes_on_with_the_optimizer_of_the_one_before():
    buffer = replay.add(replay.init(CAPACITY, 2, 1), linear_gaussian(jax.random.key(0), 400))
    dynamics = fresh()
    for fits in (1, 2):
        dynamics, report = fit(dynamics, buffer, jax.random.key(fits), max_epochs=2)
        assert int(report.epochs) == 2
        # 380 slots to train on: six batches of 64, twice.
        assert int(dynamics.opt_state[0].count) == 12 * fits


def test_the_loss_that_is_reported_is_the_mean_of_an_epoch():
    # 380 slots to train on, all the same: five batches of 64 and one of 60.
    one = linear_gaussian(jax.random.key(0), 1)
    data = jax.tree.map(lambda x: jnp.repeat(x, 400, axis=0), one)
    buffer = replay.add(replay.init(CAPACITY, 2, 1), data)
    dynamics, report = fit(fresh(), buffer, jax.random.key(1), max_epochs=1, learning_rate=1e-12)
    inputs, targets = fitting_data.read(dynamics, buffer, jnp.zeros(1, jnp.int32))
    mean, log_var = networks.apply(MODEL, fresh().params, inputs)
    loss = fitting.weighted_nll(mean, log_var, targets, CONFIG.nll_beta)
    np.testing.assert_allclose(report.train_loss, jnp.mean(loss, axis=(1, 2)), rtol=1e-4)


@pytest.mark.parametrize(("decay", "scale"), [(0.0, 1.0), (0.9, 0.5)])
def test_noise_is_scaled_where_weights_are_averaged(monkeypatch, decay, scale):
    # Errors of 0.5 where the weights expect variances of 2.
    said = lambda _, weights: (weights, jnp.full_like(weights, 2.0))
    monkeypatch.setattr(fitting, "_holdout_errors", said)
    config = dataclasses.replace(CONFIG, ema_decay=decay)
    problem = fitting._Problem(MODEL, config, 1, fresh(), None, 1, 1, None)
    progress = fitting._keep_better(problem, begun(), jnp.full((3, 3), 0.5))
    np.testing.assert_allclose(progress.kept_scale, scale, rtol=1e-6)
