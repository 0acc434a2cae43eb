"""What a rank of two has to do, beside one core that does it all; and what a slow wire takes away. Writes probe.json.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python phase-10-distributed-inference/captured/probe.py

work    pocket, and a wider model of random weights, served by one rank and by two (`tensor_parallel_size=2`), the two
        engines in turns: milliseconds of processor time of this process, for a decode step of 1 and of 32 requests and
        for a prompt. Of the two ranks this process is rank 0, which also schedules; what it takes to wait for the other
        one is counted apart and is not in the figure. So it is what a step would take on an idle machine if the other
        rank were always there already. Best of `ROUNDS` rounds: neighbours on a machine only add.
links   pocket on two ranks, one request, wall time: rank 0 comes late to every meeting of the ranks by so many
        microseconds, as if the wire took them.
"""

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from mini_vllm import LLM, SamplingParams  # noqa: E402

POCKET = ROOT / "models" / "pocket"
WIDE = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 4}
TOKENS, PROMPT, ROUNDS = 17, 512, 7  # the first token of 17 is the prompt's
DELAYS_US = (0, 50, 200, 500)


class Ranks:
    """The meetings of an engine's ranks, as rank 0 sees them: how many, how long it waits, how late it is made."""

    def __init__(self, llm: LLM) -> None:
        self.meetings, self.waited, self.delay = 0, 0.0, 0.0
        group = getattr(llm.llm_engine.engine_core.model_executor, "group", None)
        if group is not None:
            self.barrier, group.barrier = group.barrier, self.meet

    def meet(self) -> None:
        """Be late, and then meet."""
        late, begun = time.perf_counter() + self.delay, time.process_time()
        while time.perf_counter() < late:
            pass
        self.barrier()
        self.meetings += 1
        self.waited += time.process_time() - begun


def main() -> None:
    found: dict[str, Any] = {"work": {}, "tokens": TOKENS, "prompt": PROMPT, "wide": WIDE, "rounds": ROUNDS}
    with tempfile.TemporaryDirectory() as folder:
        wide = make_wide(Path(folder) / "wide")
        for name, model, dummy in (("pocket", POCKET, {}), ("wide", wide, {"load_format": "dummy"})):
            engines = {ranks: make(model, ranks, **dummy) for ranks in (1, 2)}
            found["work"][name] = work({ranks: (llm, Ranks(llm)) for ranks, llm in engines.items()})
            if name == "pocket":
                found["links"] = links(engines[2])
    (HERE / "probe.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def make_wide(folder: Path) -> Path:
    """Pocket's tokenizer and a wider Llama without weights."""
    folder.mkdir()
    for path in POCKET.glob("*.json"):
        shutil.copy(path, folder)
    config = json.loads((POCKET / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | WIDE), encoding="utf-8")
    return folder


def make(model: Path, ranks: int, **args: Any) -> LLM:
    return LLM(str(model), tensor_parallel_size=ranks, enable_prefix_caching=False, num_blocks=512, **args)


def generate(llm: LLM, count: int, prompt: int, tokens: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    llm.generate([{"prompt_token_ids": [5 + i] * prompt} for i in range(count)], params, use_tqdm=False)


def work(engines: dict[int, tuple[LLM, Ranks]]) -> dict[str, Any]:
    """By number of ranks: milliseconds of a decode step by requests, and of a prompt; meetings of a step."""
    best: dict[int, dict[str, float]] = {ranks: {} for ranks in engines}
    for _ in range(ROUNDS):
        for ranks, (llm, meetings) in engines.items():
            for what, args in (("1", (1, 8)), ("32", (32, 8)), ("prompt", (1, PROMPT))):
                ms = decode_ms(llm, meetings, *args) if what != "prompt" else own_ms(llm, meetings, *args, 1)
                best[ranks][what] = min(best[ranks].get(what, ms), ms)
    return {str(ranks): {what: round(ms, 3) for what, ms in row.items()} for ranks, row in best.items()}


def own_ms(llm: LLM, meetings: Ranks, count: int, prompt: int, tokens: int) -> float:
    """Processor time without what is waited."""
    begun, before = time.process_time(), meetings.waited
    generate(llm, count, prompt, tokens)
    return 1e3 * (time.process_time() - begun - (meetings.waited - before))


def decode_ms(llm: LLM, meetings: Ranks, count: int, prompt: int) -> float:
    """Of one decode step: what `TOKENS` tokens take beyond the first."""
    first = own_ms(llm, meetings, count, prompt, 1)
    return (own_ms(llm, meetings, count, prompt, TOKENS) - first) / (TOKENS - 1)


def links(llm: LLM) -> dict[str, Any]:
    """By delay: milliseconds of a step of one request, in wall time, and meetings in it."""
    meetings = llm.llm_engine.engine_core.model_executor.group.barrier.__self__
    found = {}
    for delay in DELAYS_US:
        meetings.delay, rows = delay * 1e-6, []
        for _ in range(ROUNDS):
            before, begun = meetings.meetings, time.perf_counter()
            generate(llm, 1, 8, TOKENS)
            rows.append((time.perf_counter() - begun, meetings.meetings - before))
        seconds, count = min(rows)
        found[str(delay)] = {"ms_per_step": round(1e3 * seconds / TOKENS, 3), "meetings": count / TOKENS}
    meetings.delay = 0.0
    return found


if __name__ == "__main__":
    main()
