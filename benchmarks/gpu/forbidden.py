"""What a capture refuses, each case in a process of its own: python -m benchmarks.gpu.forbidden --out FILE."""

from __future__ import annotations

import json
import subprocess
import sys


def try_one(name: str) -> str:
    """`common.capture` of one call: "captured", or the errors, the first cause first."""
    import torch

    from benchmarks.gpu.common import capture

    x, out, host = torch.ones(8, device="cuda"), torch.empty(8, device="cuda"), torch.ones(8)
    cases = {
        "out.copy_(x * 2)": lambda: out.copy_(x * 2),
        "x.sum().item()": lambda: x.sum().item(),
        "print(x)": lambda: print(x, file=sys.stderr),
        "if x.sum() > 0": lambda: x * 2 if x.sum() > 0 else x,
        "torch.nonzero(x)": lambda: torch.nonzero(x),
        "torch.cuda.synchronize()": torch.cuda.synchronize,
        "out.copy_(host)": lambda: out.copy_(host),
    }
    if not name:
        return json.dumps(list(cases))
    try:
        capture([cases[name]])
    except RuntimeError as error:
        chain: list[BaseException] = [error]
        while (cause := chain[0].__context__) is not None:
            chain.insert(0, cause)
        return "\n".join(f"{type(e).__name__}: {str(e).splitlines()[0]}" for e in chain)
    return "captured"


def ask(name: str) -> str:
    """`try_one` in another process: after a failed capture a process is good for nothing."""
    command = [sys.executable, "-m", "benchmarks.gpu.forbidden", "--one", name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        print(try_one(sys.argv[2]))
    else:
        import torch

        found = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "cuda": torch.version.cuda}
        found |= {"captures": {name: ask(name) for name in json.loads(ask(""))}}
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write(json.dumps(found, indent=1) + "\n")
