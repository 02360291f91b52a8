"""MBPP: short Python programs, which are run against their tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from weft.benchmarks.base import BenchmarkConfig, Conditions, FileReader, context_line, digest_of, found, tokenizer_line
from weft.benchmarks.programs import Limits, require_running, run_program
from weft.benchmarks.result import MEAN_ERROR, BenchmarkProtocol, BenchmarkResult, Score, mean_score
from weft.benchmarks.text_model import TextModel, Writing
from weft.core.config import rule
from weft.core.errors import DataError, InputError
from weft.core.part_config import About
from weft.core.registry import register
from weft.decoding import Sampling
from weft.disk.documents import Unreadable, parse_json

SHOWN, TESTED = (2, 3, 4), range(11, 511)
"""Numbers of the problems that are examples, and of those of the test part."""
STOP = "[DONE]"


@dataclass(frozen=True)
class Problem:
    """A problem.

    Attributes:
        number: its ``task_id``.
        text: what the program is to do.
        code: a program that does it.
        setup: code that runs before the tests.
    """

    number: int
    text: str
    code: str
    setup: str
    tests: tuple[str, ...]

    def asked(self) -> str:
        """The problem with its tests, up to the program."""
        tests = "\n".join(self.tests)
        return (f"You are an expert Python programmer, and here is your task: {self.text} Your code should pass these "
                f"tests:\n\n{tests}\n[BEGIN]\n")

    def shown(self) -> str:
        """The problem with its program, as an example."""
        return f"{self.asked()}{self.code}\n{STOP}\n\n"


@register
class MBPPConfig(BenchmarkConfig):
    """Short Python programs from a sentence and three tests, run against these tests: problems 11 to 510.

    A prompt is "You are an expert Python programmer, and here is your task: TEXT Your code should pass these tests:",
    an empty line, the tests and "[BEGIN]", after problems 2, 3 and 4 with their programs, each followed by "[DONE]".
    The program is what the model writes before "[DONE]". It passes if it and then the tests run to their end. The tests
    run in another process, which compares the plain data that the program's gives back; see `weft.benchmarks.programs`
    for how that is confined, and for what that is not. Nothing is run without the user's consent.

    Of n programs for a problem, c of which pass, pass@k = 1 - C(n - c, k) / C(n, k), the probability that one of k of
    them passes; its mean over the problems is reported.

    The data are a JSON Lines file with the fields task_id, text, code, test_list and test_setup_code; the line ends of
    its programs become \\n.

    Attributes:
        shots: examples before each problem, at most 3.
        samples: n, programs for each problem.
        pass_at: k of pass@k, each at most ``samples``.
        temperature: 0: the most probable token each time, for one sample.
        top_p: probability, as in sampling.
        max_new_tokens: tokens of a program at most.
        seed: of the random numbers that draw the samples.
        seconds: seconds of processor time that a program may take.
        megabytes: a program's memory at most, in megabytes.
    """

    kind: ClassVar[str] = "mbpp"
    about = About(
        also_called=("python_programs", "programs", "code_generation", "basic_python_problems", "human_eval",
                     "humaneval"),
        source="Austin et al. 2021, sections 2.1 and 3; Chen et al. 2021, equation 1 (pass@k)",
        equation=(r"\text{pass@}k = \frac{1}{P} \sum_{p=1}^{P} \left( 1 - \frac{\binom{n - c_p}{k}}{\binom{n}{k}} "
                  r"\right)"),
        differs=(("lambada", "what the model writes is run, and not compared with a text."),
                 ("mmlu", "answers are programs in place of letters.")),
        pictured=(("Write a function that doubles a number.", ""),
                  ("assert f(2) == 4", ""),
                  ("[BEGIN]", "def f(x): return 2 * x"),
                  ("", "[DONE]")))
    runs_programs: ClassVar[bool] = True

    shots: int = Field(default=3, ge=0, le=3)
    samples: int = Field(default=1, gt=0)
    pass_at: tuple[int, ...] = (1,)
    temperature: float = Field(default=0.0, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_new_tokens: int = Field(default=512, gt=0)
    seed: int = Field(default=0, ge=0)
    seconds: float = Field(default=Limits.seconds, gt=0)
    megabytes: int = Field(default=512, ge=64)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(shots=1, samples=4, pass_at=(1, 4), temperature=0.5, top_p=0.95, max_new_tokens=64, seed=1,
                           seconds=1, megabytes=256)]

    @model_validator(mode="after")
    def _sampled(self) -> Self:
        wrong = [each for each in self.pass_at if not 1 <= each <= self.samples]
        if wrong or not self.pass_at:
            raise rule("pass_at", f"pass@{wrong[0]} of {self.samples} samples." if wrong else "no k.",
                       "Give numbers from 1 to samples.")
        if self.samples > 1 and not self.temperature:
            raise rule("temperature", f"{self.samples} samples at temperature 0, which are the same.",
                       "Give a temperature such as 0.5, or one sample.")
        return self

    def measure(self, model: TextModel, data: Path, conditions: Conditions) -> BenchmarkResult:
        if not conditions.run_programs:
            raise no_consent(self.kind)
        model.language_model("writing programs")
        reading = FileReader(data)
        shown, problems = self._problems(reading, data)
        problems = problems[:conditions.limit]
        head = "".join(problem.shown() for problem in shown)
        prompts = [head + problem.asked() for problem in problems for _ in range(self.samples)]
        writing = Writing(self.max_new_tokens, (STOP,), Sampling(self.temperature, top_p=self.top_p), self.seed)
        by, texts, cut = require_running(), model.continuations(prompts, writing), model.cut(prompts, writing)
        limits = Limits(self.seconds, self.megabytes << 20)
        requests, passed = list[dict[str, Any]](), list[int]()
        for place, problem in enumerate(problems):
            rows = slice(place * self.samples, (place + 1) * self.samples)
            ran = [run_program(text, problem.tests, problem.setup, limits) for text in texts[rows]]
            passed.append(sum(each.passed for each in ran))
            requests.append({
                "task_id": problem.number, "prompt_sha256": digest_of(prompts[rows.start]),
                "programs": list(texts[rows]), "outcomes": [each.outcome for each in ran],
                "passed": sum(each.passed for each in ran), "cut": cut[rows.start]})
        sampled = "the most probable token each time" if not self.temperature else (
            f"{self.samples} samples at temperature {self.temperature:g}, top_p {self.top_p or 1:g}, seed {self.seed}")
        protocol = BenchmarkProtocol(
            "{examples}" + Problem(0, "{text}", "", "", ("{tests}",)).asked(),
            f"{self.shots}, problems {', '.join(map(str, SHOWN[:self.shots]))}" if self.shots else "none",
            f"the text before {STOP}, {sampled}, passes if it and the tests run to their end", "none",
            tokenizer_line(model, "prompts are encoded alone"), context_line(model, self.max_new_tokens),
            sum(each["cut"] > 0 for each in requests), reading.material.describe(), MEAN_ERROR, conditions.limit,
            f"run under limits of {limits.describe()}, confined by {', '.join([*by, 'audit hooks'])}")
        return found(self, model, self._scores(passed), protocol, prompts[0], requests)

    def _scores(self, passed: Sequence[int]) -> list[Score]:
        return [mean_score(f"pass@{k}", [pass_at(self.samples, count, k) for count in passed]) for k in self.pass_at]

    def _problems(self, reading: FileReader, data: Path) -> tuple[list[Problem], list[Problem]]:
        """The examples, and the problems of the test part."""
        lines = enumerate(reading.text(data).split("\n"), 1)
        known = {each.number: each for each in (problem_of(line, f"{data}, line {number}") for number, line in lines
                                                if line.strip())}
        if missing := [number for number in SHOWN[:self.shots] if number not in known]:
            raise DataError(f"the examples {', '.join(map(str, missing))} are missing.", where=str(data),
                            remedy="Give the whole file, or fewer shots.")
        tested = [known[number] for number in TESTED if number in known]
        if not tested:
            raise DataError("no problem has a task_id from 11 to 510.", where=str(data), remedy="Give the whole file.")
        return [known[number] for number in SHOWN[:self.shots]], tested


def no_consent(kind: str) -> InputError:
    """The error of a benchmark that runs programs, without consent."""
    return InputError(f"{kind} runs programs that the model writes, on this machine.", where="run_programs",
                      remedy="If you allow that, give --run-programs (run_programs=True); what confines them is on the "
                      "page about benchmarks.")


def pass_at(n: int, c: int, k: int) -> float:
    """The unbiased estimate of pass@k from n samples of which c pass: 1 - C(n - c, k) / C(n, k)."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def problem_of(line: str, where: str) -> Problem:
    """A problem from its line. Raises `DataError`: the line is not JSON, or a field is missing or of another type."""
    try:
        record = parse_json(line)
    except Unreadable as error:
        raise DataError(f"{error}.", where=where, remedy="Correct or remove that line.") from None
    wanted: dict[str, type] = {"task_id": int, "text": str, "code": str, "test_list": list, "test_setup_code": str}
    wrong = [name for name, kind in wanted.items() if not isinstance(record, dict)
             or not isinstance(record.get(name, "" if name == "test_setup_code" else None), kind)]
    if not wrong and not (record["test_list"] and all(isinstance(test, str) for test in record["test_list"])):
        wrong = ["test_list"]
    if wrong:
        raise DataError(f"{', '.join(wrong)} missing or of another type.", where=where,
                        remedy="A problem has task_id, text, code, test_list (texts) and test_setup_code.")
    code, setup = (str(record.get(name, "")).replace("\r\n", "\n") for name in ("code", "test_setup_code"))
    return Problem(record["task_id"], record["text"], code, setup,
                   tuple(test.replace("\r\n", "\n") for test in record["test_list"]))
