"""Every form of every operation against its naive one, found by discovery; and what the chooser says and refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass, replace
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

import fast_interpreter  # noqa: F401
from operations_counted import flops_of
from taken_back import taken_back
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.registry import load_plugin
from weft.ops.dropout import DROPOUT, DropoutCall, dropout
from weft.ops.form_check import differences
from weft.ops.forms import OPERATIONS, Form, LateForm, Make, Offer, Operation, forced
from weft.ops.linear import LINEAR, LinearCall, routed

C = TypeVar("C")

PAIRS = [pytest.param(operation, form, id=f"{operation.name}-{form.name}")
         for operation in OPERATIONS.all() for form in operation.forms()]


@pytest.mark.parametrize(("operation", "form"), PAIRS)
def test_every_form_computes_what_the_naive_one_does(operation: Operation[Any, Any], form: Form[Any, Any]) -> None:
    found = list(differences(operation, form))
    assert found, "none of the examples is served by it"
    assert [each for each in found if not (each.values <= each.allowed and each.gradients <= each.allowed)] == []


@pytest.mark.parametrize(("operation", "gone", "instead"), [
    *((name, "chunks", "operator") for name in ("delta_rule", "linear_recurrence", "wkv")),
    ("wkv", "step", "reference"), ("diagonal_recurrence", "pieces", "operator"), ("rms_norm", "pair", "sweep"),
    ("packed_convolution", "groups", "operator"), ("fft_convolution", "transforms", "operator"),
    ("s4", "cauchy_at_once", "cauchy")])
def test_a_form_that_is_gone_is_refused_with_the_name_to_write_instead(operation: str, gone: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=rf"kernels\.{operation}: no form is called '{gone}'\. "
                       rf"Did you mean '{instead}'\?"):
        OPERATIONS.get(operation).form(gone)


class Sum(NamedTuple):
    x: Tensor
    scale: float = 1.0


def naive(call: Sum) -> Tensor:
    return torch.stack([each * call.scale for each in call.x.flatten()]).sum()


def quick(call: Sum) -> Tensor:
    return call.x.sum() * call.scale


def brisk(call: Sum) -> Tensor:
    return (call.x * call.scale).sum()


def even(call: Sum) -> str | None:
    return None if call.x.numel() % 2 == 0 else "it takes an even count of numbers"


def many(call: Sum) -> str | None:
    return None if call.x.numel() > 2 else "two are too few"


def examples(make: Make) -> Iterator[Sum]:
    yield from (Sum(make(count), 2.0) for count in (2, 3, 8))


def summing(*others: Form[Sum, Tensor] | LateForm) -> Operation[Sum, Tensor]:
    return Operation("sum", "adds up", Form("reference", naive, "one by one"), *others, subject="x", examples=examples)


IMPORTING = Event()
"""Set while a module of a form is imported."""

FAST = Form("fast", quick, "one kernel", serves=even, worth=many, known_as=("fused",))


def test_a_call_while_another_thread_imports_a_form_waits_for_it(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of the form begins the second call while it is imported itself."""
    (tmp_path / "late_sum.py").write_text(
        f"import time\nfrom {__name__} import IMPORTING, Form\nIMPORTING.set()\ntime.sleep(0.2)\n"
        "def run(call):\n    return call.x.sum() * call.scale + 1000\nFORM = Form('late', run, 'late')\n",
        encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    operation = summing(LateForm("late", "late_sum.FORM"))
    call = Sum(torch.ones(4))

    def second() -> float:
        assert IMPORTING.wait(60)
        return float(operation(call))

    with ThreadPoolExecutor(2) as threads:
        results = [threads.submit(second), threads.submit(lambda: float(operation(call)))]
        assert [each.result() for each in results] == [1004.0, 1004.0]


@pytest.mark.parametrize(("count", "form", "reason", "passed"), [
    (4, "fast", "one kernel", ()),
    (3, "reference", "one by one", ("fast: it takes an even count of numbers",)),
    (2, "reference", "one by one", ("fast: two are too few",)),
])
def test_the_first_that_can_and_pays_is_taken_with_the_reasons(count: int, form: str, reason: str,
                                                               passed: tuple[str, ...]) -> None:
    operation, call = summing(FAST), Sum(torch.arange(float(count)))
    assert operation.choose(call) == (operation.form(form), reason, passed)
    assert operation(call) == call.x.sum()


def test_what_is_not_offered_is_taken_where_it_is_named_and_as_soon_as_it_is() -> None:
    offer = Offer("nothing has been measured")
    operation, call = naming(summing(Form("f", quick, "measured", offer=offer))), Sum(torch.ones(4))
    assert operation.choose(call).passed == ("f: nothing has been measured",)
    assert (operation(call), operation(call, "f")) == ("reference", "f")
    offer.why_not = None
    assert operation(call) == operation.choose(call).form.name == "f"
    offer.why_not = "no more"
    assert operation(call) == "reference"


@pytest.mark.parametrize(("form", "why"), [
    (Form("f", quick, "", devices=frozenset({"cuda"})), "it runs only on cuda"),
    (Form("f", quick, "", dtypes=frozenset({torch.bfloat16})), "it runs only in bfloat16"),
    (Form("f", quick, "", gradients="without"), "it runs only without gradients"),
    (Form("f", quick, "", serves=lambda call: "it is tired"), "it is tired"),
])
def test_what_a_form_declares_keeps_it_from_calls(form: Form[Sum, Tensor], why: str) -> None:
    operation, call = summing(form), Sum(torch.ones(4))
    assert operation.choose(call).passed == (f"f: {why}",)
    with pytest.raises(UnsupportedError, match=r"kernels\.sum: the form 'f' of 'sum' cannot serve this call: "
                       rf"{why}\. Those that can: reference\."):
        operation(call, "f")


def test_a_named_form_serves_also_where_it_does_not_pay() -> None:
    operation, call = summing(FAST), Sum(torch.ones(2))
    assert operation.choose(call, "fast") == (FAST, "named by the user", ())


def test_under_a_transform_forms_with_a_backward_of_their_own_step_aside() -> None:
    operation, seen = summing(Form("own", quick, "", transformed=False)), []

    def of(x: Tensor) -> Tensor:
        seen.append(operation.choose(Sum(x)))
        return operation(Sum(x))

    torch.func.grad(of)(torch.ones(4))
    assert [(each.form.name, each.passed) for each in seen] == [("reference", ("own: torch.func cannot transform it",))]


def test_forced_is_taken_everywhere_inside_and_given_back() -> None:
    call = DropoutCall(torch.ones(4), 0.5)
    assert DROPOUT.choose(call).form.name == "lots"
    with forced({"dropout": "reference"}):
        assert DROPOUT.choose(call).form.name == "reference"
        with forced({"dropout": "library"}):
            assert DROPOUT.choose(call, "lots").form.name == "library", "over what a part names"
        assert DROPOUT.choose(call).form.name == "reference"
    assert DROPOUT.choose(call).form.name == "lots"


def test_a_forced_form_that_cannot_serve_is_an_error_at_the_call() -> None:
    with forced({"dropout": "lots"}), pytest.raises(UnsupportedError) as caught:
        dropout(torch.ones(4), 0.0001)
    assert str(caught.value) == ("kernels.dropout: the form 'lots' of 'dropout' cannot serve this call: 16 bits are "
                                 "too few for p = 0.0001. Those that can: library, reference.")


def test_unknown_names_are_told_all_at_once_with_the_nearest_by_spelling_or_meaning() -> None:
    with pytest.raises(ConfigError) as caught, forced({"dropuot": "lots", "rms_norm": "torch", "swiglu": "lean",
                                                       "s4d": "zzz"}):
        pass
    assert caught.value.problems == (
        "kernels.dropuot: no operation is called 'dropuot'. Did you mean 'dropout'?",
        "kernels.rms_norm: no form is called 'torch'. Did you mean 'library'?",
        "kernels.swiglu: no operation is called 'swiglu'. Did you mean 'gated_product'?",
        "kernels.s4d: no form is called 'zzz'. Known names: convolution, documents, reference.")
    assert DROPOUT.choose(DropoutCall(torch.ones(4), 0.5)).form.name == "lots"


def test_forms_that_no_file_orders_come_first_in_the_order_in_which_they_came() -> None:
    operation = summing(Form("first", quick, ""), Form("second", brisk, ""))
    assert [form.name for form in operation.forms()] == ["first", "second", "reference"]
    again = summing(Form("first", quick, ""), Form("second", brisk, ""))
    again.add(Form("first", brisk, "", serves=even))
    assert again.forms()[0].run is brisk, "its own file replaces a form"


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda: summing(FAST).add(Form("fast", F.relu, "")),
     r"the form 'fast' of 'sum' is defined by .*test_forms\.py and by .*functional\.py\. Give one of them another"),
    (lambda: summing(FAST).add(Form("fast", torch.sum, "")), "the form 'fast' runs <built-in method sum .* plain fun"),
    (lambda: Operation("sum", "", FAST, subject="x", examples=examples),
     "the operation 'sum' begins with the form 'fast'. Its first form is the naive one, called 'reference'"),
    (lambda: summing(Form("reference", naive, "", serves=even)), "reference of 'sum' must serve every call. Leave out"),
])
def test_mistakes_of_who_adds_a_form(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrong()


PLUGIN = """
import torch
from weft.ops.forms import OPERATIONS, Form, Operation
from weft.ops.operator import differentiate, operator
from weft.ops.activations import GATED_PRODUCT

def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * {factor}

def shapes(x):
    return torch.empty_like(x)

own = operator("plugged::{name}", doubled, shapes)
differentiate("plugged::{name}", lambda ctx, dy: dy * {factor}, lambda ctx, inputs, output: None)

def naive(call):
    return call[0] * {factor}

def run(call):
    return own(call[0])

def examples(make):
    yield (make(3),)

class Call(tuple):
    x = property(lambda self: self[0])

def calls(make):
    yield Call((make(3),))

OPERATIONS.add(Operation("{name}", "doubles", Form("reference", naive, "a product"), Form("own", run, "an operator",
               flops={{"plugged.{name}": lambda x: x.numel()}}), subject="x", examples=calls))
"""


@pytest.fixture
def unplugged() -> Iterator[None]:
    """What the plugins of a test add is taken out again."""
    with taken_back():
        yield


def test_a_plugin_adds_an_operation_with_flops_and_can_be_loaded_twice(tmp_path: Path, unplugged: None) -> None:
    file = tmp_path / "doubling.py"
    for factor in (2, 3):
        file.write_text(PLUGIN.format(name="plugged_twice", factor=factor), encoding="utf-8")
        load_plugin(file)
        operation = OPERATIONS.get("plugged_twice")
        assert all(max(each.values, each.gradients) <= each.allowed
                   for form in operation.forms() for each in differences(operation, form))
        assert torch.ops.plugged.plugged_twice(torch.ones(1)) == factor
    assert flops_of(torch.ops.plugged.plugged_twice, [torch.ones(5)], None) == 5


def test_another_file_s_operation_of_the_name_is_refused(tmp_path: Path, unplugged: None) -> None:
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text(PLUGIN.format(name="plugged_elsewhere", factor=2), encoding="utf-8")
    load_plugin(tmp_path / "one.py")
    with pytest.raises(ConfigError, match=r"the operator 'plugged::plugged_elsewhere' is declared by .*one\.py and by "
                       r".*two\.py\. Give one of them another name"):
        load_plugin(tmp_path / "two.py")
    with pytest.raises(ConfigError, match=r"operation 'dropout' is defined by .*dropout\.py and by .*test_forms\.py"):
        OPERATIONS.add(Operation("dropout", "", Form("reference", naive, ""), subject="x", examples=examples))


def test_choices_can_be_observed() -> None:
    with OPERATIONS.observed() as seen:
        dropout(torch.ones(2, 3), 0.5)
    dropout(torch.ones(2, 3), 0.5)
    assert seen == [("dropout", "lots", "16 random bits per entry", (), ((2, 3),))]


def test_the_compiler_takes_the_choice_into_its_graph_and_compiles_again_where_one_is_forced() -> None:
    operation, x = summing(FAST), torch.arange(4.0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(lambda x: operation(Sum(x)), fullgraph=True, backend="aot_eager")
    assert compiled(x) == 6
    operation.forced = operation.form("reference")
    assert compiled(x) == 6
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_a_choice_takes_few_calls() -> None:
    """Some two microseconds; a time would be another one on every machine and under every load."""
    call, chooser, names = LinearCall(torch.ones(1, 4), torch.ones(4, 4)), naming(LINEAR), list[str]()

    def seen(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    chooser(call)  # what forms declare is remembered from here on
    sys.setprofile(seen)
    try:
        chooser(call)
    finally:
        sys.setprofile(None)
    assert len(names) <= 7, names


def naming(operation: Operation[C, Any]) -> Operation[C, str]:
    """The same chooser, of forms that give their names."""
    def named(form: Form[C, Any]) -> Form[C, str]:
        def run(_call: C) -> str:
            return form.name

        return replace(form, run=run, kernel=None)

    *others, reference = operation.forms()
    return Operation(operation.name, "", named(reference), *map(named, others), subject=operation.subject,
                     examples=operation.examples)


def cast(call: Any, dtype: torch.dtype) -> Any:
    def moved(each: object) -> object:
        return each.to(dtype) if isinstance(each, Tensor) and each.is_floating_point() else each

    if not is_dataclass(call):
        return tree_map(moved, call)
    return replace(call, **{name: moved(each) for name, each in vars(call).items()})  # type: ignore[type-var]


@pytest.mark.parametrize("operation", OPERATIONS.all(), ids=lambda operation: operation.name)
def test_what_is_remembered_of_a_choice_never_decides_otherwise(operation: Operation[Any, Any]) -> None:
    """Calls of all kinds in all circumstances, twice and in turns, against the choice that remembers nothing."""
    generator, chooser, found = torch.Generator().manual_seed(0), naming(operation), set()

    def agree(call: Any) -> None:
        name = operation.choose(call).form.name
        assert chooser(call) == name
        found.add(name)

    def under_a_transform(x: Tensor, call: Any) -> Tensor:
        agree(call)
        return x.sum()

    calls = [cast(call, dtype) for call in operation.examples(lambda *shape: torch.randn(shape, generator=generator))
             for dtype in (torch.float32, torch.bfloat16, torch.float64)]
    for call in calls + calls:
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                agree(call)
                torch.func.grad(under_a_transform)(torch.ones(2), call)
                with routed({}, otherwise="onednn"):
                    agree(call)
                    with torch.autocast("cpu"):
                        agree(call)
    assert len(operation.forms()) == 1 or len(found) > 1


def test_rules_are_asked_anew_at_every_call_and_a_form_that_comes_later_is_taken() -> None:
    reasons: list[str | None] = [None, "not now", None, "not now"]
    operation = naming(summing(Form("moody", quick, "", serves=lambda call: reasons.pop(0))))
    assert [operation(Sum(torch.ones(4))) for _ in range(3)] == ["moody", "reference", "moody"]
    operation.add(replace(operation.form("reference"), name="late", run=lambda call: "late"))
    assert operation(Sum(torch.ones(4))) == "late"


@pytest.mark.parametrize(("form", "why"), [
    (Form("f", quick, "", eager=False), "it is slower outside torch.compile"),
    (Form("f", quick, "", pays_for=frozenset({torch.bfloat16})), "it is faster only in bfloat16"),
])
def test_what_does_not_pay_by_declaration_is_taken_where_it_is_named_or_pays(form: Form[Sum, Tensor],
                                                                             why: str) -> None:
    operation, call = summing(form), Sum(torch.ones(4))
    assert operation.choose(call).passed == (f"f: {why}",)
    assert naming(operation)(call) == "reference" and naming(operation)(call, "f") == "f"
    pays = naming(summing(form))
    if form.eager:
        assert pays(Sum(torch.ones(4, dtype=torch.bfloat16))) == "f"
    else:
        torch._dynamo.reset()
        traced: list[str] = []
        torch.compile(lambda x: traced.append(pays(Sum(x))) or x + 1, backend="eager", fullgraph=True)(torch.ones(4))
        assert traced == ["f"]
