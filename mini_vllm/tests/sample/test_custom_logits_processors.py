"""Logits processors: what they are told of the batch, custom ones in an engine, and built-in ones against a plain
loop."""

from __future__ import annotations

import dataclasses
import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.model import LOGPROBS_MODES
from mini_vllm.distributed import shared_memory
from mini_vllm.sample import logits_processor
from mini_vllm.sample.logits_processor import (
    LOGITSPROCS_GROUP,
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    LogitsProcessors,
    MinTokensLogitsProcessor,
    MoveDirectionality,
    build_logitsprocs,
    load_custom_logitsprocs,
)
from mini_vllm.sample.logits_processor.builtin import process_dict_updates
from mini_vllm.sample.logits_processor.state import BatchTracker
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.sampler import Sampler
from mini_vllm.tests.helpers import POCKET

HERE = f"{__name__}:OnlyTarget"
needs_pocket = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")


class OnlyTarget(LogitsProcessor):
    """Masks all but `extra_args["target"]`, after upstream's example of a custom processor."""

    @classmethod
    def validate_params(cls, sampling_params):
        target = (sampling_params.extra_args or {}).get("target")
        if target is not None and not isinstance(target, int):
            raise ValueError(f"target must be an int, got {target!r}")

    def __init__(self, vllm_config, device, is_pin_memory):
        assert (device, is_pin_memory) == ("cpu", False)
        self.max_num_seqs = vllm_config.max_num_seqs
        self.targets = {}

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        process_dict_updates(self.targets, batch_update, lambda params, _, __: (params.extra_args or {}).get("target"))

    def apply(self, logits):
        for row, token in self.targets.items():
            kept = logits[row, token]
            logits[row] = -np.inf
            logits[row, token] = kept
        return logits


class Watcher(LogitsProcessor):
    """Follows the batch by the updates alone, and compares itself with the truth at each step."""

    seen: ClassVar[list] = []

    def __init__(self, vllm_config, device, is_pin_memory):
        self.slots = {}

    def is_argmax_invariant(self):
        return True

    def update_state(self, batch_update):
        type(self).seen.append(batch_update)
        process_dict_updates(self.slots, batch_update, lambda params, prompt, output: (params, prompt, output))

    def apply(self, logits):
        assert sorted(self.slots) == list(range(len(logits)))
        for params, prompt, output in self.slots.values():
            if params.extra_args:  # the request's own mark: its prompt
                assert prompt == params.extra_args["prompt"]
                params.extra_args["lengths"].append(len(output))
        return logits


class PerRequest(AdapterLogitsProcessor):
    """Upstream's adapter: a function of one request, with or without its prompt."""

    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        target = (params.extra_args or {}).get("target")
        if target is None:
            return None

        def after_output(output_ids, logits):
            masked = np.full_like(logits, -np.inf)
            masked[target + len(output_ids)] = 0.0
            return masked

        def with_prompt(prompt_ids, output_ids, logits):
            masked = np.full_like(logits, -np.inf)
            masked[prompt_ids[0]] = 0.0
            return masked

        return with_prompt if target < 0 else after_output


def answers(llm, *params, prompts=None):
    outputs = llm.generate(prompts or ["ab"] * len(params), list(params), use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def target(token, **given):
    return SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, extra_args={"target": token}, **given)


@pytest.mark.parametrize("named", [[OnlyTarget], [HERE], HERE, OnlyTarget], ids=["class", "name", "one name", "one"])
def test_a_custom_processor_by_class_and_by_class_path(named):
    llm = LLM(num_blocks=64, logits_processors=named)
    plain = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    alone = answers(LLM(num_blocks=64), plain)[0]
    assert answers(llm, target(7), plain, target(65)) == [[7] * 3, alone, [65] * 3]
    with pytest.raises(ValueError, match=r"prompts\[0\]: target must be an int, got 'x'"):
        answers(llm, target("x"))


def test_a_custom_processor_by_entry_point(monkeypatch):
    point = EntryPoint("only", HERE, LOGITSPROCS_GROUP)
    found = {LOGITSPROCS_GROUP: EntryPoints([point])}
    monkeypatch.setattr(logits_processor, "entry_points", lambda group: found.get(group, EntryPoints()))
    load_custom_logitsprocs.cache_clear()
    try:
        assert answers(LLM(num_blocks=64), target(9)) == [[9] * 3]
        found[LOGITSPROCS_GROUP] = EntryPoints([EntryPoint("broken", "no_such_module:A", LOGITSPROCS_GROUP)])
        load_custom_logitsprocs.cache_clear()
        with pytest.raises(RuntimeError, match=r"plugin broken \(no_such_module:A\): No module named 'no_such_module'"):
            LLM(num_blocks=64)
    finally:
        load_custom_logitsprocs.cache_clear()


