"""One training step of a GPT, forward, loss, backward, clipping and AdamW, beside the same model in PyTorch eager."""

from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as TF
from torch import nn

import minigrad as mg
from attention import functional as F
from attention.models import GPT
from minigrad import backend, optim

# layers, heads, width, T, batch, vocabulary
SIZES = {
    "4 layers, 4 heads, width 128, T = 64, batch 12, vocabulary 65": (4, 4, 128, 64, 12, 65),
    "6 layers, 6 heads, width 384, T = 256, batch 8, vocabulary 65": (6, 6, 384, 256, 8, 65),
}


class Block(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        B, T, d = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(B, T, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = TF.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(y.transpose(1, 2).reshape(B, T, d))
        return x + self.down(TF.gelu(self.up(self.norm2(x)), approximate="tanh"))


class TorchGPT(nn.Module):
    def __init__(self, layers: int, heads: int, d: int, T: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, d), nn.Embedding(T, d)
        self.blocks = nn.ModuleList([Block(d, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(d)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


NAMES = (
    ("attention_residual.norm", "norm1"),
    ("feed_forward_residual.norm", "norm2"),
    ("attention.", ""),
    ("feed_forward.", ""),
)


def torch_name(name: str) -> str:
    for ours, theirs in NAMES:
        name = name.replace(ours, theirs)
    return name


def for_torch(name: str, values: Any) -> Any:
    """A parameter as PyTorch holds it: matrices that are multiplied from the right are transposed there."""
    transposed = values.ndim == 2 and not name.startswith(("tokens", "positions"))
    return torch.tensor(values.T.copy() if transposed else values)


@pytest.mark.parametrize(
    "size", [pytest.param(size, marks=[pytest.mark.long] if layers > 4 else []) for size, (layers, *_) in SIZES.items()]
)
def test_training_step(compete: Any, size: str) -> None:
    layers, heads, d, T, batch, vocabulary = SIZES[size]
    device = "cuda" if backend.get_backend() == "cupy" else "cpu"
    mg.random.seed(0)
    model = GPT(vocabulary, d, heads, layers, T, dropout=0.0)
    peer = TorchGPT(layers, heads, d, T, vocabulary).to(device)
    named = dict(model.named_parameters())
    peer.load_state_dict({torch_name(n): for_torch(n, p.detach().numpy()) for n, p in named.items()})
    rng = numpy.random.default_rng(0)
    ids, target = rng.integers(0, vocabulary, (2, batch, T))
    mine = [mg.asarray(backend.from_numpy(x)) for x in (ids, target)]
    theirs = [torch.tensor(x, device=device) for x in (ids, target)]
    parameters = list(named.values())
    options = {"lr": 1e-4, "weight_decay": 0.1}
    our_optimizer = optim.AdamW(parameters, **options)
    their_optimizer = torch.optim.AdamW(peer.parameters(), **options)

    def ours() -> Any:
        our_optimizer.zero_grad()
        loss = F.cross_entropy(model(mine[0]), mine[1])
        loss.backward()
        norm = optim.clip_grad_norm_(parameters, 1.0)
        our_optimizer.step()
        return loss.detach(), norm

    def pytorch() -> Any:
        their_optimizer.zero_grad()
        loss = TF.cross_entropy(peer(theirs[0]).flatten(0, 1), theirs[1].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        their_optimizer.step()
        return loss, norm

    compete(f"GPT, {size}", ours, {"PyTorch": pytorch}, tolerance=1e-4, reach=0.75, table="A training step")
