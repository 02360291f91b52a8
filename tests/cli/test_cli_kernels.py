"""``--kernels``: forms of operations from the command line, and what plan and doctor show of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.ops.forms import OPERATIONS


def forms(told: Any) -> dict[tuple[str, str], str]:
    return {(each["operation"], phase): each["form"] for each in told.json()["forms"] for phase in each["phases"]}


def test_plan_shows_the_form_of_every_phase_with_its_reason_and_what_is_forced(weft: Any, workplace: Path) -> None:
    file = workplace / "lstm.yaml"
    file.write_text("model: {kind: decoder, d_model: 8, context: 6, blocks: [{kind: pre, layers: [lstm]}]}\n"
                    "tokenizer: bytes\n", encoding="utf-8")
    told = weft("plan", file, "--json")
    assert told.code == 0, told.err
    assert forms(told)["lstm_scan", "training"] == "scan" and forms(told)["lstm_scan", "single tokens"] == "reference"
    reasons = {each["form"]: (each["reason"], each["passed"]) for each in told.json()["forms"]
               if each["operation"] == "lstm_scan"}
    assert reasons["reference"] == ("step by step", ["scan: a single step"])
    told = weft("plan", file)
    assert "How operations are computed here" in told.out
    lines = told.out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("lstm_scan") and "reference" in line)
    assert lines[at].split() == ["lstm_scan", "reference", "single", "tokens", "step", "by", "step"]
    assert lines[at + 1].strip() == "not scan: a single step"
    told = weft("plan", file, "--json", "--kernels", "lstm_scan=reference")
    assert {form for (name, _), form in forms(told).items() if name == "lstm_scan"} == {"reference"}
    assert all(operation.forced is None for operation in OPERATIONS.all()), "given back when the command ends"


@pytest.mark.parametrize(("given", "message"), [
    ("lstm_scan", "--kernels: 'lstm_scan' does not name a form of an operation. Give OPERATION=FORM, such as att"),
    ("lstm_scan=", "--kernels: 'lstm_scan=' does not name a form of an operation"),
    ("lstmscan=scan", "kernels.lstmscan: no operation is called 'lstmscan'. Did you mean 'lstm_scan'?"),
    ("dropout=torch", "kernels.dropout: no form is called 'torch'. Did you mean 'library'?"),
])
@pytest.mark.parametrize("command", [("plan", "lstm"), ("train", "lstm"), ("doctor", "--no-measure")])
def test_a_wrong_name_is_told_before_anything_is_read(weft: Any, workplace: Path, command: tuple[str, ...], given: str,
                                                      message: str) -> None:
    told = weft(*command, "--kernels", given)
    assert told.code == 2 and message in told.err and "Traceback" not in told.err


def test_doctor_shows_every_operation(weft: Any) -> None:
    told = weft("doctor", "--no-measure")
    assert told.code == 0 and all(operation.name in told.out for operation in OPERATIONS.all())


def test_plan_takes_the_forms_that_a_run_names_for_training_and_those_of_the_option_for_all(weft: Any,
                                                                                          workplace: Path) -> None:
    file = workplace / "run.yaml"
    file.write_text("model: {kind: decoder, d_model: 8, context: 6, blocks: [{kind: pre, layers: [lstm]}] }\n"
                    "tokenizer: bytes\nkernels: {lstm_scan: reference}\n", encoding="utf-8")
    found = forms(weft("plan", file, "--json"))
    assert found["lstm_scan", "training"] == "reference" and found["lstm_scan", "prompts"] == "scan"
    found = forms(weft("plan", file, "kernels.lstm_scan=scan", "--json"))
    assert found["lstm_scan", "training"] == "scan"
    found = forms(weft("plan", file, "--json", "--kernels", "lstm_scan=scan"))
    assert {form for (name, _), form in found.items() if name == "lstm_scan"} == {"scan"}
    assert all(operation.forced is None for operation in OPERATIONS.all())


@pytest.mark.parametrize(("kernels", "message"), [
    ("{lstmscan: scan}", "kernels.lstmscan: no operation is called 'lstmscan'. Did you mean 'lstm_scan'?"),
    ("{lstm_scan: triton}", "kernels.lstm_scan"),
    ("[scan]", "kernels: ")])
def test_plan_refuses_forms_of_a_run_that_it_cannot_take(weft: Any, workplace: Path, kernels: str,
                                                        message: str) -> None:
    file = workplace / "run.yaml"
    file.write_text("model: {kind: decoder, d_model: 8, context: 6, blocks: [{kind: pre, layers: [lstm]}]}\n"
                    f"tokenizer: bytes\nkernels: {kernels}\n", encoding="utf-8")
    told = weft("plan", file)
    assert told.code == 2 and message in told.err and "Traceback" not in told.err