@pytest.mark.parametrize(
    ("named", "kind", "words"),
    [
        (["no_such_module:A"], RuntimeError, "Failed to load LogitsProcessor plugin no_such_module:A"),
        ([f"{__name__}:Nobody"], RuntimeError, "has no attribute 'Nobody'"),
        ([f"{__name__}:answers"], ValueError, "must be a subclass of LogitsProcessor"),
        ([dict], ValueError, "dict must be a subclass of LogitsProcessor"),
        (["json"], ValueError, "must name classes as 'module:Class', got 'json'"),
        ([5], ValueError, r"logits_processors must be classes or texts 'module:Class', got \[5\]"),
        (5, ValueError, "logits_processors must be classes or texts"),
    ],
)
def test_what_is_no_processor_is_refused(named, kind, words):
    with pytest.raises(kind, match=words):
        LLM(num_blocks=64, logits_processors=named)


def test_processors_and_drafts_or_pooling_exclude_each_other():
    drafts = SimpleNamespace(speculative_config={"method": "ngram"})
    with pytest.raises(ValueError, match="not supported when speculative decoding is enabled"):
        build_logitsprocs(drafts, custom_logitsprocs=[OnlyTarget])
    with pytest.raises(ValueError, match="Pooling models do not support custom logits processors"):
        build_logitsprocs(is_pooling_model=True, custom_logitsprocs=[OnlyTarget])
    assert not list(build_logitsprocs(is_pooling_model=True).all)


def test_an_adapter_calls_one_function_a_request():
    llm = LLM(num_blocks=64, logits_processors=[PerRequest])
    plain = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    got = answers(llm, target(40), plain, target(-1))
    assert got[0] == [40, 41, 42] and got[2] == [97] * 3 and got[1] == answers(LLM(num_blocks=64), plain)[0]
    with pytest.raises(ValueError, match="Prompt token ids are required"):
        PerRequest().update_state(BatchUpdate(1, [], [(0, target(-1), None, [])], []))


