"""Is it better? The study of ``weft judge --study``: its power and protocol before the first run, and its sentence."""

from __future__ import annotations

import dataclasses
import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import weft
from cli.conftest import call
from comparison.report.fixture import SHAPES, study
from fresh import check_near
from judge.judged_files import TABLE
from judge.test_judged_things import configuration, judged
from taken_back import taken_back
from weft.comparison.jobs import Options
from weft.comparison.progress import StudyProgress
from weft.comparison.statistics import Interval
from weft.core.errors import InputError
from weft.core.strict_json import digest
from weft.judge.judgement import Thing, Verdict
from weft.judge.matched_study import answer

ROOT = Path(__file__).parents[2]
TRAINED = {"data": {"path": "text.txt"}, "training": {"steps": 2, "batch_size": 2, "compute": {"matmul": "default"},
                                                      "context": 16}}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text, a configuration and a baseline; studies run in this process."""
    monkeypatch.chdir(tmp_path)
    check_near(monkeypatch)
    monkeypatch.setattr("weft.api.training.Options", partial(Options, own_processes=False))
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 300, encoding="utf-8")
    (tmp_path / "unseen.txt").write_text("a dog lay on the rug, and a cat sat. " * 20, encoding="utf-8")
    for name, layer in (("thing", "lstm"), ("base", "gru")):
        model = {"kind": "decoder", "d_model": 16, "context": 16, "blocks": [{"kind": "pre", "layers": [layer]}]}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"model": model, **TRAINED}), encoding="utf-8")
    return tmp_path


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thing is lawful, and no study is run."""
    lawful = Verdict(thing=Thing(kind="configuration", path="thing.yaml"), verdict="lawful")
    monkeypatch.setattr("weft.api.judging._by_weft", lambda *_: lawful)
    monkeypatch.setattr("weft.api.judging.compare", no_study)


def protocol(folder: Path) -> dict[str, Any]:
    """The sealed protocol, whose hash is that of the rest of it."""
    content: dict[str, Any] = json.loads((folder / "protocol.json").read_text(encoding="utf-8"))
    assert content["sha256"] == digest({key: value for key, value in content.items() if key != "sha256"})
    return content


