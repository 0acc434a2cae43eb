"""Drives the real `Scheduler` of vLLM 0.22.1, with requests that wait for a grammar and then obey it.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_grammars.py 120

The manager of grammars is the release's own, and the grammars are xgrammar's, over a vocabulary of seven tokens; when
each is compiled, the workload says. Recorded are, for each step, the plan, who waits where, which tokens each row
allowed, and what the front end was told (`grammar_workload.short`). The known bugs (`upstream_patches.py`) are patched.
The result is `scheduler-grammars.json.xz`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["PYTHONHASHSEED"] = "0"  # block hashes begin with it, on both sides
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

import grammar_workload  # noqa: E402
import xgrammar  # noqa: E402
from record_groups import GroupRecorder  # noqa: E402
from record_scheduler import EOS, counts, model_output, stand_in_model, write  # noqa: E402
from scheduler_workload import VOCAB, Workload  # noqa: E402
from upstream_patches import PATCHES, applied  # noqa: E402
from vllm.sampling_params import StructuredOutputsParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.outputs import DraftTokenIds  # noqa: E402
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend  # noqa: E402


class TinyBackend(XgrammarBackend):
    """The release's backend, over seven tokens that no tokenizer has."""

    def __post_init__(self) -> None:
        texts = grammar_workload.TEXTS
        info = xgrammar.TokenizerInfo(texts, vocab_type=xgrammar.VocabType.RAW, vocab_size=VOCAB, stop_token_ids=[EOS])
        self.compiler, self.disable_any_whitespace = xgrammar.GrammarCompiler(info), False
        drafts = self.vllm_config.speculative_config
        self.num_speculative_tokens = 0 if drafts is None else drafts.num_speculative_tokens


class GrammarRecorder(GroupRecorder):
    """One workload with grammars, and perhaps drafts. seen: counts for the header."""

    def __init__(self, workload: Workload, model_folder: str) -> None:
        super().__init__(workload, model_folder)
        self.model, self.gate = grammar_workload.StandIn(workload), grammar_workload.Gate(workload)
        self.told: list[Any] = []
        self.legal: dict[str, list[list[int]]] = {}
        self.planned: dict[str, list[int]] = {}
        self.last: list[str] = []
        self.seen: Counter[str] = Counter()
        manager = self.manager = self.scheduler.structured_output_manager
        manager.executor, manager.tokenizer = self.gate, None
        manager.backend = TinyBackend(manager.vllm_config, tokenizer=None, vocab_size=VOCAB)
        if workload.config["reasoning"]:
            manager.reasoner_cls = grammar_workload.Reasoner

    def _more_params(self, arrival: Any) -> dict[str, Any]:
        found = self.workload.config["grammars"].get(arrival.request_id)
        if found is None:
            return {}
        params = StructuredOutputsParams(regex=found[0])
        params._backend = "xgrammar"
        return {"structured_outputs": params}

    def _add(self, request: Any) -> None:
        if request.use_structured_output:
            self.manager.grammar_init(request)
        super()._add(request)

    def _before(self, index: int) -> None:
        self.gate.step = index
        super()._before(index)
        self.gate.open(index)

    def _step(self, index: int) -> dict[str, Any]:
        if index >= len(self.workload.arrivals):
            self.gate.open(index)
        self.told, self.legal = [], {}
        self.seen["steps with a blocked request before the plan"] += bool(self.scheduler.skipped_waiting)
        record = super()._step(index)
        return grammar_workload.short(
            record, self.planned, [self.told, self.legal, grammar_workload.state_of(self.scheduler)]
        )

    def _update(self, output: Any) -> None:
        self.planned = {name: list(ids) for name, ids in output.scheduled_spec_decode_tokens.items()}
        self.seen["steps in which one waits for its grammar and others run"] += bool(
            output.num_scheduled_tokens and self.scheduler.skipped_waiting
        )
        deferred = output.pending_structured_output_tokens
        if deferred:
            self._take_in()
            if "drafts" in self.workload.config:
                drafts = DraftTokenIds(list(self.last), self.model.drafts(self.last))
                self.scheduler.update_draft_token_ids_in_output(drafts, output)
        self._sample(output, deferred)
        if deferred or (self.workload.config["async"] and self.last and len(self.in_flight) < 2):
            return
        self._take_in()
        if "drafts" in self.workload.config and not self.workload.config["async"]:
            drafts = DraftTokenIds(list(self.last), self.model.drafts(self.last))
            self.scheduler.update_draft_token_ids(drafts)

    def _sample(self, output: Any, deferred: bool) -> None:
        names, drafts = list(output.num_scheduled_tokens), output.scheduled_spec_decode_tokens
        grammar_output = self.scheduler.get_grammar_bitmask(output)
        self.legal = grammar_workload.legal_tokens(grammar_output, drafts)
        sampled = self.model.sample(names, self._is_due, drafts, grammar_output, deferred)
        self.in_flight.append((output, model_output(names, sampled)))
        self.last = names
        self.seen["steps whose sampling was deferred"] += deferred
        self.seen["rows of bits"] += sum(map(len, self.legal.values()))
        self.seen["rows of requests with drafts"] += sum(len(rows) for rows in self.legal.values() if len(rows) > 1)

    def _is_due(self, name: str) -> bool:
        request = self.scheduler.requests.get(name)
        return request is not None and not request.is_prefill_chunk

    def _take_in(self) -> None:
        outputs = self.scheduler.update_from_output(*self.in_flight.popleft())
        rows = grammar_workload.told(each for group in outputs.values() for each in group.outputs)
        obeying = self.workload.config["grammars"]
        self.seen.update(f"obeyed, and ended: {reason}" for name, _, reason in rows if reason and name in obeying)
        self.told += rows


def main() -> None:
    num_workloads = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    init_none_hash(sha256)
    traces, features, seen = [], Counter[str](), Counter[str]()
    with stand_in_model() as folder, applied(Scheduler, list(PATCHES)):
        for seed in range(num_workloads):
            workload = grammar_workload.make_grammar_workload(seed)
            recorder = GrammarRecorder(workload, folder)
            traces.append(recorder.run())
            features.update(grammar_workload.features(workload))
            seen.update(recorder.seen)
    more = {
        **counts(traces, [step for trace in traces for step in trace]),
        "xgrammar": version("xgrammar"),
        "seen": dict(sorted(seen.items())),
        "workloads_by_feature": dict(sorted(features.items())),
        "patches": {name: patch.why for name, patch in PATCHES.items()},
    }
    write("scheduler-grammars.json.xz", f"record_grammars.py {num_workloads}", more, traces=traces)


if __name__ == "__main__":
    main()
