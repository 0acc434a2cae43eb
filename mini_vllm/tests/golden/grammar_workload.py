"""Random workloads for the scheduler with grammars, from a seed: who has to obey one, and how long it is compiled.

A vocabulary of seven tokens, so that real grammars run over it on both sides, xgrammar's there and ours here. The
stand-in for the model takes any legal token. Used under real vLLM and under mini_vllm; it imports neither.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from mini_vllm.tests.golden.draft_workload import make_draft_workload, proposed
from mini_vllm.tests.golden.scheduler_workload import VOCAB, Workload, sampled_token

TEXTS = [b"a", b"b", b"ab", b"c", b"ba", b"d", b""]
"""Of the tokens; the last one is the end of sequence, 6."""
MARK = 4
"""The token that ends the thinking, where a workload has thinking."""
GRAMMARS = (
    "(a|b)+c", "ab{2,6}d?", "(abc|acb){1,4}", "[ab]{3,12}", "a*b*c*d", "(ba)+(c|d)", "c(a|b|ab)*d", "((ab)+c)+", "d",
    "(a(b|c)?){2,9}", "[abcd]{1,20}", "aaaaabbbbbccccc", "(a|ba|bb)*", "[cd]{30}",
)  # fmt: skip


def make_grammar_workload(seed: int) -> Workload:
    """The workload of this seed: as `make_draft_workload`, every second one without drafts.

    `config["grammars"]`: request -> (regex, steps for which it is compiled). `config["reasoning"]`: whether requests
    think before they obey.
    """
    rng = random.Random(f"grammars/{seed}")
    workload = make_draft_workload(seed)
    config = workload.config
    if seed % 2:
        del config["drafts"]
    config["reasoning"], config["grammars"] = rng.random() < 0.2, {}
    for arrival in (arrival for step in workload.arrivals for arrival in step):
        if rng.random() < 0.65:
            config["grammars"][arrival.request_id] = rng.choice(GRAMMARS), rng.choice([0, 0, 0, 1, 2, 4, 9])
            arrival.ignore_eos = False
    return workload


def features(workload: Workload) -> set[str]:
    """What a workload exercises, for the counts in the header."""
    config = workload.config
    named = {"reasoning"} if config["reasoning"] else set()
    named |= {f"drafts={config['drafts']['method']}"} if "drafts" in config else {"no drafts"}
    chunked = any(len(a.prompt) > config["max_num_batched_tokens"] for step in workload.arrivals for a in step)
    return {*workload.features, *named, *({"chunks"} if chunked or config["threshold"] else ())}


class Reasoner:
    """A reasoning parser. The thinking is over where the last token of a prompt, or one of those just sampled, is the
    mark; a mark earlier in the prompt is an old one."""

    def __init__(self, tokenizer: Any = None, **_: Any) -> None:
        self.tokenizer = tokenizer

    def is_reasoning_end(self, input_ids: Iterable[int]) -> bool:
        """Of a prompt."""
        return list(input_ids)[-1:] == [MARK]

    def is_reasoning_end_streaming(self, input_ids: Iterable[int], delta_ids: Iterable[int]) -> bool:
        """Of new tokens."""
        return MARK in list(delta_ids)


class Gate:
    """In the place of the threads that compile: done when the workload says so."""

    def __init__(self, workload: Workload) -> None:
        self.grammars, self.waiting = workload.config["grammars"], list[tuple[int, Future[Any], Callable[[], Any]]]()
        self.step = 0

    def submit(self, compile_grammar: Callable[[Any], Any], request: Any) -> Future[Any]:
        """As an executor."""
        future: Future[Any] = Future()
        ready = self.step + self.grammars[request.request_id][1]
        self.waiting.append((ready, future, lambda: compile_grammar(request)))
        return future

    def open(self, step: int) -> None:
        """Before each plan: finish what is due."""
        self.step = step
        for ready, future, call in self.waiting:
            if ready <= step and not future.done():
                future.set_result(call())


def legal_tokens(grammar_output: Any, drafts: dict[str, list[int]]) -> dict[str, list[list[int]]]:
    """Request -> for each of its rows of bits the tokens that are allowed."""
    found: dict[str, list[list[int]]] = {}
    if grammar_output is None:
        return found
    rows = iter(grammar_output.grammar_bitmask)
    for name in grammar_output.structured_output_request_ids:
        words = [int(next(rows)[0]) for _ in range(1 + len(drafts.get(name, ())))]
        found[name] = [[token for token in range(VOCAB) if word >> token & 1] for word in words]
    assert next(rows, None) is None
    return found


class StandIn:
    """In the place of model and drafter; the same answers to the same questions, on both sides."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.seed = workload, workload.seed
        self.num_sampled: Counter[str] = Counter()

    def drafts(self, names: list[str]) -> list[list[int]]:
        """Of each request, for the step after."""
        k = self.workload.config["drafts"]["k"]
        return [proposed(self.seed, name, self.num_sampled[name], k) for name in names]

    def sample(
        self, names: list[str], due: Callable[[str], bool], drafts: dict[str, list[int]], grammar_output: Any,
        deferred: bool,
    ) -> list[list[int]]:  # fmt: skip
        """Tokens of each request. A draft -1 is one that a grammar forbade, where sampling was deferred, and otherwise
        one that nobody has told us."""
        legal = legal_tokens(grammar_output, drafts)
        sampled = []
        for name in names:
            new = self._answer(name, drafts.get(name, []), legal.get(name), deferred) if due(name) else []
            sampled.append(new)
            self.num_sampled[name] += len(new)
        return sampled

    def _answer(self, name: str, drafts: list[int], legal: list[list[int]] | None, deferred: bool) -> list[int]:
        index = self.num_sampled[name]
        rng, accepted = random.Random(f"{self.seed}/{name}/{index}/obeyed"), list[int]()
        for draft in drafts[: rng.randint(0, len(drafts))]:
            allowed = legal[len(accepted)] if legal is not None else list(range(VOCAB))
            token = rng.choice(allowed) if draft < 0 and not deferred else draft
            if token not in allowed:
                break
            accepted.append(token)
        if legal is None:
            return [*accepted, sampled_token(self.seed, name, index + len(accepted))]
        return [*accepted, rng.choice(legal[len(accepted)])]


