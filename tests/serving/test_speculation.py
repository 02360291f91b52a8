"""Drafts change how often a model is run, and nothing of its text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from decoding.small_models import DYNAMIC, MLP, ROPE, VOCAB, Bigram, decoder, reseeded
from weft.core.errors import InputError, UnsupportedError
from weft.core.model import LanguageModel
from weft.decoding import Sampling, generate
from weft.serving.speculation import Drafts, ModelDrafts, PromptDrafts, speculate

WINDOW = {**ROPE, "mask": "causal & window(4)", "n_kv_heads": 1}
MODELS = {"attention": (ROPE, MLP), "window": (WINDOW, MLP), "lstm": ("lstm",), "s4d": ("s4d", MLP),
          "hybrid": (ROPE, WINDOW, "lstm", MLP), "rwkv": ("rwkv4", "channel_mix")}


class Fixed(Drafts):
    """Drafts of random tokens, some of which are right by chance."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._generator = reseeded(6)

    def draft(self, tokens: Sequence[int]) -> list[int]:
        return torch.randint(VOCAB, (int(torch.randint(self.most + 1, (1,), generator=self._generator)),),
                             generator=self._generator).tolist()


def drafts(kind: str, model: LanguageModel) -> Drafts:
    return {"prompt": lambda: PromptDrafts(4), "random": lambda: Fixed(3), "itself": lambda: ModelDrafts(model, 5),
            "recurrent": lambda: ModelDrafts(decoder("gru").eval(), 3),
            "model": lambda: ModelDrafts(bigram(2), 3)}[kind]()


def bigram(seed: int) -> Bigram:
    return Bigram((torch.rand(VOCAB, VOCAB, generator=reseeded(seed)) + 0.05).tolist()).eval()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["prompt", "random", "itself", "recurrent"])
def test_greedy_ids_are_those_without_drafts(name: str, kind: str) -> None:
    model = decoder(*MODELS[name]).eval()
    prompt = [3] if name == "window" else [1, 2, 3, 1, 2]
    alone = generate(model, [prompt], max_new_tokens=18).rows[0].tokens
    drafting = drafts(kind, model)
    found = speculate(model, prompt, 18, drafting)
    assert found.tokens == alone
    assert found.accepted <= found.drafted and len(found.tokens) <= found.calls + found.accepted
    if kind == "itself":
        assert found.accepted == found.drafted == 15 and found.calls == 3
    stopped = speculate(model, prompt, 18, drafting, stop=(alone[7],))
    assert stopped.tokens == alone[: alone.index(alone[7]) + 1]


def test_a_text_that_repeats_itself_takes_few_runs() -> None:
    table = [[1.0 if after == (before + 1) % 9 else 1e-9 for after in range(9)] for before in range(9)]
    found = speculate(Bigram(table).eval(), list(range(9)), 90, PromptDrafts(8))
    assert found.tokens == tuple(place % 9 for place in range(90))
    assert found.calls < 15 and found.accepted == found.drafted
    assert PromptDrafts(3).draft([1, 2, 3, 9, 1, 2, 4, 1, 2]) == [4, 1, 2] and PromptDrafts(3).draft([1, 2]) == []


@pytest.mark.parametrize(("kind", "sampling"), [
    ("prompt", Sampling()), ("random", Sampling(temperature=0.7, top_k=6, top_p=0.9, min_p=0.02)),
    ("model", Sampling())], ids=["prompt", "random", "model"])
def test_drawn_tokens_have_the_model_s_distribution(kind: str, sampling: Sampling) -> None:
    """The first two new tokens together, of 600 rows: the sum of (found - wanted)^2 / wanted is below the 0.9999
    quantile of chi-square, which is about n + 3.72 sqrt(2 n) + 8.5 with n classes less one."""
    model, count = bigram(1), 600
    wanted: dict[tuple[int, int], float] = {}
    with torch.no_grad():
        first = shares(model, [1, 2, 1], sampling)
        for token, share in enumerate(first):
            after = shares(model, [1, 2, 1, token], sampling)
            wanted |= {(token, other): share * more for other, more in enumerate(after)}
    drafting, found = drafts(kind, model), dict.fromkeys(wanted, 0)
    for seed in range(count):
        one, other = speculate(model, [1, 2, 1], 2, drafting, sampling=sampling, seed=seed).tokens
        found[one, other] += 1
    common = [pair for pair, share in wanted.items() if share * count >= 5]
    rest = [pair for pair in wanted if pair not in common]
    classes = [(found[pair], wanted[pair]) for pair in common]
    classes.append((sum(found[pair] for pair in rest), sum(wanted[pair] for pair in rest)))
    assert all(not found[pair] for pair in rest if wanted[pair] == 0)
    distance = sum((number - share * count) ** 2 / (share * count) for number, share in classes if share > 0)
    free = len(classes) - 1
    assert distance < free + 3.72 * math.sqrt(2 * free) + 8.5


def shares(model: LanguageModel, tokens: list[int], sampling: Sampling) -> list[float]:
    """The probabilities of the next token, without a state."""
    logits = model(torch.tensor([tokens])).y[:, -1] / sampling.temperature
    probabilities: list[float] = sampling.narrowed(logits)[0].softmax(-1).tolist()
    return probabilities


def test_what_drafts_cannot_do_is_refused() -> None:
    model = decoder(ROPE, MLP).eval()
    with pytest.raises(InputError, match=r"sampling: drafts are taken without penalties and biases\. Continue the row "
                                         "without drafts"):
        speculate(model, [1], 4, PromptDrafts(2), sampling=Sampling(presence_penalty=1))
    with pytest.raises(InputError, match=r"model: positions of this model turn with the length of the row"):
        speculate(decoder({**ROPE, "position": DYNAMIC}, MLP).eval(), [1], 4, PromptDrafts(2))
    with pytest.raises(InputError, match=r"most: 0 is out of range\. Give 1 or more"):
        PromptDrafts(0)
    with pytest.raises(InputError, match="an empty prompt"):
        speculate(model, [], 4, PromptDrafts(2))
    from seeing_ahead import seeing_ahead
    with pytest.raises(UnsupportedError, match="decoding needs probabilities of the next token"):
        speculate(seeing_ahead(decoder({"kind": "attention", "n_heads": 2}).eval()).eval(), [1], 4, PromptDrafts(2))
