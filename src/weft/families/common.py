"""Keys that the Hugging Face configurations of all families may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from weft.families.keys import Fixed, Ignored, Kept, KeyProblem, KeyRule, Raw, Together, words
from weft.families.template import Facts
from weft.families.weights import UnusedTensors


def require_unquantised(raw: Raw) -> Facts:
    """Nothing; a folder of quantised weights cannot be read."""
    given = raw.get("quantization_config")
    if given is None:
        return {}
    if isinstance(given, Mapping) and given.get("quant_method") == "fp8":
        raise KeyProblem("quantization_config: its matrices are 8-bit floats with a scale for each block. Multiply "
                         "them out first: load the folder in transformers with dtype=bfloat16 and "
                         "FineGrainedFP8Config(dequantize=True) and save it, or use the release's own script "
                         "(DeepSeek's is fp8_cast_bf16.py); or take a bfloat16 version.")
    if isinstance(given, Mapping) and given.get("quant_method") == "mxfp4":
        raise KeyProblem("quantization_config: its experts are 4-bit floats with a scale for each block. Multiply them "
                         "out first: load the folder in transformers with dtype=torch.bfloat16 and "
                         "Mxfp4Config(dequantize=True), and write it with save_pretrained.")
    raise KeyProblem(f"quantization_config: {given!r}, but only None can be read. Its weights are quantised: convert "
                     "an unquantised version.")


RUNNING = ("use_cache", "output_attentions", "output_hidden_states", "output_scores", "return_dict",
           "return_dict_in_generate", "torchscript", "use_bfloat16", "gradient_checkpointing",
           "chunk_size_feed_forward", "_attn_implementation", "_attn_implementation_autoset", "attn_implementation",
           "_flash_attn_2_enabled", "_experts_implementation", "pretraining_tp", "tf_legacy_loss", "use_mems_eval",
           "use_mems_train", "output_past")
GENERATION = ("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
              "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
              "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
              "num_return_sequences", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
              "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "sep_token_id",
              "cls_token_id", "prefix", "task_specific_params", "generation_config")
OTHER_HEADS = ("id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "classifier_dropout",
               "classifier_dropout_prob", "summary_type", "summary_use_proj", "summary_activation",
               "summary_proj_to_labels", "summary_first_dropout", "predict_special_tokens", "_num_labels",
               "classif_dropout")
ORIGIN = ("_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "tokenizer_class", "architectures",
          "model_type", "unsloth_version", "unsloth_fixed", "language", "license", "attribute_map", "is_llama_config",
          "transformers.js_config")
COMMON: tuple[KeyRule, ...] = (
    Ignored(RUNNING, "how transformers runs the model, not what it computes"),
    Ignored(GENERATION, "how text is generated, which the options of the commands set"),
    Ignored(OTHER_HEADS, "for other heads than the language model's"),
    Ignored(ORIGIN, "the origin of the file; the family and the architecture are checked before"),
    Ignored(("auto_map", "custom_pipelines"), "the folder contains Python code, which is never run; the model is built "
            "from Weft's parts.", notify=True),
    Kept("bos_token_id"), Kept("eos_token_id"), Kept("pad_token_id"), Kept("dtype", old=("torch_dtype",)),
    Fixed("is_encoder_decoder", (False,), default=False, why="A decoder reads no source."),
    Ignored(("decoder_start_token_id",), "for models that read a source"),
    Fixed("add_cross_attention", (False, None), default=False, why="A decoder reads no source."),
    Fixed("cross_attention_hidden_size", (None,), why="A decoder reads no source."),
    Ignored(("is_decoder", "tie_encoder_decoder"), "a decoder-only model is one in any case"),
    Fixed("is_causal", (True, None), default=True, why="Attention would see later tokens: the model makes vectors of a "
          "text, as the models of the gte family do, and predicts no next token."),
    Fixed("pruned_heads", ({}, None), default={}, why="Pruned heads have been removed from its weights."),
    Together(("quantization_config",), lambda raw, facts: require_unquantised(raw), lambda facts: {}),
    Fixed("compression_config", (None,), why="Its weights are compressed: convert an uncompressed version."),
)
"""The rules of keys that a family need not name itself."""

def common_beside(own: Iterable[KeyRule], common: Iterable[KeyRule]) -> tuple[KeyRule, ...]:
    """The common rules without the keys for which a family has rules of its own."""
    taken = {key for rule in own for key in rule.keys}
    left = (replace(rule, names=tuple(name for name in rule.names if name not in taken))
            if isinstance(rule, Ignored) else rule for rule in common)
    return tuple(rule for rule in left if not taken.intersection(rule.keys))


WITH_SOURCE: tuple[KeyRule, ...] = (
    *(rule for rule in COMMON if not {"is_encoder_decoder", "decoder_start_token_id"}.intersection(rule.keys)),
    Fixed("is_encoder_decoder", (True,), default=True, why="A model without an encoder is of another family."),
    Kept("decoder_start_token_id"))
"""The rules that are added to those of each encoder-decoder family."""

BUFFERS: tuple[UnusedTensors, ...] = (
    UnusedTensors(r"(.*\.)?(maybe_)?rotary(_emb)?\.(inv_freq|original_inv_freq|cos_cached|sin_cached)",
                  "angles, which the configuration gives"),
    UnusedTensors(r"(.*\.)?position_ids", "the numbers 0, 1, 2, ..."),
    UnusedTensors(r"(.*\.)?(attn|attention|self_attn|self_attention)\.(masked_)?bias",
                  "causal masks, which attention computes itself"))
"""Buffers that versions of `transformers` have left in files of all families. The family's own tensors take
precedence, also where a name matches."""

ACTIVATIONS = words(
    {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "relu2": "squared_relu", "silu": "silu", "tanh": "tanh",
     "sigmoid": "sigmoid", "linear": "identity", "quick_gelu": "quick_gelu", "gelu_10": "clipped_gelu", "mish": "mish",
     "leaky_relu": "leaky_relu", "relu6": "relu6", "hardswish": "hard_swish", "laplace": "laplace"},
    also={"gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_python": "gelu", "swish": "silu",
          "gelu_python_tanh": "gelu_tanh", "gelu_accurate": "gelu_tanh"})
"""Names of activations, as `transformers` spells them."""


def divided_heads(heads_key: str, width_key: str) -> KeyRule:
    """``d_head`` is ``d_model`` / ``n_heads``, which must have been read before; messages name the keys."""
    def read(raw: Raw, facts: Facts) -> Facts:
        if facts["d_model"] % facts["n_heads"]:
            raise KeyProblem(f"{heads_key}: {facts['n_heads']} heads do not divide {width_key} {facts['d_model']}.")
        return {"d_head": facts["d_model"] // facts["n_heads"]}

    def write(facts: Facts) -> dict[str, Any]:
        if facts["d_head"] * facts["n_heads"] != facts["d_model"]:
            raise KeyProblem(f"heads have {facts['d_head']} features; the file has no key for other sizes than "
                             f"{width_key} / {heads_key}.")
        return {}

    return Together((), read, write)
