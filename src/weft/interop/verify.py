"""Conversions verified by numbers: the same rows through the model and through the result."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.core.errors import FailedError
from weft.core.heads import outputs
from weft.core.images import ImageModel
from weft.core.model import EncoderInputs, LanguageModel, Model
from weft.core.span import WHOLE, Span
from weft.families.family import Native, families
from weft.interop.huggingface.folder import read_raw
from weft.interop.huggingface.from_text import ComparedTexts
from weft.interop.huggingface.text import reads_whole, takes_source
from weft.interop.huggingface.with_code import brings_bundled_code

ROWS, LENGTH, SEED = 2, 16, 0
BOUNDS = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
"""Largest difference that rounding explains, relative to the largest logit: a mistake in a conversion (an order of
heads, a transposed matrix) changes logits by about their own size."""


def probe(model: Model) -> Tensor:
    """Rows of random tokens [2,T], as long as the model allows, or two random images."""
    if isinstance(model, ImageModel):
        return torch.randn(ROWS, *model.image_size, generator=torch.Generator().manual_seed(SEED))
    reach = min(each for each in (LENGTH, model.config.context, model.limit() or LENGTH))
    known = min(model.vocab_size, model.source_vocab_size) if takes_source(model) else model.vocab_size
    return torch.randint(known, (ROWS, reach), generator=torch.Generator().manual_seed(SEED))


def a_tensor(model: Model) -> Tensor:
    """A tensor with the model's device and dtype: a parameter, or a buffer where there are none (tables of counts)."""
    return next(chain(model.parameters(), model.buffers()))


def logits_of(model: Model, tokens: Tensor) -> Tensor:
    """Logits [B,T,V] in float32 on the CPU, of an encoder-decoder with the tokens as its source too; for an encoder the
    output of its head, or its vectors [B,T,D] without one."""
    here = tokens.to(a_tensor(model).device)
    with torch.inference_mode():
        return run(model, here).float().cpu()


def run(model: Model, tokens: Tensor) -> Tensor:
    """The numbers of `logits_of`, with gradients."""
    if reads_whole(model):
        inputs = model.images(tokens) if isinstance(model, ImageModel) else EncoderInputs(tokens)
        return outputs(model.head, model.vectors(inputs).y, WHOLE)
    assert isinstance(model, LanguageModel), "any other model reads rows whole"
    found: Tensor = model(tokens, None, Span(memory=model.encode(EncoderInputs(tokens)))
                          if model.takes_source else None).y
    return found


def largest_difference(ours: Tensor, theirs: Tensor) -> float:
    """max |a - b|; equal infinities have difference 0."""
    return float(torch.where(ours == theirs, 0.0, (ours - theirs).abs()).max())


def bound_of(expected: Tensor, dtypes: Sequence[torch.dtype]) -> float:
    """The largest difference from these logits that rounding in the dtypes explains."""
    largest = float(torch.where(expected.isfinite(), expected.abs(), 0.0).max())
    return max(BOUNDS[dtype] for dtype in dtypes) * max(1.0, largest)


def require_close(difference: float, expected: Tensor, dtypes: Sequence[torch.dtype], what: str) -> None:
    """Raise if rounding in the dtypes does not explain a difference. Raises `FailedError`: with the difference."""
    bound = bound_of(expected, dtypes)
    if math.isnan(difference) or difference > bound:
        raise FailedError(f"{what} gives logits that differ by up to {difference:.3g}, where rounding explains "
                          f"{bound:.3g}.", where="convert", remedy="Nothing was written. Please report this model.")


def foreign_logits(folder: Path, tokens: Tensor,
                   texts: ComparedTexts | None = None) -> tuple[Tensor | None, tuple[str, ...]]:
    """The logits of a folder in `transformers` (the last hidden vectors of a model without a head), and notes for the
    user: no logits where it is not installed, or where it opens the folder but cannot run a model of these sizes. Code
    in the folder is run only if it is, byte for byte, Weft's own.

    Args:
        folder: that has been written.
        tokens: rows [B,T].
        texts: compares predictions from text; None: the model has no tokenizer.

    Raises:
        FailedError: `transformers` cannot open the folder, or makes another prediction of a text.
    """
    if importlib.util.find_spec("transformers") is None:
        return None, ()
    import transformers
    from transformers import __version__

    dropped = _dropped(folder)
    if dropped is not None and getattr(transformers, dropped.architecture, None) is None:
        return None, (f"transformers {__version__} no longer has the class {dropped.architecture}, so only Weft has "
                      f"compared the numbers; version {dropped.opened_by} opens the folder.",)
    # All exceptions: any error of a foreign library is reported to the user in one line.
    trusted = {"local_files_only": True, "trust_remote_code": brings_bundled_code(folder)}
    try:
        auto: Any = getattr(transformers, auto_class(folder))
        model: Any = auto.from_pretrained(folder, **trusted)
    except Exception as error:
        raise FailedError(f"transformers {__version__} does not open what was written: {_line(error)}", where="convert",
                          remedy="Nothing was written. Please report this model.") from error
    try:
        with torch.inference_mode():
            inputs = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
            found = model.eval()(tokens, **inputs)
            names = ("logits", "prediction_scores", "last_hidden_state")
            logits: Tensor = next(found[name] for name in names if name in found)
    except Exception as error:
        return None, (f"transformers {__version__} opens the folder and cannot run it, so only Weft has compared the "
                      f"numbers: {_line(error)}",)
    return logits.float(), () if texts is None else texts.compared(folder, model, trusted)


def _dropped(folder: Path) -> Native | None:
    """The format of a folder whose class later versions of `transformers` have dropped; None for any other."""
    kind = read_raw(folder).get("model_type")
    natives = (family.native for family in families().values())
    return next((each for each in natives if each is not None and each.opened_by and each.model_type == kind), None)


HEADED = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForImageClassification")
"""Ends of the names of classes with heads, which name the class of `transformers` that opens them."""


def auto_class(folder: Path) -> str:
    """The class of `transformers` that opens a folder with the head that its config.json names."""
    names = [str(name) for name in read_raw(folder).get("architectures") or ()]
    if any(name.endswith(("ForConditionalGeneration", "MTModel", "ForSeq2SeqLM")) for name in names):
        return "AutoModelForSeq2SeqLM"
    headed = next((f"AutoModel{end}" for end in HEADED for name in names if name.endswith(end)), None)
    bare = any(name.endswith("Model") and not name.endswith("LMHeadModel") for name in names)
    return headed or ("AutoModel" if bare else "AutoModelForCausalLM")


def _line(error: Exception) -> str:
    """An error of another library as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
