"""Initialization and bounds of the members' network."""

import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax.qusac import networks
from qusac_jax.qusac.dynamics_network import DynamicsNetwork


def test_dynamics_weights_are_twice_the_usual_width():
    # Truncation at two standard deviations leaves 0.8796 of the deviation: 2 / (2 sqrt(100)).
    model = DynamicsNetwork((100, 100), 3, 4)
    kernel = model.init(jax.random.key(0), jnp.zeros((1, 5)))["params"]["MLP_0"]["Dense_1"][
        "kernel"
    ]
    np.testing.assert_allclose(np.std(kernel), 0.8796 * 0.1, rtol=0.02)
    assert np.abs(kernel).max() <= 0.2


def test_log_variance_stays_between_its_bounds():
    model = DynamicsNetwork((8,), 2, 3)
    inputs = 1e4 * jax.random.normal(jax.random.key(0), (50, 3))
    _, log_var = networks.apply(model, model.init(jax.random.key(1), inputs), inputs)
    assert log_var.min() >= -10.0
    # softplus(x) > x: the upper bound is soft by log(1 + e^-10.5) at most.
    assert log_var.max() <= 0.5 + 1e-3
