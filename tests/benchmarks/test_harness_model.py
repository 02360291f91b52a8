"""What lm-eval asks, without lm-eval: windows of long texts, openings, settings of generation, the missing package.
The same requests are compared with lm-eval's own model in `tests/against_lm_eval`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.asked import END, asked, by_hand, transformer
from weft.benchmarks.base import Conditions
from weft.benchmarks.harness_model import HarnessModel, writing_of
from weft.benchmarks.lm_harness import harness_model, run_harness
from weft.core.errors import InputError, MissingExtra, UnsupportedError
from weft.decoding import GREEDY, Sampling
from weft.evaluation import score


def test_a_long_text_is_scored_in_full_windows_each_token_once() -> None:
    """With 5 tokens in a window: the first five from the opening, then 5 and 2, the last window as full as the others.
    The opening token, which this tokenizer adds, is scored too, as lm-eval does."""
    model, text = transformer().eval(), "abcdefghijk"
    found, = HarnessModel(asked(model, context=5)).rolling([text])
    tokens, total = [END, *text.encode()], 0.0
    for last, count in ((5, 5), (10, 5), (12, 2)):
        inputs = ([END, *tokens])[max(0, last - 5):last] if last == 5 else tokens[last - 6:last - 1]
        row, = score(model, [[*inputs, tokens[last - 1]]]).rows
        total += sum(value for value in row.log_probs[-count:] if value is not None)
    assert found == pytest.approx(total, rel=1e-9)
    assert HarnessModel(asked(model)).rolling(["", "ab"])[0] == pytest.approx(
        sum(v for v in score(model, [[END, END]]).rows[0].log_probs if v is not None))


def test_a_context_is_opened_once() -> None:
    model = transformer().eval()
    harness, spelled = HarnessModel(asked(model)), asked(model).tokenizer.decode([END], specials=True)
    assert spelled
    plain, = harness.likelihoods([("ab", " c")])
    assert plain == (pytest.approx(by_hand(model, "ab", " c")[0]), False)
    assert harness.likelihoods([(f"{spelled}ab", " c")])[0][0] == pytest.approx(plain[0])
    assert harness.likelihoods([("", "ab c")])[0][0] == pytest.approx(by_hand(model, "", "ab c")[0])
    assert harness.likelihoods([("", f"{spelled}ab c")])[0][0] == pytest.approx(by_hand(model, "", "ab c")[0])
    assert harness.likelihoods([("ab ", "c")])[0][0] == pytest.approx(plain[0]), "the space is the continuation's"


def test_settings_of_generation_are_read_and_unknown_ones_refused() -> None:
    assert writing_of({"until": ["\n", ""], "do_sample": False, "temperature": 0.0}) == writing_of({"until": "\n"})
    assert writing_of({}).max_new_tokens == 256 and writing_of({}).sampling == GREEDY
    assert writing_of({"max_tokens": 3, "max_gen_toks": 5}).max_new_tokens == 5
    assert writing_of({"do_sample": True, "top_k": 4}).sampling == Sampling(1.0, top_k=4)
    assert writing_of({"temperature": 0.5, "top_p": 0.9}).sampling == Sampling(0.5, top_p=0.9)
    assert writing_of({"temperature": 0.5, "do_sample": False}).sampling == GREEDY
    with pytest.raises(UnsupportedError, match=r"generation_kwargs: the task generates with 'num_beam', which is not "):
        writing_of({"num_beam": 2})


def test_a_text_ends_before_what_ends_it() -> None:
    harness = HarnessModel(asked(transformer(4.0), batch_size=2))
    free, short = harness.written([("ab", {"max_gen_toks": 12}), ("ab", {"max_gen_toks": 5})])
    assert free.startswith(short) and len(free.encode()) > len(short.encode())
    ended, again = harness.written([("ab", {"max_gen_toks": 12, "until": [free[3:5]]}), ("ab", {"max_gen_toks": 12})])
    assert ended == free[:free.index(free[3:5])] and again == free


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = asked(transformer())
    with pytest.raises(InputError, match=r"none: no such folder\. Give a folder of tasks in lm-eval's YAML"):
        run_harness(model, "arc", tmp_path / "none", Conditions())
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    with pytest.raises(MissingExtra, match=r"a task of lm-eval needs the package 'lm_eval'.*install 'weft\[lm-eval\]'"):
        harness_model(model)
