"""What the compiled form for GPUs calls between its products, twice: Triton kernels, and the same in plain torch.

The second says what the first must compute, and is what runs where there is no GPU (`device="torch"`).
Upstream: upstream/vllm/model_executor/custom_op.py:103 — `CustomOp`, whose `forward_cuda` and `forward_native` are
such a pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass
class DeviceMetadata:
    """`AttentionMetadata` on the device, int32: query_start_loc [R + 1], seq_lens [R], block_tables [R, W],
    slot_mapping [T]. max_query_len: 1: every request has one token (or none: padding)."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int


class TritonOps:
    """Kernels of `mini_vllm/kernels`. Shapes are said there."""

    def __init__(self) -> None:
        from mini_vllm.kernels.fused_norm import add_rms_norm, silu_and_mul
        from mini_vllm.kernels.gumbel_sample import gumbel_sample
        from mini_vllm.kernels.paged_decode import choose_splits, paged_decode_attention
        from mini_vllm.kernels.prefill import paged_prefill_attention
        from mini_vllm.kernels.rope_and_cache import rope_and_cache

        self.add_rms_norm, self.silu_and_mul = add_rms_norm, silu_and_mul
        self.rope_and_cache, self.sample = rope_and_cache, gumbel_sample
        self._decode, self._prefill = paged_decode_attention, paged_prefill_attention
        self._choose_splits = choose_splits

    def attention(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, metadata: DeviceMetadata
    ) -> torch.Tensor:
        """[T, Hq, D] -> [T, Hq, D]; causal, through the block tables."""
        m = metadata
        if m.max_query_len == 1:
            return self._decode(q, k_cache, v_cache, m.block_tables, m.seq_lens, num_splits=self._splits(k_cache, m))
        return self._prefill(q, k_cache, v_cache, m.block_tables, m.query_start_loc, m.seq_lens, m.max_query_len)

    def _splits(self, k_cache: torch.Tensor, m: DeviceMetadata) -> int:
        """Programs a request and KV head: twice the usual rule, fastest from 32 to 256 requests on an H200."""
        if not k_cache.is_cuda:
            return 1
        sms = torch.cuda.get_device_properties(k_cache.device).multi_processor_count
        longest = m.block_tables.shape[1] * k_cache.shape[1]
        return self._choose_splits(len(m.seq_lens) * k_cache.shape[2], longest, 2 * sms)


class TorchOps:
    """The same in torch's own operations."""

    @staticmethod
    def add_rms_norm(
        x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of x + residual, x + residual)."""
        total = x.float() if residual is None else x.float() + residual.float()
        scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
        return (total * scale * weight.float()).to(x.dtype), total.to(x.dtype)

    @staticmethod
    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        """[T, 2 * n] -> [T, n]."""
        gate, up = x.float().chunk(2, dim=-1)
        return (F.silu(gate) * up).to(x.dtype)

    @staticmethod
    def rope_and_cache(
        qkv: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, cos_sin: torch.Tensor,
        k_cache: torch.Tensor, v_cache: torch.Tensor, norms: tuple[torch.Tensor, torch.Tensor] | None, eps: float,
    ) -> torch.Tensor:  # fmt: skip
        """Rotated queries; keys and values go to the cache."""
        num_kv_heads, head_dim = k_cache.shape[2:]
        heads = qkv.view(len(qkv), -1, head_dim).float()
        num_heads = heads.shape[1] - 2 * num_kv_heads
        parts = [heads[:, :num_heads], heads[:, num_heads : num_heads + num_kv_heads]]
        if norms is not None:
            parts = [
                x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()
                for x, weight in zip(parts, norms, strict=True)
            ]
        cos, sin = cos_sin[positions.long()].unsqueeze(1).chunk(2, dim=-1)
        turned = []
        for x in parts:
            first, second = x.chunk(2, dim=-1)
            turned.append(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(qkv.dtype))
        stored = slots >= 0
        where = slots[stored].long()
        k_cache.view(-1, num_kv_heads, head_dim)[where] = turned[1][stored]
        v_cache.view(-1, num_kv_heads, head_dim)[where] = heads[:, num_heads + num_kv_heads :].to(qkv.dtype)[stored]
        return turned[0]

    @staticmethod
    def attention(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, metadata: DeviceMetadata
    ) -> torch.Tensor:
        """A request at a time."""
        out, num_kv_heads = torch.zeros_like(q), k_cache.shape[2]
        starts, seq_lens = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist()
        for row, seq_len in enumerate(seq_lens):
            first, last = starts[row], starts[row + 1]
            if first == last:
                continue
            blocks = metadata.block_tables[row, : -(-seq_len // k_cache.shape[1])].long()
            k, v = (c[blocks].flatten(0, 1)[:seq_len].float() for c in (k_cache, v_cache))
            grouped = q[first:last].float().unflatten(1, (num_kv_heads, -1))
            scores = torch.einsum("qhgd,khd->hgqk", grouped, k) * q.shape[-1] ** -0.5
            position = torch.arange(seq_len - (last - first), seq_len, device=q.device)
            scores.masked_fill_(torch.arange(seq_len, device=q.device) > position[:, None], float("-inf"))
            out[first:last] = torch.einsum("hgqk,khd->qhgd", scores.softmax(-1), v).flatten(1, 2).to(q.dtype)
        return out

    @staticmethod
    def sample(
        logits: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `gumbel_sample`, with other noise of the same law, which is a function of seed and position too."""
        logits, bad = logits.float(), torch.isnan(logits).any(dim=1)
        tokens = []
        for row, t, seed, position in zip(
            logits, temperature.tolist(), seeds.tolist(), positions.tolist(), strict=True
        ):
            if t:
                stream = torch.Generator(device=logits.device).manual_seed((seed * 1_000_003 + position) % (1 << 62))
                noise = torch.empty_like(row).exponential_(generator=stream)
                row = row / t - noise.log()
            tokens.append(row.nan_to_num(float("-inf")).argmax())
        return torch.stack(tokens), bad
