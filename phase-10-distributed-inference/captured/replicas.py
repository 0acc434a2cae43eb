"""Two replicas of pocket: where six requests go, and what becomes of them when a replica is killed. Writes replicas.json.

    python phase-10-distributed-inference/captured/replicas.py
"""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from mini_vllm import LLM, AsyncLLM, SamplingParams  # noqa: E402

POCKET = str(ROOT / "models" / "pocket")
PARAMS = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
PROMPTS = [f"What is block {n} of a KV cache?" for n in range(6)]
SETTINGS: dict[str, Any] = {"dtype": "float64", "num_blocks": 256}


async def main() -> None:
    begun = time.monotonic()
    llm = AsyncLLM(POCKET, data_parallel_size=2, enable_multiprocessing=True, **SETTINGS)
    found: dict[str, Any] = {"seconds_to_start": round(time.monotonic() - begun, 1)}
    client, sent, tokens = llm.core_client, [], {}
    send = client.get_core_engine_for_request

    def watched(request: Any) -> int:
        rank = send(request)
        sent.append([request.request_id, rank, len(request.output_token_ids or ())])
        return rank

    client.get_core_engine_for_request = watched

    async def ask(name: str, prompt: str) -> None:
        async for output in llm.generate(prompt, PARAMS, name):
            tokens[name] = output.outputs[0].token_ids

    asked = [asyncio.create_task(ask(f"r{n}", prompt)) for n, prompt in enumerate(PROMPTS)]
    while len(tokens) < len(PROMPTS) or min(map(len, tokens.values())) < 20:
        await asyncio.sleep(0.001)
    os.kill(client.core_engines[1].manager.pid, signal.SIGKILL)
    await asyncio.gather(*asked)
    found["sent"], found["moved"] = sent[: len(PROMPTS)], sent[len(PROMPTS) :]
    found["alive"] = client.alive
    llm.shutdown()
    alone = LLM(POCKET, **SETTINGS)
    answers = [alone.generate(prompt, PARAMS, use_tqdm=False)[0].outputs[0].token_ids for prompt in PROMPTS]
    found["as_one_engine"] = [tokens[f"r{n}"] == answer for n, answer in enumerate(answers)]
    (HERE / "replicas.json").write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
