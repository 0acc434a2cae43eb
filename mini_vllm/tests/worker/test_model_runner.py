"""The model runner: persistent batch, flat inputs, what is sampled and what is not, faults of one row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint
from mini_vllm.sample.sampler import Sampler
from mini_vllm.toy_model import ToyModel
from mini_vllm.worker.input_batch import CachedRequestState, InputBatch
from mini_vllm.worker.model_runner import ModelRunner

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_checkpoint(tmp_path_factory.mktemp("runner"), CONFIG)


def make_runner(model: Any, **changes: Any) -> ModelRunner:
    args = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64}
    return ModelRunner(model, Sampler(), **{**args, **changes})


def new(req_id: str, tokens: list[int], blocks: list[int], computed: int = 0, params: Any = GREEDY) -> NewRequestData:
    return NewRequestData(req_id, tokens, params, (blocks,), computed)


def plan(
    scheduled: dict[str, int], new_reqs: list[NewRequestData] | None = None, cached: CachedRequestData | None = None,
    finished: set[str] | None = None,
) -> SchedulerOutput:  # fmt: skip
    return SchedulerOutput(
        new_reqs or [], cached or CachedRequestData(), scheduled, sum(scheduled.values()),
        finished_req_ids=finished or set(),
    )  # fmt: skip


def cached(computed: dict[str, int], blocks: dict[str, list[int]] | None = None) -> CachedRequestData:
    ids = list(computed)
    new_blocks = [(blocks[i],) if blocks and i in blocks else None for i in ids]
    return CachedRequestData(ids, set(), new_blocks, list(computed.values()), [0] * len(ids))


def step(runner: ModelRunner, output: SchedulerOutput) -> dict[str, list[int]]:
    runner.execute_model(output)
    result = runner.sample_tokens()
    return dict(zip(result.req_ids, result.sampled_token_ids, strict=True))


def test_inputs_against_a_loop_over_tokens() -> None:
    rng = np.random.default_rng(0)
    runner = make_runner(ToyModel(vocab_size=300))
    rows = {f"r{i}": (int(rng.integers(1, 40)), int(rng.integers(1, 20))) for i in range(8)}
    free = rng.permutation(np.arange(1, 2000)).tolist()
    requests = []
    for req_id, (computed, scheduled) in rows.items():
        tokens = rng.integers(0, 256, computed + scheduled + int(rng.integers(0, 3))).tolist()
        blocks = [free.pop() for _ in range(-(-len(tokens) // 4))]
        requests.append(new(req_id, tokens, blocks, computed))
    scheduled_tokens = {req_id: scheduled for req_id, (_, scheduled) in rows.items()}
    runner._update_states(plan(scheduled_tokens, requests))
    inputs = runner.prepare_inputs(scheduled_tokens, sum(scheduled_tokens.values()))
    ids, positions, slots, logits_indices = [], [], [], []
    for request in requests:
        computed, scheduled = rows[request.req_id]
        for p in range(computed, computed + scheduled):
            ids.append(request.prompt_token_ids[p])
            positions.append(p)
            slots.append(request.block_ids[0][p // 4] * 4 + p % 4)
        if computed + scheduled == len(request.prompt_token_ids):
            logits_indices.append(len(ids) - 1)
    assert inputs.input_ids.tolist() == ids and inputs.input_ids.dtype == np.int64
    assert inputs.positions.tolist() == positions
    assert inputs.metadata.slot_mapping.tolist() == slots
    assert inputs.logits_indices.tolist() == logits_indices
    assert inputs.metadata.seq_lens.tolist() == [c + s for c, s in rows.values()]
    for row, request in enumerate(requests):
        table = inputs.metadata.block_tables[row]
        (block_ids,) = request.block_ids
        assert table[: len(block_ids)].tolist() == block_ids[: len(table)]
        assert not table[len(block_ids) :].any()


def test_a_chunk_of_a_prompt_is_not_sampled(folder: Path) -> None:
    runner = make_runner(load_model(folder))
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    assert step(runner, plan({"a": 5}, [new("a", tokens, [1, 2])])) == {"a": []}
    [first] = step(runner, plan({"a": 3}, cached=cached({"a": 5})))["a"]
    whole = make_runner(load_model(folder))
    assert step(whole, plan({"a": 8}, [new("a", tokens, [7, 8])])) == {"a": [first]}
    assert runner.requests["a"].output_token_ids == [first]
    assert runner.input_batch.token_ids[0, :9].tolist() == [*tokens, first]


def test_rows_come_go_and_move() -> None:
    """Random traffic on the batch against a dictionary of what each request should have."""
    rng = np.random.default_rng(1)
    batch = InputBatch(max_num_seqs=6, max_model_len=32, block_size=4)
    model: dict[str, CachedRequestState] = {}
    for number in range(300):
        for req_id in [r for r in model if rng.random() < 0.3]:
            batch.remove_request(req_id)
            del model[req_id]
        while len(model) < 6 and rng.random() < 0.6:
            length = int(rng.integers(1, 20))
            state = CachedRequestState(
                f"r{number}-{len(model)}", rng.integers(0, 99, length).tolist(), GREEDY,
                (rng.integers(1, 99, -(-length // 4)).tolist(),), int(rng.integers(0, length)),
            )  # fmt: skip
            batch.add_request(state)
            model[state.req_id] = state
        batch.condense()
        for req_id in model:
            if rng.random() < 0.3 and len(model[req_id].block_ids[0]) < 8:
                extra = ([int(rng.integers(1, 99))],)
                model[req_id].append_blocks(extra)
                batch.block_table.append_row(extra, batch.req_id_to_index[req_id])
        assert sorted(batch.req_ids) == sorted(model)
        for row, req_id in enumerate(batch.req_ids):
            state = model[req_id]
            assert batch.req_id_to_index[req_id] == row and batch.states[row] is state
            assert batch.token_ids[row, : batch.num_tokens[row]].tolist() == state.prompt_token_ids
            assert batch.num_computed_tokens[row] == state.num_computed_tokens
            (block_ids,) = state.block_ids
            table = batch.block_table[0].table[row]
            assert table[: len(block_ids)].tolist() == block_ids and not table[len(block_ids) :].any()


def test_more_requests_than_rows_is_an_error() -> None:
    runner = make_runner(ToyModel(), max_num_seqs=1)
    with pytest.raises(RuntimeError, match="no row for request 'b': max_num_seqs is 1"):
        runner.execute_model(plan({"a": 1, "b": 1}, [new("a", [1], [1]), new("b", [1], [2])]))


def test_a_preempted_request_comes_back_with_other_blocks(folder: Path) -> None:
    runner = make_runner(load_model(folder))
    [first] = step(runner, plan({"a": 3, "b": 2}, [new("a", [5, 6, 7], [1]), new("b", [8, 9], [2])]))["a"]
    step(runner, plan({"b": 1}, cached=cached({"b": 2})))  # a has lost its row
    assert runner.input_batch.req_ids == ["b"]
    back = cached({"b": 3, "a": 0}, {"a": [9, 11]})
    back.resumed_req_ids = {"a"}
    back.all_token_ids = {"a": [5, 6, 7, first]}
    [second] = step(runner, plan({"b": 1, "a": 4}, cached=back))["a"]
    alone = make_runner(load_model(folder))
    assert step(alone, plan({"a": 4}, [new("a", [5, 6, 7, first], [3])])) == {"a": [second]}
    assert runner.requests["a"].output_token_ids == [first, second]


def test_the_sampling_metadata_is_built_when_the_batch_changes(folder: Path) -> None:
    runner = make_runner(load_model(folder))
    step(runner, plan({"a": 2, "b": 2}, [new("a", [5, 6], [1, 3]), new("b", [8, 9], [2, 4])]))
    assert runner._sampling is not None
    before = runner._sampling[1]
    step(runner, plan({"a": 1, "b": 1}, cached=cached({"a": 2, "b": 2})))
    assert runner._sampling[1] is before
    step(runner, plan({"b": 1}, cached=cached({"b": 3}), finished={"a"}))
    assert runner._sampling[1] is not before and "a" not in runner.requests


def test_nothing_scheduled_gives_nothing() -> None:
    runner = make_runner(ToyModel())
    assert step(runner, plan({})) == {}
    assert runner.sample_tokens().req_ids == []


def test_a_model_without_layers_has_no_kv_arrays() -> None:
    runner = make_runner(ToyModel(), block_size=2)
    assert runner.kv_cache is None
    assert len(step(runner, plan({"a": 3}, [new("a", [1, 2, 3], [5, 6])]))["a"]) == 1
    assert runner.last_metadata is not None
    assert runner.last_metadata.slot_mapping.tolist() == [10, 11, 12]


def test_random_streams_come_from_the_engine_seed_or_the_request() -> None:
    warm = SamplingParams(temperature=1.0)
    own = SamplingParams(temperature=1.0, seed=3)

    def tokens(seed: int) -> tuple[list[int], list[int], list[int]]:
        runner = make_runner(ToyModel(), seed=seed)
        requests = [new(i, [1], [k], params=p) for k, (i, p) in enumerate({"a": warm, "b": warm, "c": own}.items(), 1)]
        result = step(runner, plan({"a": 1, "b": 1, "c": 1}, requests))
        return result["a"], result["b"], result["c"]

    assert tokens(0) == tokens(0)
    assert tokens(0)[0] != tokens(0)[1]  # the same request twice: two streams
    assert tokens(0)[:2] != tokens(1)[:2] and tokens(0)[2] == tokens(1)[2]


def test_nan_in_one_row_ends_that_request_alone(folder: Path) -> None:
    """Token 60 has a NaN embedding: its request fails, and whoever gets its blocks next reads nothing of it."""
    model = load_model(folder)
    clean = make_runner(load_model(folder))
    model.model.embed_tokens.weight[60] = np.nan
    runner = make_runner(model)
    good = [new("good", [5, 6, 7], [1])]
    expected = step(clean, plan({"good": 3}, good))["good"]
    runner.execute_model(plan({"bad": 5, "good": 3}, [new("bad", [1, 60, 2, 3, 4], [2, 3]), *good]))
    result = runner.sample_tokens()
    assert result.sampled_token_ids[result.req_ids.index("good")] == expected
    assert result.sampled_token_ids[result.req_ids.index("bad")] == []
    assert result.errors == {"bad": "NaN in the logits of request 'bad' at position 4"}
    assert runner.kv_cache is not None and not np.isnan(runner.kv_cache.data).any()


@pytest.mark.parametrize(
    "changes",
    [{"block_size": 1}, {"max_num_batched_tokens": 8, "max_num_seqs": 8}, {"max_num_seqs": 2}, {"num_blocks": 26},
     {"attention_backend": "dense"}, {"enable_prefix_caching": False}],
    ids=lambda c: "-".join(c),
)  # fmt: skip
def test_how_the_work_is_cut_does_not_change_the_tokens(folder: Path, changes: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    prompts = [{"prompt_token_ids": rng.integers(0, 60, n).tolist()} for n in rng.integers(1, 40, 10)]
    prompts += prompts[:3]
    params = [SamplingParams(temperature=t, max_tokens=12, seed=i) for i, t in enumerate([0.0, 1.0] * 6 + [0.0])]

    def tokens(**args: Any) -> list[list[int]]:
        llm = LLM(str(folder), dtype="float64", **{"num_blocks": 200, "block_size": 4, **args})
        return [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]

    base = tokens()
    if "block_size" in changes:
        changes = {**changes, "num_blocks": 800}
    assert tokens(**changes) == base
