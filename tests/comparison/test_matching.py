"""Widths are solved for the budget, within its tolerance, or the reachable ones are named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from comparison.studies import ATTENTION, LSTM, NGRAM, study_of, write_text
from weft.api import config_path
from weft.checkpoints import save_checkpoint
from weft.comparison.contestants import Contestant, contestants
from weft.comparison.matching import WidthPlan, flops_per_token, size_of, solve, state_bytes, width_plan
from weft.core.errors import ConfigError
from weft.tokenizers import ByteTokenizer
from weft.training import parse_run

FEEDFORWARD = {"kind": "feedforward", "order": 4, "d_embedding": 8, "d_hidden": 16, "context": 16}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path)


def solved(text: Path, models: dict[str, Any], **changes: Any) -> list[Contestant]:
    return contestants(study_of(text, models, **changes), config_path)[0]


def test_parameters_are_matched_within_two_percent_and_embeddings_can_be_left_out(text: Path) -> None:
    models = {"attention": {"config": ATTENTION}, "lstm": {"config": LSTM}, "feedforward": {"config": FEEDFORWARD},
              "ngram": {"config": NGRAM}}
    for each in solved(text, models, budget={"kind": "parameters", "amount": 40_000}):
        if each.trained:
            assert size_of(each.run.model).parameters == pytest.approx(40_000, rel=0.02)
            assert each.solved
    del models["feedforward"]
    found = solved(text, models, budget={"kind": "parameters", "amount": 8_000, "embeddings": False})
    for each in found[:2]:
        size = size_of(each.run.model)
        assert size.parameters - size.embeddings == pytest.approx(8_000, rel=0.02)
    assert not found[2].trained and found[2].solved == {}


def test_a_configuration_that_has_the_budget_keeps_its_widths(text: Path) -> None:
    own = parse_run({"model": ATTENTION})
    found = solved(text, {"a": {"config": ATTENTION}, "b": {"config": LSTM}},
                   budget={"kind": "parameters", "amount": size_of(own.model).parameters})
    assert found[0].solved == {"model.d_model": 8, "model.blocks.0.layers.1.d_ff": 16}


def test_state_bytes_are_matched(text: Path) -> None:
    found = solved(text, {"a": {"config": ATTENTION}, "b": {"config": LSTM}},
                   budget={"kind": "state_bytes", "amount": 4096, "at_context": 16, "tolerance": 0.15})
    for each in found:
        assert state_bytes(each.run.model, [16])[16] == pytest.approx(4096, rel=0.15)


def test_flops_are_matched_by_width_where_the_tokens_are_stated(text: Path) -> None:
    found = solved(text, {"a": {"config": ATTENTION}, "b": {"config": LSTM}},
                   budget={"kind": "flops", "amount": 3e8}, length={"tokens": 3200})
    for each in found:
        assert flops_per_token(each.run) * 3200 == pytest.approx(3e8, rel=0.02)
        assert each.run.training.steps == 100


@pytest.mark.parametrize(("budget", "length", "steps"), [
    ({"kind": "tokens", "amount": 330}, None, 10), (None, {"steps": 7}, 7), (None, {"tokens": 64}, 2)])
def test_budgets_become_steps(text: Path, budget: Any, length: Any, steps: int) -> None:
    found = solved(text, {"a": {"config": ATTENTION}, "b": {"config": LSTM}}, budget=budget, length=length)
    assert [each.run.training.steps for each in found] == [steps, steps]


def test_a_budget_of_flops_buys_fewer_steps_of_a_larger_model(text: Path) -> None:
    models = {"a": {"config": ATTENTION}, "b": {"config": ATTENTION, "overrides": ["model.d_model=32"]}}
    small, large = solved(text, models, budget={"kind": "flops", "amount": 5e7}, length=None)
    for each in (small, large):
        steps, price = each.run.training.steps, each.tokens_per_step * flops_per_token(each.run)
        assert steps is not None and steps * price <= 5e7 < (steps + 1) * price
    assert (large.run.training.steps or 0) < (small.run.training.steps or 0)


def test_a_budget_in_seconds_is_left_for_a_measurement(text: Path) -> None:
    found = solved(text, {"a": {"config": ATTENTION}, "b": {"config": LSTM}},
                   budget={"kind": "seconds", "amount": 2.5}, length=None)
    assert [(each.run.training.steps, each.run.training.seconds) for each in found] == [(None, 2.5)] * 2


def refusal(text: Path, models: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        solved(text, models, **changes)
    return str(caught.value)


def test_every_problem_is_listed(text: Path) -> None:
    message = refusal(text, {"a": "transformr", "b": {"config": ATTENTION, "overrides": ["model.d_modle=3"]},
                             "c": {"config": "lstm"}})
    assert "models.a" in message and "Did you mean 'transformer'?" in message
    message = refusal(text, {"a": {"config": ATTENTION, "overrides": ["model.d_modle=3"]},
                             "b": {"config": LSTM, "overrides": ["seed=-1"]}})
    assert "models.a: model.d_modle: unknown key" in message and "models.b: seed" in message


def test_a_form_that_a_configuration_names_and_that_cannot_serve_it_is_a_problem_of_that_model(text: Path) -> None:
    layer = {"kind": "attention", "n_heads": 2, "position": "transformer_xl"}
    model = {**ATTENTION, "blocks": [{"kind": "pre", "layers": [layer]}]}
    biased = {"model": model, "kernels": {"attention": "native"}}
    message = refusal(text, {"a": {"config": ATTENTION}, "b": {"config": biased}})
    assert ("models.b: kernels.attention: the form 'native' of 'attention' cannot serve this call: a bias depends on "
            "more than distance.") in message
    assert "models.a" not in message


def test_a_budget_below_the_smallest_model_names_it(text: Path) -> None:
    message = refusal(text, {"a": {"config": ATTENTION}, "b": {"config": LSTM}},
                      budget={"kind": "parameters", "amount": 20})
    assert "a: no width gives 20 parameters within 2.0%; the smallest is" in message
    assert "b: no width gives 20 parameters" in message


def test_a_width_that_changes_nothing_is_named(text: Path) -> None:
    message = refusal(text, {"a": {"config": FEEDFORWARD}, "b": {"config": LSTM}},
                      budget={"kind": "state_bytes", "amount": 5000, "tolerance": 0.1})
    assert "a: no width gives 5,000 bytes of state within 10.0%; the largest tried is" in message


def test_a_budget_below_one_step_is_refused(text: Path) -> None:
    message = refusal(text, {"a": {"config": ATTENTION}, "b": {"config": LSTM}},
                      budget={"kind": "tokens", "amount": 31}, length=None)
    assert "a budget of 31 tokens, and one step takes 32" in message


def test_counted_models_alone_have_no_price(text: Path) -> None:
    message = refusal(text, {"a": {"config": NGRAM}, "b": {"config": NGRAM}}, length={"flops": 1e6})
    assert "no model of this study is trained by gradients" in message


def test_widths_that_are_stated(text: Path) -> None:
    model = {"config": ATTENTION, "solve_for": {"model.d_model": 1, "model.blocks.0.layers.1.d_ff": 4}, "multiple": 8}
    first = solved(text, {"a": model, "b": {"config": LSTM, "solve_for": {}}},
                   budget={"kind": "parameters", "amount": 50_000})
    d_model, d_ff = first[0].solved["model.d_model"], first[0].solved["model.blocks.0.layers.1.d_ff"]
    assert d_model % 8 == 0 and d_ff / d_model == pytest.approx(4, rel=0.36)
    assert first[1].solved == {}
    message = refusal(text, {"a": {"config": ATTENTION, "solve_for": {"model.d_modle": 1}}, "b": {"config": LSTM}},
                      budget={"kind": "parameters", "amount": 50_000})
    assert "width.model.d_modle: no whole number stands there" in message


def test_the_nearest_widths_are_found_exactly() -> None:
    plan = WidthPlan("d", 4, {"f": 2.0})

    def measure(widths: Mapping[str, int]) -> float:
        return 10.0 * widths["d"] + widths["f"]

    assert solve(plan, measure, 1234, 0.001, own=8, unit="units", where="m") in (
        {"d": 104, "f": 194}, {"d": 100, "f": 234}, {"d": 108, "f": 154})
    with pytest.raises(ConfigError, match=r"m: no width gives 1,234 units within 0.1%; the nearest below is 1,230 "
                       r"\(d=123\); the nearest above is 1,240 \(d=124\)"):
        solve(WidthPlan("d", 1, {}), lambda widths: 10.0 * widths["d"], 1234, 0.001, own=8, unit="units", where="m")


def test_heads_decide_what_a_width_is_a_multiple_of() -> None:
    plan = width_plan(parse_run({"model": ATTENTION}).dump(), None, None)
    assert plan is not None and (plan.first, plan.multiple) == ("model.d_model", 4)
    assert plan.ratios == {"model.blocks.0.layers.1.d_ff": 2.0}
    assert width_plan(parse_run({"model": NGRAM}).dump(), None, None) is None


def test_models_share_data_tokenizer_and_batch(text: Path) -> None:
    models = {"a": {"config": {"model": ATTENTION, "tokenizer": "bytes"}},
              "b": {"config": {"model": LSTM, "tokenizer": {"kind": "bpe", "vocab_size": 300}}}}
    assert "tokenizer: the models differ" in refusal(text, models, tokenizer=None)
    assert "or allow it with `differ: [tokenizer]`" in refusal(text, models, tokenizer=None)
    found = solved(text, models, tokenizer=None, differ=["tokenizer"])
    assert [each.run.tokenizer.kind for each in found] == ["bytes", "bpe"]
    other = {"a": {"config": ATTENTION}, "b": {"config": LSTM, "overrides": ["training.batch_size=4"]}}
    assert "batch_tokens: the models differ (a 32; b 64)" in refusal(text, other)


def test_a_model_that_begins_with_trained_weights_is_compared_with_its_like_alone(tmp_path: Path, text: Path) -> None:
    tokenizer = ByteTokenizer()
    model = parse_run({"model": LSTM}).model.model_copy(update={"vocab_size": tokenizer.vocab_size})
    for name in ("one", "other"):
        save_checkpoint(tmp_path / name, model.build(), tokenizer)
    one, other = ({"config": {"start": str(tmp_path / name)}} for name in ("one", "other"))
    message = refusal(text, {"a": one, "b": {"config": LSTM}}, tokenizer=None)
    assert f"start: the models differ (a {tmp_path / 'one'}; b None). Make them alike." in message
    assert "start: the models differ" in refusal(text, {"a": one, "b": other}, tokenizer=None)
    found = solved(text, {"a": one, "b": one}, tokenizer=None)
    assert [each.run.start for each in found] == [str(tmp_path / "one")] * 2
    # Nothing but gradients begins with weights, so what is counted says nothing.
    found = solved(text, {"a": one, "n": {"config": NGRAM}}, tokenizer=None, differ=["tokenizer"])
    assert [each.trained for each in found] == [True, False]


def test_a_context_that_is_left_open_is_the_first_models(text: Path) -> None:
    longer = {**LSTM, "context": 64}
    found, notes = contestants(study_of(text, {"a": {"config": ATTENTION}, "b": {"config": longer}}), config_path)
    assert [each.run.context for each in found] == [16, 16]
    assert notes == ["b is trained with context 16 like a; its configuration says 64."]
