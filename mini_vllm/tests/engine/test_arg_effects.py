"""Arguments of vLLM that once were taken with any value: each takes effect, or takes only values that have none."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm import LLM, AsyncLLM, EngineArgs, SamplingParams
from mini_vllm.engine.arg_refusals import WITHOUT_EFFECT

OTHERS = (None, True, False, 0, 1, -1, 0.5, 1e9, "", "auto", "xyz", [], ["x"], {}, {"x": 1})


def config(**args: Any) -> Any:
    return EngineArgs(**args).create_engine_config()


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_value_is_taken_that_changes_nothing_and_any_other_is_refused_by_name(name: str) -> None:
    kind, why = WITHOUT_EFFECT[name]
    plain, taken = config(), 0
    for value in OTHERS:
        if kind.allows(value):
            taken += config(**{name: value}) == plain
            continue
        with pytest.raises(ValueError, match=f"engine argument {name} must be ") as refused:
            config(**{name: value})
        assert why in str(refused.value)
    assert 1 <= taken < len(OTHERS) - 5


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"performance_mode": "xyz"}, "performance_mode must be one of"),
        ({"optimization_level": 4}, "optimization_level must be 0, 1, 2 or 3, got 4"),
        ({"optimization_level": "O0"}, "optimization_level must be 0, 1, 2 or 3, got 'O0'"),
        ({"optimization_level": True}, "optimization_level must be 0, 1, 2 or 3, got True"),
        ({"shutdown_timeout": -1}, "shutdown_timeout must be a number of seconds of at least 0, got -1"),
        ({"shutdown_timeout": "5"}, "shutdown_timeout must be a number of seconds"),
        ({"shutdown_timeout": float("inf")}, "shutdown_timeout must be a number of seconds"),
        ({"cudagraph_metrics": "yes"}, "cudagraph_metrics must be True or False"),
        ({"download_dir": 5}, "download_dir must be a folder or None, got 5"),
        ({"hf_token": 5}, "hf_token must be a text, True, False or None, got a int"),
    ],
)
def test_what_takes_effect_is_checked(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config(**args)


def test_throughput_doubles_the_limits_that_are_not_given() -> None:
    def limits(**args: Any) -> tuple[int, int]:
        made = config(**args).scheduler
        return made.max_num_batched_tokens, made.max_num_seqs

    assert limits() == (2048, 256)
    assert limits(performance_mode="throughput") == (4096, 512)
    assert limits(performance_mode="throughput", max_num_seqs=7) == (4096, 7)
    assert limits(performance_mode="throughput", max_num_batched_tokens=300) == (300, 300)
    assert limits(performance_mode="balanced") == limits(performance_mode="interactivity") == (2048, 256)


def test_interactivity_captures_every_small_size() -> None:
    graphs = {"cudagraph_mode": "FULL", "max_num_seqs": 20}
    assert config(**graphs).resolved_capture_sizes[:6] == [1, 2, 4, 8, 16, 24]
    assert config(**graphs, performance_mode="interactivity").resolved_capture_sizes[:33] == [*range(1, 33), 40]


def test_level_0_is_eager_and_the_others_are_one() -> None:
    graphs = {"cudagraph_mode": "FULL"}
    assert config(optimization_level=0, **graphs).enforce_eager
    assert not config(optimization_level=0, **graphs).resolved_capture_sizes
    assert not any(config(optimization_level=level).enforce_eager for level in (1, 2, 3, None))


def test_the_hub_is_asked_with_the_token_and_into_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    asked = []

    def snapshot_download(name: str, **how: Any) -> str:
        asked.append((name, how["cache_dir"], how["token"]))
        raise OSError("nothing is there")

    library = SimpleNamespace(snapshot_download=snapshot_download)
    errors = SimpleNamespace(HfHubHTTPError=KeyError, LocalEntryNotFoundError=KeyError)
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    for args in ({"model": "a/b"}, {"model": None, "tokenizer": "c/d"}):
        with pytest.raises(FileNotFoundError, match="nothing is there"):
            LLM(**args, download_dir=str(tmp_path), hf_token="secret")
    assert asked == [("a/b", str(tmp_path), "secret"), ("c/d", str(tmp_path), "secret")]


def test_requests_end_before_the_engine_does(request: pytest.FixtureRequest) -> None:
    async def run(**how: Any) -> list[int]:
        llm, counts = AsyncLLM(num_blocks=64, **how), []
        params = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
        stream = llm.generate("hi", params, "a")
        counts.append(len((await anext(stream)).outputs[0].token_ids))
        ended = asyncio.get_running_loop().run_in_executor(None, llm.shutdown)
        try:
            async for output in stream:
                counts.append(len(output.outputs[0].token_ids))
        except Exception:
            counts.append(-1)
        await ended
        return counts

    assert asyncio.run(run(shutdown_timeout=60))[-1] == 200
    assert asyncio.run(run())[-1] in (-1, 200)


def test_the_log_has_a_table_of_graphs_where_it_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    for wanted in (False, True):
        with caplog.at_level("INFO"):
            llm = LLM(num_blocks=64, cudagraph_mode="FULL", cudagraph_metrics=wanted)
            llm.generate("hi", SamplingParams(max_tokens=3), use_tqdm=False)
            llm.llm_engine.shutdown()
        assert ("CUDAGraph Stats" in caplog.text) is wanted
