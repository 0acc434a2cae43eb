"""Before lab code serves a model: requests with one beginning on the toy model, in a pool that is too small for them.
One prompt finds nothing again and preempts nobody, so it proves little. These hit, touch, evict and preempt under the
guards and the KV oracle; what no request could reach is named."""

import ast
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from course.labs import SOURCES, functions
from course.plugs.parts import Part, assemble

SIZES = {"block_size": 4, "num_blocks": 10, "max_num_batched_tokens": 16, "max_num_seqs": 4}
UNSEEN = ("model", "paged attention", "jump-forward", "proposer", "vision tower")  # the toy model has none of them
SECONDS = 20.0
OUTPUTS = (3, 8, 8, 8)


def warm_up(found: Sequence[Part], say: Callable[[str], Any]) -> None:
    """Runs requests on the labs' parts, compares tokens with ours', says what was left out. Raises `PartError`."""
    from course.plugs.milestone import time_limit

    mine = [replace(part) for part in found if part.state == "lab" and part.plug.part not in UNSEEN]
    if not mine:
        return
    ran: set[tuple[str, int]] = set()

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            ran.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    whose = next((part for part in mine if part.plug.part in ("block pool", "free queue")), mine[0])
    sys.setprofile(note)
    try:
        with time_limit(SECONDS):
            tokens, usage = _serve(assemble(mine, quiet=True))
    except TimeoutError as error:
        raise whose.watch.error(str(error)) from None
    finally:
        sys.setprofile(None)
    whose.watch.require(usage == 0.0, f"get_usage() is {usage:.4g} when all requests have ended")
    if (tokens, usage) != _serve(None):
        labs = ", ".join(dict.fromkeys(part.plug.lab for part in mine))
        say(f"{'warm-up':16} lab {labs}: the tokens are not ours; `course milestone` says which part")
    missed = list(dict.fromkeys(name for part in mine for name in _functions(part, ran)))
    said = f"not exercised: {', '.join(missed)}" if missed else "every function was called"
    say(f"{'warm-up':16} {2 * len(OUTPUTS)} requests with one beginning in a small pool; {said}")


def _serve(parts: Any) -> tuple[list[list[int]], float]:
    """Tokens of the requests, twice, and what part of the pool is in use afterwards."""
    from mini_vllm import LLM, SamplingParams

    prompts = [{"prompt_token_ids": [20] * 8 + [30 + i] * i} for i in range(len(OUTPUTS))]
    params = [SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True) for n in OUTPUTS]
    params[0] = SamplingParams(max_tokens=OUTPUTS[0], top_k=9, top_p=0.9, seed=1, ignore_eos=True)
    llm = LLM(with_labs=parts, **SIZES)
    made = [output for _ in range(2) for output in llm.generate(prompts, params, use_tqdm=False)]
    pool = llm.llm_engine.engine_core.kv_cache_manager.block_pool
    usage = pool.get_usage()
    pool.reset_prefix_cache()
    return [output.outputs[0].token_ids for output in made], usage


def _functions(part: Part, ran: set[tuple[str, int]]) -> list[str]:
    """What the part needs of the lab's file and nobody called."""
    path = Path(part.module.__file__ or "") if part.module else Path()
    source = SOURCES.get(path.resolve()) or path.read_text(encoding="utf-8")
    missed = []
    for name, node in functions(ast.parse(source)):
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        if part.plug.covers(name) and not name.rpartition(".")[2].startswith("__") and (str(path), first) not in ran:
            missed.append(f"{name} ({part.plug.lab})")
    return missed
