"""MBPP: pass@k by enumeration, prompts written out here, and programs that an n-gram model remembers."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from benchmarks.asked import asked, counted, transformer
from benchmarks.test_sentences import classifier
from weft.benchmarks import Conditions, TextModel
from weft.benchmarks.mbpp import MBPPConfig, pass_at
from weft.benchmarks.programs import Limits
from weft.core.config import parse_part
from weft.core.errors import ConfigError, DataError, InputError, UnsupportedError

ALLOWED = Conditions(run_programs=True)
CODE = {2: "def two(x):\r\n    return 2 * x", 3: "def three():\n    return 3", 4: "def four():\n    return 4",
        11: "def double(x):\n    return 2 * x", 12: "def wrong(x):\n    return x + 1", 13: "while True:\n    pass"}
TESTS = {2: ["assert two(1) == 2"], 3: ["assert three() == 3"], 4: ["assert four() == 4"],
         11: ["assert double(2) == 4", "assert double(five) == 10"], 12: ["assert wrong(3) == 7"],
         13: ["assert loops(1)"]}


def written(folder: Path, numbers: tuple[int, ...] = tuple(CODE), **changes: Any) -> Path:
    file = folder / "mbpp.jsonl"
    file.write_text("".join(json.dumps({
        "task_id": number, "text": f"Write the function of problem {number}.", "code": CODE[number],
        "test_setup_code": "five = 5" if number == 11 else "", "test_list": TESTS[number],
        "challenge_test_list": [], **changes}) + "\n" for number in numbers), "utf-8")
    return file


def test_a_program_has_the_time_that_the_slowest_solution_takes() -> None:
    """Of the 974 solutions that come with MBPP one takes 6 seconds, and all others less than one."""
    assert MBPPConfig().seconds == Limits().seconds >= 10


def prompt_of(number: int) -> str:
    tests = "\n".join(TESTS[number])
    return (f"You are an expert Python programmer, and here is your task: Write the function of problem {number}. Your "
            f"code should pass these tests:\n\n{tests}\n[BEGIN]\n")


def remembering() -> TextModel:
    """A model that writes each problem's code after its prompt: an n-gram of 20 bytes that has read them."""
    text = "".join(f"{prompt_of(number)}{CODE[number]}\n[DONE]\n" for number in (11, 12, 13))
    return asked(counted(text, order=20, smoothing="maximum_likelihood"))


def test_programs_are_what_the_model_writes_before_the_stop_and_are_run_with_setup_and_tests(tmp_path: Path) -> None:
    file = written(tmp_path)
    found = MBPPConfig(shots=2, max_new_tokens=48, seconds=1).measure(remembering(), file, ALLOWED)
    right, wrong, endless = found.requests
    assert right["programs"] == ["def double(x):\n    return 2 * x\n"] and right["outcomes"] == ["passed"]
    assert wrong["outcomes"] == ["AssertionError"] and endless["outcomes"] == ["time"]
    assert [each["passed"] for each in found.requests] == [1, 0, 0]
    assert [each["task_id"] for each in found.requests] == [11, 12, 13]
    score, = found.scores
    assert (score.name, score.n, score.value) == ("pass@1", 3, pytest.approx(1 / 3))
    assert score.standard_error == pytest.approx(1 / 3)  # sqrt(2/9 * 3/2 / 3)
    shown = "".join(f"{prompt_of(number)}{CODE[number]}\n[DONE]\n\n" for number in (2, 3)).replace("\r\n", "\n")
    assert found.example == shown + prompt_of(11)
    told = found.protocol.describe()
    assert "examples: 2, problems 2, 3" in told and "run under limits of 1 seconds of a processor, 512 MiB" in told
    assert "audit hooks" in told


def test_long_prompts_lose_their_beginning_which_is_told(tmp_path: Path) -> None:
    """The model reads 19 bytes back, so it writes the same; 48 of 100 tokens are for new ones."""
    text = "".join(f"{prompt_of(number)}{CODE[number]}\n[DONE]\n" for number in (11, 12))
    model = asked(counted(text, order=20, smoothing="maximum_likelihood"), context=100)
    found = MBPPConfig(shots=0, max_new_tokens=48).measure(model, written(tmp_path, (11, 12)), ALLOWED)
    assert [each["outcomes"] for each in found.requests] == [["passed"], ["AssertionError"]]
    assert [each["cut"] for each in found.requests] == [1 + len(prompt_of(number)) - 52 for number in (11, 12)]
    assert "rows of at most 100 tokens, of which 48 for new tokens, longer prompts cut on the left (2 prompts were" \
        in found.protocol.describe()


