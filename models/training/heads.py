"""EAGLE's layer and Medusa's blocks in torch, for training: the tensors have the names under which vLLM reads them.

Both guess from the hidden states of a target that stays as it is (pocket after its last norm).

    EAGLE    layer(fc(embedding of token i + 1, hidden state i)) stands for hidden state i + 1: its logits guess token
             i + 2, and it is the next input, so that one layer guesses any number of tokens ahead
    Medusa   block j turns hidden state i into logits of token i + 2 + j: all guesses at once, none knows the others

Upstream: upstream/vllm/model_executor/models/llama_eagle.py, upstream/vllm/model_executor/models/medusa.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from models.training.chat_format import CLASS_ANSWER, CLASS_PAD
from models.training.dataset import Rows

EAGLE_STEPS = 3
"""Guesses ahead that training unrolls: the layer must live with hidden states of its own making."""
HIDDEN_WEIGHT = 0.1
CONTEXT_WEIGHT = 0.3
"""Of tokens outside answers, for EAGLE: what comes before and after an answer is drafted too."""
ROPE_BASE = 10_000.0
Past = list[tuple[torch.Tensor, torch.Tensor]]


def _linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


class EagleLayer(nn.Module):
    """A decoder layer of Llama whose first norm is left out, as EAGLE has it."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, inter: int, head_dim: int, eps: float) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.self_attn = nn.ModuleDict({
            "q_proj": _linear(hidden, heads * head_dim),
            "k_proj": _linear(hidden, kv_heads * head_dim),
            "v_proj": _linear(hidden, kv_heads * head_dim),
            "o_proj": _linear(heads * head_dim, hidden),
        })  # fmt: skip
        self.mlp = nn.ModuleDict({
            "gate_proj": _linear(hidden, inter), "up_proj": _linear(hidden, inter), "down_proj": _linear(inter, hidden),
        })  # fmt: skip
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)

    def _split(self, x: torch.Tensor, name: str, count: int) -> torch.Tensor:
        """[B, n, H] -> [B, query heads, n, D]."""
        heads = self.self_attn[name](x).unflatten(-1, (count, self.head_dim)).transpose(1, 2)
        return heads.repeat_interleave(self.heads // count, dim=1)

    def _rotate(self, x: torch.Tensor, first_position: int) -> torch.Tensor:
        """Rotary positions `first_position`, `first_position` + 1, … ."""
        half = self.head_dim // 2
        rates = ROPE_BASE ** (-torch.arange(half, device=x.device) / half)
        angles = (torch.arange(x.shape[2], device=x.device) + first_position)[:, None] * rates
        cos, sin = angles.cos(), angles.sin()
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def forward(self, x: torch.Tensor, step: int, past: Past) -> torch.Tensor:
        """Guess `step` of n guessers at once, [B, n, H] -> [B, n, H].

        Guesser i stands at position i + `step`. It sees what all guessers up to i computed in step 0, which is what
        the target has confirmed, and its own steps since: `past` holds the keys and values, and gets those of now.
        """
        q = self._rotate(self._split(x, "q_proj", self.heads), step)
        past.append((
            self._rotate(self._split(x, "k_proj", self.kv_heads), step),
            self._split(x, "v_proj", self.kv_heads).float(),
        ))  # fmt: skip
        count = x.shape[1]
        unseen = torch.ones(count, count, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ past[0][0].transpose(-1, -2)).masked_fill(unseen, -torch.inf)
        own = [(q * key).sum(-1, keepdim=True) for key, _ in past[1:]]
        weights = (torch.cat([scores, *own], dim=-1) / self.head_dim**0.5).softmax(-1)
        mixed = weights[..., :count] @ past[0][1]
        for i, (_, value) in enumerate(past[1:]):
            mixed = mixed + weights[..., count + i, None] * value
        x = x + self.self_attn["o_proj"](mixed.transpose(1, 2).flatten(2))
        normed = self.post_attention_layernorm(x)
        gated = F.silu(self.mlp["gate_proj"](normed)) * self.mlp["up_proj"](normed)
        return x + self.mlp["down_proj"](gated)


class EagleHead(nn.Module):
    """`fc` and one layer; embedding and output weights are the target's, and are not stored again."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        shape = (config.num_attention_heads, config.num_key_value_heads, config.intermediate_size, config.head_dim)
        self.fc = _linear(2 * hidden, hidden)
        self.layers = nn.ModuleList([EagleLayer(hidden, *shape, eps)])

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, step: int, past: Past) -> torch.Tensor:
        """See `EagleLayer.forward`; embedded, hidden [B, n, H]."""
        return self.layers[0](self.fc(torch.cat([embedded, hidden], dim=-1)), step, past)


class MedusaHeads(nn.Module):
    """Residual blocks, one a guess, and one output matrix for all, of the `token_map` tokens said most often.

    Blocks start as the identity, the output matrix as the target's rows.
    """

    def __init__(self, target: Any, num_heads: int, num_layers: int, token_map: torch.Tensor) -> None:
        super().__init__()
        hidden = target.config.hidden_size
        self.blocks = nn.ModuleList([ResidualBlock(hidden, num_layers) for _ in range(num_heads)])
        self.lm_head = nn.Linear(hidden, len(token_map), bias=False)
        self.lm_head.weight.data.copy_(target.lm_head.weight.data[token_map])
        self.register_buffer("token_map", token_map)

    def forward(self, hidden: torch.Tensor, head: int) -> torch.Tensor:
        """Hidden states [R, H] -> logits of the mapped tokens [R, len(token_map)]."""
        return self.lm_head(self.blocks[head](hidden))


class ResidualBlock(nn.Module):
    """`x + silu(layer(x))`, layer after layer."""

    def __init__(self, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(num_layers)])
        for layer in self.layers:
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]."""
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


def hidden_states(teacher: Any, ids: torch.Tensor) -> torch.Tensor:
    """What the target hands to its output matrix, [B, L, H] in float32."""
    with torch.no_grad(), torch.autocast(ids.device.type, enabled=False):
        return teacher.model(input_ids=ids, use_cache=False).last_hidden_state


def _distance(guessed: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Cross entropy [R] between laws given as logits [R, V]; `known` is taken as it is."""
    return -(known.float().softmax(-1).detach() * guessed.float().log_softmax(-1)).sum(-1)


def eagle_guesses(
    head: EagleHead, ids: torch.Tensor, classes: torch.Tensor, teacher: Any
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """For each of `EAGLE_STEPS`: guessed hidden states of tokens, and the target's, both [R, H]; whether each token is
    of an answer, [R]. Padding is left out."""
    hidden = hidden_states(teacher, ids)
    embedded = teacher.model.embed_tokens(ids).detach()
    count, past = ids.shape[1] - 1 - EAGLE_STEPS, []
    given = hidden[:, :count]
    for step in range(EAGLE_STEPS):
        here = slice(step + 1, step + 1 + count)
        given = head(embedded[:, here], given, step, past)
        kinds = classes[:, step + 2 : step + 2 + count]
        there = kinds != CLASS_PAD
        yield given[there], hidden[:, here][there], kinds[there] == CLASS_ANSWER


def medusa_guesses(
    heads: MedusaHeads, ids: torch.Tensor, classes: torch.Tensor, teacher: Any
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each head: its logits for tokens of answers [R, mapped tokens], and the target's hidden states there."""
    hidden = hidden_states(teacher, ids)
    for j in range(len(heads.blocks)):
        said = classes[:, 2 + j :] == CLASS_ANSWER
        yield heads(hidden[:, : -2 - j][said], j), hidden[:, 1 + j : -1][said]


def eagle_loss(head: EagleHead, ids: torch.Tensor, classes: torch.Tensor, teacher: Any) -> torch.Tensor:
    """Mean over the steps: distance to the target's law, and some to its hidden state."""
    losses = []
    for guessed, known, answers in eagle_guesses(head, ids, classes, teacher):
        near = F.smooth_l1_loss(guessed.float(), known, reduction="none").mean(-1)
        each = _distance(teacher.lm_head(guessed), teacher.lm_head(known)) + HIDDEN_WEIGHT * near
        weights = torch.where(answers, 1.0, CONTEXT_WEIGHT)
        losses.append((each * weights).sum() / weights.sum())
    return torch.stack(losses).mean()


def medusa_loss(heads: MedusaHeads, ids: torch.Tensor, classes: torch.Tensor, teacher: Any) -> torch.Tensor:
    """Mean over the heads: distance to the target's law one, two, … tokens later, of the tokens that a head knows."""
    losses = [
        _distance(logits, teacher.lm_head(later)[:, heads.token_map]).mean()
        for logits, later in medusa_guesses(heads, ids, classes, teacher)
    ]
    return torch.stack(losses).mean()


@torch.no_grad()
def agreement(model: EagleHead | MedusaHeads, rows: dict[int, Rows], teacher: Any, batch_tokens: int) -> list[float]:
    """How often the first, second, … guess is the target's likeliest token, over tokens of answers in `rows`."""
    device = next(model.parameters()).device
    counts: list[torch.Tensor] = []
    for length, bucket in rows.items():
        size = max(1, batch_tokens // length)
        for start in range(0, len(bucket.ids), size):
            part = slice(start, start + size)
            ids = torch.from_numpy(bucket.ids[part].astype("int64")).to(device)
            classes = torch.from_numpy(bucket.classes[part]).to(device)
            same = []
            if isinstance(model, EagleHead):
                for guessed, known, answers in eagle_guesses(model, ids, classes, teacher):
                    agree = teacher.lm_head(guessed).argmax(-1) == teacher.lm_head(known).argmax(-1)
                    same.append(agree[answers])
            else:
                for logits, later in medusa_guesses(model, ids, classes, teacher):
                    same.append(model.token_map[logits.argmax(-1)] == teacher.lm_head(later).argmax(-1))
            counts.append(torch.tensor([[int(each.sum()), len(each)] for each in same]))
    hits, all_of_them = torch.stack(counts).sum(0).unbind(-1)
    return [round(float(rate), 4) for rate in hits / all_of_them]
