"""Models that know nothing of Weft, as their authors write them: judged and not accused, and caught when one line of
them is wrong. ``make judge`` asks them about rows as long as they take, in processes of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from judged_in_process import InProcess
from weft.judge.judgement import Verdict
from weft.judge.questions import FileLimits, Judged
from weft.judge.referee import judge_file

JUDGED = Path(__file__).parents[2] / "examples" / "judged"
MODELS = {"nanogpt_like": ("build", "next"), "mamba_plain": ("MambaLM", "logits"), "rwkv_tokens": ("RWKV", "logits"),
          "ngram_numpy": ("log_probabilities", "log-probabilities")}
"""Files, with the name of the model in each and how its output is read."""
SHORT = '\ncontext, gives = 24, "{}"\n'
"""What is added to a file so that one second is enough for it."""
WRONG = {"nanogpt_like": ("dropout_p=self.dropout if self.training else 0)", "dropout_p=self.dropout)", "repeats"),
         "mamba_plain": ("[..., :u.shape[1]])", "[..., 1:u.shape[1] + 1])", "causality"),
         "rwkv_tokens": ("    step = forward\n", "    def step(self, tokens, state):\n"
                         "        return self.forward(tokens, [(mixed, 0 * last) for mixed, last in state])\n",
                         "pieces"),
         "ngram_numpy": ("+ share * lower", "+ lower", "sums-to-one")}
"""A line of each, what stands in its place, and the law that it breaks."""


def judged(name: str, folder: Path, source: str) -> Verdict:
    call, gives = MODELS[name]
    (folder / f"{name}.py").write_text(source + SHORT.format(gives), encoding="utf-8")
    return judge_file(Judged(folder / f"{name}.py", call), limits=FileLimits(seconds=600))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_another_author_is_not_accused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.judge.case.Worker", InProcess)
    verdict = judged(name, tmp_path, (JUDGED / f"{name}.py").read_text(encoding="utf-8"))
    assert verdict.verdict == "lawful", verdict.model_dump_json(indent=1)
    tried = {law.name for law in verdict.laws if law.outcome == "held"}
    assert {"sums-to-one", "causality", "separate-rows", "repeats"} <= tried
    assert ("pieces" in tried) == (name in ("mamba_plain", "rwkv_tokens")), "those that decode by steps"
    assert ("saved" in tried) == (name in ("nanogpt_like", "mamba_plain")), "those that have weights to save"


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_line_in_it_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.judge.case.Worker", InProcess)
    right, wrong, law = WRONG[name]
    source = (JUDGED / f"{name}.py").read_text(encoding="utf-8")
    assert source.count(right) == 1
    verdict = judged(name, tmp_path, source.replace(right, wrong))
    assert law in [each.name for each in verdict.laws if each.outcome == "broken"], verdict.model_dump_json(indent=1)


@pytest.mark.parametrize("name", list(MODELS) if os.environ.get("WEFT_JUDGE") else ["ngram_numpy"])
def test_the_file_itself_is_judged_in_a_process(name: str) -> None:
    call, gives = MODELS[name]
    verdict = judge_file(Judged(JUDGED / f"{name}.py", call), limits=FileLimits(seconds=900, answer=300))
    assert (verdict.verdict, verdict.thing.gives) == ("lawful", gives), verdict.model_dump_json(indent=1)
