"""The notebook runs from start to end, in short, and names the repository's one address."""

import json
import os
import subprocess
import tomllib

import nbclient
import nbformat
import pytest

from tests.programs import ROOT

NOTEBOOK = ROOT / "notebooks" / "colab.ipynb"


def sources(kind):
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def test_the_address_is_that_of_the_project():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    (line,) = [x for x in sources("code")[0].splitlines() if x.startswith("REPOSITORY")]
    assert line == f'REPOSITORY = "{urls["Repository"]}"'


def test_it_holds_no_results():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    assert "TPU" in sources("markdown")[0]


@pytest.mark.parametrize("opened_in", [".", "notebooks"])
def test_it_finds_the_clone_that_it_was_opened_in(monkeypatch, opened_in):
    monkeypatch.chdir(ROOT / opened_in)
    monkeypatch.setattr(subprocess, "run", pytest.fail)  # neither git nor pip
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    found = {}
    for _ in range(2):  # a cell may be run again
        exec(sources("code")[0], found)
        assert os.environ["JAX_PLATFORMS"] == "cpu"
    assert found["root"] == ROOT
    assert found["for_programs"]["JAX_PLATFORMS"] == "cuda,cpu"


@pytest.mark.slow
def test_it_runs_from_start_to_end(tmp_path, monkeypatch):
    monkeypatch.setenv("QUSAC_JAX_SHORT_NOTEBOOK", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    # As a clone: what it writes lands beside it and not in the repository.
    clone = tmp_path / "clone"
    (clone / "notebooks").mkdir(parents=True)
    (clone / "constraints.txt").touch()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(clone / "notebooks")}},
    )
    client.execute()
    assert (clone / "runs" / "notebook" / "policy.stablehlo").is_file()
    kinds = [
        kind
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        for kind in output.get("data", {})
    ]
    assert kinds.count("image/png") == 2  # the tabular plot and the learning curve
