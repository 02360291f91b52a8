"""What runs in a process of its own with forms and masks of a plugin, some of which are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fresh import check_near
from weft.api.training import outside_parts, require_lawful
from weft.core.config import parse_part
from weft.core.errors import LawError
from weft.core.model import ModelConfig
from weft.core.registry import load_plugin
from weft.laws.equal_forms import outside_forms
from weft.laws.run import examine
from weft.laws.subject import model_subject, whole_subject

FORM = """
import torch
from weft.ops.forms import Form
from weft.ops.norms import LAYER_NORM


def by_moments(call):
    mean = call.x.mean(-1, keepdim=True){detached}
    y = (call.x - mean) * torch.rsqrt((call.x - mean).square().mean(-1, keepdim=True) + call.eps)
    y = y if call.weight is None else y * call.weight
    return y if call.bias is None else y + call.bias


LAYER_NORM.add(Form("moments", by_moments, "the mean, then the moment about it"))
"""
MASK = """
from dataclasses import dataclass
from typing import ClassVar
from weft.masks import Mask
from weft.masks.expression import register_mask


@register_mask
@dataclass(frozen=True, repr=False)
class Short(Mask):
    kind: ClassVar[str] = "short"
    n: int = 4

    def rule(self, query, key, head):
        return (query.order >= key.order) & (query.order - key.order < self.n)

    def lookahead(self):
        return "none"

    def reach(self):
        return self.n - 1  # a token more is allowed
"""


def config(mask: str = "causal") -> ModelConfig:
    layers = [{"kind": "attention", "n_heads": 2, "mask": mask}, {"kind": "mlp", "d_ff": 8}]
    found = parse_part(("model",), {"kind": "decoder", "vocab_size": 11, "d_model": 8, "context": 8,
                                    "norm": "layernorm",
                                    "blocks": [{"kind": "pre", "norm": "layernorm", "layers": layers}]})
    assert isinstance(found, ModelConfig)
    return found


def write(name: str, text: str) -> Path:
    file = Path(name)
    file.write_text(text, encoding="utf-8")
    return file


def a_wrong_gradient_breaks_the_law() -> None:
    subject = whole_subject("model", config().build().double())  # type: ignore[arg-type]
    assert not outside_forms() and not examine(subject, laws=("forms",)).findings
    for detached, holds in (("", True), (".detach()", False)):
        load_plugin(write("moments.py", FORM.format(detached=detached)))
        assert [form.name for _, form in outside_forms()] == ["moments"]
        report = examine(subject, laws=("forms",))
        assert report.findings and report.holds is holds
    worst = report.broken()[0]
    assert worst.case.startswith("the form 'moments' of 'layer_norm', gradients of example ")
    assert all("values" not in each.case for each in report.broken()), "what it computes is right"
    assert not examine(model_subject("model", subject.module), laws=("split",)).broken(), "no other law sees it"


def with_near_checks(refused: Callable[[], None]) -> None:
    check_near(pytest.MonkeyPatch())  # the process ends with it
    refused()


def a_model_with_a_wrong_form_is_refused() -> None:
    load_plugin(write("moments.py", FORM.format(detached=".detach()")))
    try:
        require_lawful(config())
    except LawError as error:
        assert "model (the form moments of layer_norm): the model breaks a law: forms: the form 'moments'" in str(error)
    else:
        raise AssertionError("a form with a wrong gradient was admitted")


def a_model_with_a_wrong_mask_is_refused() -> None:
    load_plugin(write("short.py", MASK))
    assert outside_parts(config("causal & (short(4) | global(0))")) == ["short"] and not outside_parts(config())
    try:
        require_lawful(config("short(4)"))
    except LawError as error:
        assert "model (short): the model breaks a law: " in str(error)
    else:
        raise AssertionError("a mask whose state is too short was admitted")
