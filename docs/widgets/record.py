"""Records what the widgets of the website show: ``python docs/widgets/record.py`` writes ``docs/widgets/data/*.json``.

With ``--check`` it writes nothing and exits with 1 where a committed file is not the one that this script records.
Numbers that the JavaScript computes by itself stand in the files under ``expected``, computed by Python; the tests
compare the two.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).with_name("data")
sys.path.insert(0, str(ROOT))

from mini_vllm import LLMEngine, SamplingParams  # noqa: E402
from mini_vllm.core.sched.trace import record  # noqa: E402
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow  # noqa: E402
from mini_vllm.sample.ops.logprobs import softmax  # noqa: E402
from mini_vllm.sample.sampler import Sampler  # noqa: E402

POCKET = str(ROOT / "models" / "pocket")
GIB = 2**30
# name: layers, KV heads, head size, parameters
MODELS = {
    "pocket (in this repository)": (8, 2, 64, 5_771_520),
    "Qwen3-0.6B": (28, 8, 128, 596_049_920),
    "Llama-3.2-3B": (28, 8, 128, 3_212_749_824),
    "Llama-3-8B": (32, 8, 128, 8_030_261_248),
    "Llama-3-70B": (80, 8, 128, 70_553_706_496),
}
# name: memory in GiB, peak of dense bf16 in TFLOP/s, memory bandwidth in GB/s (vendors' data sheets)
GPUS = {
    "L4": (24, 121, 300),
    "A100 80GB SXM": (80, 312, 2039),
    "H100 SXM": (80, 989, 3350),
    "H200": (140, 989, 4800),
}
SHARED = "You are a patient teacher. Answer in one short sentence. "
SCENES: dict[str, dict[str, Any]] = {
    "chunked prefill": {
        "about": "A long prompt arrives while two requests decode. The budget of 16 tokens cuts it into pieces.",
        "engine": {"block_size": 8, "num_blocks": 24, "max_num_batched_tokens": 16, "max_num_seqs": 4},
        "arrivals": {
            0: [("A", "What is a token?", 14), ("B", "What is a step?", 12)],
            3: [("C", "Explain in a few words how a scheduler shares one step between requests that decode and "
                      "a prompt that is far too long for what is left of the budget.", 8)],
        },
    },
    "prefix caching": {
        "about": "Four questions behind one system prompt. After the first, the prompt's full blocks are found again.",
        "engine": {"block_size": 8, "num_blocks": 24, "max_num_batched_tokens": 64, "max_num_seqs": 3},
        "arrivals": {
            0: [("A", SHARED + "What is a KV block?", 8)],
            2: [("B", SHARED + "What is a token?", 8), ("C", SHARED + "What is a step?", 10)],
            6: [("D", SHARED + "What is a KV block?", 6)],
        },
    },
    "preemption": {
        "about": "Eleven blocks for three growing requests. When they run out, the last one admitted gives way.",
        "engine": {"block_size": 4, "num_blocks": 12, "max_num_batched_tokens": 32, "max_num_seqs": 3},
        "arrivals": {
            0: [("A", "What is paging?", 14), ("B", "What is preemption?", 14)],
            1: [("C", "What is a token?", 12)],
        },
    },
}  # fmt: skip
FILL: dict[str, Any] = {
    "system": "You are a patient teacher. Answer in one short sentence.",
    "engine": {"block_size": 8, "num_blocks": 25, "max_num_batched_tokens": 32, "max_num_seqs": 4},
    "arrivals": {
        0: ["What is a KV block?"],
        2: ["What is a block table?"],
        5: ["What is preemption?"],
        11: ["What is a token?"],
    },
    "max_tokens": 64,
}
KNOBS: list[dict[str, float]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.5, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.3, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5, "top_p": 0.8},
    {"temperature": 0.0, "repetition_penalty": 1.5, "frequency_penalty": 1.0},
]


def lab(number: str) -> ModuleType:
    """The reference solution of a lab of phase 00."""
    path = next(ROOT.glob(f"phase-00-*/labs/lab-{number}-*/solution.py"))
    spec = importlib.util.spec_from_file_location(f"record_lab_{number}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scheduler_scene(scene: dict[str, Any]) -> dict[str, Any]:
    """Run one scene and return its trace; ``start`` is the step with which the player opens it."""
    engine = LLMEngine(POCKET, **scene["engine"])
    arrivals, step = dict(scene["arrivals"]), 0
    with record(engine) as trace:
        while arrivals or engine.has_unfinished_requests():
            for name, prompt, max_tokens in arrivals.pop(step, ()):
                engine.add_request(name, prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0))
            engine.step()
            step += 1
    told = trace.as_dict()
    start = next((at for at, one in enumerate(told["steps"]) if one["preempted"]), 0)
    return told | {"about": scene["about"], "start": start}


def fill_data() -> dict[str, Any]:
    """The run on the home page: per step the tokens in memory and the last words of each request, its table where
    that changes, and which free blocks can be found. ``still`` is the fullest step, for who wants no motion."""
    engine = LLMEngine(POCKET, **FILL["engine"])
    arrivals, asked, step = dict(FILL["arrivals"]), [], 0
    with record(engine) as trace:
        while arrivals or engine.has_unfinished_requests():
            for question in arrivals.pop(step, ()):
                name = "ABCD"[len(asked)]
                asked.append([name, question])
                turns = [{"role": "system", "content": FILL["system"]}, {"role": "user", "content": question}]
                prompt = engine.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
                params = SamplingParams(max_tokens=FILL["max_tokens"], temperature=0.0)
                engine.add_request(name, prompt, params)
            engine.step()
            step += 1
    steps: list[dict[str, Any]] = []
    before: dict[str, Any] = {"tables": {}}
    for one in trace.as_dict()["steps"]:
        row = {
            "n": {name: one["counters"][name][0] for name in one["tables"]},
            "t": {name: table for name, table in one["tables"].items() if table != before["tables"].get(name)},
            "s": {name: "".join(pieces) for name, pieces in one["sampled"].items()},
            "w": one["waiting"], "p": one["preempted"], "e": list(one["finished"]), "c": one["cached"],
            "f": [block for block in one["findable"] if block in one["free"]],
        }  # fmt: skip
        steps.append({key: value for key, value in row.items() if value})
        before = one
    most = max(range(len(steps)), key=lambda at: sum(steps[at].get("n", {}).values()))
    size, blocks = FILL["engine"]["block_size"], FILL["engine"]["num_blocks"] - 1
    return {"block_size": size, "num_blocks": blocks, "requests": asked, "still": most, "steps": steps}


def sampler_data(prompt: str = "In a step the", shown: int = 40) -> dict[str, Any]:
    """Logits of the committed model after a prompt and two tokens of its own, and what each knob makes of them."""
    engine = LLMEngine(POCKET, num_blocks=64)
    rows: list[np.ndarray] = []
    forward = engine.sampler.forward

    def keep(logits: np.ndarray, metadata: SamplingMetadata) -> Any:
        rows.append(logits[0].copy())
        return forward(logits, metadata)

    engine.sampler.forward = keep  # type: ignore[method-assign]
    engine.add_request("r", prompt, SamplingParams(max_tokens=3, temperature=1.0, seed=3))
    request = engine.scheduler.requests["r"]
    while engine.has_unfinished_requests():
        engine.step()
    logits = np.round(rows[-1].astype(np.float64), 3)
    prompt_ids, output_ids = request.prompt_token_ids, request.output_token_ids[:-1]
    top = np.argsort(-logits, kind="stable")[:shown]
    cases = [{"knobs": knobs, **expected_sample(logits, knobs, prompt_ids, output_ids, top)} for knobs in KNOBS]
    return {
        "prompt": prompt,
        "output": engine.tokenizer.decode(output_ids),
        "prompt_token_ids": sorted(set(prompt_ids)),
        "output_token_ids": output_ids,
        "shown": [[int(token), engine.tokenizer.decode([int(token)])] for token in top],
        "logits": [float(value) for value in logits],
        "expected": cases,
    }


def expected_sample(
    logits: np.ndarray, knobs: dict[str, float], prompt: list[int], output: list[int], top: np.ndarray
) -> dict[str, Any]:
    """Probabilities after all steps of the engine's sampler, in float64; for a greedy request the token's id."""
    params = SamplingParams(**knobs)  # type: ignore[arg-type]
    row = SamplingRow(params, prompt, output, np.random.default_rng(0))
    metadata = SamplingMetadata.from_rows([row], len(logits))
    processed = Sampler.apply_logits_processors(logits[None, :].copy(), metadata)
    if params.is_greedy:
        return {"token": int(processed[0].argmax())}
    probs = softmax(Sampler.apply_random_filters(processed, np.array([0]), metadata))[0]
    return {"kept": int((probs > 0).sum()), "probs": [round(float(probs[token]), 9) for token in top[:12]]}


def arithmetic_data() -> dict[str, Any]:
    """Models, cards, and cases for the calculator and the roofline, from the reference solutions of phase 00."""
    memory, roof = lab("02"), lab("04")
    capacity, points = [], []
    for model, gpu, kv_bytes, length in (
        ("Llama-3-8B", "A100 80GB SXM", 2, 2048), ("Llama-3-8B", "L4", 1, 1000), ("Llama-3-70B", "H200", 2, 4096),
        ("Llama-3-70B", "A100 80GB SXM", 2, 4096), ("Qwen3-0.6B", "L4", 2, 8191),
    ):  # fmt: skip
        layers, heads, size, parameters = MODELS[model]
        per_token = memory.kv_bytes_per_token(layers, heads, size, kv_bytes)
        left = max(0, int(GPUS[gpu][0] * GIB * 0.9) - 2 * parameters)
        blocks, tokens, concurrency = memory.engine_capacity(left, per_token, length)
        given = {"model": model, "gpu": gpu, "kv_bytes": kv_bytes, "weight_bytes": 2, "share": 0.9, "length": length}
        capacity.append({**given, "per_token": per_token, "blocks": blocks, "tokens": tokens, "users": concurrency})
    for model, gpu, batch, context in (
        ("Llama-3-8B", "A100 80GB SXM", 1, 0), ("Llama-3-8B", "H200", 64, 2048), ("Llama-3-70B", "H100 SXM", 512, 512),
    ):  # fmt: skip
        layers, heads, size, parameters = MODELS[model]
        peak, bandwidth = GPUS[gpu][1] * 1e12, GPUS[gpu][2] * 1e9
        kv = roof.kv_bytes_per_step(batch, context, memory.kv_bytes_per_token(layers, heads, size))
        intensity = roof.step_flops(parameters, batch) / (roof.step_bytes(parameters, 2) + kv)
        given = {"model": model, "gpu": gpu, "batch": batch, "context": context, "weight_bytes": 2, "kv_bytes": 2}
        result = {"ridge": roof.ridge_point(peak, bandwidth), "intensity": intensity}
        bound = roof.decode_tokens_per_second(parameters, 2, bandwidth, batch, kv)
        result["attainable"] = roof.attainable_flops(intensity, peak, bandwidth)
        points.append({**given, **result, "memory_tokens_per_second": bound})
    return {"models": MODELS, "gpus": GPUS, "expected": {"capacity": capacity, "roofline": points}}


def recordings() -> dict[str, Any]:
    """File name -> content."""
    scenes = {name: scheduler_scene(scene) for name, scene in SCENES.items()}
    return {
        "scheduler.json": scenes,
        "fill.json": fill_data(),
        "sampler.json": sampler_data(),
        "arithmetic.json": arithmetic_data(),
    }


def main() -> int:
    """Write the files, or with ``--check`` compare them."""
    wrong = []
    for name, value in recordings().items():
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
        path = DATA / name
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            wrong.append(name)
    print("; ".join(f"{name} differs: run python docs/widgets/record.py" for name in wrong) or "recorded")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
