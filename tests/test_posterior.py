"""The belief against conjugate formulas, NumPy loops and the moments of its distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from qusac_jax import _dirichlet, _variates, posterior, sparse, ube


def visits(rng, num_transitions=7, num_states=5, num_actions=2):
    return posterior.Transitions(
        jnp.asarray(rng.integers(num_states, size=num_transitions)),
        jnp.asarray(rng.integers(num_actions, size=num_transitions)),
        jnp.asarray(rng.normal(size=num_transitions)),
        jnp.asarray(rng.integers(num_states + 1, size=num_transitions)),
    )


def test_default_prior_is_the_paper_s():
    belief = posterior.init(4, 2)
    assert belief.concentration.shape == (4, 2, 5)
    np.testing.assert_allclose(belief.concentration, 1 / np.sqrt(4))
    np.testing.assert_array_equal(belief.reward_mean, 0)
    np.testing.assert_array_equal(belief.reward_precision, 1)
    mean = posterior.mean(belief)
    np.testing.assert_allclose(mean.transition, np.full((4, 2, 4), 1 / 5))  # 1/5 terminates


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.5, 40), st.floats(0.1, 10))
def test_update_equals_a_loop_of_conjugate_steps(seed, weight, noise_precision):
    rng = np.random.default_rng(seed)
    belief, data = posterior.init(5, 2), visits(rng)
    concentration = np.array(belief.concentration, float)
    total = np.zeros((5, 2))
    precision = np.ones((5, 2))
    for s, a, r, t in zip(*map(np.asarray, data), strict=True):
        concentration[s, a, t] += weight
        total[s, a] += weight * noise_precision * r
        precision[s, a] += weight * noise_precision
    updated = posterior.update(belief, data, weight=weight, noise_precision=noise_precision)
    np.testing.assert_allclose(updated.concentration, concentration, rtol=1e-5)
    np.testing.assert_allclose(updated.reward_precision, precision, rtol=1e-5)
    np.testing.assert_allclose(updated.reward_mean, total / precision, rtol=1e-4, atol=1e-6)


def test_one_batch_equals_many_and_zero_weight_is_no_visit():
    rng = np.random.default_rng(0)
    belief, data = posterior.init(5, 2), visits(rng)
    weight = np.array([1, 0, 2, 1, 0, 1, 3], np.float32)
    at_once = posterior.update(belief, data, weight=weight)
    one_by_one = belief
    for i in np.flatnonzero(weight):
        step = jax.tree.map(lambda x, i=i: x[i : i + 1], data)
        one_by_one = posterior.update(one_by_one, step, weight=weight[i])
    for many, single in zip(*map(jax.tree.leaves, (at_once, one_by_one)), strict=True):
        np.testing.assert_allclose(many, single, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weight", [1.0, 0.1])
def test_many_transitions_are_counted_to_the_last(weight):
    # One by one, single precision would count 9,999.3 of 10,000.7 at weight 0.1.
    first = np.zeros(300_000, np.int32)
    data = posterior.Transitions(first, first, np.full(len(first), 0.3, np.float32), first)
    belief = posterior.update(posterior.init(2, 1), data, weight=weight)
    gained = belief.concentration - posterior.init(2, 1).concentration
    np.testing.assert_allclose(gained[0, 0, 0], 300_000 * weight, rtol=5e-6)
    error = abs(float(belief.reward_mean[0, 0]) - 0.3)
    assert error * np.sqrt(float(belief.reward_precision[0, 0])) < 1.0  # posterior deviations
    assert np.all(np.asarray(gained).ravel()[1:] == 0)


def test_reward_is_known_after_one_almost_noiseless_observation():
    data = posterior.Transitions(*map(jnp.array, ([0], [1], [0.7], [2])))
    updated = posterior.update(posterior.init(2, 2), data)  # 2 is the terminal state
    np.testing.assert_allclose(updated.reward_mean[0, 1], 0.7, rtol=1e-5)
    np.testing.assert_allclose(updated.reward_precision[0, 1], 1e6 + 1)
    assert updated.concentration[0, 1, 2] > updated.concentration[0, 1, 0]


def test_prior_mean_of_rewards_is_where_the_posterior_begins():
    belief = posterior.init(2, 1, reward_mean=3.0, reward_precision=2.0)
    np.testing.assert_array_equal(posterior.mean(belief).reward, 3.0)
    seen = posterior.Transitions([0], [0], [0.0], [1])
    updated = posterior.update(belief, seen, noise_precision=1.0)
    np.testing.assert_allclose(updated.reward_mean[:, 0], [2.0, 3.0], rtol=1e-6)


@pytest.mark.parametrize("use_table", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_sample_has_the_moments_of_dirichlet_and_normal(use_table):
    rng = np.random.default_rng(1)
    belief = posterior.update(posterior.init(5, 2), visits(rng), weight=2.0, noise_precision=3.0)
    belief = belief if use_table else belief._replace(log_quantile=None)
    samples = posterior.sample(belief, jax.random.key(0), 20_000)
    concentration = np.asarray(belief.concentration)
    strength = concentration.sum(-1, keepdims=True)
    mean = concentration / strength
    variance = mean * (1 - mean) / (strength + 1)
    # Within five standard errors of a mean and of a variance from 20,000 draws.
    transition = np.asarray(samples.transition)
    error = 5 * np.sqrt(variance[..., :-1] / 20_000)
    assert np.all(np.abs(transition.mean(0) - mean[..., :-1]) < error)
    fourth = np.mean((transition - mean[..., :-1]) ** 4, 0)
    error = 5 * np.sqrt(fourth / 20_000)
    assert np.all(np.abs(transition.var(0) - variance[..., :-1]) < error)
    deviation = transition - mean[..., :-1]
    covariance = np.mean(deviation[..., 0] * deviation[..., 1], 0)
    expected = -mean[..., 0] * mean[..., 1] / (strength[..., 0] + 1)
    np.testing.assert_allclose(covariance, expected, atol=5 * 0.1 / np.sqrt(20_000))
    np.testing.assert_allclose(samples.reward.mean(0), belief.reward_mean, atol=5 / 141)
    np.testing.assert_allclose(samples.reward.var(0) * belief.reward_precision, 1.0, atol=0.05)


def test_exact_draws_do_not_depend_on_how_many_are_made_at_once(monkeypatch):
    concentration = jnp.array(np.random.default_rng(0).uniform(0, 2, (4, 2, 5))).at[0, 0, 1].set(0)
    draws = []
    for entries in (1, 3 * concentration.size):
        monkeypatch.setattr(_dirichlet, "_ENTRIES_AT_ONCE", entries)
        draws.append(_dirichlet.draw(concentration, jax.random.key(0), 7))
    np.testing.assert_allclose(*draws, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(draws[0][:, 0, 0, 1], 0.0)
    assert len(np.unique(draws[0][:, 0, 0, 0])) == 7


@pytest.mark.parametrize("num_states", [1, 4, 100])
def test_table_follows_the_gamma_distribution(num_states):
    shape = 1 / np.sqrt(num_states)
    belief = posterior.init(num_states, 1)
    draws = _variates.log_gamma_by_table(belief.log_quantile, jax.random.key(2), (50, 2000))
    draws = np.asarray(draws).ravel()
    test = scipy.stats.kstest(draws, lambda x: scipy.stats.gamma.cdf(np.exp(x), shape))
    assert test.pvalue > 1e-3


def test_ends_of_the_table_are_the_ends_of_the_distribution(monkeypatch):
    words = np.array([0, 1, 2**32 - 2, 2**32 - 1], np.uint32)  # lowest bit 1: the upper tail
    monkeypatch.setattr(_variates, "bits_of_rows", lambda key, shape: jnp.asarray(words))
    belief = posterior.init(100, 1)
    draws = _variates.log_gamma_by_table(belief.log_quantile, jax.random.key(0), (4,))
    tail = np.array([2.0**-32, 2.0**-32, 0.5, 0.5])
    gamma = scipy.stats.gamma(0.1)
    expected = np.log([gamma.ppf(tail[0]), gamma.isf(tail[1]), gamma.ppf(0.5), gamma.isf(0.5)])
    np.testing.assert_allclose(draws, expected, rtol=1e-3)


@pytest.mark.parametrize("count", [0.5, 1.0, 3.0, 40.0])
def test_counts_follow_the_gamma_distribution(count):
    draws = _variates.gamma(jax.random.key(2), jnp.asarray(count), (20_000,))
    assert scipy.stats.kstest(np.asarray(draws), scipy.stats.gamma(count).cdf).pvalue > 1e-3


def test_random_words_of_different_rows_and_columns_are_uncorrelated():
    words = np.asarray(_variates.bits_of_rows(jax.random.key(3), (2000, 64))).astype(float) / 2**32
    correlation = np.corrcoef(words.T)
    assert np.max(np.abs(correlation - np.eye(64))) < 6 / np.sqrt(2000)
    across = np.corrcoef(words[:64])
    assert np.max(np.abs(across - np.eye(64))) < 6 / np.sqrt(64)
    np.testing.assert_allclose(words.mean(), 0.5, atol=5 / np.sqrt(12 * words.size))


@pytest.mark.parametrize("concentration", [0.025, 1e-4])
def test_small_concentrations_give_proper_rows_in_float32(concentration):
    belief = posterior.init(40, 2, concentration=concentration)
    data = visits(np.random.default_rng(4), 20, 40)
    for seen in (belief, posterior.update(belief, data)):
        transition = np.asarray(posterior.sample(seen, jax.random.key(5), 200).transition)
        total = transition.sum(-1)
        assert np.all(np.isfinite(transition))
        assert np.all(transition >= 0)
        assert np.all(total <= 1 + 1e-5)
        # Missing mass is the terminal state's, 1/41 on average without visits.
        unseen = np.asarray(seen.concentration.sum(-1)) < 1.5 * 41 * concentration
        rows = total[:, unseen]
        np.testing.assert_allclose(1 - rows.mean(), 1 / 41, atol=0.01)


def test_zero_concentration_excludes_a_next_state():
    concentration = np.zeros((2, 1, 3))
    concentration[0, 0, 1], concentration[1, 0, 2] = 0.5, 2.0
    belief = posterior.init(2, 1, concentration=concentration)
    samples = posterior.sample(belief, jax.random.key(6), 10)
    np.testing.assert_allclose(samples.transition[:, 0, 0], [[0.0, 1.0]] * 10)
    np.testing.assert_allclose(samples.transition[:, 1, 0], [[0.0, 0.0]] * 10)


def test_concentrated_belief_samples_its_mean():
    rng = np.random.default_rng(7)
    belief = posterior.update(posterior.init(5, 2), visits(rng, 100), weight=1e7)
    samples, mean = posterior.sample(belief, jax.random.key(8), 3), posterior.mean(belief)
    np.testing.assert_allclose(samples.transition, [mean.transition] * 3, atol=2e-3)


def test_vmap_over_seeds_equals_a_loop():
    rng = np.random.default_rng(9)
    data = [visits(rng) for _ in range(3)]
    beliefs = [posterior.update(posterior.init(5, 2), d) for d in data]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *beliefs)
    keys = jax.random.split(jax.random.key(10), 3)
    mapped = jax.vmap(lambda b, k: posterior.sample(b, k, 4))(stacked, keys)
    for i in range(3):
        alone = posterior.sample(beliefs[i], keys[i], 4)
        np.testing.assert_allclose(mapped.transition[i], alone.transition, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(mapped.reward[i], alone.reward, rtol=1e-6)


def test_a_jitted_function_may_close_over_the_belief():
    belief, key = posterior.init(5, 2), jax.random.key(3)
    closed = jax.jit(lambda key: posterior.sample(belief, key, 4))(key)
    np.testing.assert_allclose(
        closed.transition, posterior.sample(belief, key, 4).transition, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("support", [None, [[[0, 1, 5]] * 2] * 5], ids=["table", "support"])
def test_a_jitted_function_may_close_over_the_belief_and_its_data(support):
    belief = posterior.init(5, 2, support=support)
    data = posterior.Transitions(*map(jnp.asarray, ([0, 4], [1, 0], [1.0, -1.0], [1, 5])))
    closed = jax.jit(lambda: posterior.update(belief, data))()
    for found, wanted in zip(closed, posterior.update(belief, data), strict=True):
        if wanted is not None:
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
    outside = data._replace(next_state=jnp.array([1, 6]))
    with pytest.raises(ValueError, match="next_state"):
        jax.jit(lambda: posterior.update(belief, outside))()


def test_scalars_in_float64_do_not_widen_a_belief_in_float32():
    with jax.enable_x64(True):
        belief = posterior.init(5, 2)
        data = visits(np.random.default_rng(0))
        belief = posterior.update(
            belief, data, weight=np.float64(2), noise_precision=jnp.float64(3)
        )
        assert {leaf.dtype for leaf in jax.tree.leaves(belief)} == {np.dtype("float32")}


def test_float64():
    with jax.enable_x64(True):
        belief = posterior.init(5, 2, dtype=jnp.float64)
        belief = posterior.update(belief, visits(np.random.default_rng(11)))
        samples = posterior.sample(belief, jax.random.key(12), 2)
        assert samples.transition.dtype == samples.reward.dtype == jnp.float64
        assert posterior.mean(belief).transition.dtype == jnp.float64


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 2), {}, "num_states must be an integer of at least 1, got 0"),
        ((2, 0), {}, "num_actions must be an integer of at least 1, got 0"),
        ((2, 2), {"concentration": 0.0}, "concentration must be positive and finite, got 0.0"),
        ((2, 2), {"concentration": np.ones((2, 2, 2))}, r"have shape \(2, 2, 3\)"),
        ((2, 2), {"concentration": -np.ones((2, 2, 3))}, "non-negative"),
        ((2, 2), {"concentration": np.zeros((2, 2, 3))}, "a positive entry in each row"),
        ((2, 2), {"concentration": np.full((2, 2, 3), 1e300)}, "finite .in float32."),
        ((2, 2), {"concentration": 1e300}, "concentration must be positive and finite, got 1e.300"),
        ((2, 2), {"concentration": np.ones((2, 2, 3), complex)}, "real numbers.*got complex128"),
        ((2, 2), {"concentration": "1"}, "concentration must hold real numbers.*got '1'"),
        ((2, 2), {"concentration": [[1], [2, 3]]}, "in rows of one length"),
        ((2, 2), {"reward_precision": 0.0}, "reward_precision must be positive"),
        ((2, 2), {"reward_precision": 1e-300}, "reward_precision must be positive in float32"),
        ((2, 2), {"reward_precision": np.inf}, "reward_precision must be finite in float32"),
        ((2, 2), {"reward_precision": "1"}, "reward_precision must hold real numbers.*got '1'"),
        ((2, 2), {"reward_mean": np.nan}, "reward_mean must be finite in float32, got nan"),
        ((2, 2), {"reward_mean": -np.inf}, "reward_mean must be finite in float32, got -inf"),
        ((2, 2), {"reward_mean": 1e39}, "reward_mean must be finite in float32"),
        ((2, 2), {"reward_mean": 1j}, "reward_mean must hold real numbers.*got complex"),
        ((2, 2), {"reward_mean": [0.0]}, "reward_mean must be a scalar"),
        ((2, 2), {"dtype": jnp.float64}, "dtype is float64, which JAX has off"),
        ((2, 2), {"dtype": "float32x"}, "dtype must be float32 or float64, got 'float32x'"),
    ],
)
def test_bad_prior_is_named(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        posterior.init(*arguments, **options)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("state", 5, r"transitions.state must be in 0 .. 4, got values from . to 5"),
        ("action", -1, "transitions.action must be in 0 .. 1, got values from -1"),
        ("next_state", 6, "transitions.next_state must be in 0 .. 5"),
        ("next_state", 0.5, "transitions.next_state must be integers, got float32"),
        ("reward", np.nan, "transitions.reward must be finite"),
    ],
)
def test_bad_transitions_are_named(field, value, message):
    data = visits(np.random.default_rng(13))
    values = getattr(data, field)
    values = values.astype(type(value)) if isinstance(value, float) else values
    data = data._replace(**{field: values.at[0].set(value)})
    with pytest.raises(ValueError, match=message):
        posterior.update(posterior.init(5, 2), data)
    posterior.update(posterior.init(5, 2), visits(np.random.default_rng(13)))


@pytest.mark.parametrize("field", ["state", "action", "next_state"])
def test_indices_that_are_no_integers_are_refused_under_jit(field):
    data = visits(np.random.default_rng(13))
    data = data._replace(**{field: getattr(data, field).astype(jnp.float32)})
    with pytest.raises(ValueError, match=f"transitions.{field} must be integers, got float32"):
        jax.jit(posterior.update)(posterior.init(5, 2), data)


def test_a_belief_is_made_outside_of_transformations():
    for name, value in (
        ("concentration", jnp.ones((2, 2, 3))),
        ("support", jnp.zeros((2, 2, 1), jnp.int32)),
    ):
        with pytest.raises(ValueError, match=r"traced; make it outside of jit"):
            jax.jit(lambda x, name=name: posterior.init(2, 2, **{name: x}))(value)


def test_lists_are_transitions_and_other_things_are_named():
    belief = posterior.init(3, 2)
    lists = posterior.Transitions([0, 1], [0, 1], [1.0, 2.0], [1, 3])
    arrays = posterior.Transitions(*map(np.asarray, lists))
    jax.tree.map(
        np.testing.assert_array_equal,
        posterior.update(belief, lists),
        posterior.update(belief, arrays),
    )
    for wrong, message in [
        (lists._replace(reward=["1", "2"]), "transitions.reward must hold real numbers"),
        (lists._replace(reward=[1j, 2]), "transitions.reward must hold real numbers"),
        (lists._replace(state="01"), "transitions.state must hold real numbers.*got '01'"),
        (tuple(lists), "transitions must be posterior.Transitions, got tuple"),
    ]:
        with pytest.raises(ValueError, match=message):
            posterior.update(belief, wrong)
    with pytest.raises(ValueError, match="posterior must be a Posterior"):
        posterior.update(belief.concentration, lists)
    with pytest.raises(ValueError, match="posterior must be a Posterior"):
        posterior.sample(belief.concentration, jax.random.key(0), 1)


@pytest.mark.parametrize(
    ("reward", "weight", "noise_precision"),
    [(1e38, 1.0, 1e6), (1e300, 1.0, 1.0), (-1e33, 1.0, 1e6), (0.0, 3e38, 1.0), (0.0, 1.0, 1e300)],
)
def test_what_overflows_is_refused(reward, weight, noise_precision):
    data = posterior.Transitions([0, 0], [0, 0], np.array([reward, 0.0]), [1, 2])
    with pytest.raises(ValueError, match="the belief overflows in float32; scale the rewards"):
        posterior.update(posterior.init(3, 2), data, weight=weight, noise_precision=noise_precision)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -0.2}, "weight must be finite and not negative, got values from -0.2 to -0.2"),
        ({"weight": np.ones(3)}, r"weight must be a scalar or have shape \[T\]"),
        ({"noise_precision": np.inf}, "noise_precision must be finite and not negative, got inf"),
        ({"weight": "1"}, "weight must hold real numbers in rows of one length, got '1'"),
        ({"weight": 1j}, "weight must hold real numbers.*got complex"),
        ({"noise_precision": None}, "noise_precision must hold real numbers.*got None"),
        ({"noise_precision": -1.0}, "noise_precision must be finite and not negative, got -1.0"),
    ],
)
def test_bad_weights_are_named(options, message):
    data = visits(np.random.default_rng(13))
    with pytest.raises(ValueError, match=message):
        posterior.update(posterior.init(5, 2), data, **options)


@pytest.mark.parametrize("below", [0.1, np.nan])
def test_concentrations_below_their_prior_are_not_sampled(below):
    belief = posterior.init(5, 2, concentration=0.5)
    belief = belief._replace(concentration=belief.concentration.at[0, 0, 0].set(below))
    with pytest.raises(ValueError, match="or 0 for an array prior, got"):
        posterior.sample(belief, jax.random.key(0), 3)
    unchecked = jax.jit(posterior.sample, static_argnames="n")(belief, jax.random.key(0), n=3)
    is_nan = np.isnan(unchecked.transition).any(axis=(0, 3))
    assert is_nan[0, 0]
    assert is_nan.sum() == 1
    belief = posterior.init(5, 2, concentration=np.full((5, 2, 6), 0.5))  # not from a table
    belief = belief._replace(concentration=belief.concentration.at[0, 0, 0].set(0.1))
    posterior.sample(belief, jax.random.key(0), 3)


@pytest.mark.parametrize(
    ("index", "weight"),
    [((-1, 0, 1), 1.0), ((0, -1, 1), 1.0), ((0, 0, -1), 1.0), ((0, 0, 6), 1.0), ((5, 0, 1), 1.0),
     ((0, 2, 1), 1.0), ((0, 0, 1), 0.0)],
)  # fmt: skip
def test_entries_out_of_range_or_without_weight_leave_the_belief_alone(index, weight):
    belief = posterior.init(5, 2)
    state, action, next_state = (jnp.array([i]) for i in index)
    data = posterior.Transitions(state, action, jnp.array([jnp.nan]), next_state)
    after = jax.jit(posterior.update)(belief, data, weight=weight)
    for name in ("concentration", "reward_mean", "reward_precision"):
        np.testing.assert_array_equal(getattr(after, name), getattr(belief, name))


def test_what_a_concentration_of_0_excludes_is_not_observed():
    concentration = np.ones((2, 1, 3))
    concentration[0, 0, 2] = 0.0
    belief = posterior.init(2, 1, concentration=concentration)
    observed = posterior.Transitions([0, 0], [0, 0], [0.0, 0.0], [1, 2])
    with pytest.raises(ValueError, match="next_state is 2 after state 0 and action 0, which"):
        posterior.update(belief, observed)
    counted = posterior.update(belief, observed, weight=np.array([1.0, 0.0]))
    np.testing.assert_array_equal(counted.concentration[0, 0], [1.0, 2.0, 0.0])
    unchecked = jax.jit(posterior.update)(belief, observed._replace(reward=[3.0, 5.0]))
    np.testing.assert_array_equal(unchecked.concentration, counted.concentration)
    np.testing.assert_allclose(unchecked.reward_mean[0, 0], 3.0, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_small_integers_count_as_others_do(dtype):
    state = np.arange(256)
    data = posterior.Transitions(state, 0 * state, np.ones(256), state[::-1])
    small = posterior.Transitions(*(np.asarray(x, dtype) for x in data))._replace(
        reward=data.reward
    )
    for belief in (posterior.init(256, 2), posterior.init(400, 2, concentration=1.0)):
        expected = posterior.update(belief, data)
        for update in (posterior.update, jax.jit(posterior.update)):
            jax.tree.map(np.testing.assert_array_equal, update(belief, small), expected)
    assert expected.reward_precision[:256, 0].min() > 1e5


def test_the_smallest_integers_have_room_for_the_successors_of_a_large_belief():
    state = np.arange(127)
    data = posterior.Transitions(state, 0 * state, np.ones(127), state[::-1])
    small = posterior.Transitions(*(np.asarray(x, np.int8) for x in data))._replace(
        reward=data.reward
    )
    belief = posterior.init(200, 2)
    expected = posterior.update(belief, data)
    jax.tree.map(np.testing.assert_array_equal, posterior.update(belief, small), expected)
    support = np.array([[[1, 0]], [[0, 0]]])
    given = [posterior.init(2, 1, support=support.astype(kind)) for kind in (np.uint8, np.int64)]
    jax.tree.map(np.testing.assert_array_equal, *given)


def test_several_beliefs_are_for_vmap():
    belief = posterior.init(3, 2)
    several = jax.tree.map(lambda x: jnp.stack([x, x]), belief)
    lists = posterior.Transitions([0, 1], [0, 1], [1.0, 2.0], [1, 3])
    message = r"one belief with rewards \[S, A\], got rewards of shape \(2, 3, 2\); use `jax.vmap`"
    for use in (
        lambda belief: posterior.update(belief, lists),
        lambda belief: posterior.sample(belief, jax.random.key(0), 1),
        lambda belief: ube.solve_moments(belief, np.ones((3, 2)) / 2, 0.9),
    ):
        with pytest.raises(ValueError, match=message):
            use(several)
        jax.vmap(use)(several)
    with pytest.raises(ValueError, match=r"posterior must be a Posterior, .* got Mdp"):
        ube.solve_moments(posterior.mean(belief), np.ones((3, 2)) / 2, 0.9)


def test_transitions_of_different_lengths_are_refused():
    data = posterior.Transitions(
        jnp.zeros(2, int), jnp.zeros(1, int), jnp.zeros(1), jnp.zeros(1, int)
    )
    with pytest.raises(ValueError, match="one length T"):
        posterior.update(posterior.init(5, 2), data)
    with pytest.raises(ValueError, match="one length T"):
        jax.jit(posterior.update)(posterior.init(5, 2), data)


@pytest.mark.parametrize("update", [posterior.update, jax.jit(posterior.update)])
def test_shapes_are_checked_under_jit_as_outside(update):
    belief, zeros = posterior.init(5, 2), jnp.zeros(6, int)
    data = posterior.Transitions(zeros, zeros, jnp.zeros(6), zeros)
    with pytest.raises(ValueError, match="one length T"):
        update(belief, jax.tree.map(lambda x: x.reshape(2, 3), data))
    for shape in ((1,), (3,), (6, 1)):
        with pytest.raises(ValueError, match=r"weight must be a scalar or have shape \[T\]"):
            update(belief, data, weight=jnp.ones(shape))
    assert update(belief, data, weight=jnp.ones(6)).reward_precision[0, 0] > 6e6


# Known successors.

SUPPORT = np.array([[[0, 2, -1], [2, 1, 0]], [[1, 1, 2], [2, -1, -1]]])  # S = 2: 2 is terminal


def test_support_counts_a_successor_once_and_pads():
    belief = posterior.init(2, 2, support=SUPPORT, concentration=0.5)
    mean = posterior.mean(belief)
    dense = sparse.to_dense(mean.transition)
    third = 1 / 3
    np.testing.assert_allclose(dense, [[[0.5, 0], [third, third]], [[0, 0.5], [0, 0]]], rtol=1e-6)
    np.testing.assert_allclose(
        posterior.init(2, 2, support=SUPPORT).concentration.max(), 1 / np.sqrt(3)
    )
    each = np.where(SUPPORT >= 0, [1.0, 2.0, 4.0], 0.0)  # of 1, listed twice: 1 + 2
    given = posterior.init(2, 2, support=SUPPORT, concentration=each)
    np.testing.assert_allclose(sparse.to_dense(posterior.mean(given).transition)[1, 0, 1], 3 / 7)


def test_support_equals_a_dense_prior_with_zeros():
    rng = np.random.default_rng(0)
    prior = np.zeros((2, 2, 3))
    for s, a, k in np.ndindex(SUPPORT.shape):
        if SUPPORT[s, a, k] >= 0:
            prior[s, a, SUPPORT[s, a, k]] = 0.7
    dense = posterior.init(2, 2, concentration=prior)
    belief = posterior.init(2, 2, concentration=0.7, support=SUPPORT)
    state, action = rng.integers(2, size=(2, 9))
    next_state = np.array([prior[s, a].argmax() for s, a in zip(state, action, strict=True)])
    data = posterior.Transitions(state, action, rng.normal(size=9), next_state)
    dense, belief = (posterior.update(b, data, weight=2.0) for b in (dense, belief))
    for ours, theirs in zip(posterior.mean(belief), posterior.mean(dense), strict=True):
        ours = sparse.to_dense(ours) if isinstance(ours, sparse.Sparse) else ours
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_support_is_sampled_from_its_dirichlet():
    support = np.array([[[0, 1, 2, -1]], [[2, -1, -1, -1]]])
    belief = posterior.init(2, 1, support=support, concentration=0.3)
    draws = posterior.sample(belief, jax.random.key(0), 4000).transition
    assert draws.next_state.shape == support.shape
    assert draws.probability.dtype == np.float32
    np.testing.assert_allclose(draws.probability.sum(-1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(np.where(draws.next_state < 0, draws.probability, 0.0), 0.0)
    rows = sparse.to_dense(draws)[:, 0, 0]
    marginal = scipy.stats.beta(0.3, 0.6)  # of each of three successors
    for column in rows.T:
        assert scipy.stats.kstest(column, marginal.cdf).pvalue > 1e-3
    np.testing.assert_array_equal(sparse.to_dense(draws)[:, 1, 0], 0.0)  # always ends


def test_a_jitted_function_may_close_over_a_belief_with_support():
    belief = posterior.init(2, 2, support=SUPPORT)
    data = posterior.Transitions(*jnp.array([[0], [0]]), jnp.ones(1), jnp.array([SUPPORT[0][0][0]]))
    closed = jax.jit(lambda: posterior.update(belief, data).reward_mean)()
    np.testing.assert_allclose(closed, posterior.update(belief, data).reward_mean)


@pytest.mark.parametrize("least", [1e-38, 1e-50])
def test_concentrations_that_no_draw_can_have_are_refused(least):
    message = "concentration must be 0 or above 1e-30, got"
    with pytest.raises(ValueError, match=message):
        posterior.init(1, 1, concentration=np.full((1, 1, 2), least))
    with pytest.raises(ValueError, match=message):
        posterior.init(1, 1, support=[[[0, 1]]], concentration=least)


def test_transitions_outside_the_support():
    belief = posterior.init(2, 2, support=SUPPORT)
    data = posterior.Transitions(*(np.array([x]) for x in (0, 0, 1.0, 1)))
    with pytest.raises(ValueError, match="support, got state 1 after state 0 and action 0"):
        posterior.update(belief, data)
    ignored = jax.jit(posterior.update)(belief, data)
    for ours, theirs in zip(jax.tree.leaves(ignored), jax.tree.leaves(belief), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("support", "message"),
    [
        (np.zeros((2, 1, 3), int), "must have shape"),
        (np.zeros((2, 2, 3)), "must be integers"),
        (np.full((2, 2, 1), 3), "must be in -1 .. 2"),
        (np.full((2, 2, 1), -1), "got none for state 0 and action 0"),
    ],
)
def test_mistakes_in_a_support_are_named(support, message):
    with pytest.raises(ValueError, match=message):
        posterior.init(2, 2, support=support)


def test_rewards_of_different_pairs_and_members_are_independent():
    drawn = posterior.sample(posterior.init(2, 2), jax.random.key(0), 4_000)
    reward = np.asarray(drawn.reward).reshape(4_000, 4)
    together = [reward, np.asarray(drawn.transition)[:, 0, 0], np.roll(reward, 1, axis=0)]
    found = np.corrcoef(np.concatenate(together, axis=1).T)
    # Rewards with each other, with transitions, and with those of the next member.
    np.testing.assert_allclose(found[:4], np.eye(len(found))[:4], atol=5 / np.sqrt(4_000))
