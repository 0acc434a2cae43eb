"""What a picture costs pocket-vl in tokens, blocks and time, and what the caches save of it. Writes probe.json.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python phase-13-multimodal-models/captured/probe.py

cost    one question with so many pictures before it: tokens, blocks of 16, and milliseconds of processor time until the
        first token: of making the pictures ready ("prepare"), of the encoder ("encode"), and of all ("first").
again   the same for one picture, in an engine that has seen something before: nothing of it ("cold"), the picture
        behind another text ("other text before"), or picture and text, with another question ("same beginning").
        pictures: what the encoder was given; computed: tokens of the first step.
Best of `ROUNDS` rounds each: neighbours on a machine only add.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from mini_vllm import LLMEngine, SamplingParams  # noqa: E402
from models.training.pocket_vl.pictures import draw_shapes  # noqa: E402

FOLDER = str(ROOT / "models" / "pocket-vl")
COUNTS, ROUNDS = (0, 1, 2, 4, 8), 12
ONE = SamplingParams(temperature=0.0, max_tokens=1)


def main() -> None:
    found: dict[str, Any] = {"rounds": ROUNDS}
    found["cost"] = {str(count): best(lambda seed: cost(count, seed)) for count in COUNTS}  # noqa: B023
    found["again"] = {name: best(lambda seed: again(name, seed)) for name in BEFORE}  # noqa: B023
    (HERE / "probe.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def best(run: Callable[[int], dict[str, float]]) -> dict[str, float]:
    """The least of each number: those that are no times are the same in all rounds."""
    rounds = [run(seed) for seed in range(ROUNDS)]
    return {name: round(min(each[name] for each in rounds), 3) for name in rounds[0]}


def question(seed: int, count: int, before: str = "", text: str = "What do you see?") -> dict[str, Any]:
    """A prompt with `count` pictures, those of this seed."""
    pictures = [draw_shapes(np.random.default_rng([seed, i])).pixels for i in range(count)]
    prompt = f"<|user|>\n{before}{'<image>' * count}\n{text}<|end|>\n<|assistant|>\n"
    return {"prompt": prompt, **({"multi_modal_data": {"image": pictures}} if count else {})}


def first_token(engine: LLMEngine, name: str, prompt: dict[str, Any]) -> dict[str, float]:
    """Run a prompt to its first token."""
    encoder = engine.engine_core.model_executor.driver_worker.model_runner.encoder
    spent, given, embed = [0.0], [0], encoder.model.embed_multimodal

    def watched(**kwargs: Any) -> Any:
        begun = time.process_time()
        rows = embed(**kwargs)
        spent[0] += time.process_time() - begun
        given[0] += len(rows)
        return rows

    encoder.embed_multimodal = watched
    begun = time.process_time()
    engine.add_request(name, prompt, ONE)
    ready = time.process_time()
    computed = engine.step()[0]
    first = time.process_time()
    tokens = len(computed.prompt_token_ids)
    return {
        "tokens": tokens, "blocks": -(-tokens // 16), "computed": tokens - computed.num_cached_tokens,
        "pictures": given[0], "prepare": 1e3 * (ready - begun), "encode": 1e3 * spent[0],
        "first": 1e3 * (first - begun),
    }  # fmt: skip


def cost(count: int, seed: int) -> dict[str, float]:
    """A prompt that an engine has not seen."""
    engine = warm()
    return first_token(engine, "asked", question(seed, count))


BEFORE: dict[str, dict[str, str] | None] = {
    "cold": None,
    "other text before": {"before": "Please look at this. "},
    "same beginning": {"text": "How many stars are there?"},
}


def again(name: str, seed: int) -> dict[str, float]:
    """One picture, asked about after what `BEFORE` says."""
    engine = warm()
    if (changed := BEFORE[name]) is not None:
        first_token(engine, "before", question(seed, 1, **changed))
    return first_token(engine, "asked", question(seed, 1))


def warm() -> LLMEngine:
    """An engine that has run once, on a picture that nobody asks about."""
    engine = LLMEngine(FOLDER, num_blocks=128)
    first_token(engine, "warm", question(10**6, 1, before="Hello. "))
    return engine


if __name__ == "__main__":
    main()
