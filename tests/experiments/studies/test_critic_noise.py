"""The probe of the critics' disagreement, at sizes where its answer is known."""

import pytest

from experiments.studies import critic_noise
from qusac_jax.qusac.config import Config


@pytest.mark.slow
def test_without_a_future_critics_come_to_agree_and_rough_ones_less():
    # With discount 0 the values are rewards: a regression to 0.
    def last_spread(gain):
        config = Config(
            method="ensemble_mean",
            risk=0.0,
            discount=0.0,
            batch_size=64,
            critic_hidden=(16, 16),
            actor_hidden=(8,),
            critic_learning_rate=1e-3,
            critic_init_gain=gain,
        )
        (start, _), (end, offset) = critic_noise.spreads(config, 500, 1)
        assert offset <= end < 0.5 * start
        return end

    assert last_spread(1.0) < 0.05 < 0.5 < last_spread(10.0)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--discount=1", "discount must lie in [0, 1)"),
        ("--updates=99999999999999", "updates"),
        ("--width=99999999999", "width"),
        ("--batch_size=0", "batch_size"),
    ],
)
def test_mistakes_are_one_line_and_code_2(argument, message, capsys):
    assert critic_noise.main(["critic_noise", argument]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
