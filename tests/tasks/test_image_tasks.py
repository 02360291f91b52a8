"""Tasks on images: runs from files, scalings of the training images alone, layers one after another, refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tasks.task_runs import ENCODER, settings
from training.test_resume import run_killed_at
from training.tiny_runs import same_weights
from weft import api
from weft.checkpoints import load_checkpoint
from weft.core.errors import ConfigError, DataError, TokenizerError
from weft.core.images import ImageModel
from weft.core.model import Model, parse_model
from weft.data.images import read_images
from weft.data.settings import DataSettings
from weft.models.dense import Dense
from weft.tasks.classify_images import ClassifyImages, ClassifyImagesConfig
from weft.tasks.images import ImageColumns, image_parts
from weft.tasks.pretrain_layers import PretrainLayers, PretrainLayersConfig
from weft.tokenizers.config import ByteTokenizerConfig, CharacterTokenizerConfig
from weft.training import RunConfig, parse_run, train

IMAGE = {"height": 4, "width": 4}
BLOCK = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "mask": "bidirectional"}, {"kind": "mlp",
                                                                                                 "d_ff": 16}]}
VIT: dict[str, Any] = {"kind": "image_encoder", "image": IMAGE, "patch": [2, 2], "d_model": 8, "dropout": 0.1,
                       "blocks": [BLOCK], "head": "pooled"}
NET: dict[str, Any] = {"kind": "dense", "image": IMAGE, "widths": [6, 5]}
GREEDY = {"kind": "pretrain_layers", "batches_per_layer": 4}


def images_file(folder: Path, count: int = 40, name: str = "images.npz") -> Path:
    """Images of two classes: bright above, or bright below; bytes."""
    generator = np.random.default_rng(0)
    labels = np.arange(count) % 2
    pixels = generator.integers(0, 60, (count, 4, 4))
    pixels[labels == 0, :2] += 120
    pixels[labels == 1, 2:] += 120
    np.savez(folder / name, images=pixels.astype(np.uint8), labels=np.array(["up", "down"])[labels])
    return folder / name


def run_of(folder: Path, task: Any, model: dict[str, Any], steps: int = 8, **more: Any) -> RunConfig:
    return parse_run({"task": task, "model": model, "data": {"path": str(images_file(folder)), "validation": 0.25},
                      "training": {"steps": steps, "batch_size": 8, "optimizer": {"lr": 1e-2},
                                   "compute": {"matmul": "default"}},
                      "report": {"eval_every": 4, "checkpoint_every": 4, "keep": 9}, **more})


def stored(folder: Path, step: int) -> dict[str, Tensor]:
    return load_checkpoint(folder / "checkpoints" / f"{step:08}").model.state_dict()


RUNS = {"image_encoder": ("classify_images", VIT),
        "boltzmann": ({**GREEDY, "method": "boltzmann"}, {**NET, "back": {}}),
        "supervised": ({**GREEDY, "method": "supervised"}, {**NET, "head": "layer_classes"})}


@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_resumes_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    task, model = RUNS[name]
    run = run_of(tmp_path, task, model)
    whole = train(run, tmp_path / "whole")
    run_killed_at(run, tmp_path / "killed", 6)
    resumed = train(run, tmp_path / "killed", resume=True)
    assert same_weights(resumed.model, whole.model) and resumed.validation == whole.validation


def test_a_run_learns_the_classes_and_is_measured_and_loaded(tmp_path: Path) -> None:
    run = run_of(tmp_path, "classify_images", VIT, steps=40)
    assert run.model.labels() == ("down", "up") and run.model.vocab_size == 0
    done = train(run, tmp_path / "run")
    assert done.validation.measures["accuracy"] == 1.0 and done.validation.tokens == 10
    assert api.measure(tmp_path / "run").named() == done.validation.named()
    other = api.measure(tmp_path / "run", images_file(tmp_path, 20, "other.npz"))
    assert other.tokens == 20 and other.protocol == "each held-out image once"
    loaded = api.load(tmp_path / "run")
    with pytest.raises(TokenizerError, match=r"a model that reads no text has no tokens for it. Give it what it reads"):
        api.classify(loaded, "some text")


def test_the_measures_are_those_of_their_definitions(tmp_path: Path) -> None:
    done = train(run_of(tmp_path, "classify_images", VIT, steps=2), tmp_path / "run")
    model: Any = done.model
    held = image_parts(DataSettings(path=str(tmp_path / "images.npz"), validation=0.25), None).validation
    with torch.no_grad():
        h = model(model.images(torch.from_numpy(held.pixels)))
        log_probs = torch.log_softmax(model.head.map(h[:, 0]), -1)
    ids = torch.from_numpy(held.ids(("down", "up")))
    assert done.validation.loss == pytest.approx(float(F.nll_loss(log_probs, ids)), rel=1e-6)
    assert done.validation.measures["accuracy"] == pytest.approx(float((log_probs.argmax(-1) == ids).float().mean()))


def test_the_scaling_is_that_of_the_images_to_train_on(tmp_path: Path) -> None:
    model = {**NET, "image": {**IMAGE, "per": "feature"}, "back": {}}
    done = train(run_of(tmp_path, GREEDY, model), tmp_path / "run")
    parts = image_parts(DataSettings(path=str(tmp_path / "images.npz"), validation=0.25), None)
    flat = parts.train.pixels.reshape(len(parts.train), -1).astype(float)
    whole = read_images(tmp_path / "images.npz").pixels.reshape(40, -1).astype(float)
    state = done.model.state_dict()
    np.testing.assert_array_equal(state["input.shift"], flat.min(0))
    np.testing.assert_allclose(state["input.factor"], 1 / (flat.max(0) - flat.min(0)), rtol=1e-7)  # float32
    assert (whole.min(0) < flat.min(0)).any(), "held-out images would have changed it"


def test_a_run_that_starts_from_another_keeps_its_scaling_and_its_layers(tmp_path: Path) -> None:
    model = {**NET, "image": {**IMAGE, "per": "feature"}, "back": {}}
    before = train(run_of(tmp_path, GREEDY, model), tmp_path / "before").model.state_dict()
    run = parse_run({"start": str(tmp_path / "before"), "task": {"kind": "classify_images", "images": 8},
                     "model": {"head": "pooled"}, "data": {"path": str(tmp_path / "images.npz")},
                     "training": {"steps": 1, "batch_size": 4, "optimizer": {"lr": 1e-12, "weight_decay": 0.0}}})
    after = train(run, tmp_path / "after").model.state_dict()
    assert set(after) - set(before) == {"head.map.weight", "head.map.bias"}
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-10)  # a step of 1e-12


@pytest.mark.parametrize("method", ["autoencoder", "boltzmann", "supervised"])
def test_layers_are_trained_one_after_another(method: str, tmp_path: Path) -> None:
    model = {**NET, "head": "layer_classes"} if method == "supervised" else {**NET, "back": {}}
    train(run_of(tmp_path, {**GREEDY, "method": method}, model, steps=12), tmp_path / "run")
    first, second, third = (stored(tmp_path / "run", step) for step in (4, 8, 12))
    changed = [{name for name in a if not torch.equal(a[name], b[name])} for a, b in ((first, second), (second, third))]
    assert changed[0] == changed[1], "the highest layer is trained to the end"
    top = {"layers.1.weight", "layers.1.bias"}
    assert changed[0] == top | ({"head.maps.1.weight", "head.maps.1.bias"} if method == "supervised" else
                                {"back.1.bias"})


def net_of(**fields: Any) -> Dense:
    torch.manual_seed(0)
    found = parse_model({**NET, "image": {**IMAGE, "pixel_scaling": "none"}, **fields}).build().double()
    assert isinstance(found, Dense)
    return found


def loss(task: dict[str, Any], model: Dense, step: int) -> float:
    made = PretrainLayersConfig.model_validate(task).create(settings(context=1, labels=("a", "b")))
    pixels = np.random.default_rng(0).random((3, 1, 4, 4))
    columns = ImageColumns(torch.from_numpy(pixels), torch.tensor([0, 1, 1]), made.stage(step))
    return float(made.loss(model, columns, None).nats)


def units_by_hand(model: Dense) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.from_numpy(np.random.default_rng(0).random((3, 16)))
    (w1, b1), (w2, b2) = ([getattr(each, name).detach() for name in ("weight", "bias")] for each in model.layers)
    first = torch.sigmoid(x @ w1.T + b1)
    return x, first, torch.sigmoid(first @ w2.T + b2)


@pytest.mark.parametrize("kind", ["cross_entropy", "squared"])
def test_the_losses_of_reconstructions(kind: str) -> None:
    model = net_of(back={})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape) if "bias" in name else 0)
    x, first, second = units_by_hand(model)
    w1, w2 = (each.weight.detach() for each in model.layers)
    assert model.back is not None
    back = [each.bias.detach() for each in model.back]

    def error(found: Tensor, wanted: Tensor) -> float:
        if kind == "squared":
            return float(((found - wanted) ** 2).sum())
        return float(-(wanted * found.log() + (1 - wanted) * (1 - found).log()).sum())

    lowest = error(torch.sigmoid(first @ w1 + back[0]), x)
    higher = error(torch.sigmoid(second @ w2 + back[1]), first)
    through = error(torch.sigmoid(torch.sigmoid(second @ w2 + back[1]) @ w1 + back[0]), x)
    task = {"loss": kind, "batches_per_layer": 5}
    assert [loss(task, model, step) for step in (0, 4, 5, 99)] == pytest.approx([lowest, lowest, higher, higher])
    assert loss({"loss": kind}, model, 7) == pytest.approx(through)


def test_the_loss_of_supervised_layers() -> None:
    model = net_of(head={"kind": "layer_classes", "n_classes": 2})
    _, first, second = units_by_hand(model)
    head: Any = model.head
    for step, units, each in ((1, first, head.maps[0]), (2, second, head.maps[1])):
        wanted = F.cross_entropy(units @ each.weight.T + each.bias, torch.tensor([0, 1, 1]), reduction="sum")
        found = loss({"method": "supervised", "batches_per_layer": 2}, model, step)
        assert found == pytest.approx(float(wanted.detach()))


def test_every_layer_is_measured(tmp_path: Path) -> None:
    done = train(run_of(tmp_path, {**GREEDY, "loss": "squared"}, {**NET, "back": {}}), tmp_path / "run").validation
    assert set(done.measures) == {"reconstruction_1", "reconstruction_2"} and done.criterion == "loss"
    held = train(run_of(tmp_path, {**GREEDY, "method": "supervised"}, {**NET, "head": "layer_classes"}),
                 tmp_path / "supervised").validation
    assert set(held.measures) == {"accuracy_1", "accuracy_2"} and 0 <= held.measures["accuracy_1"] <= 1


def problems(task: dict[str, Any], model: Model, **values: Any) -> str:
    made = (PretrainLayersConfig.model_validate(task).create(settings(**values)) if task else
            ClassifyImages(ClassifyImagesConfig(), settings(**values)))
    assert isinstance(made, PretrainLayers | ClassifyImages)
    return "\n".join(made.problems(model))


@pytest.mark.parametrize(("task", "model", "message"), [
    ({}, {**ENCODER, "vocab_size": 9}, "model: a model of kind 'encoder' reads no images. Give one that does, such as"),
    ({}, {**VIT, "head": None}, "model.head: the model has no head. Give head: {kind: pooled} with n_classes or"),
    ({}, {**VIT, "head": {"kind": "pooled", "n_values": 1}}, "model.head: the model has a head that gives no class"),
    ({"kind": 1}, {**VIT, "head": None}, "model: a model of kind 'image_encoder' has no layers to pre-train. Give"),
    ({"method": "supervised", "batches_per_layer": 1}, NET, "model.head: no scores from each layer. Give head: {kind:"),
    ({"kind": 1}, NET, "model.back: missing, so there is no way back to the inputs. Give back: {tied: true}."),
    ({"method": "boltzmann", "batches_per_layer": 1}, {**NET, "back": {"tied": False}},
     "model.back.tied: false, and a restricted Boltzmann machine has one matrix. Give true."),
    ({"method": "boltzmann", "batches_per_layer": 1}, {**NET, "activation": "tanh", "back": {}},
     "model.activation: 'tanh', and a restricted Boltzmann machine needs sigmoids. Give sigmoid."),
    ({"kind": 1}, {**NET, "back": {"output": "identity"}}, "model.back.output: 'identity', and cross-entropy needs"),
    ({"kind": 1}, {**NET, "back": {}, "image": {**IMAGE, "pixel_scaling": "standard"}},
     "model.image.pixel_scaling: standard, and cross-entropy needs pixels between 0 and 1. Give min_max."),
])
def test_models_that_do_not_fit(task: dict[str, Any], model: dict[str, Any], message: str) -> None:
    given = {key: value for key, value in task.items() if key != "kind"} if task else {}
    config = PretrainLayersConfig.model_validate(given) if task else ClassifyImagesConfig()
    made = config.create(settings())
    found = "\n".join(made.problems(parse_model(model).build()))
    assert message in found, found


def test_a_context_shorter_than_an_image_is_refused() -> None:
    model = parse_model({**VIT, "head": {"kind": "pooled", "n_classes": 2}}).build()
    assert "training.context: 4 tokens, while an image has 5. Leave it out, and model.context too." in problems(
        {}, model, context=4)


@pytest.mark.parametrize(("fields", "message"), [
    ({"gibbs_steps": 3}, "gibbs_steps: 3 steps, which the method 'autoencoder' does not have. Leave it out."),
    ({"method": "supervised", "batches_per_layer": 1, "loss": "squared"}, "loss: 'squared', while the method"),
    ({"method": "boltzmann"}, "batches_per_layer: missing: the method 'boltzmann' trains layers one after another."),
])
def test_fields_of_another_method_are_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        run_of(tmp_path, {**GREEDY, "batches_per_layer": None, **fields}, {**NET, "back": {}})


def test_settings_of_text_are_refused(tmp_path: Path) -> None:
    data = DataSettings(path=str(images_file(tmp_path)), max_bytes=9)
    with pytest.raises(ConfigError, match=r"data.max_bytes: 9, a setting of text, while this task reads images. Leave"):
        image_parts(data, None)
    with pytest.raises(DataError, match=r"data.path: this task reads images, and there is no path to them. Give an"):
        image_parts(DataSettings(), None)
    task = ClassifyImages(ClassifyImagesConfig(), settings(labels=("down", "up")))
    with pytest.raises(ConfigError, match=r"tokenizer: characters, while this task reads images. Leave it out."):
        task.material(DataSettings(path=data.path), CharacterTokenizerConfig())
    with pytest.raises(DataError, match=r"data.test_path: the run has no test images. Name them in the run's"):
        task.held_out(DataSettings(path=data.path), ByteTokenizerConfig().fit(()), "test")


def test_images_of_another_size_than_the_model_s_are_refused_before_the_first_step(tmp_path: Path) -> None:
    run = run_of(tmp_path, "classify_images", {**VIT, "image": {"height": 4, "width": 6}})
    with pytest.raises(DataError, match=r"images of 1 x 4 x 4 \(channels, height, width\), while model.image has 1 x 4 "
                                        r"x 6. Correct model.image, or bring the images to its size."):
        train(run, tmp_path / "run")


def test_a_training_set_of_fewer_images(tmp_path: Path) -> None:
    data = DataSettings(path=str(images_file(tmp_path)), validation=0.25)
    parts = image_parts(data, 7)
    assert len(parts.train) == 7 and len(parts.validation) == 10
    assert isinstance(parse_model({**NET}).build(), ImageModel)
