"""What the functions take: a text alone is one text, and not a row of letters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from weft import api
from weft.api.examining import resolved_target
from weft.api.using import run_of
from weft.checkpoints import Loaded
from weft.core.config import parse_part
from weft.core.errors import CheckpointError, ConfigError, InputError
from weft.core.model import LanguageModel, ModelConfig
from weft.tokenizers import ByteTokenizer


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    config = parse_part(("model",), {"kind": "decoder", "vocab_size": 257, "d_model": 8, "context": 16,
                                     "blocks": [{"kind": "pre", "layers": ["lstm"]}]})
    assert isinstance(config, ModelConfig)
    torch.manual_seed(0)
    model = config.build()
    assert isinstance(model, LanguageModel)
    return Loaded(model.eval(), ByteTokenizer(), config, None, {}, Path("memory"))


def test_a_text_is_one_prompt(loaded: Loaded) -> None:
    one, listed = (api.generate(loaded, given, max_new_tokens=3).rows for given in ("First", ["First"]))
    assert len(one) == 1 and one[0].tokens == listed[0].tokens


def test_a_run_on_the_task_of_a_plugin_that_is_not_loaded_names_the_option(loaded: Loaded) -> None:
    trained = replace(loaded, run={"model": loaded.config.dump(), "task": {"kind": "guess_the_tune"}})
    with pytest.raises(CheckpointError, match=r"(?s)memory: the run of this checkpoint cannot be built here:.*no task "
                                              r"of kind 'guess_the_tune'.*give that file with --plugin\."):
        run_of(trained)


def test_a_text_is_one_row_to_score(loaded: Loaded) -> None:
    one, listed = (api.score(loaded, given).rows for given in ("First", ["First"]))
    assert len(one) == 1 and one[0].total == listed[0].total and one[0].scored == 5


def test_a_text_is_one_string_to_stop_at(loaded: Loaded) -> None:
    free = api.generate(loaded, "First", max_new_tokens=8, ends=api.Ends(at_end=False)).rows[0].text
    assert free is not None
    never = f"{free[0]}\0\0"
    for strings in (never, (never,)):
        ends = api.Ends(strings=strings, at_end=False)
        assert api.generate(loaded, "First", max_new_tokens=8, ends=ends).rows[0].text == free


def test_a_text_is_one_override_and_one_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.stepz: unknown key 'stepz'\. Did you mean 'steps'"):
        api.train("transformer", "training.stepz=5", out=tmp_path / "run")
    with pytest.raises(ConfigError, match="1 model, and a comparison needs two"):
        api.compare("lstm", out=tmp_path / "study")


def test_a_model_in_memory_goes_wherever_a_path_goes(loaded: Loaded, tmp_path: Path) -> None:
    model = loaded.model
    one, other = (api.generate(given, [[1, 2, 3]], max_new_tokens=3).rows[0].tokens for given in (model, loaded))
    assert one == other
    assert api.score(model, [[1, 2, 3]]).rows[0].total == api.score(loaded, [[1, 2, 3]]).rows[0].total
    assert api.insides(model, [[1, 2]])[0].tokens == (1, 2)
    assert api.plan(model).parameters == api.plan(loaded.config).parameters
    assert api.pictures(model).title == api.pictures(loaded.config).title
    assert resolved_target(model, ()).config == loaded.config
    api.convert(model, tmp_path / "made", to="weft")
    assert api.load(api.load(tmp_path / "made").model).config == loaded.config
    with pytest.raises(InputError, match="cannot be applied to a checkpoint"):
        api.plan(model, ["d_model=4"])


@pytest.mark.parametrize("use", [api.load, api.plan, lambda model: api.generate(model, "a"),
                                 lambda model: api.save(model, "nowhere")])
def test_a_module_that_is_no_model_is_refused(use: Callable[[Any], object]) -> None:
    with pytest.raises(InputError, match=r"model: a Linear is no model of Weft\. Give what weft\.load returned, or a "):
        use(torch.nn.Linear(2, 2))