def test_samples_depend_on_the_seed_and_not_on_the_batch(tmp_path: Path) -> None:
    """Two programs are equally probable; the same samples whatever runs beside them."""
    text = f"{prompt_of(12)}assert 1\n[DONE]\n{prompt_of(12)}assert 0\n[DONE]\n"
    file, model = written(tmp_path, (12,)), counted(text, order=20, smoothing="maximum_likelihood")
    config = MBPPConfig(shots=0, samples=6, pass_at=(1, 3), temperature=1.0, max_new_tokens=16)
    programs = [config.model_copy(update={"seed": seed}).measure(asked(model, batch_size=size), file,
                                                                  Conditions(run_programs=True))
                for seed, size in ((0, 1), (0, 32), (1, 32))]
    one, many, other = (each.requests[0]["programs"] for each in programs)
    assert one == many != other and len(set(one)) > 1
    assert [score.name for score in programs[0].scores] == ["pass@1", "pass@3"]


@pytest.mark.parametrize(("n", "c"), [(5, 0), (5, 1), (5, 3), (5, 5), (1, 1)])
def test_pass_at_k_is_the_share_of_sets_of_k_samples_with_one_that_passes(n: int, c: int) -> None:
    for k in range(1, n + 1):
        sets = list(combinations(range(n), k))
        assert pass_at(n, c, k) == pytest.approx(sum(min(chosen) < c for chosen in sets) / len(sets))
    assert math.isclose(pass_at(200, 7, 1), 7 / 200)


def test_nothing_is_run_without_consent_or_a_model_that_writes(tmp_path: Path) -> None:
    file = written(tmp_path)
    with pytest.raises(InputError, match=r"run_programs: mbpp runs programs that the model writes, on this machine\. "
                                         r"If you allow that, give --run-programs \(run_programs=True\)"):
        MBPPConfig().measure(remembering(), file, Conditions())
    with pytest.raises(UnsupportedError, match=r"tiny: writing programs needs a language model, and a model of kind "
                                               r"'encoder' predicts no next token"):
        MBPPConfig().measure(asked(classifier(None)), file, ALLOWED)
    with pytest.raises(InputError, match=r"max_new_tokens: 64 new tokens, and a row has 64\. Give fewer, or a larger"):
        MBPPConfig(max_new_tokens=64).measure(asked(transformer(), context=64), file, ALLOWED)


def test_what_is_wrong_with_the_file_is_told_with_its_line(tmp_path: Path) -> None:
    for numbers, changes, message in (
        ((11,), {}, r"mbpp\.jsonl: the examples 2, 3, 4 are missing\. Give the whole"),
        ((2, 3, 4), {}, r"mbpp\.jsonl: no problem has a task_id from 11 to 510"),
        ((2,), {"test_list": []}, r"line 1: test_list missing or of another type\. A problem has task_id"),
        ((2,), {"text": 3, "code": None}, r"line 1: text, code missing or of another type"),
    ):
        with pytest.raises(DataError, match=message):
            MBPPConfig().measure(remembering(), written(tmp_path, numbers, **changes), ALLOWED)
    file = written(tmp_path, (2,))
    file.write_text(file.read_text("utf-8") + "{", "utf-8")
    with pytest.raises(DataError, match=r"mbpp\.jsonl, line 2: not JSON"):
        MBPPConfig().measure(remembering(), file, ALLOWED)
    for fields, rule in (({"pass_at": [2]}, r"pass_at: pass@2 of 1 samples\. Give numbers from 1 to samples"),
                         ({"samples": 2}, r"temperature: 2 samples at temperature 0, which are the same")):
        with pytest.raises(ConfigError, match=rule):
            parse_part(("benchmark",), {"kind": "mbpp", **fields})
