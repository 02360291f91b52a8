"""``weft eval --task BENCHMARK`` as a user calls it, with a benchmark of a plugin, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fresh import fresh
from fresh import weft as command_line
from weft.cli import benchmark as command

PLUGIN = '''
from weft.benchmarks import BenchmarkConfig, BenchmarkResult, BenchmarkProtocol
from weft.benchmarks.result import mean_score
from weft.benchmarks.text_model import Question
from weft.core.part_config import About
from weft.core.registry import register


@register
class EchoConfig(BenchmarkConfig):
    """Whether a word follows itself."""

    kind = "echo_words"
    about = About(source="a test")
    times: int = 2

    def measure(self, model, data, conditions):
        words = data.read_text().split()[:conditions.limit]
        asked = [Question(" ".join([word] * self.times), (f" {word}", " other")) for word in words]
        right = [float(mine.log_prob > other.log_prob) for mine, other in model.answers(asked)]
        protocol = BenchmarkProtocol("{word}", "none", "s", "none", "t", "c", 0, data.name, "e", conditions.limit)
        return BenchmarkResult(self.kind, self.dump(), (mean_score("accuracy", right),), protocol, model.name,
                               model.fingerprint, asked[0].prompt, tuple({"right": each} for each in right))
'''


@pytest.fixture
def passages(tmp_path: Path) -> Path:
    file = tmp_path / "lambada.jsonl"
    file.write_text("".join(json.dumps({"text": f"line {i} and line {i}"}) + "\n" for i in range(5)), "utf-8")
    return file


def test_scores_and_protocol_are_printed_and_each_request_is_written(weft: Callable, run: Path, passages: Path) -> None:
    out = passages.with_name("found.json")
    told = weft("eval", run, "--task", "lambada", "--data", passages, "--context", "32", "--limit", "4", "--out", out)
    assert told.code == 0 and told.err == "", told
    assert "all  accuracy" in told.out and "all  perplexity" in told.out and "protocol:" in told.out
    assert "context: rows of at most 32 tokens, longer prompts cut on the left (0 prompts were cut)" in told.out
    found = json.loads(out.read_text("utf-8"))
    assert [each["word"] for each in found["requests"]] == ["0", "1", "2", "3"] and found["benchmark"] == "lambada"
    again = weft("eval", run, "--task", "{kind: lambada}", "--data", passages, "--context", "32", "--limit", "4",
                 "--batch-size", "1", "--json").json()
    for one, other in zip(found["requests"], again["requests"], strict=True):
        assert one["log_prob"] == pytest.approx(other["log_prob"], rel=1e-5)
    assert "found.json: " in weft("eval", run, "--task", "lambada", "--data", passages, "--out", out).err


def test_several_models_are_asked_the_same_and_compared(weft: Callable, run: Path, passages: Path) -> None:
    out = passages.with_name("both.json")
    told = weft("eval", run, "--against", run, "--task", "lambada", "--data", passages, "--context", "32", "--out", out)
    assert told.code == 0 and told.err == "", told
    last = run / "checkpoints" / "00000003"
    assert f"{last} (1) against {last} (2): +0.0000 right (95 % +0.0000 to +0.0000); 0 requests are right" in told.out
    assert "1.0000 times its perplexity (95 % 1.0000 to 1.0000); p 1.0000 after Holm, 5 requests" in told.out
    found = json.loads(out.read_text("utf-8"))
    assert len(found["results"]) == 2 and [each["measure"] for each in found["differences"]] == ["right", "perplexity"]
    assert found["results"][0]["scores"][1]["low"] < found["results"][0]["scores"][1]["value"]
    alone = weft("eval", run, "--against", run)
    assert alone.code == 2 and "--against: an option of benchmarks, and none is run. Leave it out" in alone.err


def test_a_plugin_adds_a_benchmark(run: Path, tmp_path: Path) -> None:
    """In processes of their own, since a plugin stays loaded."""
    (tmp_path / "echo_words.py").write_text(PLUGIN, "utf-8")
    (tmp_path / "words.txt").write_text("line and line", "utf-8")
    told = fresh(command_line, "eval", str(run), "--task", "{kind: echo_words, times: 1}", "--data", "words.txt",
                 "--plugin", "echo_words.py", "--context", "64", "--json", folder=tmp_path)
    found = json.loads(told.stdout)
    assert found["settings"] == {"kind": "echo_words", "times": 1} and found["scores"][0]["n"] == 3
    assert "Whether a word follows itself." in fresh(command_line, "list", "benchmark", "--plugin", "echo_words.py",
                                                     folder=tmp_path).stdout


@pytest.mark.parametrize(("arguments", "message"), [
    (["--task", "mlu"], "task: no benchmark or task of kind 'mlu'. Did you mean 'mmlu'? lm-eval:NAME is a task"),
    (["--task", "sentiment"], "task: no benchmark or task of kind 'sentiment'. Did you mean 'sst2'?"),
    (["--task", "hendrycks-test"], "Did you mean 'mmlu'?"),
    (["--task", "lambada"], "data: lambada needs its data. Give its file or folder (--data)."),
    (["--task", "lambada", "--data", "missing"], "missing: no such file or folder."),
    (["--task", "{kind: mmlu, shot: 1}"], "shot: unknown key 'shot'. Did you mean 'shots'?"),
    (["--task", "mbpp", "--data", "missing"], "run_programs: mbpp runs programs that the model writes"),
    (["--task", "mmlu", "--lengths", "8,16"], "--lengths: a benchmark does not have this option."),
    (["--task", "mmlu", "--context", "1", "--data", "."], "context: 1 tokens. Give 2 or more."),
    (["--task", "cola", "--part", "test", "--stride", "3"], "--stride, --part: a benchmark does not have this option."),
    (["--limit", "3", "--run-programs"], "--limit, --run-programs: an option of benchmarks, and none is run."),
    (["--run-code", "utils.py"], "--run-code: an option of benchmarks, and none is run."),
    (["--task", "mqar", "--out", "x.json"], "--out: an option of benchmarks, and none is run."),
    (["--task", "lm-eval:none", "--data", "missing"], "missing: no such folder."),
])
def test_what_cannot_be_asked(arguments: list[str], message: str, run: Path, refused: Callable[..., str]) -> None:
    assert message in refused("eval", run, *arguments)


def test_progress_tells_the_time_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.left_of(5, 20, 60.0) == "03:00 left" and command.left_of(0, 20, 1.0) == ""
    now = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: now[0])
    lines = command.Lines("requests")
    for now[0], done in ((500.0, 0), (505.0, 1), (520.0, 10), (525.0, 12), (530.0, 15), (550.0, 20)):
        lines.told(done, 20)
    assert capsys.readouterr().err == "10/20 requests  00:20 left\n15/20 requests  00:10 left\n"


def test_a_terminal_has_a_bar_with_the_time_left() -> None:
    shown = StringIO()
    with command.Bar(Console(force_terminal=True, width=70, file=shown), "records") as bar:
        bar.told(15, 20)
    assert all(said in shown.getvalue() for said in ("records", "15/20", "00:00 left"))
