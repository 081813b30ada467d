"""Returns over action costs, beside the published ones."""

import numpy as np
import pytest

from experiments import published_curves
from experiments.suite import ladder, report
from tests.run_files import change_config, rows_for, write_run

pytestmark = pytest.mark.usefixtures("few_resamples")


def test_action_costs_make_a_ladder_beside_the_published_one(tmp_path):
    steps = tuple(range(0, 50_001, 2_500))
    finals = {0.0: [400.0, 600.0], 0.03: [100.0, 300.0], 0.05: [20.0, 20.0]}
    for cost, returns in finals.items():
        run = tmp_path / "runs" / f"pendulum-cost{cost}-paper_sac-s0"
        write_run(
            run, "pendulum", "ensemble_mean", rows_for([0, 1], returns, steps), preset="paper_sac"
        )
        change_config(run, action_cost=cost)
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert (tmp_path / "action_costs.png").stat().st_size > 10_000
    curves = report.run_reader.read_runs((tmp_path / "runs").iterdir(), smooth=10)
    found = ladder.ladders(curves, lambda curve: float(curve.y[-1]))
    rungs = found["pendulum"]["paper_sac"]
    # As above, the last ten values on a line from 0 have 15.5 / 20 of its end for their mean.
    np.testing.assert_allclose([rung.cost for rung in rungs], [0, 0.03, 0.05])
    np.testing.assert_allclose([rung.mean for rung in rungs], [387.5, 155, 15.5])
    np.testing.assert_allclose([rung.standard_error for rung in rungs], [77.5, 77.5, 0])
    theirs = ladder.published(found, {"pendulum": 50_000.0})["pendulum"]["sac"]
    assert [rung.cost for rung in theirs] == [0, 0.03]  # nothing is published with 0.05
    row = next(line for line in text.splitlines() if "action_cost=0.03" in line)
    (curve,) = published_curves.curves("pendulum", 0.03)
    least_to_most = f"{curve.least[4]:.1f} to {curve.most[4]:.1f}"
    mean = f"{theirs[1].mean:.1f} ± {theirs[1].standard_error:.1f}"
    assert row.endswith(f"| {mean} | {least_to_most} |")
    row = next(line for line in text.splitlines() if "action_cost=0.05" in line)
    assert row.endswith("| - | - |")


def test_rungs_are_of_one_setting(tmp_path):
    runs = []
    for seed, (cost, risk) in enumerate(((0.0, 1.0), (0.0, 0.5), (0.1, 1.0))):
        run = tmp_path / f"{seed}"
        write_run(run, "pendulum", "pombu", rows_for([seed], [100.0 * seed]))
        change_config(run, action_cost=cost, config={"risk": risk})
        runs.append(run)
    curves = report.run_reader.read_runs(runs)
    found = ladder.ladders(curves, lambda curve: float(curve.y[-1]))["pendulum"]
    assert {label: [(r.cost, r.mean) for r in rungs] for label, rungs in found.items()} == {
        "pombu risk=0.5": [(0.0, 100.0)],
        "pombu risk=1.0": [(0.0, 0.0), (0.1, 200.0)],
    }


def test_a_ladder_is_of_one_step_and_does_not_wait_for_runs_that_have_made_none(
    tmp_path, monkeypatch
):
    for cost, last in ((0.0, 20_000), (0.03, 100_000), (0.05, 0)):
        run = tmp_path / "runs" / f"pendulum-cost{cost}-sac-s0"
        rows = rows_for([0], [last / 100], tuple(range(0, last + 1, 1_000)) if last else (0, 1))
        write_run(run, "pendulum", "sac", rows if last else rows[:1])
        change_config(run, action_cost=cost)
    drawn = []
    draw = lambda ours, theirs, path, *, steps, y: drawn.append((ours, dict(steps)))
    monkeypatch.setattr(ladder, "draw", draw)
    report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    ((ladders, steps),) = drawn
    assert steps == {"pendulum": 20_000}
    # Both have step / 100, and so the mean of 110 to 200 at 20,000 steps.
    assert [(rung.cost, rung.mean) for rung in ladders["pendulum"]["sac"]] == [
        (0, 155),
        (0.03, 155),
    ]


def test_a_ladder_is_drawn_over_its_costs(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(ladder.style, "save", lambda figure, path: drawn.append(figure))
    rung = ladder.Rung
    ours = {"pendulum": {"sac": [rung(0.0, 5.0, 1.0), rung(0.05, 2.0, np.nan)]}}
    theirs = {"pendulum": {"sac": [rung(0.05, 3.0, 0.5)]}}
    ladder.draw(ours, theirs, tmp_path / "a.png", steps={"pendulum": 20_000}, y="return")
    (panel,) = drawn[0].axes
    assert panel.get_title() == "pendulum, 20,000 steps"
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["0", "0.05"]
    solid, dotted = panel.lines
    np.testing.assert_array_equal(solid.get_xydata(), [[0, 5], [1, 2]])
    np.testing.assert_array_equal(dotted.get_xydata(), [[1, 3]])
    band = panel.collections[0].get_paths()[0].vertices
    np.testing.assert_array_equal(np.unique(band[band[:, 0] == 0, 1]), [4, 6])
    np.testing.assert_array_equal(np.unique(band[band[:, 0] == 1, 1]), [2])
