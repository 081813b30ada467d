"""Every optimizer has the learning rate that is named after it."""

import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import parts
from qusac_jax.qusac.config import Config

RATES = {"actor": 0.1, "critic": 0.2, "unet": 0.3, "temperature": 0.4}


@pytest.mark.parametrize("name", RATES)
def test_every_optimizer_has_its_own_learning_rate(name):
    config = Config(**{f"{part}_learning_rate": rate for part, rate in RATES.items()})
    optimizer = getattr(parts.build(config, 1), f"{name}_optimizer")
    step, _ = optimizer.update(jnp.ones(()), optimizer.init(jnp.zeros(())))
    np.testing.assert_allclose(step, -RATES[name], rtol=1e-5)  # Adam's first
