"""What the encoder cache holds while four requests with pictures run on pocket-vl, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import LLMEngine, SamplingParams
from models.training.pocket_vl.conversations import draw_number

POCKET_VL = str(Path(__file__).resolve().parents[3] / "models" / "pocket-vl")
ENGINE: dict[str, Any] = {
    "num_blocks": 64,
    "max_num_batched_tokens": 140,
    "max_num_seqs": 4,
    "enable_prefix_caching": False,
}
"""Budget and room of the encoder are as large as a step: two pictures of 64."""
TURN = "<|user|>\n{}\n{}<|end|>\n<|assistant|>\n"
ARRIVALS: dict[int, list[tuple[str, tuple[int, ...], str]]] = {
    0: [("A", (0,), "What digit do you see?")],
    2: [("B", (0,), "What colour is the digit?")],
    3: [("C", (1, 2), "Which digits are there?")],
    4: [("D", (0,), "What digit do you see?")],
}
"""Before which step somebody comes, with which pictures, and the question."""
MAX_TOKENS = 3


def pictures() -> tuple[list[str], list[Any]]:
    """Three digits, and their pixels."""
    drawn = [draw_number(np.random.default_rng([13, seed]), 1) for seed in range(3)]
    return [picture.text for picture in drawn], [picture.pixels for picture in drawn]


def run() -> dict[str, Any]:
    """Requests, and for each step what was planned and what the cache held then."""
    names, pixels = pictures()
    engine = LLMEngine(POCKET_VL, **ENGINE)
    plan_of, plans, left = engine.scheduler.schedule, list[Any](), dict(ARRIVALS)
    manager = engine.scheduler.encoder_cache_manager
    name_of: dict[str, str] = {}
    requests: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []

    def cache() -> list[list[Any]]:
        return [[name_of[key], sorted(users)] for key, users in manager.cached.items()]

    def schedule() -> Any:
        plan = plan_of()
        plans.append((plan, cache(), manager.num_free_slots))
        return plan

    engine.scheduler.schedule = schedule  # type: ignore[method-assign]  # the record's eye, nothing else
    while left or engine.has_unfinished_requests():
        for name, shown, question in left.pop(len(steps), []):
            text = TURN.format("<image>" * len(shown), question)
            prompt = {"prompt": text, "multi_modal_data": {"image": [pixels[i] for i in shown]}}
            engine.add_request(name, prompt, SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True))
            request = engine.scheduler.requests[name]
            name_of |= {each.identifier: names[i] for each, i in zip(request.mm_features, shown, strict=True)}
            places = [[each.mm_position.offset, each.mm_position.length] for each in request.mm_features]
            digits = [names[i] for i in shown]
            requests.append({"id": name, "pictures": digits, "ask": question, "places": places,
                             "num_prompt_tokens": request.num_prompt_tokens, "before": len(steps)})  # fmt: skip
        engine.step()
        plan, held, free = plans[-1]
        encoded = {name: [requests_of(requests, name)[i] for i in inputs]
                   for name, inputs in plan.scheduled_encoder_inputs.items()}  # fmt: skip
        evicted = [name_of[key] for key in plan.free_encoder_mm_hashes]
        steps.append({"scheduled": dict(plan.num_scheduled_tokens), "encoded": encoded, "evicted": evicted,
                      "held": held, "free": free, "after": cache()})  # fmt: skip
    return {"names": names, "config": ENGINE, "requests": requests, "steps": steps}


def requests_of(requests: list[dict[str, Any]], name: str) -> list[str]:
    """The pictures of a request."""
    return next(request["pictures"] for request in requests if request["id"] == name)


def record() -> dict[str, Any]:
    """The run, and the answers."""
    made = run()
    steps = made["steps"]
    name, users = steps[0]["after"][0]
    encoded = [[name for names in step["encoded"].values() for name in names] for step in steps]
    answers = {
        "passed": f"{name}, needed by {' and '.join(users) or 'nobody'}",
        "again": len(encoded[2]),
        "both": " and ".join(encoded[3]),
        "free": steps[3]["free"],
        "victim": " and ".join(steps[4]["evicted"]),
        "total": sum(map(len, encoded)),
    }
    return {"answers": answers, **made}
