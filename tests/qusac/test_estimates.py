"""What members expect to follow, where some of them expect an end."""

import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax.qusac import estimates
from qusac_jax.qusac import parts as parts_lib
from qusac_jax.qusac.config import Config
from qusac_jax.task import Transition
from tests.networks import constant

ZEROS = jnp.zeros((3, 1))
BATCH = Transition(ZEROS, ZEROS, jnp.zeros(3), ZEROS, jnp.zeros(3, bool))


def test_nothing_follows_where_a_member_expects_an_end():
    # All critics say 4 everywhere. Of the three pairs, no member, the first and both expect an end:
    # what follows is worth 4 and 4, 0 and 4, 0 and 0, and 0 and 4 have the variance 8.
    config = Config(
        method="pombu", num_members=2, discount=0.5, actor_hidden=(8,), critic_hidden=(8,)
    )
    learner = parts_lib.init(jax.random.key(0), config, 1, 1)
    learner = learner._replace(critic=constant(learner.critic, 4.0))
    nothing = jnp.zeros((2, 3, 1))
    ends = jnp.array([[False, True, True], [False, False, True]])
    expected = estimates.Expectation(nothing, nothing, nothing, nothing[..., 0], ends)
    parts = parts_lib.build(config, 1)
    found = estimates.propagated_uncertainty(
        parts, learner, BATCH, lambda *_: expected, jax.random.key(1)
    )
    np.testing.assert_allclose(found, [0.0, 0.25 * 8.0, 0.0], atol=1e-5)
