"""The comparison of variances on beliefs whose variances are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies import tabular_variance
from qusac_jax import posterior, ube
from qusac_jax.tabular import agent

DISCOUNT = 0.9
STEPS = 1 / (1 - DISCOUNT)


def loop_belief():
    """One state that is known to return to itself, with a reward that is N(0, 1)."""
    concentration = np.array([[[1e9, 0.0]]])
    return posterior.init(1, 1, concentration=concentration, reward_mean=0.0)


def test_first_order_is_exact_where_only_the_reward_of_a_loop_is_unknown():
    variance, defect = tabular_variance.first_order(loop_belief(), jnp.zeros(1, int), DISCOUNT)
    np.testing.assert_allclose(variance, [[STEPS**2]], rtol=1e-5)
    # What the UBE misses per step, times its own steps: the whole difference.
    missed = STEPS**2 - 1 / (1 - DISCOUNT**2)
    np.testing.assert_allclose(defect / (1 - DISCOUNT**2), [[missed]], rtol=1e-5)


def test_first_order_is_the_closed_form_with_much_data():
    rng = np.random.default_rng(0)
    concentration = 1e4 * rng.uniform(0.5, 1.5, size=(4, 2, 5))
    belief = posterior.init(4, 2, concentration=concentration, reward_precision=1e2)
    belief = belief._replace(reward_mean=jnp.asarray(rng.normal(size=(4, 2)), jnp.float32))
    policy = jnp.array([0, 1, 1, 0])
    closed = ube.solve_moments(belief, jax.nn.one_hot(policy, 2), DISCOUNT)
    variance, _ = tabular_variance.first_order(belief, policy, DISCOUNT)
    np.testing.assert_allclose(variance, closed.q, rtol=1e-3)


def test_draws_have_the_variance_of_a_beta_row():
    # State 0 leads to a state worth exactly 1 with p ~ Beta(2, 3), or ends.
    concentration = np.zeros((2, 1, 3))
    concentration[0, 0, 1:] = 2.0, 3.0
    concentration[1, 0, 2] = 1.0
    belief = posterior.init(2, 1, concentration=concentration, reward_precision=1e12)
    belief = belief._replace(reward_mean=jnp.array([[0.0], [1.0]]))
    q, independent = tabular_variance.draw_q(
        belief, jnp.zeros(2, int), 0.5, jax.random.key(0), 20_000, batch=10_000
    )
    variance = 0.25 * 2 * 3 / (5**2 * 6)
    assert q.shape == (20_000, 2, 1)
    np.testing.assert_allclose(q.var(0)[0, 0], variance, rtol=0.05)
    np.testing.assert_allclose(independent.var(0)[0, 0], variance, rtol=0.05)


@pytest.mark.slow
def test_a_loop_is_looked_at_as_it_is(tmp_path):
    config = agent.Config(discount=DISCOUNT)
    key, policy = jax.random.key(1), jnp.zeros(1, int)
    found = tabular_variance.look(loop_belief(), policy, config, key, 4000, 7)
    np.testing.assert_allclose(found.true, [[STEPS**2]], rtol=0.1)
    ratio = tabular_variance.deviations(found, "moments")
    np.testing.assert_allclose(ratio, 1, rtol=0.05)
    # The UBE takes the same reward at each return for another one.
    ratio = tabular_variance.deviations(found, "exact_ube, many, no bound")
    np.testing.assert_allclose(ratio, np.sqrt((1 - DISCOUNT) / (1 + DISCOUNT)), rtol=0.1)
    missed = 1 - (1 - DISCOUNT) / (1 + DISCOUNT)
    np.testing.assert_allclose(found.missed, [missed], rtol=0.02)
    np.testing.assert_allclose(found.expected_missed, [missed], rtol=0.1)
    assert tabular_variance.agreement(found, "moments") == 1
    assert "| estimate | after 7 |" in tabular_variance.table("loop", [found])
    assert tabular_variance.draw({"loop": [found]}, tmp_path / "loop.png").is_file()


def test_independent_draws_take_the_values_of_another_mdp():
    q, independent = tabular_variance.draw_q(
        loop_belief(), jnp.zeros(1, int), DISCOUNT, jax.random.key(0), 10_000, batch=5_000
    )
    np.testing.assert_allclose(q.var(0), STEPS**2, rtol=0.05)
    # One reward, and the discounted value, which is of another one.
    np.testing.assert_allclose(independent.var(0), 1 + (DISCOUNT * STEPS) ** 2, rtol=0.05)


def test_agreement_is_on_the_action_of_the_true_variance():
    nothing, mean_q = np.zeros(2), np.array([[0.0, 1.0], [0.0, 1.0]])
    true = np.array([[9.0, 1.0], [1.0, 1.0]])  # which prefers 0 in the first state alone
    estimates = {"right": true, "none": 0 * true, "negative": -true}
    belief = tabular_variance.Belief(
        7, nothing.astype(int), mean_q, true, 0 * true, nothing, nothing, estimates
    )
    found = {name: tabular_variance.agreement(belief, name) for name in estimates}
    assert found == {"right": 1.0, "none": 0.5, "negative": 0.5}


def test_an_environment_that_is_none_of_them_is_named(tmp_path, capsys):
    arguments = ["--envs=deep", f"--path={tmp_path / 'a.png'}"]
    assert tabular_variance.main(["tabular_variance", *arguments]) == 2
    assert "envs must be some of deep_sea, deep_sea_stochastic" in capsys.readouterr().err
