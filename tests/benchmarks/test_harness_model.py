"""What lm-eval asks, without lm-eval: windows of long texts, openings, settings of generation, the missing package.
The same requests are compared with lm-eval's own model in `tests/against_lm_eval`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmarks.asked import END, asked, by_hand, transformer
from weft.benchmarks.base import Conditions
from weft.benchmarks.harness_model import HarnessModel, writing_of
from weft.benchmarks.lm_harness import harness_model, require_allowed, run_harness
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


def test_code_of_a_folder_of_tasks_is_run_only_if_it_was_allowed(tmp_path: Path) -> None:
    """Named by a task, by a file that it includes from elsewhere, or in a list; before anything is loaded."""
    tasks, shared = tmp_path / "tasks", tmp_path / "shared"
    (tasks / "in").mkdir(parents=True)
    shared.mkdir()
    (tasks / "in" / "one.yaml").write_text("task: one\ndoc_to_text: !function utils.text\ninclude: ../../shared/base\n")
    (tasks / "two.yml").write_text("task: two\ndataset_path: json\nmetric_list: [{metric: acc}]\n")
    (shared / "base").write_text("filter_list: [{filter: [{function: custom, filter_fn: !function my.parts.pick}]}]\n")
    for name in ("base.py", "more.py"):
        (tasks / name).write_text("open('ran', 'w')")
    files = [tasks / "in" / "utils.py", shared / "my.parts.py"]
    for allowed, missing, others in (((), files[1], ", and 1 further files"), ((files[1],), files[0], ""),
                                     ((tasks,), files[1], "")):
        told = re.escape(f"the task runs code of {missing}{others}, on this machine and without confinement. If you "
                         f"allow that, give --run-code with each of these files or their folder (run_code): --run-code "
                         f"{missing}")
        with pytest.raises(InputError, match=told):
            require_allowed(tasks, allowed)
    require_allowed(tasks, files)
    require_allowed(tasks, [tmp_path])
    (tasks / "bad.yaml").write_text("a: [")
    with pytest.raises(InputError, match=r"bad\.yaml: not YAML, so the code that it names is not known: while parsing"):
        require_allowed(tasks, [tmp_path])


def test_a_task_with_code_is_refused_before_lm_eval_reads_it(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("task: one\ndoc_to_text: !function utils.text\n")
    (tmp_path / "utils.py").write_text("raise SystemExit('run')")
    with pytest.raises(InputError, match=r"one\.yaml: the task runs code of .*utils\.py"):
        run_harness(asked(transformer()), "one", tmp_path, Conditions())
