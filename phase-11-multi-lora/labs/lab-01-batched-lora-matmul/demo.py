"""One question to the base and to three adapters, in one batch, through your `add_deltas`; then each alone.

python phase-11-multi-lora/labs/lab-01-batched-lora-matmul/demo.py      # LAB_IMPL=solution for the reference
"""

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from course.labs import load, wanted_impl  # noqa: E402
from mini_vllm import LLM, SamplingParams  # noqa: E402
from mini_vllm.lora.request import LoRARequest  # noqa: E402
from mini_vllm.tests.lora.adapters import save_adapter  # noqa: E402

POCKET = ROOT / "models" / "pocket"


def main() -> None:
    lab = load(HERE / f"{wanted_impl()}.py")
    with tempfile.TemporaryDirectory() as folder:
        loras: list[LoRARequest | None] = [None]
        for number, rank in ((1, 4), (2, 8), (3, 2)):
            path = save_adapter(Path(folder) / str(number), POCKET, seed=number, rank=rank, alpha=2 * rank)
            loras.append(LoRARequest(f"adapter-{number}", number, str(path)))
        llm = LLM(str(POCKET), enable_lora=True, max_loras=3, max_lora_rank=8, enable_prefix_caching=False)
        chat = [{"role": "user", "content": "Tell me a story about a fox."}]
        params = SamplingParams(temperature=0.0, max_tokens=20)
        with load(HERE / "serve.py").serving(llm, lab.add_deltas):
            together = llm.chat([chat] * 4, params, lora_request=loras, use_tqdm=False)
            for lora, out in zip(loras, together, strict=True):
                alone = llm.chat([chat], params, lora_request=lora, use_tqdm=False)[0].outputs[0]
                same = "as alone" if alone.token_ids == out.outputs[0].token_ids else f"ALONE: {alone.text!r}"
                print(f"{lora.name if lora else 'base':10} {out.outputs[0].text!r}  ({same})")


if __name__ == "__main__":
    main()
