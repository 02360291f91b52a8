"""The proof of a conversion that begins with text: `transformers` reads the same ids of it and predicts the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.core.errors import FailedError, TokenizerError
from weft.core.heads import outputs
from weft.core.model import EncoderInputs, Model
from weft.core.span import Span
from weft.data.labelled import Frame
from weft.interop.huggingface.text import framing, reads_whole, takes_source
from weft.tokenizers import Tokenizer
from weft.tokenizers.library import LIBRARY_FILE

SAMPLES = ("a film.", "The plot is good, and 2 of them act!", "no")
"""Texts of different lengths, so that a batch of them is padded."""

BOUND = 1e-3
"""Largest difference of predictions that rounding of float32 explains, relative to the largest; other tokens, or
padding that is read, change them by about their own size. Narrower weights are compared by their ids alone."""


def reads_pairs(run: Mapping[str, Any] | None) -> bool:
    """Whether a run trained on pairs of texts."""
    return bool(((run or {}).get("task") or {}).get("second_field"))


@dataclass(frozen=True)
class ComparedTexts:
    """The texts of a comparison.

    Attributes:
        own: whether Weft wrote the tokenizer's files: a difference is a fault then, and else a note, since the files
            are those that were read.
        pairs: whether the model was trained on pairs of texts.
    """

    tokenizer: Tokenizer
    model: Model
    own: bool
    pairs: bool

    def compared(self, folder: Path, theirs: Any, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Notes on what differs between a text here and in `transformers`.

        Args:
            folder: that has been written.
            theirs: its model in `transformers`.
            options: with which that was opened.

        Raises:
            FailedError: ids or predictions differ, though Weft wrote the tokenizer.
        """
        if LIBRARY_FILE not in self.tokenizer.files() or not (folder / LIBRARY_FILE).is_file():
            return ()
        import transformers

        read: Any = transformers.AutoTokenizer.from_pretrained(folder, **options)
        samples = [(text, SAMPLES[0])[:1 + self.pairs] for text in SAMPLES]
        try:
            rows = [self._row(texts) for texts in samples]
        except TokenizerError:  # a vocabulary of few characters, which has none for these texts
            return ()
        padded = reads_whole(self.model) or takes_source(self.model)
        limit = self.model.source_limit() if takes_source(self.model) else self.model.limit()
        fitting = [place for place, (ids, _) in enumerate(rows) if not padded or limit is None or len(ids) <= limit]
        if not fitting:
            return ()
        samples, rows = [samples[place] for place in fitting], [rows[place] for place in fitting]
        given = read(*map(list, zip(*samples, strict=True)), padding=padded, return_tensors="pt" if padded else None)
        for place, (ids, second) in enumerate(rows):
            found = [int(token) for token, real in zip(given["input_ids"][place], given["attention_mask"][place],
                                                       strict=True) if real]
            types = given["token_type_ids"][place].tolist() if "token_type_ids" in given and padded else None
            if found != ids or (types is not None and types[:len(ids)] != [0] * (len(ids) - second) + [1] * second):
                return self._differs(f"transformers reads {' | '.join(samples[place])!r} as {found}, where Weft reads "
                                     f"{ids}")
        if not padded or next(self.model.parameters()).dtype not in (torch.float32, torch.float64):
            return ()
        return self._predicted(rows, theirs, given)

    def _row(self, texts: Sequence[str]) -> tuple[list[int], int]:
        """The ids of a text or a pair as the model's task reads them, and how many belong to the second text."""
        if reads_whole(self.model):
            tokens, second, _ = Frame(self.tokenizer).around([self.tokenizer.measure(text) for text in texts])
            return tokens.tolist(), second
        first, last = ([] if place is None else [place] for place in framing(self.tokenizer, self.model))
        return [*first, *self.tokenizer.encode(texts[0]), *last], 0

    def _predicted(self, rows: Sequence[tuple[list[int], int]], theirs: Any, given: Mapping[str, Tensor]) -> tuple[str,
                                                                                                            ...]:
        """Compare what both make of the padded batch."""
        ids, count = given["input_ids"], torch.tensor([len(row) for row, _ in rows])
        device = next(self.model.parameters()).device
        types = torch.zeros_like(ids)
        for place, (row, second) in enumerate(rows):
            types[place, len(row) - second:len(row)] = 1
        kept = ids.where(given["attention_mask"].bool(), 0).to(device)
        inputs = EncoderInputs(kept, types=types.to(device) if self.model.reads().get("types", 0) > 1 else None)
        span, opening, model = Span(count=count.to(device)), {}, self.model.eval()
        with torch.inference_mode():
            if takes_source(model):  # by the first token of the target, which says what was read of the source
                start = torch.full((len(rows), 1), theirs.generation_config.decoder_start_token_id or 0)
                span, opening = Span(memory=model.encode(inputs, span)), {"decoder_input_ids": start}
                ours = model(start.to(device), None, span).y[:, 0].float().cpu()
            else:
                ours = outputs(model.head, model.vectors(inputs, span).y, span).float().cpu()
            found = theirs(**given, **opening)
            other = next(found[name] for name in ("logits", "last_hidden_state") if name in found).float()
        other = other[:, 0] if opening else other
        real = torch.arange(ids.shape[1])[None] < count[:, None] if ours.ndim == 3 else torch.ones(len(rows)).bool()
        difference, largest = float((ours - other)[real].abs().max()), float(ours[real].abs().max())
        if not difference <= BOUND * max(1.0, largest):
            return self._differs(f"transformers predicts otherwise from text, by up to {difference:.3g}")
        return ()

    def _differs(self, what: str) -> tuple[str, ...]:
        if self.own:
            raise FailedError(f"{what}.", where="convert",
                              remedy="Nothing was written. Please report this model and its tokenizer.")
        return (f"{what}; the tokenizer's files are those of the source, so give it ids where that matters",)