@pytest.mark.parametrize("args", [{}, {"async_scheduling": True}, {"max_num_seqs": 3}])
def test_the_updates_tell_the_batch_through_chunks_preemption_and_ends(args):
    """Requests of many lengths in a small pool: rows come, go, move and come back; each is told apart by its prompt."""
    Watcher.seen = []
    settings = {"max_num_seqs": 6, "max_num_batched_tokens": 8, "num_blocks": 20, "block_size": 4, **args}
    llm = LLM(logits_processors=[Watcher], scheduler_reserve_full_isl=False, **settings)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 256, int(n)).tolist() for n in rng.integers(1, 30, 14)]
    params = [
        SamplingParams(seed=i, max_tokens=int(rng.integers(1, 14)), ignore_eos=True, skip_clone=True,
                       extra_args={"prompt": prompt, "lengths": []})
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    assert llm.llm_engine.scheduler.num_preemptions > 0 or args.get("max_num_seqs")
    for each, output in zip(params, outputs, strict=True):
        assert len(output.outputs[0].token_ids) == each.max_tokens
        assert each.extra_args["lengths"][: each.max_tokens] == list(range(each.max_tokens))
    updates = [u for u in Watcher.seen if u is not None]
    assert len(Watcher.seen) > len(updates) > 5 and any(u.moved for u in updates) and any(u.removed for u in updates)


def test_two_lists_of_rows_become_removals_additions_and_moves():
    """Against a plain dict, over random batches."""
    rng, known = np.random.default_rng(1), {i: SamplingRow(SamplingParams(), [i], [i]) for i in range(40)}
    tracker, told, kinds = BatchTracker(), {}, set()
    for _ in range(400):
        now = rng.permutation(40)[: rng.integers(0, 12)] if rng.random() < 0.7 else np.array(sorted(told.values()), int)
        rows = [known[i] for i in now.tolist()]
        update = tracker.update(rows)
        assert (update is None) == (list(told.values()) == now.tolist())
        if update is not None:
            assert update.batch_size == len(rows)
            assert not {index for index, *_ in update.added} & set(update.removed)
            kinds |= {direction for _, _, direction in update.moved}
        process_dict_updates(told, update, lambda params, prompt, output: output[0])
        told = dict(sorted(told.items()))
        assert list(told.items()) == list(enumerate(now.tolist()))
    assert kinds == set(MoveDirectionality)


def test_built_in_processors_follow_a_changing_batch():
    """One set kept over many batches gives what a new set gives for each."""
    rng = np.random.default_rng(2)
    pool = [
        SamplingRow(
            SamplingParams(
                min_p=float(rng.choice([0.0, 0.2, 0.5])), min_tokens=int(rng.choice([0, 3])), stop_token_ids=[i % 9],
                logit_bias=[None, {i % 9: 2.5, (i + 4) % 9: -1.0}][i % 2], temperature=0.7,
            ),
            [1], [], np.random.default_rng(i),
        )
        for i in range(24)
    ]  # fmt: skip
    kept = build_logitsprocs()
    for _ in range(200):
        rows = [pool[i] for i in rng.permutation(24)[: rng.integers(1, 9)]]
        logits = rng.normal(size=(len(rows), 9)).astype(np.float32)
        results = []
        for processors in (kept.follow(rows), None):
            metadata = SamplingMetadata.from_rows(rows, 9, processors)
            changed = Sampler.apply_logits_processors(logits.copy(), metadata)
            results.append(Sampler.apply_random_filters(changed, np.arange(len(rows)), metadata))
        assert np.array_equal(*results)
        for row in rows:
            row.output_token_ids.append(0)
            if len(row.output_token_ids) > 5:
                row.output_token_ids = []  # as after a preemption: another list
        kept.follow(rows)


def test_a_batch_that_needs_no_processor_makes_none():
    llm = LLM(num_blocks=64)
    answers(llm, SamplingParams(temperature=0.0, max_tokens=2), SamplingParams(seed=1, top_p=0.5, max_tokens=2))
    assert llm.llm_engine.engine_core.model_runner.logitsprocs is None
    answers(llm, SamplingParams(min_tokens=2, max_tokens=3))
    made = llm.llm_engine.engine_core.model_runner.logitsprocs
    assert [type(each).__name__ for each in made.all] == [
        "MinPLogitsProcessor", "MinTokensLogitsProcessor", "LogitBiasLogitsProcessor",
    ]  # fmt: skip
    assert not made.changes_argmax or isinstance(made.non_argmax_invariant[0], MinTokensLogitsProcessor)


def test_an_argmax_invariant_processor_sees_the_whole_batch_after_temperature():
    class Recorder(LogitsProcessor):
        def __init__(self):
            self.shapes = []

        def is_argmax_invariant(self):
            return True

        def update_state(self, batch_update):
            pass

        def apply(self, logits):
            self.shapes.append(logits.copy())
            return np.where(np.arange(logits.shape[1]) == 2, 50.0, logits)

    recorder = Recorder()
    processors = LogitsProcessors([recorder])
    rows = [SamplingRow(SamplingParams(temperature=t), generator=np.random.default_rng(0)) for t in (0.0, 0.5)]
    metadata = SamplingMetadata.from_rows(rows, 4, processors.follow(rows))
    logits = np.array([[0.0, 3.0, 1.0, 2.0]] * 2, dtype=np.float32)
    assert Sampler().forward(logits, metadata).sampled_token_ids.tolist() == [1, 2]  # the greedy row was not asked
    assert np.array_equal(recorder.shapes[0], logits * [[1.0], [2.0]])


class TakesTurns(LogitsProcessor):
    """With a memory: leaves the two likeliest tokens of a row, and next time all but these."""

    def __init__(self, *_):
        self.calls = 0

    def is_argmax_invariant(self):
        return True

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        self.calls += 1
        second = np.sort(logits, axis=-1)[:, -2:-1]
        keep = logits >= second if self.calls % 2 else logits < second
        return np.where(keep, logits, -np.inf)


@pytest.mark.parametrize("mode", LOGPROBS_MODES)
@pytest.mark.parametrize("temperatures", [(0.5, 0.8), (0.0, 0.5), (0.0, 0.0)])
def test_a_step_asks_a_processor_once_in_every_logprobs_mode(mode, temperatures):
    """What is reported is what was drawn from, and the stream stands where it stands when nothing is reported."""
    logits = np.array([[0.0, 3.0, 1.0, 2.5, 0.5, 1.5]] * 2, dtype=np.float32)
    told = {}
    for asked in (None, 6):
        processors, sampler = LogitsProcessors([TakesTurns()]), Sampler()
        sampler.logprobs_mode, told[asked] = mode, []
        rows = [
            SamplingRow(SamplingParams(temperature=t, top_k=3, logprobs=asked), generator=np.random.default_rng(7))
            for t in temperatures
        ]
        for step in range(1, 7):
            result = sampler.forward(logits, SamplingMetadata.from_rows(rows, 6, processors.follow(rows)))
            told[asked].append(result.sampled_token_ids.tolist())
            if asked is None:
                continue
            assert processors.argmax_invariant[0].calls == (step if any(temperatures) else 0)
            for temperature, token, entry in zip(temperatures, told[asked][-1], result.logprobs, strict=True):
                offered = {each for each, (value, _) in entry.items() if value > -np.inf}
                masks = temperature > 0 and mode.startswith("processed")
                assert offered == (({1, 3} if step % 2 else {2, 4, 5}) if masks else set(range(6)))
                assert token in offered
    assert told[None] == told[6]


def check_class_path(monkeypatch, **args):
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    llm = LLM(str(POCKET), num_blocks=64, logits_processors=[HERE], **args)
    plain = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    alone = answers(LLM(str(POCKET), num_blocks=64), plain)[0]
    assert answers(llm, target(7), plain) == [[7] * 3, alone]
    llm.llm_engine.shutdown()


@needs_pocket
@pytest.mark.slow
@pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
def test_a_class_path_reaches_every_rank(monkeypatch):
    check_class_path(monkeypatch, tensor_parallel_size=2)


@needs_pocket
@pytest.mark.usefixtures("core_elsewhere")
def test_a_class_path_reaches_a_core_of_its_own(monkeypatch):
    check_class_path(monkeypatch, enable_multiprocessing=True)


def bad(result, argmax_invariant=False):
    """A class of processors of which `apply` gives this back."""

    class Bad(LogitsProcessor):
        def __init__(self, vllm_config=None, device=None, is_pin_memory=False):
            pass

        def is_argmax_invariant(self):
            return argmax_invariant

        def update_state(self, batch_update):
            pass

        def apply(self, logits):
            return result(logits)

    return Bad


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda logits: np.full_like(logits, np.nan), "Bad.apply gave back NaN"),
        (lambda logits: np.where(np.arange(logits.shape[1]) == 5, np.nan, logits), "Bad.apply gave back NaN"),
        (lambda logits: logits[:, :3], r"Bad.apply must give back floats of shape \(1, \d+\), got float32 of shape"),
        (lambda logits: logits[:0], "Bad.apply must give back floats of shape"),
        (lambda logits: logits[0], "Bad.apply must give back floats of shape"),
        (lambda logits: None, "Bad.apply must give back floats of shape .*, got None"),
        (lambda logits: logits.astype(int), "must give back floats of shape .*, got int64"),
        (lambda logits: logits.tolist(), "must give back floats of shape"),
    ],
)
def test_a_processor_that_gives_back_something_else_is_named(result, words, temperature):
    logits, params = np.linspace(-1, 1, 40, dtype=np.float32)[None], SamplingParams(temperature=temperature)
    for argmax_invariant in {False, temperature > 0}:
        metadata = SamplingMetadata.from_rows([SamplingRow(params, generator=np.random.default_rng(1))], 40)
        processors = LogitsProcessors([bad(result, argmax_invariant)()])
        metadata = dataclasses.replace(metadata, logitsprocs=processors)
        with pytest.raises(ValueError, match=words):
            Sampler().forward(logits.copy(), metadata)


@pytest.mark.parametrize("result", [lambda ids, logits: 0.0, lambda ids, logits: logits[:3], lambda ids, logits: None])
def test_a_function_for_one_request_that_gives_back_no_row_is_named(result):
    adapter = type("Mine", (AdapterLogitsProcessor,), {
        "is_argmax_invariant": lambda self: False, "new_req_logits_processor": lambda self, params: result,
    })()  # fmt: skip
    adapter.update_state(BatchUpdate(1, [], [(0, SamplingParams(), [1], [])], []))
    with pytest.raises(ValueError, match="a request that Mine made must give back 40 logits, got"):
        adapter.apply(np.zeros((1, 40), np.float32))
