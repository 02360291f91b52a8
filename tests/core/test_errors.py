"""The error tree: messages, exit codes, hints."""

from __future__ import annotations

import pytest
import torch

from weft.core import errors
from weft.core.compiling import require
from weft.core.errors import ConfigError, InputError, MissingExtra, StateError, WeftError, nearest


def test_a_message_says_where_what_and_what_to_do() -> None:
    error = StateError("a state of 2 rows.", where="state", remedy="Select rows.")
    assert str(error) == "state: a state of 2 rows. Select rows."
    assert (error.what, error.where, error.remedy) == ("a state of 2 rows.", "state", "Select rows.")
    assert str(StateError("wrong.")) == "wrong."


def test_a_configuration_error_lists_every_problem() -> None:
    error = ConfigError(["a: one.", "b: two."], where="run.yaml")
    assert str(error) == "run.yaml: 2 problems in the configuration:\n  - a: one.\n  - b: two."
    assert error.problems == ("a: one.", "b: two.")
    assert str(ConfigError(["a: one."])).startswith("1 problem in the configuration:")


def test_a_missing_extra_says_how_it_is_installed() -> None:
    assert str(MissingExtra("flask", "serve", "serving")) == (
        "serving needs the package 'flask', which is not installed. Install it with: pip install 'weft[serve]'")


def test_exit_codes_tell_what_was_asked_wrongly_from_what_failed() -> None:
    kinds = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, WeftError)]
    asked = {kind.__name__ for kind in kinds if kind.exit_code == 2}
    assert asked == {"UserError", "ConfigError", "DataError", "TokenizerError", "CheckpointError", "InputError",
                     "StateError", "OccupiedError", "UnsupportedError", "MissingExtra"}
    assert {kind.__name__ for kind in kinds if kind.exit_code == 1} == {
        "WeftError", "FailedError", "LawError", "TrainingError", "DivergedError"}


@pytest.mark.parametrize(("name", "known", "hint"), [
    ("d_modle", ["d_model", "d_head"], "Did you mean 'd_model'?"),
    ("zzz", ["b", "a", "b"], "Known names: a, b."),
    ("x", [], "There are none."),
])
def test_the_nearest_name_is_hinted(name: str, known: list[str], hint: str) -> None:
    assert nearest(name, known) == hint


def test_require_raises_on_a_cpu_unless_all_hold() -> None:
    with pytest.raises(InputError, match=r"^tokens: one is negative. Leave it out.$"):
        require(torch.tensor([True, False]), InputError, "one is negative.", where="tokens", remedy="Leave it out.")
    require(torch.tensor([True, True]), InputError, "one is negative.", where="tokens", remedy="Leave it out.")
    require(torch.tensor([], dtype=torch.bool), InputError, "one is negative.", where="tokens", remedy="")
    require(torch.zeros(2, dtype=torch.bool, device="meta"), InputError, "nothing to read.", where="x", remedy="")


def test_require_is_an_assertion_in_compiled_code() -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        require(x > 0, InputError, "one is not positive.", where="x", remedy="Give others.")
        return x * 2

    compiled = torch.compile(checked, fullgraph=True, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match=r"x: one is not positive. Give others."):
        compiled(-torch.ones(2))
