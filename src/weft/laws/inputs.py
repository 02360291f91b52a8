"""An encoder reads every input that it declares, each row independently of the others, and refuses other inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import torch
from torch import Tensor

from weft.core.errors import InputError
from weft.core.model import Encoder, EncoderInputs
from weft.core.span import Span
from weft.laws.report import COUNT, Finding, difference
from weft.laws.subject import Subject

LAW = "inputs"


def inputs(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Rows of several lengths, with all declared inputs, equal each row alone for any values in the padding; each
    declared input changes the output; and each other input is refused with an error that names it."""
    encoder = subject.module
    if not isinstance(encoder, Encoder):
        return
    device = next(encoder.parameters()).device
    counts = torch.tensor([subject.steps, subject.steps // 2, 1], device=device)
    values = _drawn(encoder, (3, subject.steps), generator)
    with torch.no_grad():
        alone = _alone(encoder, values, counts)
        span = Span(count=counts)
        base = encoder(values, span)
        yield Finding(LAW, "rows of several lengths, all inputs", difference(base, alone), subject.bound)
        other = _drawn(encoder, (3, subject.steps), generator)
        inside = torch.arange(subject.steps, device=device)[None] < counts[:, None]
        for name, size in encoder.reads().items():
            mine, theirs = getattr(values, name), getattr(other, name)
            own = inside if mine.dim() == 2 else inside[..., None]
            padded = replace(values, **{name: torch.where(own, mine, theirs)})
            yield Finding(LAW, f"other {name} in the padding", difference(encoder(padded, span), base), subject.bound)
            if size == 1 and name != "patches":
                continue  # of one type alone there is no other
            changed = replace(values, **{name: theirs})
            same = difference(encoder(changed, span), base) == 0
            yield Finding(LAW, f"other {name} {'change nothing' if same else 'make a difference'}", float(same), COUNT)
        yield from _refusals(encoder, values)


def _refusals(encoder: Encoder, values: EncoderInputs) -> Iterator[Finding]:
    """Inputs that the encoder does not read are refused, not ignored."""
    rows = values.tokens if values.tokens is not None else values.patches
    assert rows is not None, "an encoder reads tokens or patches"
    for field in fields(EncoderInputs):
        if field.name not in encoder.reads():
            odd = torch.zeros(rows.shape[:2], dtype=torch.bool if field.name == "globals_" else torch.int64)
            taken = not _refused(encoder, replace(values, **{field.name: odd.to(rows.device)}), field.name)
            yield Finding(LAW, f"{field.name}, which it does not read, {'are taken' if taken else 'are refused'}",
                          float(taken), COUNT)


def _refused(encoder: Encoder, values: EncoderInputs, name: str) -> bool:
    try:
        encoder(values)
    except InputError as error:
        return name in str(error)
    return False


def _drawn(encoder: Encoder, shape: tuple[int, int], generator: torch.Generator) -> EncoderInputs:
    """Random values of every input that the encoder reads."""
    own = next(encoder.parameters())
    values: dict[str, Tensor] = {}
    for name, size in encoder.reads().items():
        if name == "patches":
            numbers = torch.randn(*shape, size, generator=generator, dtype=torch.float64)
            values[name] = numbers.to(own.device, own.dtype)
        else:
            ids = torch.randint(size, shape, generator=generator).to(own.device)
            values[name] = ids.bool() if name == "globals_" else ids
    return EncoderInputs(**values)


def _alone(encoder: Encoder, values: EncoderInputs, counts: Tensor) -> Tensor:
    """The outputs of each row in a call of its own, with zeros beyond the row's count."""
    rows = []
    for b, count in enumerate(counts.tolist()):
        own = {field.name: getattr(values, field.name) for field in fields(values)}
        y = encoder(EncoderInputs(**{name: None if value is None else value[b:b + 1, :count]
                                     for name, value in own.items()}))
        rows.append(torch.cat([y, y.new_zeros(1, int(counts.max()) - count, y.shape[2])], dim=1))
    return torch.cat(rows)
