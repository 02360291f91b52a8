"""Write tests/interop/huggingface/stored_logits.json anew: `python -m against_transformers.store` in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from against_transformers.tiny import Case, alone, saved
from interop.huggingface.tiny_folders import STORED, weights

LLAMA = {"vocab_size": 13, "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 3,
         "max_position_embeddings": 32}
LATENT = {"num_key_value_heads": 3, "kv_lora_rank": 6, "q_lora_rank": 5, "qk_nope_head_dim": 2,
          "qk_rope_head_dim": 4, "v_head_dim": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 4,
          "n_shared_experts": 2, "first_k_dense_replace": 1, "rope_parameters": {
              "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "mscale": 0.7,
              "original_max_position_embeddings": 8, "mscale_all_dim": 1.0}}
BART = {"vocab_size": 13, "d_model": 12, "max_position_embeddings": 16, "encoder_layers": 1, "decoder_layers": 2,
        "encoder_ffn_dim": 8, "decoder_ffn_dim": 10, "encoder_attention_heads": 2, "decoder_attention_heads": 3}
MAMBA = {"vocab_size": 13, "hidden_size": 9, "num_hidden_layers": 2, "state_size": 3}
SPACE = {"vocab_size": 13, "hidden_size": 12, "num_hidden_layers": 2, "chunk_size": 4}
HYBRID = {"mamba_n_heads": 4, "mamba_d_state": 3, "mamba_n_groups": 2, "mamba_chunk_size": 4, "rms_norm_eps": 0.02,
          "pad_token_id": None}
CASES = {
    "llama": Case("", "LlamaConfig", "LlamaForCausalLM", {**LLAMA, "num_key_value_heads": 1,
                                                          "tie_word_embeddings": True}),
    "mistral": Case("", "MistralConfig", "MistralForCausalLM", {**LLAMA, "num_key_value_heads": 3,
                                                                "sliding_window": 3}),
    "qwen2": Case("", "Qwen2Config", "Qwen2ForCausalLM", {**LLAMA, "num_key_value_heads": 1}),
    "qwen3": Case("", "Qwen3Config", "Qwen3ForCausalLM", {**LLAMA, "num_key_value_heads": 1, "head_dim": 6}),
    "gpt2": Case("", "GPT2Config", "GPT2LMHeadModel", {"vocab_size": 13, "n_positions": 16, "n_embd": 15, "n_layer": 2,
                                                       "n_head": 3}),
    "gpt_neox": Case("", "GPTNeoXConfig", "GPTNeoXForCausalLM", {**LLAMA, "hidden_size": 24}),
    "openai-gpt": Case("", "OpenAIGPTConfig", "OpenAIGPTLMHeadModel", {"vocab_size": 13, "n_positions": 16,
                                                                      "n_embd": 9, "n_layer": 2, "n_head": 3}),
    "gpt_neo": Case("", "GPTNeoConfig", "GPTNeoForCausalLM", {
        "vocab_size": 13, "max_position_embeddings": 16, "hidden_size": 9, "num_layers": 2, "num_heads": 3,
        "attention_types": [[["global", "local"], 1]], "window_size": 3}),
    "gptj": Case("", "GPTJConfig", "GPTJForCausalLM", {"vocab_size": 13, "n_positions": 16, "n_embd": 15, "n_layer": 2,
                                                       "n_head": 3, "rotary_dim": 2}),
    "opt": Case("", "OPTConfig", "OPTForCausalLM", {
        "vocab_size": 13, "max_position_embeddings": 16, "hidden_size": 9, "num_hidden_layers": 2,
        "num_attention_heads": 3, "ffn_dim": 8, "do_layer_norm_before": False, "word_embed_proj_dim": 5}),
    "bloom": Case("", "BloomConfig", "BloomForCausalLM", {"vocab_size": 13, "hidden_size": 9, "n_layer": 2,
                                                          "n_head": 3}),
    "mpt": Case("", "MptConfig", "MptForCausalLM", {"vocab_size": 13, "d_model": 9, "n_layers": 2, "n_heads": 3,
                                                    "max_seq_len": 16, "attn_config": {"clip_qkv": 0.8}}),
    "phi": Case("", "PhiConfig", "PhiForCausalLM", {**LLAMA, "num_key_value_heads": 1, "qk_layernorm": True}),
    "gemma": Case("", "GemmaConfig", "GemmaForCausalLM", {**LLAMA, "num_key_value_heads": 1, "head_dim": 6}),
    "mixtral": Case("", "MixtralConfig", "MixtralForCausalLM", {**LLAMA, "num_key_value_heads": 1,
                                                                "num_local_experts": 3, "intermediate_size": 8}),
    "phi3": Case("", "Phi3Config", "Phi3ForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "pad_token_id": 0, "original_max_position_embeddings": 5,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [1.0, 3.0]}}),
    "falcon": Case("", "FalconConfig", "FalconForCausalLM", {
        "vocab_size": 13, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6, "num_kv_heads": 2,
        "new_decoder_architecture": True}),
    "gemma2": Case("", "Gemma2Config", "Gemma2ForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "head_dim": 6, "query_pre_attn_scalar": 9, "sliding_window": 3,
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3_text": Case("", "Gemma3TextConfig", "Gemma3ForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "head_dim": 6, "query_pre_attn_scalar": 9, "sliding_window": 3,
        "sliding_window_pattern": 2}),
    "olmo2": Case("", "Olmo2Config", "Olmo2ForCausalLM", {**LLAMA, "num_key_value_heads": 1}),
    "olmo3": Case("", "Olmo3Config", "Olmo3ForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "sliding_window": 3, "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
        "layer_types": ["sliding_attention", "full_attention"]}),
    "qwen2_moe": Case("", "Qwen2MoeConfig", "Qwen2MoeForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 5}),
    "qwen3_moe": Case("", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
        "mlp_only_layers": [0]}),
    "qwen3_next": Case("", "Qwen3NextConfig", "Qwen3NextForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "head_dim": 8, "num_experts": 3, "num_experts_per_tok": 2,
        "moe_intermediate_size": 8, "shared_expert_intermediate_size": 5, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 3, "linear_value_head_dim": 2,
        "layer_types": ["linear_attention", "full_attention"]}),
    "smollm3": Case("", "SmolLM3Config", "SmolLM3ForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "no_rope_layer_interval": 2, "pad_token_id": None}),
    "granite": Case("", "GraniteConfig", "GraniteForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "embedding_multiplier": 3.0, "attention_multiplier": 0.4,
        "residual_multiplier": 0.3, "logits_scaling": 6.0}),
    "mamba2": Case("", "Mamba2Config", "Mamba2ForCausalLM", {**SPACE, "state_size": 3, "num_heads": 4, "head_dim": 6,
                                                             "n_groups": 2}),
    "bamba": Case("", "BambaConfig", "BambaForCausalLM", {
        **LLAMA, **HYBRID, "num_key_value_heads": 1, "head_dim": 4, "attn_layer_indices": [1]}),
    "falcon_h1": Case("", "FalconH1Config", "FalconH1ForCausalLM", {
        **LLAMA, **HYBRID, "num_key_value_heads": 1, "head_dim": 4, "mamba_d_ssm": 12, "mamba_rms_norm": True,
        "mlp_multipliers": [0.8, 0.6], "key_multiplier": 0.4, "attention_out_multiplier": 0.9,
        "ssm_multipliers": [0.4, 0.7, 1.3, 0.5, 0.9], "ssm_out_multiplier": 0.3, "ssm_in_multiplier": 1.25}),
    "cohere": Case("", "CohereConfig", "CohereForCausalLM", {**LLAMA, "num_key_value_heads": 1, "logit_scale": 0.7}),
    "starcoder2": Case("", "Starcoder2Config", "Starcoder2ForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "sliding_window": 3}),
    "stablelm": Case("", "StableLmConfig", "StableLmForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "use_parallel_residual": True, "partial_rotary_factor": 0.5}),
    "t5": Case("", "T5Config", "T5ForConditionalGeneration", {
        "vocab_size": 13, "d_model": 9, "d_kv": 2, "d_ff": 8, "num_layers": 1, "num_decoder_layers": 2, "num_heads": 3,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6, "tie_word_embeddings": False,
        "feed_forward_proj": "gated-gelu"}),
    "bart": Case("", "BartConfig", "BartForConditionalGeneration", {**BART, "scale_embedding": True}),
    "marian": Case("", "MarianConfig", "MarianMTModel", {**BART, "decoder_start_token_id": 12, "pad_token_id": 12,
                                                        "activation_function": "swish"}),
    "glm4": Case("", "Glm4Config", "Glm4ForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": None}),
    "gpt_oss": Case("", "GptOssConfig", "GptOssForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "head_dim": 6, "num_local_experts": 3, "num_experts_per_tok": 2,
        "intermediate_size": 8, "sliding_window": 3, "swiglu_limit": 0.7}),
    "gpt_bigcode": Case("", "GPTBigCodeConfig", "GPTBigCodeForCausalLM", {
        "vocab_size": 13, "n_positions": 16, "n_embd": 15, "n_layer": 2, "n_head": 3}),
    "deepseek_v2": Case("", "DeepseekV2Config", "DeepseekV2ForCausalLM", {
        **LLAMA, **LATENT, "n_routed_experts": 4, "topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1,
        "routed_scaling_factor": 1.5}),
    "deepseek_v3": Case("", "DeepseekV3Config", "DeepseekV3ForCausalLM", {
        **LLAMA, **LATENT, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "q_lora_rank": None,
        "n_shared_experts": 1}),
    "recurrent_gemma": Case("", "RecurrentGemmaConfig", "RecurrentGemmaForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "attention_window_size": 3, "block_types": ["recurrent", "attention"]}),
    "mamba": Case("", "MambaConfig", "MambaForCausalLM", {**MAMBA, "use_conv_bias": False}),
    "falcon_mamba": Case("", "FalconMambaConfig", "FalconMambaForCausalLM", {
        **MAMBA, "tie_word_embeddings": False, "use_bias": True}),
    "jamba": Case("", "JambaConfig", "JambaForCausalLM", {
        **LLAMA, "num_key_value_heads": 1, "num_experts": 3, "attn_layer_period": 2, "attn_layer_offset": 1,
        "mamba_d_state": 3, "mamba_dt_rank": 2, "intermediate_size": 8}),
}
CASES["rwkv"] = Case("", "RwkvConfig", "RwkvForCausalLM", {
    "vocab_size": 13, "hidden_size": 12, "num_hidden_layers": 2, "context_length": 16, "attention_hidden_size": 10,
    "intermediate_size": 9, "rescale_every": 0})
BERT = {**LLAMA, "intermediate_size": 10, "type_vocab_size": 1}
DEBERTA = {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False,
           "max_relative_positions": 9, "pooler_hidden_size": 12, "type_vocab_size": 0}
CASES |= {
    "bert": Case("", "BertConfig", "BertForMaskedLM", {**BERT, "type_vocab_size": 2}),
    "longformer": Case("", "LongformerConfig", "LongformerForSequenceClassification", {
        **BERT, "pad_token_id": 1, "attention_window": [4, 8]}),
    "roberta": Case("", "RobertaConfig", "RobertaForSequenceClassification", {**BERT, "pad_token_id": 1}),
    "roformer": Case("", "RoFormerConfig", "RoFormerForMaskedLM", {**BERT, "embedding_size": 7}),
    "modernbert": Case("", "ModernBertConfig", "ModernBertForMaskedLM", {
        **LLAMA, "num_hidden_layers": 3, "local_attention": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "cls_token_id": 1, "sep_token_id": 2}),
    "deberta": Case("", "DebertaConfig", "DebertaModel", DEBERTA),
    "deberta_v2": Case("", "DebertaV2Config", "DebertaV2ForTokenClassification", {
        **DEBERTA, "position_buckets": 4, "share_att_key": True, "norm_rel_ebd": "layer_norm", "num_labels": 3}),
}
ROW = [5, 1, 12, 0, 7, 7, 3]
KEPT = 2
"""Positions whose logits are stored, the last ones."""


def row_of(case: Case) -> list[int] | dict[str, list[int]]:
    """The row whose logits are stored, behind a source for an encoder-decoder."""
    takes_source = getattr(transformers, case.config)().is_encoder_decoder
    return {"source": ROW[:2:-1], "target": ROW} if takes_source else ROW


def stored_case(case: Case, folder: Path) -> dict[str, Any]:
    """What is stored of a case."""
    saved(case, folder)
    file = folder / "model.safetensors"
    # Without sines and cosines, which are no weights and which the class computes where they are missing.
    shapes = {name: list(tensor.shape) for name, tensor in load_file(file).items() if "embed_positions" not in name}
    save_file(weights(shapes), file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config.pop("transformers_version")
    row = row_of(case)
    logits = torch.atleast_2d(alone(folder, row))[-KEPT:]
    return {"config": config, "shapes": shapes, "row": row, "logits": [[round(float(value), 6) for value in each]
                                                                      for each in logits]}


def main() -> None:
    """Write the file."""
    import tempfile

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        cases = {name: stored_case(case, Path(place) / name) for name, case in CASES.items()}
    lines = ",\n".join(f'"{name}": {json.dumps(case)}' for name, case in cases.items())
    STORED.write_text(f'{{"transformers": "{transformers.__version__}", "cases": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
