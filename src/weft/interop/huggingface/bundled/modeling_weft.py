"""A language model of Weft as a causal language model of `transformers`.

The parts are those of the installed package `weft`; this file translates calls. A row in a padded batch, on either
side, gives what that row alone gives.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_weft import WeftConfig

try:
    from weft.interop.huggingface.columns import Reading, in_rows, read
    from weft.interop.huggingface.with_code import build, set_constants, tied_names
except ImportError as error:
    raise ImportError(f"This model is built by the Python package `weft`, which cannot be used here ({error}). Install "
                      "Weft, in the version that config.json names under `weft` or a later one.") from error


class WeftCache:
    """What a batch has read so far. It grows with what the architecture remembers: keys and values, or a state."""

    is_compileable = False
    is_croppable = False

    def __init__(self) -> None:
        self.reading = Reading()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns of the batch that have been read, padding included."""
        return self.reading.columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Go on with these rows, repeats allowed."""
        self.reading.select(beam_idx)


class WeftForCausalLM(PreTrainedModel, GenerationMixin):
    """Any language model of Weft that predicts the next token."""

    config_class = WeftConfig
    main_input_name = "input_ids"
    _is_stateful = True

    def __init__(self, config: WeftConfig) -> None:
        super().__init__(config)
        self.model = build(config.weft)
        tied = tied_names(self.model)
        config.tie_word_embeddings = bool(tied)
        self._tied_weights_keys = {f"model.{name}": f"model.{first}" for name, first in tied.items()}
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As `PreTrainedModel.from_pretrained`.

        Raises:
            ValueError: weights that the folder lacks; nothing is made up in their place.
        """
        model, found = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        if found["missing_keys"]:
            raise ValueError(f"The folder has no weights for {', '.join(sorted(found['missing_keys']))}. Copy it "
                             "again, whole.")
        return (model, found) if output_loading_info else model

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # what is kept differs from one architecture to the next: see WeftCache

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As `GenerationMixin.prepare_inputs_for_generation`; how far rows have come, the cache knows by itself."""
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        return {name: value for name, value in inputs.items() if value is not None and name != "cache_position"}

    def _init_weights(self, module: nn.Module) -> None:
        set_constants(module)  # weights begin as Weft's parts begin them; these numbers are in no file

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None,
                past_key_values: WeftCache | None = None, labels: Tensor | None = None, use_cache: bool | None = None,
                logits_to_keep: int | Tensor = 0, return_dict: bool | None = None,
                ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits of the next token.

        Args:
            input_ids: ids [B,T]; those that ``past_key_values`` has not read.
            attention_mask: 0 for padding, on either side, which is skipped, else 1: [B,T], or with a cache [B,S+T]
                with the S columns that it has read. Padding gives the logits of the token before it.
            past_key_values: from an earlier call; it is read on, so copy it to keep it.
            labels: ids [B,T], -100 where nothing is to be predicted; each is predicted by the token before it.
            use_cache: give back a cache; None: as the configuration says, and not in training.
            logits_to_keep: logits of the last so many columns only, or of these columns; 0: of all.
            return_dict: False: a tuple.

        Returns:
            ``loss`` in nats, auxiliary losses added, where there are labels; ``logits`` [B,T,V]; ``past_key_values``.
        """
        if use_cache is None:
            use_cache = bool(self.config.use_cache) and not self.training
        if use_cache and past_key_values is None:
            past_key_values = WeftCache()
        mask = None if attention_mask is None else attention_mask[:, -input_ids.shape[1]:]
        out = read(self.model, input_ids, mask, None if past_key_values is None else past_key_values.reading)
        logits = self.model.readout.logits(_kept(out.y, logits_to_keep if labels is None else 0))
        loss = None
        if labels is not None:
            loss = self.loss_function(*in_rows(logits, labels, mask), vocab_size=self.config.vocab_size)
            loss = loss + sum(each.value for each in out.losses)
            logits = _kept(logits, logits_to_keep)
        found = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values if use_cache else None)
        wanted = self.config.return_dict if return_dict is None else return_dict
        return found if wanted else found.to_tuple()


def _kept(columns: Tensor, keep: int | Tensor) -> Tensor:
    """The last ``keep`` columns, all for 0, or those of the given places."""
    return columns[:, -keep:] if isinstance(keep, int) else columns[:, keep]
