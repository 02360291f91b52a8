"""The task of answering: conversations, of which a model learns the assistant's tokens alone."""

from __future__ import annotations

from typing import ClassVar, Self

from weft.chat.answers import Which
from weft.core.model import Model, ModelState
from weft.core.part_config import About
from weft.core.registry import register
from weft.data import PackedBatches, TokenStream
from weft.data.batches import MadeOfText
from weft.data.settings import DataSettings
from weft.evaluation.measuring import evaluating, exponential, finite, in_batches, spread
from weft.tasks.base import BatchSums, Rows, Task, TaskDeclared, TaskSettings, on_device
from weft.tasks.conversations import ConversationConfig, causal_problems, conversation_material, held_out_stream
from weft.tasks.text import TextColumns, text_columns, text_loss, text_rows
from weft.tasks.token_streams import HeldOut, Material
from weft.tasks.validation import Validation, part_measured
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig


@register
class AnswersConfig(ConversationConfig):
    """Predict the assistant's tokens of conversations, the one that ends each answer included, from all tokens before
    them; any language model that needs no source.

    The loss is the mean over scored tokens t of -log p(t | what precedes it). Which tokens are scored follows from the
    chat template, see `weft.chat.answers`.

    Attributes:
        scored: ``all`` answers of a conversation, or the ``last`` alone, as is necessary for templates that write
            earlier answers otherwise than the last.
    """

    kind: ClassVar[str] = "answers"
    about = About(
        also_called=("sft", "instructions", "instruction_tuning", "supervised_finetuning", "chat", "completion_only"),
        source="Ouyang et al. 2022, section 3.5 and appendix C.1; Wei et al. 2022 (instruction tuning)",
        equation=(r"L = -\frac{1}{|A|} \sum_{t \in A} \log p(x_t \mid x_{<t}), \qquad A = \text{tokens of the "
                  r"assistant}"),
        differs=(("next_token", "only the tokens of answers count."),
                 ("preferences", "learns from one answer, without a worse one beside it.")),
        pictured=(("user:", ""),
                  ("Who wrote it?", ""),
                  ("assistant:", "Ada"),
                  ("Ada", "did."),
                  ("did.", "end of answer")))

    scored: Which = "all"

    @property
    def which(self) -> Which:
        return self.scored

    def declares(self) -> TaskDeclared:
        return TaskDeclared(packs=True, smooths=True)

    def create(self, settings: TaskSettings) -> Answers:
        return Answers(self, settings)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(template="chatml", scored="last", too_long="cut", shape="alpaca")]


class Answers(Task[AnswersConfig, TokenStream, TextColumns]):
    """Whole conversations, one in a row, or with ``data.packing: documents`` several, which do not see one another.

    The loss is the summed negative log-likelihood of the answers' tokens. It measures that loss, the perplexity of an
    answer's token, and bits per byte of the answers' text.
    """

    def problems(self, model: Model) -> list[str]:
        return causal_problems(model, self.name) or super().problems(model)

    def material(self, data: DataSettings, tokenizer: TokenizerConfig) -> Material[TokenStream]:
        return conversation_material(self.config, data, tokenizer)

    def held_out(self, data: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> TokenStream:
        return held_out_stream(self.config, data, tokenizer, part)

    def batches(self, examples: TokenStream) -> MadeOfText[Rows[TextColumns]]:
        return MadeOfText(self._rows(examples, alone=self.settings.packing != "documents"), text_rows)

    def _rows(self, examples: TokenStream, *, alone: bool) -> PackedBatches:
        settings = self.settings
        return PackedBatches(examples, rows=settings.rows, length=settings.context, seed=settings.seed,
                             reshuffle=settings.reshuffle, long=self.config.too_long, alone=alone)

    def loss(self, model: Model, columns: TextColumns, state: ModelState | None) -> BatchSums:
        return text_loss(model, columns, state, self.settings.objective)

    def measure(self, model: Model, examples: TokenStream, batches: int | None = None) -> Validation:
        """Measure each conversation once, alone in its row.

        Raises:
            DataError: none fits into the context.
            FailedError: the loss is NaN.
        """
        rows = self._rows(examples, alone=True)
        groups = in_batches(rows.windows, self.settings.rows)
        nats, lost, tokens, size = 0.0, 0.0, 0, 0
        with evaluating(model) as device:
            for chosen in spread(groups, batches):
                batch = rows.of(chosen)
                columns = on_device(text_columns(batch), device)
                nats += finite(self.loss(model, columns, None).nats, examples.corpus)
                tokens, size, lost = tokens + batch.scored_tokens, size + batch.scored_bytes, lost + batch.lost
        protocol = ("each token of the assistant, and the one that ends its answer, predicted from the conversation "
                    f"before it; {rows.notice}{part_measured(batches, len(groups))}")
        return Validation.of_text(nats, lost, tokens, size, protocol, {"perplexity": exponential(nats / tokens)})
