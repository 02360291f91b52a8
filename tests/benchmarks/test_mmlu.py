"""MMLU: prompts written out here, answers by plain calls of the model, averages by hand."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from statistics import mean, stdev

import pytest

from benchmarks.asked import asked, by_hand, counted, transformer
from weft.benchmarks import BenchmarkResult, Conditions
from weft.benchmarks.mmlu import ALL, SUBJECTS, MMLUConfig
from weft.core.config import parse_part
from weft.core.errors import ConfigError, DataError, InputError

TWO = ("anatomy", "world_religions")


def written(folder: Path, names: tuple[str, ...], sizes: tuple[int, ...] = (3, 5)) -> Path:
    """Files of some subjects: five examples each, and 3, 5, 3, ... questions, some with quotes and line ends."""
    for place, name in enumerate(names):
        for split, count in (("dev", 5), ("test", sizes[place % len(sizes)])):
            file = folder / split / f"{name}_{split}.csv"
            file.parent.mkdir(exist_ok=True)
            with file.open("w", newline="", encoding="utf-8") as out:
                csv.writer(out).writerows([f"{name[:3]} \"{split}\", {i}\n?", *(f"c{i * 7 % 5}{j}" for j in range(4)),
                                           "ABCD"[(i * 3 + place) % 4]] for i in range(count))
    return folder


def prompt_of(name: str, number: int, shots: int) -> str:
    """The prompt of a question of `written`."""
    def question(split: str, i: int) -> str:
        choices = "".join(f"\n{letter}. c{i * 7 % 5}{j}" for j, letter in enumerate("ABCD"))
        return f"{name[:3]} \"{split}\", {i}\n?{choices}\nAnswer:"

    shown = "".join(f"{question('dev', i)} {'ABCD'[(i * 3 + TWO.index(name)) % 4]}\n\n" for i in range(shots))
    subject = name.replace("_", " ")
    return (f"The following are multiple choice questions (with answers) about {subject}.\n\n{shown}"
            f"{question('test', number)}")


def run(folder: Path, config: MMLUConfig, limit: int | None = None, **options: int) -> BenchmarkResult:
    return config.measure(asked(transformer(), **options), folder, Conditions(limit))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("mmlu"), TWO)


@pytest.mark.parametrize("shots", [0, 2])
def test_the_letter_with_the_highest_log_probability_is_the_answer(folder: Path, shots: int) -> None:
    model = transformer().eval()
    found = run(folder, MMLUConfig(shots=shots, subjects=TWO), batch_size=1)
    right: dict[str, list[float]] = {name: [] for name in TWO}
    requests = iter(found.requests)
    for place, name in enumerate(TWO):
        for number in range((3, 5)[place]):
            request, prompt = next(requests), prompt_of(name, number, shots)
            wanted = [by_hand(model, prompt, f" {letter}")[0] for letter in "ABCD"]
            assert request["log_probs"] == pytest.approx(wanted, rel=1e-9)
            answer = wanted.index(max(wanted))
            assert request["choice"] == answer and request["right"] == (number * 3 + place) % 4
            right[name].append(float(answer == request["right"]))
    assert found.example == prompt_of("anatomy", 0, shots)
    together = [*right["anatomy"], *right["world_religions"]]
    assert 0 < sum(together) < len(together), "both outcomes occur, or the averages show nothing"
    for of, values in (("", together), *right.items()):
        score = found.score("accuracy" if of else "micro_accuracy", of)
        assert score.value == pytest.approx(mean(values)) and score.n == len(values)
        assert score.standard_error == pytest.approx(stdev(values) / math.sqrt(len(values)))
    macro = found.score("macro_accuracy")
    errors = [stdev(values) / math.sqrt(len(values)) for values in right.values()]
    assert macro.value == pytest.approx(mean(map(mean, right.values())))
    assert macro.standard_error == pytest.approx(math.hypot(*errors) / 2)
    assert found.score("accuracy", "humanities").n == 5
    assert found.scores[0] is macro


def test_batches_do_not_change_the_result_and_a_limit_is_of_each_subject(folder: Path) -> None:
    config = MMLUConfig(shots=1, subjects=TWO)
    one, many = (run(folder, config, batch_size=size) for size in (1, 32))
    assert [each["choice"] for each in one.requests] == [each["choice"] for each in many.requests]
    for mine, other in zip(one.requests, many.requests, strict=True):
        assert mine["log_probs"] == pytest.approx(other["log_probs"], rel=1e-11)
    few = run(folder, config, limit=2)
    assert [each["prompt_sha256"] for each in few.requests] == [
        each["prompt_sha256"] for each in (*one.requests[:2], *one.requests[3:5])]
    assert "requests: only the first 2 of each part" in few.protocol.describe()


def test_long_prompts_lose_their_beginning_which_is_told(folder: Path) -> None:
    found = run(folder, MMLUConfig(shots=1, subjects=TWO[:1]), context=60)
    model, prompt = transformer().eval(), prompt_of("anatomy", 0, 1)
    from weft.evaluation import score

    rows = [list((prompt + f" {letter}").encode())[-61:] for letter in "ABCD"]
    wanted = [sum(row.log_probs[-2:]) for row in score(model, rows).rows]  # type: ignore[arg-type]
    assert found.requests[0]["log_probs"] == pytest.approx(wanted, rel=1e-9)
    assert found.requests[0]["cut"] == 1 + len(prompt) + 2 - 61 and found.protocol.cut == 3
    assert "rows of at most 60 tokens, longer prompts cut on the left (3 prompts were cut)" in found.protocol.describe()


def test_all_57_subjects_count_alike_in_the_macro_average(tmp_path: Path) -> None:
    """An n-gram model that has read one letter only chooses it; subjects have 1 and 2 questions by turns."""
    assert len(ALL) == len(set(ALL)) == 57 and [len(group) for group in SUBJECTS.values()] == [19, 13, 12, 13]
    written(tmp_path, ALL, (1, 2))
    found = MMLUConfig(shots=0).measure(asked(counted("Answer: B\n" * 9)), tmp_path, Conditions())
    assert {each["choice"] for each in found.requests} == {1} and len(found.requests) == 29 + 28 * 2
    wanted = [mean(float((i * 3 + place) % 4 == 1) for i in range((1, 2)[place % 2])) for place in range(57)]
    assert found.score("macro_accuracy").value == pytest.approx(mean(wanted))
    assert found.score("macro_accuracy").standard_error is None, "one question has no spread"
    micro = sum(share * (1, 2)[place % 2] for place, share in enumerate(wanted)) / len(found.requests)
    assert found.score("micro_accuracy").value == pytest.approx(micro)
    plain = found.to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["settings"] == {"kind": "mmlu", "shots": 0, "subjects": [], "split": "test"}


def test_of_equally_probable_letters_the_first_is_the_answer(folder: Path) -> None:
    found = MMLUConfig(shots=0, subjects=TWO).measure(asked(counted("xxx")), folder, Conditions())
    assert {len(set(each["log_probs"])) for each in found.requests} == {1}
    assert {each["choice"] for each in found.requests} == {0}


def test_what_is_wrong_with_the_files_is_told_with_file_and_line(tmp_path: Path) -> None:
    written(tmp_path, TWO)
    file = tmp_path / "test" / "anatomy_test.csv"
    whole = file.read_text("utf-8")
    for content, message in (
        (whole.replace("c00", "c,00", 1), r"anatomy_test\.csv, line 2: 7 values, while a question has 6"),
        (whole.replace(",D\n", ",E\n", 1), r"anatomy_test\.csv, line 4: the answer is 'E', not one of A, B, C and D"),
        (whole + '"open', r"anatomy_test\.csv, line 7: the table cannot be read .*Close every quote"),
        ("\n\n", r"anatomy_test\.csv: the file has no question"),
    ):
        file.write_text(content, "utf-8")
        with pytest.raises(DataError, match=message):
            run(tmp_path, MMLUConfig(shots=0, subjects=TWO))
    file.unlink()
    with pytest.raises(DataError, match=re.escape("1 files of 2 subjects are missing: test/anatomy_test.csv. Add them, "
                                                  "or measure what is there: {kind: mmlu, subjects: "
                                                  "[world_religions]}.")):
        run(tmp_path, MMLUConfig(subjects=TWO))
    with pytest.raises(DataError, match=r"no such file or folder\. Give the benchmark's data with --data"):
        run(tmp_path / "none", MMLUConfig())
    with pytest.raises(DataError, match=r"not a folder, while MMLU has one file for each subject"):
        run(tmp_path / "dev" / "anatomy_dev.csv", MMLUConfig())
    with pytest.raises(InputError, match=r"shots: 9 examples, and the dev file of world_religions has 5\. Give fewer"):
        run(tmp_path, MMLUConfig(subjects=TWO[1:], shots=9))
    with pytest.raises(ConfigError, match=r"subjects: no subject 'anatomi'\. Did you mean 'anatomy'\?"):
        parse_part(("benchmark",), {"kind": "mmlu", "subjects": ["anatomi"]})
