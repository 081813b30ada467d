"""Evaluations of a policy against the general solvers and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax import _likely_paths, moments, posterior, sparse, ube
from qusac_jax.tabular import _evaluation, agent
from tests.tabular.beliefs import NUM_ACTIONS, NUM_STATES, some_belief, some_policy

UBE_SOLVERS = {
    "exact_ube": ube.solve_exact,
    "pombu": ube.solve_pombu,
    "upper_bound": ube.solve_upper_bound,
    "ensemble_var": ube.ensemble_variance,
}
BOUND = 0.01  # below the uncertainty rewards of `some_belief`, apart from some of exact_ube


def deterministic_belief():
    """Each pair leads to one state or to the end: what likely paths explain to the last bit."""
    state, action = np.divmod(np.arange(NUM_STATES * NUM_ACTIONS), NUM_ACTIONS)
    following = np.random.default_rng(3).integers(NUM_STATES + 1, size=state.size)
    seen = [0, 1, 3, 4, 4, 6, 8, 9, 11]
    data = posterior.Transitions(
        *map(jnp.asarray, (state[seen], action[seen], 0.1 * following[seen], following[seen]))
    )
    return posterior.update(posterior.init(NUM_STATES, NUM_ACTIONS), data, weight=5.0)


def general_solution(method, belief, policy, key, config):
    """What `ube` finds for the ensemble that the agent samples, and the ensemble."""
    samples, mean = posterior.sample(belief, key, config.num_members), posterior.mean(belief)
    one_hot = jax.nn.one_hot(policy, NUM_ACTIONS)
    options = {"mean_transition": mean.transition, "mean_reward": mean.reward}
    if method == "exact_ube":
        options["min_local"] = config.min_local
    if method == "ensemble_var":
        options = {}
    return UBE_SOLVERS[method](*samples, one_hot, config.discount, **options), samples


@pytest.mark.slow
@pytest.mark.parametrize("method", list(UBE_SOLVERS))
def test_variance_is_that_of_the_general_solver(method):
    belief, policy, key = some_belief(), some_policy(), jax.random.key(1)
    config = agent.Config(method=method, min_local=BOUND)
    ours = agent.evaluate(belief, policy, key, config=config)
    result, _ = general_solution(method, belief, policy, key, config)
    np.testing.assert_allclose(ours.variance, result.q, rtol=2e-3, atol=1e-3)
    one_hot = jax.nn.one_hot(policy, NUM_ACTIONS)
    values = ube.solve_bellman(*posterior.mean(belief), one_hot, config.discount)
    np.testing.assert_allclose(ours.mean_q, values.q, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("discount", [0.0, pytest.param(0.5, marks=pytest.mark.slow), 0.99])
@pytest.mark.parametrize("belief", [some_belief(), deterministic_belief()], ids=["any", "paths"])
@pytest.mark.parametrize(("max_iterations", "least_states"), [(60, 1), (0, 1), (60, 99)])
def test_moments_are_the_closed_form(monkeypatch, discount, belief, max_iterations, least_states):
    monkeypatch.setattr(moments, "_MAX_ITERATIONS", max_iterations)  # 0: LU does it
    monkeypatch.setattr(_evaluation, "_LEAST_STATES", least_states)
    policy = some_policy()
    config = agent.Config(
        method="moments", discount=discount, num_members=max_iterations + least_states
    )
    ours = agent.evaluate(belief, policy, jax.random.key(1), config=config)
    expected = ube.solve_moments(belief, jax.nn.one_hot(policy, NUM_ACTIONS), config.discount)
    np.testing.assert_allclose(ours.variance, expected.q, rtol=1e-4)


def test_uncertainty_reward_of_moments_is_discounted_twice():
    belief, policy = some_belief(), some_policy()
    config = agent.Config(method="moments", discount=0.5)
    evaluation = agent.evaluate(belief, policy, jax.random.key(1), config=config)
    expected = ube.solve_moments(belief, jax.nn.one_hot(policy, NUM_ACTIONS), 0.5)
    np.testing.assert_allclose(
        evaluation.uncertainty_reward,
        1 / belief.reward_precision + 0.5**2 * expected.local_q,
        rtol=1e-3,
    )


def test_deterministic_problems_with_an_even_prior_need_no_products():
    likely = _likely_paths.likeliest(posterior.mean(deterministic_belief()).transition)
    assert _likely_paths.is_rounding(jnp.max(likely.unexplained))
    likely = _likely_paths.likeliest(posterior.mean(some_belief()).transition)
    assert not _likely_paths.is_rounding(jnp.max(likely.unexplained))


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["exact_ube", pytest.param("ensemble_var", marks=pytest.mark.slow), "moments"]
)
def test_likely_paths_change_no_evaluation(monkeypatch, method):
    size = 17 * 17
    assert size >= _evaluation._LEAST_STATES
    rng = np.random.default_rng(0)
    state, action = rng.integers(size, size=900), rng.integers(2, size=900)
    data = posterior.Transitions(
        *map(jnp.asarray, (state, action, 0.1 * action, (state + 2 * action) % size))
    )
    belief = posterior.update(posterior.init(size, 2), data, weight=5.0)
    policy = jnp.asarray(rng.integers(2, size=size))
    evaluate = lambda **options: agent.evaluate(
        belief, policy, jax.random.key(1), config=agent.Config(method=method, **options)
    )
    found = evaluate()
    monkeypatch.setattr(_evaluation, "_LEAST_STATES", size + 1)
    expected = evaluate(max_steps=1)  # which plays no part here, but is compiled anew
    np.testing.assert_allclose(found.mean_q, expected.mean_q, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["pombu", "exact_ube", "upper_bound"])
def test_what_is_propagated_is_raised_to_the_bound(method):
    policy, key = some_policy(), jax.random.key(1)
    config = agent.Config(method=method, min_local=BOUND)
    with jax.enable_x64(True):
        belief = some_belief(weight=1e3, dtype=jnp.float64)
        raised = agent.evaluate(belief, policy, key, config=config).uncertainty_reward
        result, samples = general_solution(method, belief, policy, key, config)
        free = samples.reward.var(0) + config.discount**2 * result.local_q
        assert jnp.min(free) < BOUND < jnp.max(free)
        np.testing.assert_allclose(raised, jnp.maximum(free, BOUND), rtol=1e-8)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_uncertainty_of_exact_ube_keeps_its_digits_beside_large_values(is_sparse):
    # Values of 100,000 known up to 30, mostly by what they have in common: in single precision, a
    # mean of values is off by 0.01, and 30 times that counts in a difference of squares.
    rng = np.random.default_rng(0)
    counts = 100 * rng.dirichlet(np.full(6, 0.5), 12)
    rows = np.stack([[rng.dirichlet(np.maximum(row, 1e-3)) for row in counts] for _ in range(5)])
    rows = rows.reshape(5, 6, 2, 6)
    mean_v = 1e5 + 5 * rng.normal(size=6)
    member_v = mean_v + 30 * rng.normal(size=(5, 1)) + rng.normal(size=(5, 6))
    rows = np.floor(2**20 * rows) / 2**20  # which float32 holds, as it does their sum, 1
    rows[..., 0] += 1 - rows.sum(-1)
    rows, mean_v, member_v = (x.astype(np.float32) for x in (rows, mean_v, member_v))
    config = agent.Config(method="exact_ube", discount=0.99, min_local=-1e9)

    expected = np.zeros((6, 2))
    next_v = np.einsum("nsat,t->nsa", rows.astype(float), mean_v.astype(float))
    for s, a in np.ndindex(6, 2):
        # Appendix B.3, exact_ube_q_rewards: w less the mean aleatoric variance of V_i - V.
        w = np.var(next_v[:, s, a])
        for row, own in zip(rows[:, s, a].astype(float), member_v.astype(float), strict=True):
            difference = own - mean_v
            w -= row @ (difference - row @ difference) ** 2 / 5
        expected[s, a] = 0.99**2 * w

    transition = sparse.from_dense(rows) if is_sparse else jnp.asarray(rows)
    members = posterior.Mdp(transition, jnp.zeros((5, 6, 2)))
    found = _evaluation._uncertainty_reward(members, member_v, mean_v, config)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.02 * np.abs(expected).max())


def test_moments_that_diverge_are_seen_in_the_condition():
    # Next to no prior and one transition to and fro: its surprises feed each other.
    there_and_back = posterior.Transitions(
        jnp.array([0, 1]), jnp.array([0, 0]), jnp.zeros(2), jnp.array([1, 0])
    )
    for concentration, diverges in ((0.05, True), (0.5, False)):
        belief = posterior.init(4, 2, concentration=concentration)
        belief = posterior.update(belief, there_and_back)
        policy, config = jnp.zeros(4, int), agent.Config(method="moments")
        found = agent.evaluate(belief, policy, jax.random.key(0), config=config)
        assert np.isinf(found.condition) == diverges