def short(record: dict[str, Any], drafts: dict[str, list[int]], more: Any) -> dict[str, Any]:
    """A step's record in few bytes: who gets how many tokens, with which drafts, who is preempted, who waits for a
    grammar; a checksum over all the rest."""
    kept = {"tokens": record["tokens"], "preempted": record["preempted"]}
    rest = {key: value for key, value in record.items() if key not in kept}
    text = repr([_plain(rest), _plain(more)])
    kept |= {"drafts": drafts} if drafts else {}
    return {**kept, "rest": zlib.crc32(text.encode())}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((str(key), _plain(each)) for key, each in value.items())
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def state_of(scheduler: Any) -> dict[str, Any]:
    """What a scheduler knows of its requests, in words that both sides share."""
    requests = {}
    for name, request in scheduler.requests.items():
        state = request.structured_output_request
        requests[name] = [
            request.status.name, request.num_computed_tokens, list(request.all_token_ids),
            request.num_output_placeholders, list(request.spec_token_ids), request.is_prefill_chunk,
            None if state is None else [state.reasoning_ended, state.grammar is not None],
        ]  # fmt: skip
    queues = {name: [each.request_id for each in getattr(scheduler, name)] for name in ("waiting", "skipped_waiting")}
    return {"requests": requests, "running": [each.request_id for each in scheduler.running], **queues}


def told(outputs: Iterable[Any]) -> list[Any]:
    """What the front end is told. Of one that ends with an error the tokens do not count: ours are without those that
    the grammar refused."""
    rows = []
    for each in outputs:
        reason = None if each.finish_reason is None else str(each.finish_reason)
        rows.append([each.request_id, [] if reason == "error" else list(each.new_token_ids), reason])
    return rows
