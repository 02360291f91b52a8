"""What each of the processes of `test_fsdp2` does: what it finds goes to RANK.pt in a folder."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from weft.core.registry import REGISTRY
from weft.core.span import Span
from weft.models.decoder import Decoder

WORLD, ROWS, STEPS, VOCABULARY = 2, 4, 7, 11
BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)


def hybrid() -> Decoder:
    torch.manual_seed(0)
    mlp = {"kind": "mlp", "d_ff": 16}
    model = REGISTRY.get(("model",), "decoder").model_validate({
        "vocab_size": VOCABULARY, "d_model": 8, "norm": "rmsnorm", "blocks": [
            {"kind": "pre", "layers": [{"kind": "s4d", "d_state": 4}, mlp]},
            {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"}, mlp]}]}).build(None)
    assert isinstance(model, Decoder)
    return model


def batch() -> Tensor:
    return torch.randint(VOCABULARY, (ROWS, STEPS), generator=torch.Generator().manual_seed(1))


def loss(model: Decoder, x: Tensor) -> Tensor:
    """The whole forward, so that the root's own parameters are gathered: the mean over next tokens."""
    logs = model(x[:, :-1]).y.float().log_softmax(-1)
    return -logs.gather(-1, x[:, 1:, None]).mean()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        grad = parameter.grad
        found[name] = grad.full_tensor() if isinstance(grad, DTensor) else grad
    return found


def shard(model: Decoder, **options: Any) -> Decoder:
    mesh = init_device_mesh("cpu", (WORLD,))
    for block in model.stack.layers:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def sharded_gradients(rank: int, **options: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of two processes with half the batch each, and of one process with all of it."""
    alone = hybrid()
    loss(alone, batch()).backward()
    together = shard(hybrid(), **options)
    loss(together, batch().chunk(WORLD)[rank]).backward()
    return gradients(together), gradients(alone)


def worst(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest entry of all gradients."""
    scale = max(float(grad.abs().max()) for grad in wanted.values())
    return max(float((found[name] - wanted[name]).abs().max()) for name in wanted) / scale


def stateful(rank: int, policy: MixedPrecisionPolicy) -> dict[str, Any]:
    """Run half of the rows in two pieces, and whole."""
    model, x = shard(hybrid(), mp_policy=policy), batch().chunk(WORLD)[rank]
    with torch.no_grad():
        whole = model(x).y
        state = model.init_state(x.shape[0], dtype=torch.bfloat16)
        began = {path: tensor.dtype for path, (tensor, _) in state.tensors().items()}
        first = model(x[:, :3], state, Span())
        second = model(x[:, 3:], first.state, Span())
    ended = {path: tensor.dtype for path, (tensor, _) in second.state.tensors().items()}
    pieces = torch.cat([first.y, second.y], dim=1)
    return {"began": began, "ended": ended, "logits": pieces.dtype,
            "gap": float((pieces - whole).abs().max() / whole.abs().max())}


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD,
                            timeout=timedelta(seconds=60))
    try:
        result = {"float32": worst(*sharded_gradients(rank)),
                  "bfloat16": worst(*sharded_gradients(rank, mp_policy=BFLOAT16)), "stateful": stateful(rank, BFLOAT16)}
        torch.save(result, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()
