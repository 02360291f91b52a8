"""Text to batches: corpora, streams of tokens, training batches and evaluation windows."""

from __future__ import annotations

from weft.data.batch import Batch
from weft.data.batch_source import BatchSource, Lengths
from weft.data.batches import Batches, MadeOfText, SequentialBatches, ShuffledBatches
from weft.data.corpus import Corpus, repeated
from weft.data.document import Document
from weft.data.duplicates import Repeated, overlap
from weft.data.embedded import embedded_corpus
from weft.data.packed import PackedBatches
from weft.data.stream import TokenStream, encode_corpus
from weft.data.text import read_text
from weft.data.windows import EvaluationWindows

__all__ = ["Batch", "BatchSource", "Batches", "Corpus", "Document", "EvaluationWindows", "Lengths", "MadeOfText",
           "PackedBatches", "Repeated", "SequentialBatches", "ShuffledBatches", "TokenStream", "embedded_corpus",
           "encode_corpus", "overlap", "read_text", "repeated"]
