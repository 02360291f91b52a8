"""The error tree.

    WeftError
    ├── UserError            exit code 2: the user's input cannot be used
    │   ├── ConfigError      a configuration is wrong (every problem at once)
    │   ├── DataError        a data file or corpus is missing, empty, too short or not text
    │   ├── TokenizerError   text or ids that a tokenizer cannot map
    │   ├── CheckpointError  a checkpoint is truncated, renamed, of another shape or version
    │   ├── InputError       tokens, rows, spans or options that a model cannot take
    │   ├── StateError       a state that does not belong to this model, batch or call
    │   ├── OccupiedError    a file or folder that Weft may not replace is where it would write
    │   ├── UnsupportedError a part, backend or machine that cannot do what was requested
    │   └── MissingExtra     an optional dependency is not installed
    └── FailedError          exit code 1: the request was valid and its execution failed
        ├── LawError         a law does not hold
        └── TrainingError    training cannot go on (a file that cannot be written, ...)
            └── DivergedError   the loss or the weights of a model are no longer finite

Every message gives the place, what was wrong, and what to do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping

MOST_PROBLEMS, MOST_OF_EACH = 20, 1_000
"""Problems that a message lists, and characters of each: a document of others may have any number, of any length."""
MOST_LINE = 8_000
"""Characters of a line of any message."""
LONGEST_NAME = 200
"""Characters of a name that is compared with known ones, which takes time in the square of their number."""


MEMORY = ("DefaultCPUAllocator", "out of memory", "std::bad_alloc", "Unable to allocate", "failed to map segment",
          "cannot allocate memory", "array is too big", "Maximum allowed size exceeded",
          "Storage size calculation overflowed")
"""Of the messages by which PyTorch, NumPy and the loader of libraries say that there is not enough memory, or that no
memory can be large enough."""


WRITTEN_OUT = re.compile(r"KeyboardInterrupt: *(<EMPTY MESSAGE>|$)", re.MULTILINE)
"""How pybind11 and pydantic-core write out an error of Python that has no message."""


class WeftError(Exception):
    """Base of all errors that Weft raises deliberately.

    Args:
        what: the rule that was broken and the value received.
        where: the field path, file or argument concerned.
        remedy: what the user can do about it.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        self.what, self.where, self.remedy = what, where, remedy
        place = f"{where}: " if where else ""
        advice = f" {remedy}" if remedy else ""
        super().__init__("\n".join(shortened(line, MOST_LINE) for line in f"{place}{what}{advice}".split("\n")))


class UserError(WeftError):
    """The user's input cannot be used."""

    exit_code = 2


class ConfigError(UserError):
    """A configuration is wrong; ``problems`` lists every problem, one line each. The message has the first 20."""

    def __init__(self, problems: Iterable[str], *, where: str | None = None) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = "1 problem in the configuration" if count == 1 else f"{count:,} problems in the configuration"
        shown = [f"  - {shortened(problem)}" for problem in self.problems[:MOST_PROBLEMS]]
        more = [f"  - and {count - MOST_PROBLEMS:,} more"] if count > MOST_PROBLEMS else []
        super().__init__("\n".join([f"{head}:", *shown, *more]), where=where)


class DataError(UserError):
    """A data file or corpus is missing, empty, too short or not text."""


class TokenizerError(UserError):
    """Text or ids that a tokenizer cannot map."""


class CheckpointError(UserError):
    """A checkpoint is truncated, renamed, of another shape, or of a version that this Weft cannot read."""


class InputError(UserError):
    """Tokens, rows, spans or options that a model cannot take."""


class StateError(UserError):
    """A state that does not belong to this model, batch or call."""


class OccupiedError(UserError):
    """A file or folder that Weft did not write, or was not asked to replace, is where it would write."""


class UnsupportedError(UserError):
    """A part, a backend or this machine cannot do what was requested."""


class MissingExtra(UserError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}, which is not installed.",
                         remedy=f"Install it with: pip install 'weft[{extra}]'")


class FailedError(WeftError):
    """The request was valid and its execution failed."""


class LawError(FailedError):
    """A law does not hold for a model or part."""


class TrainingError(FailedError):
    """Training cannot go on."""


class DivergedError(TrainingError):
    """A model in training has diverged: its loss or its weights are not finite, and further steps cannot repair them.

    Args:
        what: a description of what is not finite.
        step: the number of updates until then.
    """

    def __init__(self, what: str, *, step: int) -> None:
        self.lost, self.step = what, step
        super().__init__(f"diverged at step {step:,}: {what}", remedy="Lower training.optimizer.lr, lengthen "
                         "training.schedule.warmup, or set training.clip_norm.")


def lacks_memory(error: BaseException) -> bool:
    """Whether an error of Python, PyTorch, NumPy or the loader of libraries says that memory does not suffice."""
    return isinstance(error, MemoryError) or any(each in str(error) for each in MEMORY)


def from_ctrl_c(error: BaseException) -> bool:
    """Whether an error is KeyboardInterrupt, or what a library has made of one: it was raised while one was handled, or
    its text, which is all that C++ and Rust keep of a Python error, names it. A `WeftError` may quote any text."""
    seen: list[BaseException] = []
    while error not in seen:
        told = not isinstance(error, WeftError) and WRITTEN_OUT.search(str(error)) is not None
        if told or isinstance(error, KeyboardInterrupt):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__ or error
    return False


def shortened(text: str, most: int = MOST_OF_EACH) -> str:
    """``text``, at most ``most`` characters of it: what is more is left out of its middle."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the known name closest to ``name``, or with all known ones.

    >>> nearest("d_modle", ["d_model", "d_head"])
    "Did you mean 'd_model'?"
    """
    options = sorted(set(known))
    close = difflib.get_close_matches(name[:LONGEST_NAME], options, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known names: {', '.join(options)}." if options else "There are none."


def nearest_meaning(name: str, known: Mapping[str, Iterable[str]]) -> str:
    """A hint that names the known name that ``name`` means, or else what `nearest` gives.

    Args:
        name: that is not known.
        known: other words for each known name.

    >>> nearest_meaning("Swish-GLU", {"gated_product": ["glu", "swish_glu"], "rotary": ["rope"]})
    "Did you mean 'gated_product'?"
    """
    words = {word: each for each, others in known.items() for word in others} | {each: each for each in known}
    name = name[:LONGEST_NAME]
    word = name.lower().replace("-", "_").replace(" ", "_")
    if word not in words and not difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6):
        # Other words are short and many: only a slip of the pen counts, or each name would be near to one of them.
        word = next(iter(difflib.get_close_matches(word, sorted(words), n=1, cutoff=0.8)), word)
    return f"Did you mean {words[word]!r}?" if word in words else nearest(name, known)


def refuse_unread(cls: type, moved: Mapping[str, str], asked_for: Mapping[type, Collection[str]]) -> None:
    """Refuse a class that defines names which nothing would read.

    Args:
        cls: a new class of a part.
        moved: names that belong elsewhere, each with a sentence that says where.
        asked_for: names that are read of what inherits from a class alone.

    Raises:
        TypeError: it defines one.
    """
    belongs = {name: f"Inherit from {base.__module__}.{base.__name__} too." for base, names in asked_for.items()
               if not issubclass(cls, base) for name in names} | dict(moved)
    unread = sorted(vars(cls).keys() & belongs.keys())
    if unread:
        together = [name for name in unread if belongs[name] == belongs[unread[0]]]
        raise TypeError(f"{cls.__name__}: {', '.join(together)} would not be read. {belongs[unread[0]]}")
