"""Would threads fill the rows of a large batch faster? `python -m benchmarks.fill_rows` (two minutes).

Above 128 requests without drafts vLLM hands chunks of 16 rows to a pool of up to eight threads. Here 256 requests
stand at places of one text under the schema of 2 kB, and their rows are filled one after the other, or in chunks of
16 by a pool of two threads. Our own backend and, where it is installed, xgrammar, whose library lets go of Python's
lock (a second core must be idle for that to show); on the vocabularies of `benchmarks/structured_output.py`. Every
mask has been made before: the table of a grammar grows while masks are made, requests with equal grammars share it,
and so only one thread may do that here. Wall time, the least of the repeats, in turns. Writes
results/fill_rows.{json,md}.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.common import machine, save, table
from benchmarks.structured_output import CASES, backends, vocabularies

ROWS, CHUNK, THREADS = 256, 16, 2


def grammars_of(backend: Any, ids: list[int]) -> list[Any]:
    """Requests at one place after the other of a text."""
    from mini_vllm.structured_output.backend_types import StructuredOutputOptions

    kind, spec, _ = CASES["schema of 2 kB"]
    made = []
    for number in range(ROWS):
        grammar = backend.compile_grammar(StructuredOutputOptions[kind], spec)
        assert grammar.accept_tokens("", ids[: number % len(ids)])
        made.append(grammar)
    return made


def serial(grammars: list[Any], rows: Any, pool: ThreadPoolExecutor) -> None:
    """One after the other."""
    for number, grammar in enumerate(grammars):
        grammar.fill_bitmask(rows, number)


def threaded(grammars: list[Any], rows: Any, pool: ThreadPoolExecutor) -> None:
    """In chunks, as upstream has it.

    Upstream: upstream/vllm/v1/structured_output/__init__.py:240 — "self.fill_bitmask_parallel_threshold".
    """

    def fill(start: int) -> None:
        for number in range(start, min(start + CHUNK, len(grammars))):
            grammars[number].fill_bitmask(rows, number)

    for promise in [pool.submit(fill, start) for start in range(0, len(grammars), CHUNK)]:
        promise.result()


def least(repeats: int, grammars: list[Any], rows: Any, pool: ThreadPoolExecutor) -> dict[str, float]:
    """Milliseconds of both ways, in turns."""
    found = {"serial": float("inf"), "threads": float("inf")}
    for _ in range(repeats):
        for name, fill in (("serial", serial), ("threads", threaded)):
            start = time.perf_counter()
            fill(grammars, rows, pool)
            found[name] = min(found[name], 1e3 * (time.perf_counter() - start))
    return found


def run(quick: bool) -> list[dict[str, Any]]:
    """All rows."""
    found: list[dict[str, Any]] = []
    _, _, text = CASES["schema of 2 kB"]
    with ThreadPoolExecutor(THREADS) as pool:
        for size, vocabulary, encode in vocabularies(quick):
            for name, backend in backends(vocabulary):
                if name == "guidance":
                    continue
                ids, rows = encode(text), backend.allocate_token_bitmask(ROWS)
                grammars = grammars_of(backend, ids)

                serial(grammars, rows, pool)
                row = least(3 if quick else 40, grammars, rows, pool)
                found.append({"vocabulary": size, "backend": name, **row})
    return found


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the small vocabulary; writes nothing")
    args = parser.parse_args()
    facts, found = machine(), run(args.quick)
    rows = [
        [row["vocabulary"], row["backend"], f"{row['serial']:.2f}", f"{row['threads']:.2f}",
         f"{row['serial'] / row['threads']:.2f}"]
        for row in found
    ]  # fmt: skip
    heads = ["vocabulary", "backend", "one after the other, ms", "two threads, ms", "times as fast"]
    load = ", ".join(f"{value:.1f}" for value in facts["load_average_at_start"])
    note = f"{ROWS} rows, chunks of {CHUNK}, {THREADS} threads on {os.cpu_count()} cores. {facts['processor']}, "
    note += f"Python {facts['python']}; load average {load}. Wall time."
    result = {"machine": facts, "rows": found}
    save("fill_rows", result, f"# Rows in threads\n\n{note}\n\n{table(heads, rows)}\n", keep=not args.quick)


if __name__ == "__main__":
    main()
