"""Which executor an engine gets, what it calls in which order, and what one finds in this process."""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm import LLM, LLMEngine, SamplingParams
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.distributed import shared_memory
from mini_vllm.engine.parts import EngineParts
from mini_vllm.executor.abstract import Executor
from mini_vllm.executor.multiproc_executor import MultiprocExecutor
from mini_vllm.executor.uniproc_executor import UniProcExecutor
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.sample.sampler import Sampler
from mini_vllm.tests.models.tiny_checkpoints import save_tiny
from mini_vllm.toy_model import ToyModel

needs_ranks = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


class Recording(UniProcExecutor):
    """A user's executor: ours, and it writes down what it is asked."""

    calls: list[str]

    def _init_executor(self) -> None:
        self.calls = ["_init_executor"]
        super()._init_executor()

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        self.calls.append(method)
        return super().collective_rpc(method, *args, **kwargs)

    def execute_model(self, scheduler_output: Any) -> None:
        self.calls.append("execute_model")
        super().execute_model(scheduler_output)

    def sample_tokens(self) -> Any:
        self.calls.append("sample_tokens")
        return super().sample_tokens()


@pytest.mark.parametrize("name", [Recording, f"{__name__}.Recording"])
def test_a_class_of_ones_own(name: Any) -> None:
    engine = LLMEngine(num_blocks=16, distributed_executor_backend=name)
    expected, engine_of_ours = LLM(num_blocks=16).generate("hi", GREEDY)[0], engine.engine_core
    engine.add_request("a", "hi", GREEDY)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert outputs[-1].outputs[0].token_ids == expected.outputs[0].token_ids
    executor: Any = engine_of_ours.model_executor
    assert type(executor).__name__ == "Recording"
    start = ["_init_executor", "get_kv_cache_spec", "initialize_from_config", "compile_or_warm_up_model"]
    assert executor.calls == start + ["execute_model", "sample_tokens"] * 4


def test_the_class_follows_from_backend_and_ranks() -> None:
    assert Executor.get_class(EngineConfig()) is UniProcExecutor
    assert Executor.get_class(EngineConfig(distributed_executor_backend="uni")) is UniProcExecutor
    assert Executor.get_class(EngineConfig(distributed_executor_backend=Recording)) is Recording


@needs_ranks
def test_more_ranks_or_mp_give_processes() -> None:
    assert Executor.get_class(EngineConfig(tensor_parallel_size=2)) is MultiprocExecutor
    assert Executor.get_class(EngineConfig(distributed_executor_backend="mp")) is MultiprocExecutor


@pytest.mark.parametrize(
    ("backend", "error", "message"),
    [
        ("ray2", ValueError, "distributed_executor_backend must be 'uni', 'mp', 'ray' or a class, got 'ray2'"),
        ("nowhere.Executor", ValueError, "'nowhere.Executor' cannot be imported: No module named 'nowhere'"),
        ("mini_vllm.NoSuch", ValueError, "'mini_vllm.NoSuch' cannot be imported: "),
        ("mini_vllm.toy_model.ToyModel", TypeError, "must be a subclass of Executor, got <class .*ToyModel'>"),
        (ToyModel, TypeError, "must be a subclass of Executor, got <class .*ToyModel'>"),
        (5, TypeError, "distributed_executor_backend must be 'uni', 'mp', 'ray' or a class, got 5"),
    ],
)
def test_what_is_no_executor_is_an_error(backend: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        LLM(num_blocks=16, distributed_executor_backend=backend)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), True, "60"])
def test_the_time_limit_is_checked(seconds: Any) -> None:
    with pytest.raises(ValueError, match="execute_model_timeout_seconds must be a number above 0, got"):
        EngineConfig(execute_model_timeout_seconds=seconds)


def test_what_is_in_this_process_can_be_looked_into() -> None:
    model, sampler = ToyModel(), Sampler()
    engine = LLMEngine(model, num_blocks=16, with_labs=EngineParts(sampler=lambda: sampler))
    core = engine.engine_core
    assert engine.model is core.model is core.model_runner.model is model
    assert engine.sampler is core.model_runner.sampler is sampler
    assert core.model_executor.driver_worker.model_runner is core.model_runner
    assert engine.collective_rpc("get_model") == [model]
    assert engine.collective_rpc(lambda worker, x: (worker.rank, x), args=(3,)) == [(0, 3)]
    assert engine.apply_model(lambda m: m.vocab_size) == [257]
    core.model_executor.check_health()
    core.shutdown()


@needs_ranks
def test_what_cannot_be_in_several_processes_is_refused(tmp_path: Any) -> None:
    folder = str(save_tiny("llama", tmp_path))
    for model in (None, ToyModel(), load_model(folder)):
        with pytest.raises(ValueError, match="tensor_parallel_size=2 needs a checkpoint folder"):
            LLM(model, tensor_parallel_size=2)
    with pytest.raises(ValueError, match="a sampler or an attention of your own needs tensor_parallel_size=1"):
        LLM(folder, tensor_parallel_size=2, with_labs=EngineParts(attention=object))
    with pytest.raises(ValueError, match="'uni' has one rank, got tensor_parallel_size=2: use 'mp'"):
        LLM(folder, tensor_parallel_size=2, distributed_executor_backend="uni")


def test_other_systems_are_told_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mini_vllm.config.parallel.is_supported", lambda: False)
    with pytest.raises(ValueError, match=r"tensor_parallel_size must be 1 on this system .*, got 2"):
        EngineConfig(tensor_parallel_size=2)
    with pytest.raises(ValueError, match=r"distributed_executor_backend must be 'uni' on this system .*, got 'mp'"):
        EngineConfig(distributed_executor_backend="mp")
