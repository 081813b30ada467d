"""The ensemble on systems whose answer is known."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import dynamics as dynamics_lib
from qusac_jax.qusac import fitting, fitting_data, replay
from qusac_jax.task import Transition
from tests.linear_gaussian import (
    CAPACITY,
    CONFIG,
    MODEL,
    NOISE,
    A,
    B,
    C,
    compiled_fit,
    fit,
    fresh,
    linear_gaussian,
)


@pytest.fixture(scope="module", params=[False, True], ids=["own units", "units of D"])
def fitted(request):
    buffer = replay.add(replay.init(CAPACITY, 2, 1), linear_gaussian(jax.random.key(0), CAPACITY))
    options = {"patience": 15, "max_epochs": 150, "normalize_targets": request.param}
    return fit(fresh(), buffer, jax.random.key(1), **options)


@pytest.mark.slow
def test_recovers_means_and_noise(fitted):
    dynamics, _ = fitted
    test = linear_gaussian(jax.random.key(2), 500)
    mean, std = dynamics_lib.predict(MODEL, dynamics, test.observation, test.action)
    truth = jnp.concatenate(
        [
            test.observation + test.observation @ A + test.action @ B,
            (test.observation @ C)[:, None],
        ],
        axis=1,
    )
    # 1,900 noisy examples leave a root-mean-square error of a few hundredths per member.
    error = jnp.sqrt(jnp.mean(jnp.square(mean - truth), axis=1))  # [N, 3]
    assert float(error.max()) < 0.12
    np.testing.assert_allclose(std.mean((0, 1)), NOISE, rtol=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_predicted_noise_is_no_larger_than_the_errors(beta):
    # Rollouts draw from it: far above the errors, it ends what a policy could hold for long.
    data = linear_gaussian(jax.random.key(0), CAPACITY, noise_scale=0.005)
    buffer = replay.add(replay.init(CAPACITY, 2, 1), data)
    changes = {"patience": 30, "max_epochs": 150, "nll_beta": beta, "learning_rate": 1e-3}
    dynamics, _ = fit(fresh(), buffer, jax.random.key(1), **changes)
    test = linear_gaussian(jax.random.key(2), 500, noise_scale=0.005)
    mean, std = dynamics_lib.predict(MODEL, dynamics, test.observation, test.action)
    outcome = jnp.concatenate([test.next_observation, test.reward[:, None]], axis=1)
    error = jnp.sqrt(jnp.mean(jnp.square(mean - outcome), axis=1))
    predicted = jnp.sqrt(jnp.mean(jnp.square(std), axis=1))
    assert float(error.max()) < 0.02
    np.testing.assert_array_less(predicted, 1.5 * error)


def test_holdout_error_is_the_noise(fitted):
    # Mean over the three targets of the noise's variance, (0.01 + 0.09 + 0.0025) / 3 = 0.0342, on
    # 100 held-out examples.
    _, report = fitted
    np.testing.assert_allclose(report.holdout_mse, jnp.mean(jnp.square(NOISE)), rtol=0.4)


def test_members_disagree_off_the_data(fitted):
    dynamics, _ = fitted
    action = jnp.zeros((200, 1))
    near = jax.random.normal(jax.random.key(3), (200, 2))
    spread = lambda s: dynamics_lib.predict(MODEL, dynamics, s, action)[0].std(0).mean()
    assert float(spread(10.0 * near)) > 5.0 * float(spread(near))


@pytest.mark.slow
def test_reward_priors_make_members_disagree_where_there_are_no_data():
    # All observations lie left of 0; the rewards are 0 there, which is learned at once.
    data = linear_gaussian(jax.random.key(0), CAPACITY, noise_scale=0.0)
    left = jnp.concatenate([-jnp.abs(data.observation[:, :1]), data.observation[:, 1:]], axis=1)
    shift = data.next_observation - data.observation
    buffer = replay.add(
        replay.init(CAPACITY, 2, 1),
        data._replace(
            observation=left, next_observation=left + shift, reward=jnp.zeros_like(data.reward)
        ),
    )

    def spreads(scale):
        model = dataclasses.replace(MODEL, reward_prior_scale=scale)
        start = dynamics_lib.init(model, jax.random.key(0), action_size=1, learning_rate=3e-3)
        end, _ = fit(start, buffer, jax.random.key(1), model)
        spread = lambda s: dynamics_lib.predict(model, end, s, data.action)[0].std(0).mean(0)
        return start, end, spread(left), spread(-2.0 * left)

    start, end, near, far = spreads(30.0)
    _, _, _, plain_far = spreads(0.0)
    assert float(far[-1]) > 10.0 * float(near[-1])
    assert float(far[-1]) > 5.0 * float(plain_far[-1])
    # Of what the states become, the members are no less sure than they were.
    assert float(far[:-1].max()) < 2.0 * float(plain_far[:-1].max())
    prior = lambda dynamics: dynamics.params["params"]["reward_prior"]
    chex.assert_trees_all_close(prior(end), prior(start), rtol=1e-5, atol=1e-6)


def test_reward_priors_leave_the_other_weights_as_they_are():
    model = dataclasses.replace(MODEL, reward_prior_scale=10.0)
    key = jax.random.key(0)
    params = dynamics_lib.init(model, key, action_size=1, learning_rate=3e-3).params["params"]
    rest = {name: value for name, value in params.items() if name != "reward_prior"}
    chex.assert_trees_all_equal(rest, fresh(0).params["params"])


def test_a_reward_that_is_only_noise_does_not_stop_the_fit():
    # Its held-out error, 10,000, outweighs that of the states by five orders of magnitude.
    data = linear_gaussian(jax.random.key(0), CAPACITY)
    noise = 100.0 * jax.random.normal(jax.random.key(4), (CAPACITY,))
    buffer = replay.add(replay.init(CAPACITY, 2, 1), data._replace(reward=noise))
    dynamics, report = fit(fresh(), buffer, jax.random.key(1))
    assert int(report.epochs) > 2 * CONFIG.patience
    mean, _ = dynamics_lib.predict(MODEL, dynamics, data.observation, data.action)
    truth = data.observation + data.observation @ A + data.action @ B
    assert float(jnp.sqrt(jnp.mean(jnp.square(mean[..., :2] - truth)))) < 0.12


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_mean_is_pulled_by_the_variance_to_the_power_beta_less_one(beta):
    error, log_var = 0.3, jnp.array([-6.0, 0.0, 2.0])
    mean, target = jnp.full(3, 1.0 + error), jnp.ones(3)
    loss = lambda mean, log_var: jnp.sum(fitting.weighted_nll(mean, log_var, target, beta))
    to_mean, to_log_var = jax.grad(loss, (0, 1))(mean, log_var)
    weight = np.exp(beta * log_var)
    np.testing.assert_allclose(to_mean, 2 * error * weight / np.exp(log_var), rtol=1e-5)
    # The weight has no gradient of its own: the variance still settles at the squared error.
    np.testing.assert_allclose(to_log_var, weight * (1 - error**2 / np.exp(log_var)), rtol=1e-5)


@pytest.mark.slow
def test_weights_are_the_average_of_those_of_the_steps():
    # 60 transitions make one batch, so each epoch is one step, and fits with a decay of 0 that stop
    # after 1, 2, 3 and 4 epochs give the weights of each step.
    data = linear_gaussian(jax.random.key(0), 60, noise_scale=0.0)
    buffer = replay.add(replay.init(CAPACITY, 2, 1), data)

    def weights(steps, decay):
        changes = {"improvement": 0.0, "max_epochs": steps, "ema_decay": decay}
        return fit(fresh(), buffer, jax.random.key(1), **changes)[0].params

    decay = 0.8
    expected = jax.tree.map(
        lambda *steps: np.average(steps, axis=0, weights=decay ** np.arange(3, -1, -1)),
        *[weights(steps, 0.0) for steps in (1, 2, 3, 4)],
    )
    chex.assert_trees_all_close(weights(4, decay), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_averaged_weights_are_right_where_the_data_are():
    data = linear_gaussian(jax.random.key(0), CAPACITY, noise_scale=0.0)
    buffer = replay.add(replay.init(CAPACITY, 2, 1), data)
    test = linear_gaussian(jax.random.key(2), 500, noise_scale=0.0)

    def measure(decay):
        changes = {"ema_decay": decay, "learning_rate": 1e-2}
        dynamics, _ = fit(fresh(), buffer, jax.random.key(1), **changes)
        mean, std = dynamics_lib.predict(MODEL, dynamics, test.observation, test.action)
        outcome = jnp.concatenate([test.next_observation, test.reward[:, None]], axis=1)
        rms = lambda x: float(jnp.sqrt(jnp.mean(jnp.square(x))))
        return rms(mean - outcome), float(mean.std(0).mean()), rms(std)

    error, spread, noise = measure(0.99)
    last_error, last_spread, last_noise = measure(0.0)
    assert error < 0.5 * last_error
    assert spread < 0.5 * last_spread
    # The variances that the steps' weights learned are of their own, larger errors.
    assert noise < 1.5 * error
    assert noise < 0.5 * last_noise


@pytest.mark.slow
def test_more_data_do_not_make_a_fit_longer():
    # 1900 and 950 slots to train on: 30 and 15 steps of 64 per epoch.
    limits = {"patience": 100, "max_epochs": 9}
    data = linear_gaussian(jax.random.key(0), CAPACITY)
    full = replay.add(replay.init(CAPACITY, 2, 1), data)
    half = full._replace(size=jnp.int32(CAPACITY // 2))
    for buffer, steps, epochs in [(full, 119, 3), (half, 119, 7), (half, 400, 9), (full, 29, 1)]:
        _, report = fit(fresh(), buffer, jax.random.key(1), max_steps=steps, **limits)
        assert report.epochs == epochs


@pytest.mark.slow
def test_filling_the_buffer_does_not_recompile():
    before = compiled_fit._cache_size()
    buffer, dynamics = replay.init(CAPACITY, 2, 1), fresh()
    for i, count in enumerate([2, 50, 700]):
        buffer = replay.add(buffer, linear_gaussian(jax.random.key(i), count))
        dynamics, report = fit(dynamics, buffer, jax.random.key(i), max_epochs=2)
        assert np.isfinite(report.holdout_mse).all()
    assert compiled_fit._cache_size() == before + 1


@pytest.mark.parametrize("bootstrap", [False, True])
def test_never_trains_on_slots_that_are_empty(bootstrap):
    # Two buffers that differ in what lies in their empty slots.
    empty = replay.init(CAPACITY, 2, 1)
    full_of = lambda value: jax.tree.map(lambda x: jnp.full_like(x, value), empty.data)
    data = linear_gaussian(jax.random.key(0), 70)
    params = [
        fit(
            fresh(),
            replay.add(empty._replace(data=full_of(value)), data),
            jax.random.key(1),
            max_epochs=2,
            bootstrap=bootstrap,
        )[0].params
        for value in (0, 100)
    ]
    chex.assert_trees_all_equal(*params)


def test_never_trains_on_what_is_held_out():
    # Held-out slots (0, 20, 40, ...) carry a reward of 100 that training must not see.
    data = linear_gaussian(jax.random.key(0), 400)
    poisoned = data._replace(
        reward=jnp.where(jnp.arange(400) % 20 == 0, 100.0, data.observation @ C)
    )
    buffer = replay.add(replay.init(CAPACITY, 2, 1), poisoned)
    dynamics, report = fit(fresh(), buffer, jax.random.key(1))
    mean, _ = dynamics_lib.predict(MODEL, dynamics, data.observation, data.action)
    assert float(jnp.abs(mean[..., 2]).max()) < 20.0
    # Nor do errors that no variance foresaw make what rollouts draw noisier.
    np.testing.assert_array_equal(dynamics.noise_scale[:, 2], 1.0)
    # Held-out error per target: about 100^2 / 3, so the held-out slots were the ones judged.
    np.testing.assert_allclose(report.holdout_mse, 100.0**2 / 3, rtol=0.1)


def test_the_first_epoch_is_accepted_although_the_old_weights_were_better(fitted):
    # One epoch with a learning rate that is far too large, on the data that they were fitted to.
    dynamics, before = fitted
    buffer = replay.add(replay.init(CAPACITY, 2, 1), linear_gaussian(jax.random.key(0), CAPACITY))
    after, report = fit(dynamics, buffer, jax.random.key(4), max_epochs=1, learning_rate=0.1)
    assert (report.holdout_mse > 1.5 * before.holdout_mse).all()
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), dynamics.params, after.params)
    assert max(jax.tree.leaves(moved)) > 0.1


def test_inputs_are_scaled_by_the_statistics_of_the_buffer():
    data = linear_gaussian(jax.random.key(0), 300)
    data = data._replace(observation=100.0 + 10.0 * data.observation)
    buffer = replay.add(replay.init(CAPACITY, 2, 1), data)
    inputs = np.concatenate([data.observation, data.action], axis=1)
    options = {"max_epochs": 1}
    dynamics, _ = fit(fresh(), buffer, jax.random.key(1), normalize_inputs="deviation", **options)
    np.testing.assert_allclose(dynamics.input_mean, inputs.mean(0), rtol=1e-3)
    np.testing.assert_allclose(dynamics.input_std, inputs.std(0), rtol=1e-3)
    dynamics, _ = fit(fresh(), buffer, jax.random.key(1), normalize_inputs="range", **options)
    # All inputs between -sqrt(3) and sqrt(3), where a uniform distribution of deviation 1 lies.
    scaled = (inputs - dynamics.input_mean) / dynamics.input_std
    np.testing.assert_allclose(scaled.min(0), -np.sqrt(3), rtol=1e-4)
    np.testing.assert_allclose(scaled.max(0), np.sqrt(3), rtol=1e-4)


@pytest.mark.parametrize("constant", [0.0, 13.7, 100.3, 1234.5])
@pytest.mark.parametrize("jitter", [False, True])
@pytest.mark.parametrize("scale", ["deviation", "range"])
def test_what_is_constant_has_the_deviation_1(constant, jitter, scale):
    # Else what a model is wrong by there, however little, would be far outside of D.
    size = 4_999
    observation = np.full((size, 2), constant, np.float32)
    observation[:, 1] = np.arange(size)
    if jitter:
        observation[::3, 0] = np.nextafter(observation[::3, 0], np.float32(1e9))
    action = jnp.asarray(observation[:, :1])
    data = Transition(observation, action, jnp.zeros(size), observation, jnp.zeros(size, bool))
    buffer = replay.add(replay.init(6_000, 2, 1), jax.tree.map(jnp.asarray, data))
    config = dataclasses.replace(CONFIG, normalize_inputs=scale)
    found = jax.jit(fitting_data.with_statistics, static_argnums=2)(fresh(), buffer, config)
    np.testing.assert_allclose(found.input_mean[jnp.array([0, 2])], constant, rtol=2e-7)
    np.testing.assert_array_equal(found.input_std[jnp.array([0, 2])], 1.0)
    counted = np.arange(size).std() if scale == "deviation" else (size - 1) / np.sqrt(12)
    np.testing.assert_allclose(found.input_std[1], counted, rtol=1e-5)


def test_statistics_are_those_of_all_blocks_of_a_large_buffer():
    size, capacity = 33_333, 40_000  # three blocks, of which the last one overlaps
    rng = np.random.default_rng(0)
    first, last = (rng.normal(3.0, [1.0, 20.0], (size, 2)).astype(np.float32) for _ in range(2))
    action, reward = rng.uniform(-1, 1, (size, 1)).astype(np.float32), rng.normal(size=size)
    data = Transition(first, action, reward.astype(np.float32), last, np.zeros(size, bool))
    data = jax.tree.map(lambda x: np.resize(x, (capacity, *x.shape[1:])), data)  # rubbish behind
    data = jax.tree.map(lambda x: np.where(np.arange(capacity) < size, x.T, 99).T, data)
    buffer = replay.init(capacity, 2, 1)._replace(
        data=jax.tree.map(jnp.asarray, data), size=jnp.array(size), position=jnp.array(size)
    )
    config = dataclasses.replace(
        CONFIG,
        normalize_inputs="deviation",
        normalize_targets=True,
        clip_observations=True,
        clip_rewards=True,
    )
    found = jax.jit(fitting_data.with_statistics, static_argnums=2)(fresh(), buffer, config)
    inputs = np.concatenate([first, action], axis=1).astype(float)
    np.testing.assert_allclose(found.input_mean, inputs.mean(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.input_std, inputs.std(0), rtol=1e-4)
    targets = np.concatenate([last - first, reward[:, None]], axis=1).astype(float)
    np.testing.assert_allclose(found.target_std, targets.std(0), rtol=1e-4)
    both = np.concatenate([first, last])
    np.testing.assert_array_equal(found.least[:2], both.min(0))
    np.testing.assert_array_equal(found.most[:2], both.max(0))
    np.testing.assert_allclose([found.least[2], found.most[2]], [reward.min(), reward.max()])


def test_normalized_fits_are_the_same_in_other_units():
    # Powers of 2 leave all digits as they are.
    units = jnp.array([2.0**-10, 2.0**8])
    data = linear_gaussian(jax.random.key(0), 500)
    options = {"normalize_inputs": "deviation", "normalize_targets": True, "max_epochs": 3}

    def fitted_in(unit, reward_unit):
        scaled = data._replace(
            observation=unit * data.observation,
            next_observation=unit * data.next_observation,
            reward=reward_unit * data.reward,
        )
        buffer = replay.add(replay.init(CAPACITY, 2, 1), scaled)
        dynamics, report = fit(fresh(), buffer, jax.random.key(1), **options)
        mean, std = dynamics_lib.predict(MODEL, dynamics, scaled.observation, scaled.action)
        return mean, std, report.holdout_mse

    mean, std, mse = fitted_in(jnp.ones(2), 1.0)
    other_mean, other_std, other_mse = fitted_in(units, 2.0**-6)
    unit = jnp.append(units, 2.0**-6)
    np.testing.assert_allclose(other_mean / unit, mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(other_std / unit, std, rtol=1e-4)
    # The mean over the three targets is that of the largest unit.
    assert np.all(np.asarray(other_mse) > 2.0**16 * 0.1 * np.asarray(mse))


@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_targets_are_in_deviations_of_the_buffer_but_for_rewards_with_a_prior(prior):
    data = linear_gaussian(jax.random.key(0), 200)
    buffer = replay.add(replay.init(CAPACITY, 2, 1), data)
    model = dataclasses.replace(MODEL, reward_prior_scale=prior)
    start = dynamics_lib.init(model, jax.random.key(0), action_size=1, learning_rate=3e-3)
    options = {"normalize_targets": True, "reward_prior_scale": prior, "max_epochs": 1}
    dynamics, _ = fit(start, buffer, jax.random.key(1), model, **options)
    change = np.std(data.next_observation - data.observation, axis=0)
    assert np.abs(data.reward).max() > 1
    reward = np.abs(data.reward).max() if prior else np.std(data.reward)
    np.testing.assert_allclose(dynamics.target_std, [*change, reward], rtol=1e-5)


def test_a_reward_prior_is_in_units_of_the_largest_reward_that_is_known():
    data = linear_gaussian(jax.random.key(0), 200)
    model = dataclasses.replace(MODEL, reward_prior_scale=1.0)
    start = dynamics_lib.init(model, jax.random.key(0), action_size=1, learning_rate=3e-3)
    far = 50.0 * jnp.ones((1, 2)), jnp.ones((1, 1))

    def unit_and_spread(rewards, **changes):
        buffer = replay.add(replay.init(CAPACITY, 2, 1), data._replace(reward=rewards))
        config = dataclasses.replace(CONFIG, reward_prior_scale=1.0, **changes)
        dynamics = fitting_data.with_statistics(start, buffer, config)
        mean, _ = dynamics_lib.predict(model, dynamics, *far)
        return float(dynamics.target_std[-1]), float(mean[:, 0, -1].std())

    small = data.reward / np.abs(data.reward).max() / 8  # at most 1 / 8
    unit, spread = unit_and_spread(small)
    assert unit == 1.0  # what is stated, unless a larger one was seen
    assert spread > 0.1
    for factor in (16.0, 8000.0):  # rewards of 2 and 1,000
        np.testing.assert_allclose(
            unit_and_spread(-factor * small), (factor / 8, factor / 8 * spread), rtol=1e-5
        )
    np.testing.assert_allclose(
        unit_and_spread(small, reward_scale=1e-3), (1 / 8, spread / 8), rtol=1e-5
    )
    stated = unit_and_spread(0.0 * small, reward_scale=20.0, normalize_targets=True)
    np.testing.assert_allclose(stated[0], 20.0)


@pytest.mark.slow
def test_seeds_fit_alike_alone_and_mapped():
    # Under vmap the epoch loop runs until the last seed is done; the others must not move on.
    buffers = [
        replay.add(replay.init(CAPACITY, 2, 1), linear_gaussian(jax.random.key(i), 100 + 80 * i))
        for i in range(2)
    ]
    keys = jax.random.split(jax.random.key(7), 2)
    stack = lambda *leaves: jnp.stack(leaves)
    dynamics = jax.tree.map(stack, fresh(0), fresh(1))
    _, mapped = jax.vmap(fit)(dynamics, jax.tree.map(stack, *buffers), keys)
    for i in range(2):
        _, alone = fit(fresh(i), buffers[i], keys[i])
        assert int(alone.epochs) == int(mapped.epochs[i])
        np.testing.assert_allclose(mapped.holdout_mse[i], alone.holdout_mse, rtol=1e-2)


@pytest.mark.parametrize("of", ["observations", "rewards"])
def test_the_range_is_that_of_the_data_and_infinite_when_off(of):
    data = linear_gaussian(jax.random.key(5), 100)
    buffer = replay.add(replay.init(200, 2, 1), data)  # the empty slots hold zeros
    shifted = buffer._replace(
        data=buffer.data._replace(
            observation=buffer.data.observation.at[:100].add(50.0),
            reward=buffer.data.reward.at[:100].add(50.0),
            next_observation=buffer.data.next_observation.at[:100].add(50.0),
        )
    )
    clip = {f"clip_{of}": True, "max_epochs": 1}
    clipped, _ = fit(fresh(), shifted, jax.random.key(6), **clip)
    both = np.concatenate([data.observation, data.next_observation]) + np.float32(50.0)
    reward = np.asarray(data.reward) + np.float32(50.0)
    infinite = np.full(3, np.inf)
    expected = np.stack([-infinite, infinite])
    if of == "observations":
        expected[:, :-1] = both.min(0), both.max(0)
    else:
        expected[:, -1] = reward.min(), reward.max()
    np.testing.assert_array_equal((clipped.least, clipped.most), expected)
    free, _ = fit(fresh(), shifted, jax.random.key(6), max_epochs=1)
    np.testing.assert_array_equal((free.least, free.most), (-infinite, infinite))
    # It has no say in the fit itself.
    chex.assert_trees_all_equal(clipped.params, free.params)
    # An agent that was clipped before, as after an offline run, is free again.
    freed, _ = fit(clipped, shifted, jax.random.key(7), max_epochs=1)
    np.testing.assert_array_equal((freed.least, freed.most), (-infinite, infinite))


@pytest.mark.slow
def test_learned_ends_are_those_of_the_data_and_leave_the_fit_alone():
    ends = lambda next_observation: next_observation[..., 0] > 1.0  # for a sixth of them
    model = dataclasses.replace(MODEL, learn_termination=True)
    data = linear_gaussian(jax.random.key(0), CAPACITY)
    data = data._replace(terminated=ends(data.next_observation))
    buffer = replay.add(replay.init(CAPACITY, 2, 1), data)
    start = dynamics_lib.init(model, jax.random.key(0), action_size=1, learning_rate=3e-3)
    chex.assert_trees_all_equal(without_ends(start.params), fresh().params)
    options = {"max_epochs": 20, "patience": 20, "normalize_inputs": "deviation"}
    learned, _ = fit(start, buffer, jax.random.key(1), model, learn_termination=True, **options)
    plain, _ = fit(fresh(), buffer, jax.random.key(1), **options)
    chex.assert_trees_all_close(without_ends(learned.params), plain.params, rtol=1e-3, atol=1e-4)

    test = linear_gaussian(jax.random.key(2), 600)
    shaped = lambda x: x.reshape(3, 200, -1)
    function = dynamics_lib.termination(model, learned)
    found = function(*map(shaped, (test.observation, test.action, test.next_observation)))
    assert found.shape == (3, 200)
    assert found.dtype == bool
    assert 0.1 < ends(test.next_observation).mean() < 0.25
    assert (found.ravel() == ends(test.next_observation)).mean() > 0.97


def without_ends(params):
    return {"params": {name: x for name, x in params["params"].items() if name != "termination"}}


@pytest.mark.slow
def test_each_member_learns_from_a_bootstrap_of_its_own():
    # All inputs are the same, so a member's mean reward becomes that of its sample of 38 training
    # slots: those of bootstraps differ by a deviation of 1 / sqrt(38) = 0.16 around the data's.
    count = 40
    data = jax.tree.map(jnp.zeros_like, linear_gaussian(jax.random.key(0), count))
    data = data._replace(reward=jnp.tile(jnp.array([-1.0, 1.0]), count // 2))
    buffer = replay.add(replay.init(count, 2, 1), data)

    def rewards(bootstrap):
        changes = {"nll_beta": 1.0, "patience": 300, "max_epochs": 300, "bootstrap": bootstrap}
        dynamics, _ = fit(fresh(), buffer, jax.random.key(1), **changes)
        mean, _ = dynamics_lib.predict(MODEL, dynamics, jnp.zeros((1, 2)), jnp.zeros((1, 1)))
        return np.asarray(mean[:, 0, -1])

    assert np.ptp(rewards(bootstrap=False)) < 0.05
    assert 0.05 < np.ptp(rewards(bootstrap=True)) < 1.0


@pytest.mark.slow
def test_noise_that_is_not_even_is_known_where_it_is():
    even = linear_gaussian(jax.random.key(0), CAPACITY)
    side = jnp.where(even.observation[:, 1] > 0, 0.05, 0.5)
    noise = side * jax.random.normal(jax.random.key(2), (CAPACITY,))
    buffer = replay.init(CAPACITY, 2, 1)
    buffer = replay.add(buffer, even._replace(reward=even.observation @ C + noise))
    dynamics, _ = fit(fresh(), buffer, jax.random.key(3), patience=15)
    observation = jnp.array([[0.0, 1.0], [0.0, -1.0]])
    _, std = dynamics_lib.predict(MODEL, dynamics, observation, jnp.zeros((2, 1)))
    small, large = std[..., -1].mean(0)
    assert 0.05 < small < 0.2 < 0.3 < large < 0.6


@pytest.mark.slow
def test_by_the_mean_a_noisy_reward_stops_the_fit_and_all_members_keep_the_same_epoch():
    data = linear_gaussian(jax.random.key(0), CAPACITY)
    noise = 100.0 * jax.random.normal(jax.random.key(4), (CAPACITY,))
    buffer = replay.add(replay.init(CAPACITY, 2, 1), data._replace(reward=noise))
    changes = {"stop_rule": "mean", "ema_decay": 0.0}
    dynamics, report = fit(fresh(), buffer, jax.random.key(1), **changes)
    assert int(report.epochs) <= 2 * CONFIG.patience
    # From there, nothing improves by half: what is left are the last weights and not the first.
    again, report = fit(dynamics, buffer, jax.random.key(2), improvement=0.5, **changes)
    assert int(report.epochs) == CONFIG.patience
    moved = jax.tree.map(lambda x, y: jnp.any(x != y), again.params, dynamics.params)
    assert all(map(bool, jax.tree.leaves(moved)[2:]))
