"""Each request of lm-eval answered by Weft and by lm-eval's own model ``hf``; whole tasks by both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from against_lm_eval.families import BEGIN, CONTEXT, END, FAMILIES, TEXT, saved
from weft import api
from weft.benchmarks import TextModel
from weft.benchmarks.lm_harness import harness_model

TOLERANCE = 1e-4
"""On sums of up to 50 float32 log-probabilities."""

PAIRS = [
    ("Question: is this", " sentence positive"), ("Question: is this", " no"), ("Question: is this", " yes"),
    ("The quick brown fox ", "jumps"), ("", "The lazy dog"), ("fo", "x"), (f"{BEGIN}The", " quick"),
    (f"one{END}\n\nThe", " fox"), (TEXT[:300], " right"), (TEXT[:300], TEXT[300:340]), ("Answer:\n\n", " positive"),
    ("Zürich", " über 北京"), ("", f"{BEGIN}The dog")]
TEXTS = ["The fox.", TEXT[:190], TEXT, f"{BEGIN}The dog{END}", "é"]
SETTINGS: dict[str, Any] = {"until": [".", "\n"], "max_gen_toks": 12, "do_sample": False}
WRITTEN = [("Question: is this", SETTINGS), ("The quick", {"until": "e", "max_gen_toks": 8}),
           (TEXT[:300], {**SETTINGS, "max_new_tokens": 5, "max_gen_toks": None})]


def instances(kind: str, arguments: Sequence[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=each, idx=place) for place, each in enumerate(arguments)]


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    folder = saved(request.param, tmp_path_factory.mktemp(request.param))
    theirs = HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=1, max_length=CONTEXT)
    return request.param, folder, theirs


def mine(folder: Path, batch_size: int) -> Any:
    return harness_model(TextModel(api.load(folder), context=CONTEXT, batch_size=batch_size))


def largest(name: str, what: str, found: Sequence[float], wanted: Sequence[float]) -> None:
    """Compare, and print the largest difference."""
    difference = max(abs(a - b) for a, b in zip(found, wanted, strict=True))
    print(f"\n{name} {what}: {difference:.1e} of values up to {max(map(abs, wanted)):.0f}")
    assert difference < TOLERANCE


def test_every_kind_of_request_has_the_same_answer(both: tuple[str, Path, Any]) -> None:
    name, folder, theirs = both
    pairs, texts = instances("loglikelihood", PAIRS), instances("loglikelihood_rolling", [(each,) for each in TEXTS])
    wanted = theirs.loglikelihood(pairs, disable_tqdm=True)
    rolled = theirs.loglikelihood_rolling(texts, disable_tqdm=True)
    for size in (1, 32):
        found = mine(folder, size).loglikelihood(pairs)
        largest(name, f"loglikelihood, batch {size}", [each for each, _ in found], [each for each, _ in wanted])
        assert [greedy for _, greedy in found] == [greedy for _, greedy in wanted]
        largest(name, f"rolling, batch {size}", mine(folder, size).loglikelihood_rolling(texts), rolled)


def test_texts_are_continued_alike(both: tuple[str, Path, Any]) -> None:
    _, folder, theirs = both
    asked = instances("generate_until", WRITTEN)
    wanted = [theirs.generate_until([each], disable_tqdm=True)[0] for each in asked]
    assert mine(folder, 1).generate_until(asked) == mine(folder, 32).generate_until(asked) == wanted
    assert len({*wanted}) == len(wanted) and any(wanted)


TASKS = {
    "tiny_choice": {"output_type": "multiple_choice", "doc_to_text": "{{text}}\nAnswer:", "doc_to_target": "label",
                    "doc_to_choice": ["no", "yes", "perhaps so"], "num_fewshot": 1, "fewshot_split": "test",
                    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]},
    "tiny_rolling": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
                     "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]},
    "tiny_written": {"output_type": "generate_until", "doc_to_text": "{{text}}", "doc_to_target": " the",
                     "generation_kwargs": {"until": ["."], "max_gen_toks": 6},
                     "metric_list": [{"metric": "exact_match"}]}}


def tasks(folder: Path) -> Path:
    """A folder of tasks with their data."""
    documents = [{"text": f"Is number {i} {'not ' * (i % 3)}a choice?", "label": i % 3} for i in range(7)]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(each) + "\n" for each in documents), "utf-8")
    for name, task in TASKS.items():
        whole = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}},
                 "test_split": "test", **task}
        (folder / f"{name}.yaml").write_text(json.dumps(whole), "utf-8")  # JSON is YAML
    return folder


def test_whole_tasks_have_the_same_scores(both: tuple[str, Path, Any], tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    name, folder, theirs = both
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    place = tasks(tmp_path)
    wanted = simple_evaluate(theirs, tasks=list(TASKS), bootstrap_iters=100,
                             task_manager=TaskManager(include_path=str(place), include_defaults=False))
    found = api.benchmark(folder, f"lm-eval:{','.join(TASKS)}", place, context=CONTEXT, batch_size=4)
    for task, measure in (("tiny_choice", "acc"), ("tiny_choice", "acc_norm"), ("tiny_rolling", "bits_per_byte"),
                          ("tiny_written", "exact_match"), ("tiny_rolling", "word_perplexity")):
        score = found.score(measure, task)
        assert score.value == pytest.approx(wanted["results"][task][f"{measure},none"], rel=1e-5), name
        assert score.n == 7
    errors = wanted["results"]["tiny_choice"]
    assert found.score("acc", "tiny_choice").standard_error == pytest.approx(errors["acc_stderr,none"])
    theirs_of = list(wanted["samples"]["tiny_choice"])
    mine_of = [each for each in found.requests if each["task"] == "tiny_choice"]
    for one, other in zip(mine_of, theirs_of, strict=True):
        assert [each[0] for each in one["responses"]] == pytest.approx(
            [each[0] for each in other["filtered_resps"]], abs=TOLERANCE)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["benchmark"].startswith("lm-eval:tiny_choice")
