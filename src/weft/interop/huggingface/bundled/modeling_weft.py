"""A model of Weft as a model of `transformers`, with the class for its head.

The parts are those of the installed package `weft`; this file translates calls. A row in a batch that is padded on
either side has the same logits as that row alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    ImageClassifierOutput,
    MaskedLMOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from .configuration_weft import WeftConfig

try:
    from weft.interop.huggingface.columns import NO_TARGET, Reading, in_rows, memory_of, read, read_source, read_whole
    from weft.interop.huggingface.with_code import build, exact_names, set_constants, tied_names
except ImportError as error:
    raise ImportError(f"This model is built by the Python package `weft`, which cannot be used here ({error}). Install "
                      "Weft, in the version that config.json names under `weft` or a later one.") from error


class WeftCache:
    """The state of a batch after the columns so far: keys and values, or another state of the architecture."""

    is_compileable = False
    is_croppable = False
    is_linear = (False,)

    def __init__(self) -> None:
        self.reading = Reading()

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of columns of the batch so far, padding included."""
        return self.reading.columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Make the batch consist of these rows; a row may be repeated."""
        self.reading.select(beam_idx)


class WeftModel(PreTrainedModel):
    """Any encoder of Weft without a head. The classes of heads read whole rows as it does, but for that of causal
    language models."""

    config_class = WeftConfig
    main_input_name = "input_ids"
    output: type[Any] = BaseModelOutput

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

    def _init_weights(self, module: nn.Module) -> None:
        set_constants(module)  # Weft's parts initialise their own weights; these constants are stored in no file

    def _returned(self, found: Any, losses: Any, return_dict: bool | None) -> Any:
        """Add auxiliary losses to the loss, if there is one; as a tuple if that is wanted."""
        if found.get("loss") is not None:
            found["loss"] = found["loss"] + sum(each.value for each in losses)
        return found if (self.config.return_dict if return_dict is None else return_dict) else found.to_tuple()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
                global_attention_mask: Tensor | None = None, labels: Tensor | None = None,
                return_dict: bool | None = None) -> Any:
        """Return what the head gives for whole rows, or their vectors.

        Args:
            input_ids: ids [B,T].
            attention_mask: 0 for padding, which may be in any column and is skipped, 1 elsewhere.
            token_type_ids: segments [B,T], for a model with at least two.
            global_attention_mask: 1 for tokens that attend to all, for a model whose masks read that.
            labels: classes or values of the rows, or classes or ids of the tokens with -100 where there is none.
            return_dict: False returns a tuple.

        Returns:
            ``loss``, the mean over what is labelled with auxiliary losses, if there are labels; and ``logits`` [B,C] of
            rows or [B,T,C] of tokens, or without a head ``last_hidden_state`` [B,T,D].
        """
        out = read_whole(self.model, input_ids, attention_mask, token_type_ids, global_attention_mask)
        return self._headed(out, labels, return_dict)

    def _headed(self, out: Any, labels: Tensor | None, return_dict: bool | None) -> Any:
        if self.output is BaseModelOutput:
            return self._returned(BaseModelOutput(last_hidden_state=out.y), out.losses, return_dict)
        loss = None if labels is None else self._loss(out.y, labels)
        return self._returned(self.output(loss=loss, logits=out.y), out.losses, return_dict)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.config.problem_type == "regression":
            return nn.functional.mse_loss(logits.reshape(-1), labels.reshape(-1).to(logits.dtype))
        return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


class WeftForCausalLM(WeftModel, GenerationMixin):
    """Any language model of Weft that predicts the next token."""

    _is_stateful = True

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the cache depends on the architecture: see WeftCache

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As `GenerationMixin.prepare_inputs_for_generation`, without ``cache_position``: the cache stores how many
        tokens each row has."""
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        renamed = {"cache": "past_key_values"}  # its name from transformers 5.24 on
        return {renamed.get(name, name): value for name, value in inputs.items()
                if value is not None and name != "cache_position"}

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None,
                past_key_values: WeftCache | None = None, labels: Tensor | None = None, use_cache: bool | None = None,
                logits_to_keep: int | Tensor = 0, return_dict: bool | None = None, cache: WeftCache | None = None,
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
            cache: the name of ``past_key_values`` from transformers 5.24 on.

        Returns:
            ``loss`` in nats including auxiliary losses, if there are labels; ``logits`` [B,T,V]; ``past_key_values``.
        """
        mask = None if attention_mask is None else attention_mask[:, -input_ids.shape[1]:]
        out, found = self._read(input_ids, mask, past_key_values or cache, use_cache)
        logits = self.model.readout.logits(_kept(out.y, logits_to_keep if labels is None else 0))
        loss = None
        if labels is not None:
            loss = self.loss_function(*in_rows(logits, labels, mask), vocab_size=self.config.vocab_size)
            logits = _kept(logits, logits_to_keep)
        return self._returned(CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=found), out.losses,
                              return_dict)

    def _read(self, tokens: Tensor, mask: Tensor | None, cache: WeftCache | None, use_cache: bool | None,
              memory: Any = None) -> tuple[Any, WeftCache | None]:
        """Return the hidden vectors of columns, and the cache after them where one is wanted."""
        if use_cache is None:
            use_cache = bool(self.config.use_cache) and not self.training
        if use_cache and cache is None:
            cache = WeftCache()
        out = read(self.model, tokens, mask, None if cache is None else cache.reading, memory)
        return out, cache if use_cache else None


class WeftForSeq2SeqLM(WeftForCausalLM):
    """Any encoder-decoder of Weft."""

    def get_encoder(self, modality: str | None = None) -> WeftForSeq2SeqLM:
        """Return the model itself, which encodes where it is given a source alone."""
        return self

    def forward(self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None,
                decoder_input_ids: Tensor | None = None, decoder_attention_mask: Tensor | None = None,
                encoder_outputs: Any = None, past_key_values: WeftCache | None = None, labels: Tensor | None = None,
                use_cache: bool | None = None, logits_to_keep: int | Tensor = 0, return_dict: bool | None = None,
                cache: WeftCache | None = None, output_attentions: bool | None = None,
                output_hidden_states: bool | None = None) -> Any:
        """Return the logits of the target's next token, or of a source alone its vectors, a `BaseModelOutput`.

        Args:
            input_ids: ids of the source [B,S]; may be left out with ``encoder_outputs``.
            attention_mask: 0 for padding of the source, which may be in any column and is skipped, 1 elsewhere.
            decoder_input_ids: ids of the target [B,T] after those in ``past_key_values``; with labels alone these, one
                column later, after the token that opens a target.
            decoder_attention_mask: as ``attention_mask``, of the target; see `WeftForCausalLM.forward`.
            encoder_outputs: the vectors of the source by column, as an earlier call returned them.
            past_key_values, use_cache, logits_to_keep, return_dict, cache: as in `WeftForCausalLM.forward`.
            labels: ids [B,T] that the columns of ``decoder_input_ids`` are to predict, -100 where there is none.
            output_attentions, output_hidden_states: not offered.

        Returns:
            ``loss`` in nats including auxiliary losses, if there are labels; ``logits`` [B,T,V]; ``past_key_values``;
            ``encoder_last_hidden_state`` [B,S,D].

        Raises:
            ValueError: attention maps or hidden states are asked for.
        """
        if output_attentions or output_hidden_states:
            raise ValueError("A folder with Weft's code returns no attention maps and no hidden states. Use "
                             "weft.probe on the folder.")
        losses: tuple[Any, ...] = ()
        if encoder_outputs is None:
            source, encoded = read_source(self.model, input_ids, attention_mask)
            if decoder_input_ids is None and labels is None:
                return self._returned(BaseModelOutput(last_hidden_state=source), (), return_dict)
            memory, losses = encoded
        else:
            source = encoder_outputs[0]
            memory = memory_of(source, attention_mask)
        if decoder_input_ids is None:
            opening = labels.new_full((len(labels), 1), self.generation_config.decoder_start_token_id)
            decoder_input_ids = torch.cat([opening, labels.where(labels != NO_TARGET, 0)[:, :-1]], dim=1)
        mask = None if decoder_attention_mask is None else decoder_attention_mask[:, -decoder_input_ids.shape[1]:]
        out, found = self._read(decoder_input_ids, mask, past_key_values or cache, use_cache, memory)
        logits = self.model.readout.logits(_kept(out.y, logits_to_keep if labels is None else 0))
        loss = None if labels is None else self._loss(logits, labels)
        return self._returned(Seq2SeqLMOutput(
            loss=loss, logits=logits if labels is None else _kept(logits, logits_to_keep), past_key_values=found,
            encoder_last_hidden_state=source), (*losses, *out.losses), return_dict)


class WeftForMaskedLM(WeftModel):
    """Any encoder of Weft that predicts hidden tokens."""

    output = MaskedLMOutput


class WeftForSequenceClassification(WeftModel):
    """Any model of Weft that predicts a class, or values, of a row."""

    output = SequenceClassifierOutput


class WeftForTokenClassification(WeftModel):
    """Any model of Weft that predicts a class of each token."""

    output = TokenClassifierOutput


class WeftForImageClassification(WeftModel):
    """Any model of Weft that predicts a class, or values, of an image."""

    main_input_name = "pixel_values"
    output = ImageClassifierOutput

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, return_dict: bool | None = None) -> Any:
        """Return scores [B,C] of images [B,C,H,W], and with labels the mean loss."""
        return self._headed(read_whole(self.model, pixel_values), labels, return_dict)


def _kept(columns: Tensor, keep: int | Tensor) -> Tensor:
    """Return the last ``keep`` columns, all for 0, or the columns of these indices."""
    return columns[:, -keep:] if isinstance(keep, int) else columns[:, keep]
