"""Runs real vLLM 0.22.1 on models/pocket-vl and asks it what a picture costs. Given material: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket-vl --out FOLDER

The same script runs on a CPU and on a GPU. Figures go to FOLDER/result.json: token counts, what a second request with
the same picture finds in which cache, time to the first token, refusals, answers, and what Qwen2-VL makes of the sizes
of pictures (its own function, no weights).
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB of KV cache on the CPU backend
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
BLOCK, LIMIT, ROUNDS = 16, 3, 60
QUESTION, OTHER_QUESTION = "What do you see?", "How many shapes are there?"
SIZES = (
    (1280, 960), (640, 480), (320, 240), (336, 336), (672, 672), (1920, 1080), (3840, 2160), (4032, 3024), (8064, 6048),
    (28, 28), (20, 20), (56, 56), (57, 55), (42, 42), (70, 70), (98, 154), (13, 2600), (2600, 13), (1000, 30),
    (9999, 61), (224, 1), (199, 1), (10_000, 50), (5_000, 4_999), (3585, 3583), (14, 14), (126, 28), (800, 600),
)  # fmt: skip
LIMITS = (None, 200_704, 1_003_520)  # max_pixels; None: the default of Qwen2-VL's own files
DEFAULT_PIXELS = (3136, 12_845_056)


def question(count: int, text: str = QUESTION) -> str:
    """A prompt about `count` pictures; vLLM puts <|bos|> before it."""
    return "<|user|>\n" + "<image>\n" * count + f"{text}<|end|>\n<|assistant|>\n"


def qwen_rows() -> list[dict]:
    """What the function that the release calls for Qwen2-VL makes of each size."""
    from vllm.model_executor.models.qwen2_vl import smart_resize

    rows = []
    for limit in LIMITS:
        least, most = DEFAULT_PIXELS[0], limit or DEFAULT_PIXELS[1]
        for width, height in SIZES:
            row = {"width": width, "height": height, "min_pixels": least, "max_pixels": most}
            try:
                high, wide = smart_resize(height=height, width=width, factor=28, min_pixels=least, max_pixels=most)
                rows.append({**row, "resized": [wide, high], "error": None})
            except ValueError as error:
                rows.append({**row, "resized": None, "error": str(error)})
    return rows


class Probe:
    """One engine in this process, so that its parts can be asked."""

    def __init__(self, model: str, draw, options: dict) -> None:
        import torch
        import vllm.utils.torch_utils as torch_utils
        from vllm import LLM
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        if not torch.cuda.is_available():
            torch_utils.async_tensor_h2d.__defaults__ = (False,)  # the release pins memory where nothing can
        self.llm = LLM(model=model, distributed_executor_backend=UniProcExecutor, **options)
        engine = self.llm.llm_engine
        self.draw, self.renderer = draw, engine.renderer
        self.encoded = 0
        worker = engine.engine_core.engine_core.model_executor.driver_worker.worker
        runner = worker.model_runner
        execute = runner._execute_mm_encoder

        def counted(scheduler_output):
            self.encoded += sum(map(len, scheduler_output.scheduled_encoder_inputs.values()))
            return execute(scheduler_output)

        runner._execute_mm_encoder = counted

    def ask(self, text: str, seeds=(), max_tokens: int = 1) -> tuple[dict, object]:
        """One request about the pictures of these seeds; what it found and what it cost."""
        from vllm import SamplingParams

        prompt = {"prompt": text}
        if seeds:
            prompt["multi_modal_data"] = {"image": [self.draw(seed) for seed in seeds]}
        self.renderer.update_mm_cache_stats()
        self.renderer.stat_mm_cache()
        before, start = self.encoded, time.perf_counter()
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        out = self.llm.generate(prompt, params, use_tqdm=False)[0]
        ms = 1e3 * (time.perf_counter() - start)
        self.renderer.update_mm_cache_stats()
        stats = self.renderer.stat_mm_cache()
        return {
            "pictures": list(seeds), "prompt_tokens": len(out.prompt_token_ids),
            "cached_tokens": out.num_cached_tokens, "encoded": self.encoded - before,
            "processor_queries": stats.queries, "processor_hits": stats.hits, "ms": round(ms, 3),
        }, out  # fmt: skip

    def refusal(self, text: str, seeds) -> str:
        """What it says to a request that it does not take."""
        try:
            found, _ = self.ask(text, seeds)
        except Exception as error:  # whatever it is, it is what we want to see
            return f"{type(error).__name__}: {error}"
        return f"taken, with {found['prompt_tokens']} prompt tokens"


def reuse(probe: Probe) -> list[dict]:
    """Requests one after the other; each row says what it found."""
    rows = []

    def step(name, *args):
        rows.append({"step": name, **probe.ask(*args)[0]})

    step("picture 1", question(1), [1])
    step("the same again", question(1), [1])
    step("the same text, picture 2", question(1), [2])
    step("picture 1, another question", question(1, OTHER_QUESTION), [1])
    step("pictures 1 and 2", question(2), [1, 2])
    step("pictures 2 and 1", question(2), [2, 1])
    step("picture 3, three times", question(3), [3, 3, 3])
    probe.llm.reset_prefix_cache()
    step("picture 1, no prefix cache", question(1), [1])
    probe.llm.reset_prefix_cache()
    probe.llm.llm_engine.reset_encoder_cache()
    step("picture 1, no encoder cache either", question(1), [1])
    probe.llm.reset_prefix_cache()
    probe.llm.llm_engine.reset_encoder_cache()
    probe.llm.llm_engine.reset_mm_cache()
    step("picture 1, nothing left", question(1), [1])
    return rows


def latency(probe: Probe) -> list[dict]:
    """Requests of one token, timed, the arms in turn; the prefix cache is emptied before each."""
    words = " ".join(["picture"] * 400)
    for number in range(5):
        probe.ask(question(1), [100 + number])
    fill = 1
    while probe.ask(question(0, words[:fill]))[0]["prompt_tokens"] < probe.ask(question(1), [1])[0]["prompt_tokens"]:
        fill += 1
    rows = []
    for number in range(ROUNDS):
        for arm, text, seeds in (
            ("text", question(0), []),
            ("long text", question(0, words[:fill]), []),
            ("new picture", question(1), [1000 + number]),
            ("picture again", question(1), [1000 + number]),
            ("three new pictures", question(3), [2000 + 3 * number + i for i in range(3)]),
        ):
            probe.llm.reset_prefix_cache()
            rows.append({"arm": arm, **probe.ask(text, seeds)[0]})
    return rows


def answers(probe: Probe, suite, picture_of) -> list[dict]:
    """Held-out questions of the suites, and what the model says."""
    rows = []
    for name in ("colour", "count", "digit", "word", "describe", "more"):
        for case in suite(name, 4):
            (_, text), *_ = case.messages
            probe.draw, keep = (lambda at, case=case: picture_of(case.pictures[at])), probe.draw
            _, out = probe.ask(f"<|user|>\n{text}<|end|>\n<|assistant|>\n", range(len(case.pictures)), 48)
            probe.draw = keep
            rows.append({
                "suite": name, "pictures": len(case.pictures), "question": text, "expected": case.expected,
                "answer": out.outputs[0].text,
            })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--arm", choices=["all", "reuse"], default="all", help="reuse: without times and answers")
    args = parser.parse_args()
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    import numpy as np
    import torch
    from PIL import Image
    from vllm import __version__

    from models.training.pocket_vl.pictures import draw_shapes
    from models.training.pocket_vl.suites import suite

    options = {
        "dtype": "float32", "enforce_eager": True, "max_model_len": 512, "seed": 0, "max_num_seqs": 8,
        "max_num_batched_tokens": 512, "block_size": BLOCK, "limit_mm_per_prompt": {"image": LIMIT},
    }  # fmt: skip

    def draw(seed):
        return Image.fromarray(draw_shapes(np.random.default_rng(seed)).pixels)

    probe = Probe(args.model, draw, options)
    result = {
        "vllm": __version__, "device": "cuda" if torch.cuda.is_available() else "cpu", "options": options,
        "question": QUESTION, "sizes": [probe.ask(question(count), range(50, 50 + count))[0] for count in range(4)],
        "reuse": reuse(probe),
        "refusals": {
            "a picture too many": probe.refusal(question(4), [1, 2, 3, 4]),
            "a marker too few": probe.refusal(question(1), [1, 2]),
            "a marker too many": probe.refusal(question(2), [1]),
        },
        "qwen2_vl": qwen_rows(),
    }  # fmt: skip
    if args.arm == "all":
        result["latency"] = latency(probe)
        result["answers"] = answers(probe, suite, lambda picture: Image.fromarray(picture.pixels))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
