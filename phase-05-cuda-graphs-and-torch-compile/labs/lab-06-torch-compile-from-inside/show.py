"""Prints what a compiler sees: the six-layer model in pieces, and nine calls beside the one loop they became.

    python show.py                    the reference
    LAB_IMPL=starter python show.py   yours

Given material; needs no C++ compiler: the loop is that of captured/norm_gate.txt.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course.labs import load

HERE = Path(__file__).resolve().parent


class Calls(TorchDispatchMode):
    """Notes every aten call that is made inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def main() -> None:
    """Pieces, kinds of pieces, calls, loop."""
    lab, given = load(HERE / f"{os.environ.get('LAB_IMPL', 'solution')}.py"), load(HERE / "given.py")
    recorder, model = lab.Recorder("eager"), given.Model()
    with torch.no_grad():
        torch.compile(model, backend=recorder)(torch.randn(5, 16))
    split, cuts = lab.split_at(recorder.graphs[0], {"lab0506::attention"})
    pieces = [getattr(split, node.target) for node in split.graph.nodes if node.op == "call_module"]
    print(" | ".join("attention" if i in cuts else "compiled" for i in range(len(pieces))))
    kinds: Counter[tuple[str, ...]] = Counter()
    for i, piece in enumerate(pieces):
        if i not in cuts:
            kinds[tuple(re.sub(r" at 0x\w+", "", str(n.target)) for n in piece.graph.nodes if "call" in n.op)] += 1
    print(
        f"{len(pieces)} pieces, {len(cuts)} of attention; {len(pieces) - len(cuts)} to compile, of {len(kinds)} kinds:"
    )
    print("  " + ", ".join(f"{n} of {len(ops)} calls" for ops, n in kinds.items()))
    x, w = torch.randn(64, 384), torch.randn(384)
    with Calls() as seen:
        lab.norm_gate(x, w)
    print(f"\nnorm_gate, eagerly: {len(seen.names)} calls\n  {', '.join(seen.names)}")
    code = (HERE / "captured" / "norm_gate.txt").read_text(encoding="utf-8")
    print(f"\nnorm_gate, compiled: {lab.read_cpp(code)}; its second inner loop:")
    print(code[code.index("auto tmp0", code.index("reduce_all")) - 24 : code.index("tmp21.store")] + "tmp21.store(...)")


if __name__ == "__main__":
    main()
