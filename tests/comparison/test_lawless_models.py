"""A model that is not to be compared is refused before a study writes anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from comparison.studies import ATTENTION, LSTM, study_of, write_text
from taken_back import taken_back
from weft.api.configs import config_path
from weft.comparison.contestants import Contestant
from weft.comparison.jobs import Options
from weft.comparison.progress import StudyProgress
from weft.comparison.study import StudyConfig
from weft.comparison.study_runner import run_study
from weft.core.errors import LawError
from weft.core.registry import load_plugin

CHEAT = '''
from dataclasses import replace
from typing import ClassVar

from weft.core.span import Output
from weft.core.registry import register
from weft.mixers.elman import Elman, ElmanConfig

class Cheat(Elman):
    def forward(self, x, state=None, span=None):
        out = super().forward(x, state, span)
        return Output(out.y + x.roll(-1, 1), out.state, out.losses)

@register
class CheatConfig(ElmanConfig):
    """Reads the token that it is to predict."""

    kind: ClassVar[str] = "cheat"
    about = replace(ElmanConfig.about, source="nobody 2020")

    def build(self, dims):
        return Cheat(dims.d_model, self.d_hidden, self.bias, self.activation)
'''


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.mark.usefixtures("_near")
def test_a_model_that_reads_what_it_is_to_predict_is_refused_before_anything_is_written(
        text: Path, tmp_path: Path) -> None:
    (tmp_path / "cheat.py").write_text(CHEAT)
    with taken_back():
        load_plugin(tmp_path / "cheat.py")
        cheating = {**LSTM, "blocks": [{"kind": "pre", "layers": ["cheat"]}]}
        study = study_of(text, {"a": {"config": ATTENTION}, "b": {"config": cheating}}, length={"steps": 2})
        lines: list[StudyProgress] = []
        with pytest.raises(LawError, match=r"models\.b \(cheat\): the model breaks a law: "):
            weft.compare(study=study, out=tmp_path / "study", threads=1, on_progress=lines.append)
        assert not (tmp_path / "study").exists()
        assert [line.what for line in lines] == ["b"] and "checking the laws" in lines[0].text


def test_only_models_that_a_study_does_not_have_yet_are_asked_about(text: Path, tmp_path: Path) -> None:
    asked: list[str] = []

    def require(contestant: Contestant, report: Callable[[str], None]) -> None:
        report("asked")
        asked.append(contestant.name)

    def once(study: StudyConfig) -> list[str]:
        lines: list[StudyProgress] = []
        run_study(study, tmp_path / "study", config_path, Options(threads=1, own_processes=False), lines.append,
                  require=require)
        found = list(asked)
        asked.clear()
        assert [line.what for line in lines if line.text == "asked"] == found
        return found

    models = {"a": {"config": ATTENTION}, "b": {"config": LSTM}}
    assert once(study_of(text, models, length={"steps": 2})) == ["a", "b"]
    assert once(study_of(text, models, length={"steps": 2})) == []
    assert once(study_of(text, {**models, "c": {"config": LSTM}}, length={"steps": 2})) == ["c"]
