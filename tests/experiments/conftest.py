"""What several tests of programs need: a small dataset, and a quick bootstrap."""

import numpy as np
import pytest

from experiments import results
from qusac_jax import datasets, environments
from tests.tiny import ACTION_COST, DATASET, ENV


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A dataset of a random policy, where ids are looked up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("minari")))
        env = environments.make(ENV, seed=0, action_cost=ACTION_COST)
        rng = np.random.default_rng(0)
        episodes = []
        for _ in range(6):
            observations, actions, rewards, ends = [env.reset()[0]], [], [], (False, False)
            while not any(ends):
                actions.append(rng.uniform(-1, 1, 1))
                observation, reward, *ends, _ = env.step(actions[-1])
                observations.append(observation)
                rewards.append(reward)
            last = np.arange(len(rewards)) == len(rewards) - 1
            episodes.append(
                datasets.Episode(
                    np.array(observations),
                    np.array(actions),
                    np.array(rewards),
                    last & ends[0],
                    last & ends[1],
                )
            )
        reference = datasets.ScoreReference(-20.0, 5.0, "this test")
        about = {"env_name": ENV, "reference": reference, "action_cost": ACTION_COST}
        datasets.save(DATASET, episodes, **about)
        yield datasets.load(DATASET)


@pytest.fixture
def few_resamples(monkeypatch):
    """The bootstrap is rliable's, and here only its ends are looked at."""
    monkeypatch.setattr(results, "_RESAMPLES", 200)
