"""Published curves: how they go together, and where there are none."""

from experiments import published_curves


def test_published_means_lie_within_their_seeds():
    for env in ("pendulum", "ball_in_cup", "cartpole_swingup", "reacher_hard"):
        for curve in published_curves.curves(env, 0.0):
            assert (curve.least <= curve.mean + 0.05).all()  # means are rounded
            assert (curve.mean - 0.05 <= curve.most).all()
            # The error of a mean of ten is no more than a sixth of their range.
            assert (curve.standard_error <= (curve.most - curve.least) / 6 + 0.05).all()


def test_nothing_is_published_with_another_action_cost():
    assert published_curves.curves("pendulum", 0.05) == []
    assert published_curves.curves("gym:Pendulum-v1", 0.0) == []
    assert published_curves.curves("removed", 0.0) == []
    (sac,) = published_curves.curves("dmc:pendulum:swingup", 0.03)
    assert sac.name == "sac"


def test_looking_for_what_was_published_executes_nothing(tmp_path, monkeypatch):
    trace = tmp_path / "trace"
    (tmp_path / "executed.py").write_text(f"open({str(trace)!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    assert published_curves.curves("gym:executed:X-v0", 0.0) == []
    assert not trace.exists()
