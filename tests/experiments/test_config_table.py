"""The page of hyperparameters."""

from experiments import config_table
from qusac_jax.qusac import presets


def test_the_page_is_that_of_the_code():
    # If this fails: python -m experiments.config_table
    assert config_table.PAGE.read_text(encoding="utf-8") == config_table.page()


def test_help_and_wrong_flags_leave_the_page_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(config_table, "PAGE", tmp_path / "page.md")
    assert config_table.main(["config_table", "--help"]) == 0
    assert config_table.main(["config_table", "--output=x"]) == 2
    assert "--output is no flag" in capsys.readouterr().err
    assert not config_table.PAGE.exists()
    assert config_table.main(["config_table"]) == 0
    assert config_table.PAGE.read_text(encoding="utf-8") == config_table.page()


def test_the_page_has_every_preset_and_says_of_every_field_what_it_is():
    rows = [line.split(" | ") for line in config_table.page().splitlines() if line.startswith("|")]
    known = {cell.strip("| `") for row in rows for cell in row[:5]}
    assert known >= set(presets.PRESETS)
    fields = {row[0]: row for row in rows if len(row) == 7}
    assert all(row[-1].strip("| ") for row in fields.values())
    assert fields["| `discount`"][1:6] == ["0.99", "", "", "0.995", ""]
    assert fields["| `dynamics.hidden`"][1:6] == ["200, 200, 200, 200", "", "", "", "128, 128, 128"]
    assert fields["| `risk`"][1:3] == ["1", "-1"]
    made = {row[0]: row[1:] for row in rows if len(row) == 3}
    assert made["| `mopo`"] == ["`mbpo`, offline", "`penalty` mopo |"]
