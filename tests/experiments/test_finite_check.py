"""Which seeds of a fit are named where something of it is not finite."""

import numpy as np
import pytest

from experiments.training.finite_check import FiniteCheck
from qusac_jax.qusac.fitting import FitReport


@pytest.mark.parametrize(
    ("of_fit", "what"),
    [("holdout_mse", "held-out error of the dynamics"), ("train_loss", "loss of the dynamics")],
)
def test_the_seeds_of_a_fit_that_diverged_are_named(of_fit, what):
    check = FiniteCheck([4, 5], lambda: "there is no checkpoint", lambda function: function)
    good = FitReport(np.ones((2, 3)), np.ones((2, 3)), np.ones(2, int))
    check.check_fit(7, good)
    bad = good._replace(**{of_fit: np.array([[1.0, 1.0, 1.0], [1.0, np.nan, 1.0]])})
    message = rf"at step 7: {what} is not finite for seeds \[5\]; there is no checkpoint"
    with pytest.raises(ValueError, match=message):
        check.check_fit(7, bad)
