"""Lets real vLLM 0.22.1 cut models of L layers and writes the pieces to FOLDER/result.json. No GPU, no checkpoint.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model none --out FOLDER

`split_graph` is the release's own. The model is a stand-in with nine operators a layer; two neighbours in the middle,
sin and cos, play the cache update and attention: they are the split points. Given material: nothing to edit here.
"""

import os
import sys
from pathlib import Path

os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from vllm.compilation.backends import split_graph

from course.captures import answer

aten = torch.ops.aten
SPLITTING = {"both": ["aten::sin", "aten::cos"], "attention only": ["aten::cos"], "none": []}


class Stand(torch.nn.Module):
    """L layers: norm, qkv, rotary; cache update, attention; output, norm, up, down."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        for _ in range(self.layers):
            x = aten.relu.default(aten.abs.default(aten.neg.default(x)))
            x = aten.cos.default(aten.sin.default(x))
            x = aten.relu.default(aten.abs.default(aten.neg.default(aten.exp.default(x))))
        return x


def cut(layers, splitting_ops):
    """The pieces in order: how many operators, and whether the piece is a split point."""
    _, pieces = split_graph(torch.fx.symbolic_trace(Stand(layers)), splitting_ops)
    return [
        [sum(node.op == "call_function" for node in piece.graph.graph.nodes), piece.is_splitting_graph]
        for piece in pieces
    ]


def ask():
    """Five depths, cut in three ways."""
    found = [
        {"layers": layers, "split_at": name, "pieces": cut(layers, ops)}
        for layers in (1, 2, 12, 28, 32)
        for name, ops in SPLITTING.items()
    ]
    return {"cuts": found}


if __name__ == "__main__":
    answer(__doc__, ask)
