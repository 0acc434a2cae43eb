"""How often an adapter's A is read, by your kernel and by a kernel of one token a program: counted, not timed.

python phase-11-multi-lora/labs/lab-05-shrink-and-expand/demo.py      # LAB_IMPL=solution for the reference
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load, wanted_impl  # noqa: E402
from course.triton_cpu import triton_or_skip  # noqa: E402


def main() -> None:
    on_gpu = triton_or_skip()
    if on_gpu:
        raise SystemExit("counts are taken in Triton's interpreter; hide the GPU with CUDA_VISIBLE_DEVICES=")
    lab, tests = load(HERE / f"{wanted_impl()}.py"), load(HERE / "test_lab.py")
    print(f"{'tokens':>6} {'adapters':>9} {'yours':>6} {'one token a program':>20}")
    for tokens in (8, 16, 32):
        for adapters in sorted({1, 4, tokens}):
            case = tests.Case([i % adapters for i in range(tokens)], num_slots=tokens)
            with tests.Watch(case.A) as seen:
                lab.lora_shrink(case.x, case.A, case.slots, case.scalings)
            reads = seen.read / (case.A[0].numel() * case.A.element_size())
            print(f"{tokens:6} {adapters:9} {reads:6g} {tokens:20}")


if __name__ == "__main__":
    main()
