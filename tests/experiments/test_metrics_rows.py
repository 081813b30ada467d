"""Rows of metrics.csv."""

import concurrent.futures

import numpy as np

from experiments.evaluation import Evaluation
from experiments.training import metrics_rows


def test_a_row_says_what_the_episodes_of_a_seed_returned():
    returns = np.array([[1.0, 2.0, 6.0], [-4.0, 0.0, 1.0]])
    episodes = Evaluation(returns, returns + 10.0, 0.5 * returns, np.zeros((2, 3, 1)))
    begun = metrics_rows.Begun(
        40,
        concurrent.futures.Future(),
        {"mean_q": np.array([5.0, 7.0])},
        {"critic_loss": np.array([0.1, 0.2])},
        1.0,
        None,
        None,
    )
    first, second = metrics_rows.rows(begun, [3, 4], episodes, {"q_bias": np.array([8.0, 9.0])})
    expected = {
        "step": 40,
        "seed": 3,
        "eval_return": 3.0,
        "eval_task_return": 13.0,
        "eval_return_min": 1.0,
        "eval_return_max": 6.0,
        "q_bias": 8.0,
        "mean_q": 5.0,
        "critic_loss": 0.1,
    }
    assert {name: first[name] for name in expected} == expected
    assert (second["seed"], second["eval_return"], second["eval_return_min"]) == (4, -1.0, -4.0)
