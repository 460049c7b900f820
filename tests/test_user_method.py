"""A new method is one function and one yaml in a user's own folder; the package stays as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Train
from tests.test_rescore import write_steps
from vpo_lightning.rescore import main

FUNCTION = '''
from vpo_lightning.core.slots import scores_only


@scores_only
def sign_of_lead(scores):
    """+1 above the group's mean, -1 below."""
    return (scores - scores.mean(-1, keepdim=True)).sign().double()
'''
YAML = """
# Sign of the lead over the group: vpo-train --config-dir my_conf ablation=sign_of_lead
prompt:
  _target_: vpo_lightning.prompting.MultiAnswer
  m: ${m}
weights:
  _target_: vpo_lightning.core.weights.dirichlet
  _partial_: true
set_reward:
  _target_: vpo_lightning.core.scalarization.set_reward
  _partial_: true
advantage:
  _target_: my_method.sign_of_lead
  _partial_: true
"""


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with a module and a config."""
    folder = tmp_path / "own"
    (folder / "ablation").mkdir(parents=True)
    (folder / "my_method.py").write_text(FUNCTION)
    (folder / "ablation" / "sign_of_lead.yaml").write_text(YAML)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def test_rescoring_knows_a_users_method(
    own_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_steps(tmp_path, 1, 2, 4)
    given = ["--config-dir", str(own_folder), "--methods", "vpo,sign_of_lead"]
    assert main([str(tmp_path), *given, "--out", str(tmp_path / "out")]) == 0
    rows = json.loads((tmp_path / "out" / "rescore.json").read_text())["methods"]
    assert rows[1]["method"] == "sign_of_lead"
    assert rows[1]["mean_abs_advantage"] == 1.0
    assert rows[1]["sign_agreement_with_trained"] == 1.0


@pytest.mark.slow
def test_training_takes_a_users_method(own_folder: Path, train: Train, tmp_path: Path) -> None:
    done = train(
        f"--config-dir={own_folder}", "ablation=sign_of_lead", f"hydra.run.dir={tmp_path}/run"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