def test_power_and_protocol_stand_before_the_first_run_and_the_answer_follows_from_the_test(
        place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    seen: list[str] = []

    def watch(progress: StudyProgress) -> None:
        assert told[0].startswith("Detectable difference: standard deviations by runs of each model: 10 with 2 (this")
        assert protocol(place / "out")["sha256"] in told[0]
        seen.append(progress.text)

    found = partial(weft.verdict_against, "thing.yaml", "base.yaml", test_text="unseen.txt", runs=2, out="out")
    verdict = found(tell=told.append, on_progress=watch)
    said, asked = verdict.study, protocol(place / "out")["study"]
    assert said is not None and len(told) == 1 and "begun" in seen
    assert (verdict.verdict, verdict.exit_code, said.runs) == ("lawful", 0, 2)
    result = json.loads((place / "out" / "study" / "result.json").read_text(encoding="utf-8"))
    [pair] = result["differences"]
    assert (said.p, said.difference, said.high) == (pair["p_holm"], pair["over_both"]["mean"],
                                                    pair["over_both"]["high"])
    assert "thing.yaml minus base.yaml is" in said.sentence and said.protocol_sha256 in told[0]
    # The held-out text is the one that was given, and both models have as many parameters within the tolerance.
    assert asked["data"]["test_path"] == str(place / "unseen.txt")
    assert result["corpus"]["validation_bytes"] == (place / "unseen.txt").stat().st_size
    sizes = [entry["parameters"] for entry in result["entries"]]
    assert max(sizes) / min(sizes) <= 1.05 and result["entries"][0]["solved"] == []
    # The same call finds the study as it stands.
    seen.clear()
    monkeypatch.setattr("weft.api.judging._by_weft", lambda *_: verdict)
    assert found(tell=told.append, on_progress=watch).study == said
    assert "begun" not in seen and told[1:] == told[:1]


def test_seeds_and_the_share_that_is_held_out_are_new_each_time(place: Path, stopped: None) -> None:
    studies = []
    for name in ("one", "two"):
        with pytest.raises(Stopped):
            weft.verdict_against("thing.yaml", "base.yaml", runs=3, out=name)
        content = protocol(place / name)
        pairs = [[each["seed"], each["order_seed"]] for each in content["study"]["seeds"]]
        assert content["draws"] == [content["study"]["data"]["split_seed"], *itertools.chain(*pairs)]
        studies.append(content["draws"])
    assert not set(studies[0]) & set(studies[1]) and len(set(studies[0])) == 7


class Stopped(Exception):
    """In the place of a study."""


def no_study(**_: Any) -> None:
    raise Stopped


def test_a_protocol_that_was_sealed_is_not_changed(place: Path, stopped: None) -> None:
    found = partial(weft.verdict_against, "thing.yaml", "base.yaml", test_text="unseen.txt", out="out")
    with pytest.raises(Stopped):
        found(runs=2)
    sealed = (place / "out" / "protocol.json").read_bytes()
    for other in ({"runs": 3}, {"runs": 2, "tokens": 9e5}, {"runs": 2, "overrides": ["model.d_model=8"]}):
        with pytest.raises(InputError, match="another protocol is sealed there, or it was changed after that"):
            found(**other)
    (place / "unseen.txt").write_text("another text, which was read before", encoding="utf-8")
    with pytest.raises(InputError, match="name another folder with --out"):
        found(runs=2)
    assert (place / "out" / "protocol.json").read_bytes() == sealed


def test_what_breaks_a_law_is_not_trained(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.api.judging.compare", no_study)
    source = (ROOT / "examples" / "min_gru.py").read_text(encoding="utf-8")
    (place / "gru.py").write_text(source.replace("Recurred(h.to", "Recurred(h.roll(-1, 1).to"), encoding="utf-8")
    model = yaml.safe_load(configuration(place, "min_gru", context=16, d_model=16).read_text(encoding="utf-8"))
    del model["vocab_size"]
    (place / "ahead.yaml").write_text(yaml.safe_dump({"model": model, **TRAINED}), encoding="utf-8")
    with taken_back():
        code, verdict = judged("ahead.yaml", "--study", "base.yaml", "--plugin", "gru.py", "--out", "out")
    assert code == 1 and verdict["study"]["outcome"] == "not done"
    assert verdict["study"]["sentence"] == "Nothing was trained, since the verdict is unlawful."
    assert list(protocol(place / "out")["files"]) == ["gru.py"]


def test_what_cannot_be_trained_is_refused_before_anything_is_written(place: Path) -> None:
    (place / "model.py").write_text(TABLE, encoding="utf-8")
    (place / "folder").mkdir()
    for thing in ("model.py", "http://localhost:1/v1", "folder"):
        told = call("judge", thing, "--study", "base.yaml", "--out", "out")
        said = " ".join(told.err.split())
        assert told.code == 2 and told.out == "" and "no configuration and no run that Weft could train" in said
        assert "Write the model as a part (docs/add_a_part.md)" in said
    assert "absent.txt: there is no such file. Give a file with the test text" in " ".join(
        call("judge", "thing.yaml", "--study", "base.yaml", "--test-text", "absent.txt", "--out", "out").err.split())
    assert "an option of a study, and there is no study" in call("judge", "thing.yaml", "--tokens", "5").err
    model = yaml.safe_load((place / "thing.yaml").read_text(encoding="utf-8"))["model"]
    (place / "model.yaml").write_text(yaml.safe_dump(model), encoding="utf-8")
    assert "--tokens: the configuration states no length of training" in " ".join(
        call("judge", "model.yaml", "--study", "base.yaml", "--out", "out").err.split())
    (place / "wrong.yaml").write_text("model: {kind: decoder, width: 3}\n", encoding="utf-8")
    assert "models.baseline: model.width" in call("judge", "thing.yaml", "--study", "wrong.yaml", "--out", "out").err
    assert not (place / "out").exists()


@pytest.mark.parametrize(("outcome", "shown"), [
    ("better", {"tied": False, "over_both": Interval(-0.02, -0.03, -0.01)}),
    ("worse", {"tied": False, "over_both": Interval(0.02, 0.01, 0.03)}),
    ("as good", {"tied": True, "equivalent": True}), ("not told apart", {"tied": True}),
    ("not done", {"p_holm": None})])
def test_the_sentence_follows_from_the_test(outcome: str, shown: dict[str, Any]) -> None:
    result = dataclasses.replace(study(2, 5, SHAPES[:2]), margin=0.01)
    [pair] = result.differences
    result = dataclasses.replace(result, differences=(dataclasses.replace(pair, **shown),))
    said = answer(result, "mine", "theirs", {"power": "", "sha256": "0"}, Path("out"))
    assert said.outcome == outcome
    begins = {"better": "mine is better than theirs: mine minus theirs is -0.0200 bits per byte (95 % interval -0.0300 "
                        "to -0.0100, p = ", "worse": "mine is worse than theirs: ",
              "as good": "mine is as good as theirs within 0.01 bits per byte: ",
              "not told apart": "mine and theirs are not told apart by a study that finds differences of about ",
              "not done": "The study says nothing: "}
    assert said.sentence.startswith(begins[outcome]) and said.sentence.endswith(".")
