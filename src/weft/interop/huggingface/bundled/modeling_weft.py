"""A language model of Weft as a causal language model of `transformers`.

The parts are those of the installed package `weft`; this file translates calls. A row in a batch that is padded on
either side has the same logits as that row alone.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_weft import WeftConfig

try:
    from weft.interop.huggingface.columns import Reading, in_rows, read
    from weft.interop.huggingface.with_code import build, exact_names, set_constants, tied_names
except ImportError as error:
    raise ImportError(f"This model is built by the Python package `weft`, which cannot be used here ({error}). Install "
                      "Weft, in the version that config.json names under `weft` or a later one.") from error


class WeftCache:
    """The state of a batch after the columns so far: keys and values, or another state of the architecture."""

    is_compileable = False
    is_croppable = False

    def __init__(self) -> None:
        self.reading = Reading()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of columns of the batch so far, padding included."""
        return self.reading.columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Make the batch consist of these rows; a row may be repeated."""
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
        self._keep_in_fp32_modules_strict = {f"model.{name}" for name in exact_names(self.model)}
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As `PreTrainedModel.from_pretrained`.

        Raises:
            ValueError: the folder lacks weights of the model; these are never initialised at random instead.
        """
        model, found = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        if found["missing_keys"]:
            raise ValueError(f"The folder has no weights for {', '.join(sorted(found['missing_keys']))}. Copy all of "
                             "its files again.")
        return (model, found) if output_loading_info else model

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the cache depends on the architecture: see WeftCache

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As `GenerationMixin.prepare_inputs_for_generation`, without ``cache_position``: the cache stores how many
        tokens each row has."""
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        return {name: value for name, value in inputs.items() if value is not None and name != "cache_position"}

    def _init_weights(self, module: nn.Module) -> None:
        set_constants(module)  # Weft's parts initialise their own weights; these constants are stored in no file

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None,
                past_key_values: WeftCache | None = None, labels: Tensor | None = None, use_cache: bool | None = None,
                logits_to_keep: int | Tensor = 0, return_dict: bool | None = None,
                ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Return the logits of the next token.

        Args:
            input_ids: ids [B,T] of the columns after those in ``past_key_values``.
            attention_mask: 0 for padding, which may be on either side and is skipped, 1 elsewhere: [B,T], or with a
                cache [B,S+T], where S is the number of its columns. The logits of padding are those of the token before
                it.
            past_key_values: the cache of an earlier call, which this call changes; copy it to keep it.
            labels: ids [B,T], -100 where nothing is to be predicted; each is predicted by the token before it.
            use_cache: whether to return a cache; None: as configured, and never in training.
            logits_to_keep: return the logits of this number of last columns, or of these columns; 0: of all.
            return_dict: False returns a tuple.

        Returns:
            ``loss`` in nats including auxiliary losses, if there are labels; ``logits`` [B,T,V]; ``past_key_values``.
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
    """Return the last ``keep`` columns, all for 0, or the columns of these indices."""
    return columns[:, -keep:] if isinstance(keep, int) else columns[:, keep]
