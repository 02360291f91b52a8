"""What is judged: files that misbehave, endpoints, models of Weft's; verdicts as exit codes and as JSON."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from judge.judged_files import TABLE
from weft.cli.main import app
from weft.judge.endpoint import judge_endpoint
from weft.judge.judgement import Thing, Verdict, ids
from weft.judge.questions import FileLimits, Judged
from weft.judge.referee import LAWS, judge_file
from weft.judge.weft_laws import LAW_OF, verdict_of
from weft.laws.check import CheckResult
from weft.laws.plain_words import MEANING
from weft.laws.report import Finding, Report

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="files are confined by Linux's means")
OUT = "    out = TABLE[ids]\n"
HOSTILE = {
    "raises": (OUT, "    raise ValueError('no')\n", "ValueError: no"),
    "ends": (OUT, "    import os; os._exit(0)\n", "ended by itself"),
    "hangs": (OUT, "    while True: pass\n", "no answer within"),
    "forks": (OUT, "    import os; os.fork()\n", "PermissionError"),
    "another shape": (OUT, "    out = TABLE[ids][:, :, None, :]\n", "an array of shape"),
    "texts": (OUT, "    return [['a'] * 16]\n", "the model returned an array of <U1, where numbers were expected."),
    "no model": ("def model", "def other", "the file has no 'model'. Name its model: --call FILE.py:NAME."),
    "no Python": ("def model", "def model def", "SyntaxError"),
    "probabilities": (OUT, "    out = np.exp(TABLE[ids])\n", "return their logarithms"),
    "garbage": ("import numpy as np\n", "import numpy as np, os\nfor number in range(3, 20):\n"
                "    try: os.write(number, b'x' * 99 + b'\\n' * 3)\n    except OSError: pass\n", "no answer"),
    "too much memory": (OUT, "    out = np.ones((1 << 40,))\n", "MemoryError"),
    "ambiguous": (OUT, "    out = TABLE[ids] * 2\n", "State gives"),
    "probabilities above 1": (OUT, OUT + "    out[..., 3] = 0.5\n", "State gives"),
    "a shorter context": (OUT, "    out = TABLE[ids][:, :99]\n", "it states context = 300, and rows of 256 tokens"),
    "another context": ("16, 300", "16, 'long'", "it states context = 'long', where a whole number above 1"),
    "claims": ("def model", "claims = [1]\ndef model", "it states claims = [1], where a dictionary was expected"),
    "many files": (OUT, "    for n in range(99): open(f'{n}', 'wb').write(bytes(1 << 20))\n", "it wrote more"),
    "waits as it is loaded": ("def model", "while True: pass\ndef model", "it gave no answer within")}
"""Files of which nothing can be said: what is replaced, by what, and what is told."""


@on_linux
@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_answers_nothing_is_not_judged(name: str, tmp_path: Path) -> None:
    old, new, told = HOSTILE[name]
    (tmp_path / "judged.py").write_text(TABLE.replace(old, new))
    limits = FileLimits(seconds=15, answer=3, threads=1, memory=4 << 30, written=1 << 26)
    verdict = judge_file(Judged(tmp_path / "judged.py"), limits=limits)
    assert (verdict.verdict, verdict.exit_code, verdict.laws) == ("not judged", 2, ())
    assert told in verdict.why


@on_linux
def test_a_file_reaches_no_other_file_and_no_network(tmp_path: Path) -> None:
    """It says what it could do by the probabilities that it returns: those of token 0 are high for each success."""
    (tmp_path / "outside").write_text("secret")
    (tmp_path / "inside").mkdir()
    tries = f"""
def tried():
    import os, socket, subprocess
    count = 0
    for act in (lambda: open({str(tmp_path / "outside")!r}).read(), lambda: open({str(tmp_path / "new")!r}, "w"),
                lambda: open({str(tmp_path / "inside" / "new")!r}, "w"), socket.socket,
                lambda: socket.create_connection(("1.1.1.1", 53)), lambda: subprocess.run(["true"]),
                lambda: os.kill(os.getppid(), 9), lambda: os.listdir("/home"), lambda: open("/etc/passwd").read()):
        try:
            act()
            count += 1
        except Exception:
            pass
    open("own", "w").write("its own folder can be written")
    return count
