"""A tiny GPT-2, whose norms keep float64 in transformers, and a tokenizer for both libraries."""

from __future__ import annotations

from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import torch
import transformers

from chat.published import tokenizer_of
from weft.core.model import LanguageModel
from weft.interop.huggingface.loading import load_folder
from weft.tokenizers import Conventions, FileTokenizer

TEMPLATE = ("{% for m in messages %}{{ '' if loop.first else '\n' }}{{ '<|im_start|>' + m.role + '\n' }}"
            "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
            "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '\n<|im_start|>assistant\n' }}{% endif %}")
"""ChatML that writes nothing behind the end of an answer: trl scores all that follows a prompt."""

MORE = [{"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Two."}]
TALKS = [{"messages": [{"role": "user", "content": f"What is {i}?"},
                       {"role": "assistant", "content": "It is " * (i + 1)}, *(MORE * (i % 2))]} for i in range(4)]
PAIRS = [{"prompt": [{"role": "user", "content": f"What is {i}?"}],
          "chosen": [{"role": "assistant", "content": "It is " * (i + 1)}],
          "rejected": [{"role": "assistant", "content": "No" * (3 - i // 2)}]} for i in range(4)]


def own_tokenizer() -> FileTokenizer:
    """Weft's."""
    return tokenizer_of("Qwen2.5").with_conventions(Conventions(chat_templates={"default": TEMPLATE}))


def their_tokenizer(folder: Path) -> transformers.PreTrainedTokenizerFast:
    """That of transformers, of the same file."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(tokenizer_of("Qwen2.5").files()["tokenizer.json"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>", bos_token="<|endoftext|>",
        pad_token="<|endoftext|>", chat_template=TEMPLATE)


def their_model(seed: int) -> Any:
    """A tiny GPT-2 of transformers."""
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=tokenizer_of("Qwen2.5").vocab_size, n_embd=16, n_layer=2, n_head=2, n_positions=128, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.3)
    return transformers.GPT2LMHeadModel(config).double()


def in_float64(model: Any) -> None:
    """Give a model that a trainer has prepared log-probabilities from its own logits: trl's fused head adds them up in
    float32."""
    def forward(self: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *,
                labels: torch.Tensor, fused_lm_head: bool = False, use_cache: bool = False) -> SimpleNamespace:
        assert fused_lm_head
        z = type(self).forward(self, input_ids, attention_mask=attention_mask, use_cache=use_cache).logits[:, :-1]
        targets, mask = labels[:, 1:].clamp(min=0), labels[:, 1:] != -100
        found = z.log_softmax(-1).gather(-1, targets[..., None])[..., 0].masked_fill(~mask, 0)
        return SimpleNamespace(log_probs=found, label_mask=mask, entropy=torch.zeros_like(found), aux_loss=None,
                               log_sum_sq_probs=torch.zeros_like(found), mean_logits=z.mean(-1),
                               is_top1=torch.zeros_like(mask), loss=-found.sum() / mask.sum())

    model.forward = MethodType(forward, model)


def own_model(theirs: Any, folder: Path) -> LanguageModel:
    """The same model in Weft."""
    theirs.save_pretrained(folder)
    found = load_folder(folder, dtype=torch.float64).model
    assert isinstance(found, LanguageModel)
    return found


def gradients(model: LanguageModel, theirs: Any, folder: Path) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """The gradients of both, matched by writing them as the weights of a model each and reading theirs back."""
    other = type(theirs)(theirs.config).double()
    with torch.no_grad():
        for mine, source in zip(other.parameters(), theirs.parameters(), strict=True):
            mine.copy_(torch.zeros_like(source) if source.grad is None else source.grad)
    read = own_model(other, folder)
    wanted = dict(read.named_parameters())
    return [(name, parameter.grad if parameter.grad is not None else torch.zeros_like(parameter), wanted[name].detach())
            for name, parameter in model.named_parameters()]
