"""Trunk and heads around the blocks of a vision transformer (layer: backbones); knows torch alone.

Tokens are ``(B, T, W)`` with W the width of the transformer; the CLS token, where there is one, comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class BlockLayout:
    """Names of the parts of a pre-norm block: ``x + scale1(attention(norm1(x)))``, then the MLP likewise."""

    norm1: str
    norm2: str
    attention: str
    out: str
    scale1: str = ""
    scale2: str = ""

    def fits(self, block: nn.Module) -> bool:
        """Is the block made of exactly these parts, so that it can be computed for the CLS token alone?"""
        parts = {self.norm1, self.norm2, self.attention, "mlp", self.scale1, self.scale2} - {""}
        idle = {"dropout", "drop_path"}  # nothing in evaluation mode
        if {name for name, _ in block.named_children()} - idle != parts:
            return False
        attention = getattr(block, self.attention)
        linear = {name for name, part in attention.named_children() if isinstance(part, nn.Linear)}
        everything = {name for name, _ in attention.named_children()}
        known = everything == linear == {"q_proj", "k_proj", "v_proj", self.out}
        return known and hasattr(attention, "head_dim")


class Rotary(nn.Module):
    """Rotary positions of the patches, for one image size; the first tokens (CLS, registers) have none."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, cosine: Tensor, sine: Tensor) -> None:
        super().__init__()
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def pair(self) -> tuple[Tensor, Tensor]:
        """Return cosine and sine, each ``(patches, W / heads)``, as the library's blocks take them."""
        return self.cosine, self.sine

    def forward(self, keys: Tensor) -> Tensor:
        """Rotate the patches among the keys ``(B, heads, T, W / heads)``."""
        first = keys.shape[2] - len(self.cosine)
        patches = keys[:, :, first:]
        low, high = patches.chunk(2, dim=-1)
        turned = patches * self.cosine + torch.cat([-high, low], dim=-1) * self.sine
        return torch.cat([keys[:, :, :first], turned], dim=2)


class TokenTrunk(nn.Module):
    """Embeddings and all blocks but the last: pixels ``(B, 3, H, W)`` -> tokens ``(B, T, W)``."""

    def __init__(
        self, embeddings: nn.Module, norm: nn.Module | None, blocks: nn.ModuleList, rotary: Rotary | None
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.norm = norm
        self.blocks = blocks
        self.rotary = rotary

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode pixels."""
        tokens: Tensor = self.embeddings(pixels)
        if self.norm is not None:
            tokens = self.norm(tokens)
        for block in self.blocks:
            tokens = run_block(block, tokens, self.rotary)
        return tokens.contiguous()


class ClsHead(nn.Module):
    """Last block, final norm and projection (if any), computed for the CLS token alone where possible.

    No other token of the last block is read, so queries, output projection and MLP run for one token instead
    of all. Nor do all tokens need keys and values: with one query q, ``q . (K x)`` is ``(q K) . x``, and the
    weighted mean of ``V x`` is V times the weighted mean of x. That is about 30 times cheaper than the block.
    """

    def __init__(
        self,
        block: nn.Module,
        norm: nn.Module,
        projection: nn.Module | None,
        rotary: Rotary | None,
        layout: BlockLayout,
    ) -> None:
        super().__init__()
        self.block = block
        self.norm = norm
        self.projection = projection
        self.rotary = rotary
        self.layout = layout if layout.fits(block) else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode tokens ``(B, T, W)`` into features ``(B, D)``."""
        if self.layout is None:
            features = run_block(self.block, tokens, self.rotary)[:, 0]
        else:
            features = self._cls_row(tokens, self.layout)
        normed: Tensor = self.norm(features)
        if self.projection is None:
            return normed
        projected: Tensor = self.projection(normed)
        return projected

    def describe(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return features ``(B, D)`` and, as local features, the tokens before the last block but for CLS."""
        return self(tokens), tokens[:, 1:]

    def _cls_row(self, tokens: Tensor, layout: BlockLayout) -> Tensor:
        norm1, norm2 = getattr(self.block, layout.norm1), getattr(self.block, layout.norm2)
        row = tokens[:, 0]
        mixed = self._attend(norm1(tokens), getattr(self.block, layout.attention), layout.out)
        row = row + (getattr(self.block, layout.scale1)(mixed) if layout.scale1 else mixed)
        moved: Tensor = self.block.get_submodule("mlp")(norm2(row))
        return row + (getattr(self.block, layout.scale2)(moved) if layout.scale2 else moved)

    def _attend(self, tokens: Tensor, attention: nn.Module, out: str) -> Tensor:
        """Return the attention's output for the first of the normalised tokens, ``(B, W)``."""
        size = int(attention.head_dim)  # type: ignore[arg-type]
        query = attention.get_submodule("q_proj")(tokens[:, 0]).unflatten(-1, (-1, size))  # (B, heads, size)
        weights = (self._scores(query, tokens, attention) / size**0.5).softmax(dim=-1)  # (B, heads, T)
        matrix, bias = _per_head(attention.get_submodule("v_proj"), size)
        mixed = torch.einsum("bhw,hsw->bhs", weights @ tokens, matrix)
        mixed = mixed if bias is None else mixed + bias  # the weights add up to one
        attended: Tensor = attention.get_submodule(out)(mixed.flatten(1))
        return attended

    def _scores(self, query: Tensor, tokens: Tensor, attention: nn.Module) -> Tensor:
        """Return ``(B, heads, T)`` products of the query with all keys."""
        projection = attention.get_submodule("k_proj")
        size = query.shape[-1]
        if self.rotary is not None:  # every patch turns its key by another angle: the keys are needed one by one
            keys = self.rotary(projection(tokens).unflatten(-1, (-1, size)).transpose(1, 2))
            return torch.matmul(keys, query.unsqueeze(-1)).squeeze(-1)
        matrix, bias = _per_head(projection, size)
        scores = torch.einsum("bhs,hsw->bhw", query, matrix) @ tokens.transpose(1, 2)
        return scores if bias is None else scores + (query * bias).sum(dim=-1, keepdim=True)


class PoolHead(nn.Module):
    """Last block, final norm and attention pooling over all tokens: ``(B, T, W)`` -> ``(B, W)``."""

    def __init__(self, block: nn.Module, norm: nn.Module, pool: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.norm = norm
        self.pool = pool

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode tokens ``(B, T, W)`` into features ``(B, W)``."""
        features: Tensor = self.pool(self.norm(run_block(self.block, tokens, None)))
        return features

    def describe(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return features ``(B, W)`` and, as local features, the tokens before the last block."""
        return self(tokens), tokens


def run_block(block: nn.Module, tokens: Tensor, rotary: Rotary | None) -> Tensor:
    """Run a block of the library over all tokens, without a mask."""
    extra = {} if rotary is None else {"position_embeddings": rotary.pair()}
    output = block(tokens, None, **extra)
    result: Tensor = output[0] if isinstance(output, tuple) else output
    return result


def _per_head(linear: nn.Module, size: int) -> tuple[Tensor, Tensor | None]:
    """Return a projection as ``(heads, size, W)`` and its bias, if any, as ``(heads, size)``."""
    assert isinstance(linear, nn.Linear)
    bias = None if linear.bias is None else linear.bias.view(-1, size)
    return linear.weight.view(-1, size, linear.in_features), bias
