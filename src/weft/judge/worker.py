"""The process of a judged file: it confines itself, loads the file, and answers what is asked of its model.

Whatever the file's code does to this process, it can only give other answers: every decision is taken elsewhere.
"""

from __future__ import annotations

import errno
import importlib.util
import inspect
import io
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, BinaryIO, NoReturn

import numpy as np

from weft.confinement.guards import confine, end_with_parent, limit, separate
from weft.core.errors import InputError
from weft.judge.frames import TYPES, frame, read_frame
from weft.judge.set_clock import SetClock

FILES = 256
"""Files that may be open at once: libraries that are imported late open dozens."""
REASON = 400
"""Characters of an error's message that are told."""
OPTIONAL = ("score", "start", "step", "encode", "decode", "token_bytes", "evaluate", "train")
"""Functions that a file may offer beside its model."""
STATED = ("vocab_size", "context", "end_of_document", "adapts", "claims", "takes", "gives")
"""Names of statements of a file about its model."""


def main() -> NoReturn:
    """Answer the questions of standard input, the first of which says what is judged and within which limits."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    questions = os.fdopen(os.dup(0), "rb")
    for number in (0, 1, 2):
        os.dup2(null, number)
    asked: dict[str, Any] = json.loads(questions.readline())
    by = ["namespaces"] if asked["confined"] and separate(asked["folder"], asked["written"]) else []
    child = os.fork()  # a process that has made a namespace of processes can itself start no thread
    if child:
        os.wait()
        os._exit(0)
    end_with_parent()
    if asked["torch"]:
        import torch  # which is trusted, and reads more of the system than is left later

        torch.set_num_threads(asked["threads"])
    os.chdir(asked["folder"])
    limit(asked["memory"], asked["seconds"], FILES, asked["written"])
    if asked["confined"]:
        by += confine(asked["readable"], asked["folder"])
    answer_all(asked, by, questions, answers)


def answer_all(asked: Mapping[str, Any], by: list[str], questions: BinaryIO, answers: BinaryIO) -> NoReturn:
    """Load the file if it is confined as far as was asked, and answer until there is no question left."""
    def tell(made: Callable[[], tuple[dict[str, Any], list[np.ndarray]]]) -> None:
        try:
            content = frame(*made())
        except BaseException as error:  # SystemExit too is an end that nobody expects
            said = " ".join(in_words(error).split())
            content = frame({"error": "".join(filter(str.isprintable, said))[:REASON]})
        answers.write(content)
        answers.flush()

    held: list[Asked] = []

    def begin() -> tuple[dict[str, Any], list[np.ndarray]]:
        if asked["confined"] and not {"landlock", "seccomp"} <= set(by):
            return {"by": by}, []
        held.append(Asked(asked, SetClock()))
        return {"by": by, **held[0].about()}, []

    def answer(line: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
        question, arrays = read_frame(line, questions.read)
        return held[0].answer(str(question.pop("question")), question, arrays)

    tell(begin)
    for line in iter(questions.readline, b""):
        tell(lambda asked_now=line: answer(asked_now))  # type: ignore[misc]  # bound at once
    os._exit(0)


def in_words(error: BaseException) -> str:
    """An error as a user reads it: one of the file's own with the name of its kind."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "it wrote more files than the folder of its process holds"
    return f"{error}" if isinstance(error, InputError) else f"{type(error).__name__}: {error}".rstrip(": ")


