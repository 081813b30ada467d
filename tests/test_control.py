"""Control flow (`qusac_jax._control`)."""

import jax
import numpy as np
import pytest

from qusac_jax import _control


@pytest.mark.parametrize(("needed", "calls"), [([False, False], 0), ([True, False], 1)])
def test_apply_if_skips_work_that_no_element_of_a_batch_needs(needed, calls):
    called = []

    def double(x):
        jax.debug.callback(lambda: called.append(1))
        return 2 * x

    apply = jax.jit(jax.vmap(lambda need, x: _control.apply_if(need, double, x)))
    out = apply(np.asarray(needed), np.asarray([1.0, 3.0], np.float32))
    jax.effects_barrier()
    np.testing.assert_array_equal(out, [2.0 if needed[0] else 1.0, 3.0])
    assert len(called) == calls