"""
    source = TABLE.replace(OUT, "    out = TABLE[ids]\n    if tried(): raise ValueError(f'{tried()} succeeded')\n")
    path = tmp_path / "inside" / "judged.py"
    path.write_text(source + tries)
    verdict = judge_file(Judged(path), limits=FileLimits(seconds=60, threads=1))
    assert (verdict.verdict, verdict.why) == ("lawful", "")
    assert sorted(each.name for each in tmp_path.rglob("*") if each.is_file()) == ["judged.py", "outside"]


@on_linux
@pytest.mark.parametrize("how", ["deleted", "nameless"])
def test_files_without_a_name_count_among_those_that_a_process_writes(how: str, tmp_path: Path) -> None:
    """80 MiB where 64 are allowed, in files that are held open while no folder has them."""
    asked = [sys.executable, "-c", "import sys, weft.confinement.guards as g; sys.exit(not g.separate())"]
    if subprocess.run(asked).returncode:
        pytest.skip("this system refuses namespaces, without which only files with a name are counted")
    opened = ("os.open(f'{n}', os.O_RDWR | os.O_CREAT); os.unlink(f'{n}')" if how == "deleted"
              else "os.open('.', os.O_RDWR | os.O_TMPFILE)")
    (tmp_path / "judged.py").write_text(TABLE.replace(
        OUT, f"    import os\n    for n in range(20):\n        if 'held' in globals(): break\n        file = {opened}\n"
             f"        os.write(file, bytes(1 << 22))\n    globals()['held'] = True\n{OUT}"))
    verdict = judge_file(Judged(tmp_path / "judged.py"), limits=FileLimits(seconds=15, threads=1, written=1 << 26))
    assert verdict.verdict == "not judged" and "it wrote more files than" in verdict.why


@on_linux
def test_a_confined_file_computes_with_the_processor_s_vector_instructions(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "judged.py").write_text("import torch\ndef model(ids):\n"
                                        "    raise ValueError(torch.backends.cpu.get_cpu_capability())\n")
    verdict = judge_file(Judged(tmp_path / "judged.py"), limits=FileLimits(seconds=30, threads=1))
    assert f"ValueError: {torch.backends.cpu.get_cpu_capability()}." in verdict.why


def weft(*arguments: object) -> Any:
    """The result of the command."""
    return CliRunner().invoke(app, ["judge", *map(str, arguments)])


@on_linux
def test_the_command_s_exit_code_and_json_are_the_verdict(tmp_path: Path) -> None:
    lawful, unlawful = tmp_path / "lawful.py", tmp_path / "unlawful.py"
    lawful.write_text(TABLE)
    unlawful.write_text(TABLE.replace(OUT, OUT + "    out[:, 3:] += 0.5\n"))
    good = weft(lawful, "--json")
    assert good.exit_code == 0
    verdict = Verdict.model_validate_json(good.stdout)
    assert (verdict.verdict, [law.name for law in verdict.laws]) == ("lawful", list(LAWS))
    bad = weft("--call", f"{unlawful}:model")
    assert bad.exit_code == 1
    assert "sum to 1.64872, not to 1" in bad.stdout.replace("\n", " ") and "breaks sums-to-one" in bad.stdout
    none = weft(tmp_path / "absent.py")
    assert none.exit_code == 2 and "there is no such file" in none.stderr
    assert "nothing to judge" in weft().stderr


def test_the_published_schema_is_that_of_the_verdict() -> None:
    path = Path(__file__).parents[2] / "docs" / "verdict.schema.json"
    assert json.loads(path.read_text()) == Verdict.model_json_schema(), "python docs/generate.py writes it"


def test_rows_are_recorded_as_whole_numbers() -> None:
    assert ids([1.0, 2], [3]) == ((1, 2), (3,))


class Server(BaseHTTPRequestHandler):
    """An endpoint of OpenAI's completions: each character is a token, and any of 256 may be next, but for a fault."""

    fault, begin = "", False

    def do_GET(self) -> None:
        self._send({"data": [{"id": "small"}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompts = asked["prompt"]
        if not asked.get("echo"):
            prompts = ["zz"]
        self._send({"choices": [self._choice(index, text, len(prompts), bool(asked.get("echo")))
                                for index, text in enumerate(prompts)]})

    def _choice(self, index: int, text: str, batch: int, echo: bool) -> dict[str, Any]:
        fault = type(self).fault
        text = text.replace("\r\n", "\n") if fault == "bytes" else text
        nats = [-math.log(256) - 0.01 * (ord(character) % 7) for character in text]
        nats = [each + (fault == "ahead") * 0.3 * (text[-1] == "a") + (fault == "batch") * 0.3 * (batch > 1)
                + (fault == "steps") * 0.3 * (not echo) for each in nats]
        nats = [-0.5 for _ in nats] if fault == "sums" else nats
        likeliest = [{"a": math.log(0.7), "b": math.log(0.6 if fault == "top" else 0.2)} for _ in text]
        tokens = list(text)
        if type(self).begin and echo:  # as servers do whose tokenizers put a token before every text
            tokens, nats, likeliest = ["<|endoftext|>", *tokens], [0.0, *nats], [{}, *likeliest]
        return {"index": index, "text": text, "logprobs": {
            "tokens": tokens, "token_logprobs": [None, *nats[1:]] if echo else nats, "top_logprobs": likeliest}}

    def _send(self, content: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()
    Server.fault, Server.begin = "", False


@pytest.mark.parametrize("begin", [False, True], ids=["", "a token before every text"])
@pytest.mark.parametrize(("fault", "law"), [("sums", "sums-to-one"), ("top", "sums-to-one"), ("ahead", "causality"),
                                            ("batch", "separate-rows"), ("steps", "pieces"), ("bytes", "bytes")])
def test_an_endpoint_is_judged_by_what_can_be_asked(fault: str, law: str, begin: bool, endpoint: str) -> None:
    Server.fault, Server.begin = "", begin
    good = judge_endpoint(endpoint)
    assert good.verdict == "lawful", good
    assert {each.name: each.why for each in good.laws if each.outcome == "not tried"}["saved"] == (
        "an endpoint gives no weights")
    Server.fault = fault
    assert law in [each.name for each in judge_endpoint(endpoint).laws if each.outcome == "broken"]


def test_an_endpoint_that_cannot_be_asked_is_not_judged() -> None:
    verdict = judge_endpoint("http://127.0.0.1:9/v1", seconds=2)
    assert verdict.exit_code == 2 and "cannot be asked" in verdict.why


ANSWERS: dict[str, dict[str, Any]] = {
    "another text": {"tokens": ["he", "llo"], "token_logprobs": [-1.0, -2.0]},
    "no tokens": {"tokens": [], "token_logprobs": []},
    "no log-probabilities": {"tokens": ["a", "b", "c"], "token_logprobs": [None, None, None]},
    "fewer log-probabilities": {"tokens": ["a", "b"], "token_logprobs": [-1.0]}}
TOLD = {"another text": "answers with others: 'hello'", "no tokens": "answers with others: ''"}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_endpoint_that_answers_something_else_is_not_judged(name: str, endpoint: str,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "_choice", lambda self, index, *_: {"index": index, "logprobs": ANSWERS[name]})
    verdict = judge_endpoint(endpoint)
    assert (verdict.exit_code, verdict.laws) == (2, ())
    assert TOLD.get(name, "has no log-probability of each of the prompt's tokens") in verdict.why


@pytest.mark.parametrize(("answer", "told"), [
    (b"HTTP/1.1 200 OK\r\n\r\n<html>", "no JSON object"), (b"HTTP/1.1 200 OK\r\n\r\n[1]", "no JSON object"),
    (b"HTTP/1.1 200 OK\r\n\r\n{}", "lists no model"), (b"SSH-2.0\r\n", "cannot be asked"), (b"", "cannot be asked"),
    (b"HTTP/1.1 500 No\r\n\r\nlater", "is answered by status 500: later")])
def test_what_is_no_endpoint_is_not_judged(answer: bytes, told: str) -> None:
    class Other(Server):
        def do_GET(self) -> None:
            self.wfile.write(answer)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    Thread(target=server.serve_forever).start()
    verdict = judge_endpoint(f"http://127.0.0.1:{server.server_port}/v1", seconds=5)
    server.shutdown()
    server.server_close()
    assert verdict.exit_code == 2 and told in verdict.why


def test_the_address_of_a_server_is_told_apart_from_that_of_its_interface() -> None:
    class Nothing(Server):
        def do_GET(self) -> None:
            self.send_error(404)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Nothing)
    Thread(target=server.serve_forever).start()
    url = f"http://127.0.0.1:{server.server_port}"
    assert judge_endpoint(url).why.endswith(f"Is it meant to be {url}/v1?")
    assert "meant" not in judge_endpoint(f"{url}/v1").why
    server.shutdown()
    server.server_close()


def checked(*findings: Finding) -> CheckResult:
    """A check of a configuration with these comparisons, and one of each law of a verdict that holds."""
    held = [Finding(law, "pieces 5+6", 0.0, 1e-8) for law in ("readout", "causality", "ragged", "inference", "split")]
    report, empty = Report("twin", (*held, *findings)), Report("long", ())
    return CheckResult(report, "", empty, empty, None, "", None, None, 0, (), "", 1.5)


def test_the_laws_of_weft_become_those_of_a_verdict() -> None:
    assert set(LAW_OF) <= set(MEANING) and set(LAW_OF.values()) <= set(LAWS)
    thing = Thing(kind="configuration", path="model.yaml")
    good = verdict_of(thing, checked())
    assert (good.verdict, good.why) == ("lawful", "")
    bad = verdict_of(thing, checked(Finding("causality", "token 7 of 11 changed", 0.3, 1e-8, 5)))
    assert bad.verdict == "unlawful"
    found = next(law.found for law in bad.laws if law.name == "causality")
    assert found is not None and (found.token, found.measured, found.allowed) == (4, 0.3, 1e-8)
    assert found.sentence == ("Later tokens must not change the outputs of earlier ones; seen where token 7 of 11 "
                              "changed.")
    slow = verdict_of(thing, checked(Finding("slopes", "weight", 0.3, 1e-8)))
    assert (slow.verdict, slow.why) == ("lawful", "of training and kernels these do not hold: slopes (see weft check)")


@pytest.mark.skipif(find_spec("transformers") is not None, reason="it is installed, and its own tests judge folders")
def test_a_folder_of_another_family_needs_transformers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "codegen", "architectures": ["CodeGenForCausalLM"]}')
    told = weft(tmp_path)
    assert told.exit_code == 2
    assert "of a family that Weft does not read, needs the package 'transformers'" in told.stderr
    assert "pip install 'weft[interop]'" in told.stderr


def test_a_wrong_configuration_and_a_missing_test_text_are_told(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("kind: decoder\nwidth: 3\n")
    told = weft(tmp_path / "model.yaml")
    assert told.exit_code == 2 and "not judged" in told.stdout and "width" in told.stdout
    assert "absent.txt: there is no such file" in weft(tmp_path / "model.yaml", "--test-text", "absent.txt").stderr


@on_linux
def test_a_machine_that_cannot_confine_a_file_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judged.py").write_text(TABLE)
    monkeypatch.setattr("weft.judge.questions.CONFINED_BY", ("landlock", "seccomp", "a means that is missing"))
    told = weft(tmp_path / "judged.py", "--threads", 1)
    assert told.exit_code == 2 and told.stdout == ""
    assert "this machine cannot keep the file from other files and the network" in told.stderr
    assert "--unconfined" in told.stderr
    assert weft(tmp_path / "judged.py", "--threads", 1, "--unconfined").exit_code == 0
