"""Lets real vLLM 0.22.1 cut models of L layers and writes the pieces to FOLDER/result.json. No GPU, no checkpoint.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model none --out FOLDER

`split_graph` is the release's own. The model is a stand-in with nine operators a layer; two neighbours in the middle,
sin and cos, play the cache update and attention: they are the split points. Given material: nothing to edit here.
"""

import argparse
import json
import os
from pathlib import Path

os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})

import torch
from vllm.compilation.backends import split_graph

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="not used")
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    found = [
        {"layers": layers, "split_at": name, "pieces": cut(layers, ops)}
        for layers in (1, 2, 12, 28, 32)
        for name, ops in SPLITTING.items()
    ]
    (out / "result.json").write_text(json.dumps({"cuts": found}), encoding="utf-8")


if __name__ == "__main__":
    main()