class Asked:
    """The model of a file, and what is asked of it by name."""

    def __init__(self, asked: Mapping[str, Any], clock: SetClock) -> None:
        self._asked, self._clock, self._changed, self._low = asked, clock, False, False
        self.seed(asked["seed"])
        self._clock.offset = asked["clock"]
        self._file = load(asked["path"])
        self._made = vars(self._file).get(asked["call"])
        if self._made is None:
            raise InputError(f"the file has no {asked['call']!r}.", remedy="Name its model: --call FILE.py:NAME.")
        self._model, self.remade = model_of(self._made)
        if self.is_module():
            self._model.eval()
        self.seed(asked["seed_later"])

    def seed(self, seed: int) -> None:
        """Seed what random numbers a file may draw."""
        random.seed(seed)
        np.random.seed(seed)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(seed)

    def find(self, name: str) -> Any:
        """The value that the model or else the file has under a name; None."""
        found = getattr(self._model, name, None)
        if self.is_module() and name in dir(sys.modules["torch"].nn.Module) and name not in vars(type(self._model)):
            found = None  # a module's own `train` is its mode
        return vars(self._file).get(name) if found is None else found

    def about(self) -> dict[str, Any]:
        """The kind of the model, and what the file states and offers."""
        stated = {name: plain(self.find(name)) for name in STATED}
        parameters = list(self._model.parameters()) if self.is_module() else []
        return {"stated": stated, "offered": [name for name in OPTIONAL if callable(self.find(name))],
                "module": self.is_module(), "remade": self.remade and self.is_module(),
                "function": inspect.isfunction(self._model),
                "parameters": sum(each.numel() for each in parameters),
                "dtypes": sorted({str(each.dtype) for each in parameters})}

    def is_module(self) -> bool:
        """Whether the model is a module of PyTorch."""
        return "torch" in sys.modules and isinstance(self._model, sys.modules["torch"].nn.Module)

    def answer(self, name: str, said: dict[str, Any], arrays: list[np.ndarray]
               ) -> tuple[dict[str, Any], list[np.ndarray]]:
        """The answer to a question: plain data and arrays."""
        match name:
            case "values":
                call = self._model if said["how"] == "model" else self.find(said["how"])
                for _ in range(int(said["times"])):
                    value = self.called(call, arrays[0])
                about, found = chosen(value, said["positions"])
                return {**about, "changed": self._changed, "low": self._low}, found
            case "steps":
                return {}, [self.steps(arrays[0], int(said["used"]))]
            case "encode":
                return {}, [np.asarray(list(self.find("encode")(said["text"])), np.int64)]
            case "decode":
                text = self.find("decode")(arrays[0].tolist())
                return {"bytes": (text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)).hex()
                        }, []
            case "token_bytes":
                return {}, [np.asarray([int(self.find("token_bytes")(each)) for each in arrays[0].tolist()], np.int64)]
            case "evaluate":
                told = self.find("evaluate")(said["text"])
                return {"told": {str(key): float(value) for key, value in dict(told).items()}}, []
            case "world":
                self._clock.offset = float(said["clock"])
                self.seed(int(said["seed"]))
                return {}, []
            case "save":
                return self.save()
            case "restore":
                return self.restore(arrays[0].tobytes()[: int(said["size"])]), []
            case "train":
                self._model = self.find("train")(said["text"], tokens=int(said["tokens"]), seed=int(said["seed"]))
                return self.about(), []
        raise ValueError(f"no question {name!r}")

    def called(self, call: Callable[..., Any], rows: np.ndarray) -> np.ndarray:
        """The array that a call of the model returns for rows of ids."""
        given = rows.copy()
        if not (self.is_module() or self.find("takes") == "torch"):
            value, low = as_array(call(given))
        else:
            torch = sys.modules["torch"]
            with torch.no_grad():
                value, low = as_array(call(torch.from_numpy(given)))
        self._changed, self._low = self._changed or not np.array_equal(given, rows), self._low or low
        return value

    def steps(self, rows: np.ndarray, used: int) -> np.ndarray:
        """The values that the model gives token by token [B,T,V], after ``used`` tokens and a new beginning,
        and while another state goes on in turns."""
        start, step = self.find("start"), self.find("step")
        values: list[np.ndarray] = []
        state = other = start(len(rows))
        for at in range(used):
            _, state = self.stepped(step, rows[:, at], state)
        if used:
            state, other = start(len(rows)), start(len(rows))
        for at in range(rows.shape[1]):
            value, state = self.stepped(step, rows[:, at], state)
            values.append(value.reshape(len(rows), -1))
            if used:
                _, other = self.stepped(step, rows[:, -1 - at], other)
        return np.stack(values, axis=1)

    def stepped(self, step: Callable[..., Any], ids: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        """The values [B,V] of a step and the state after it."""
        states: list[Any] = []

        def call(given: Any) -> Any:
            value, after = step(given, state)
            states.append(after)
            return value

        return self.called(call, ids), states[0]

    def save(self) -> tuple[dict[str, Any], list[np.ndarray]]:
        """The content of a file of the module's ``state_dict``, and its size."""
        file = io.BytesIO()
        sys.modules["torch"].save(self._model.state_dict(), file)
        size = file.tell()
        file.write(bytes(-size % 8))
        return {"size": size}, [np.frombuffer(file.getbuffer(), "<i8")]

    def restore(self, content: bytes) -> dict[str, Any]:
        """Make a second model, whose weights are drawn otherwise, and load what ``save`` returned into it."""
        self._model, _ = model_of(self._made)
        self._model.load_state_dict(sys.modules["torch"].load(io.BytesIO(content), weights_only=True))
        self._model.eval()
        return {}


def load(path: str) -> ModuleType:
    """The module of a file."""
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("judged", path)
    if spec is None or spec.loader is None:
        raise InputError("it is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules["judged"] = module
    spec.loader.exec_module(module)
    return module


def model_of(made: Any) -> tuple[Any, bool]:
    """The model that an object of a file is or makes, and whether it makes another one each time."""
    if isinstance(made, type):
        return made(), True
    if inspect.isfunction(made):
        required = [each for each in inspect.signature(made).parameters.values()
                    if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
        if not required:
            return made(), True
    return made, False


def as_array(value: Any) -> tuple[np.ndarray, bool]:
    """The array that a model's output is, or that it has first or as ``logits``, and whether its numbers have 16 bits.
    """
    value = getattr(value, "logits", value)
    value = value[0] if isinstance(value, tuple) else value
    low = str(getattr(value, "dtype", "")).endswith("float16")
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        with sys.modules["torch"]._C.DisableTorchFunctionSubclass():  # a class of the file's own may show other numbers
            value = sys.modules["torch"].Tensor.as_subclass(value, sys.modules["torch"].Tensor)
        value = (value.float() if low else value).detach().cpu().numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise InputError(f"the model returned an array of {array.dtype}, where numbers were expected")
    return array.astype("<f8" if array.dtype.str not in TYPES[:2] else array.dtype.str), low


def chosen(value: np.ndarray, positions: list[int] | None) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The positions that were asked for of an array [B,T,...], with its whole shape."""
    about = {"shape": list(value.shape)}
    if positions and (value.ndim < 2 or value.shape[1] <= max(positions)):
        raise InputError(f"the model returned an array of shape {about['shape']}, which has no token {max(positions)}")
    return about, [value if positions is None else value[:, positions]]


def plain(value: Any) -> Any:
    """A statement of a file as data of JSON: numbers, texts, mappings and lists; None for anything else."""
    try:
        return json.loads(json.dumps(value, default=lambda each: each.item()))
    except (TypeError, ValueError, RecursionError, AttributeError):
        return None
