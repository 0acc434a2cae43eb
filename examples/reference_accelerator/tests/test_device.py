"""The device's memory, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams


@pytest.fixture
def device() -> Any:
    """A device of 1,000 bytes."""
    from refacc.device import Device

    return Device(1000)


def test_bytes_are_counted_as_they_cross(model: str, device: Any) -> None:
    host = np.ones((3, 4), np.float32)
    held = device.weight(host, "a weight")
    host[:] = 2
    assert held.dtype == np.float64 and (held == 1).all()
    assert device.live == device.peak == device.setup.to_device == 96
    device.give_back()
    assert (device.live, device.peak) == (0, 96)


def test_what_does_not_fit_is_refused(model: str, device: Any) -> None:
    device.weight(np.ones(100), "the first")
    with pytest.raises(ValueError, match="refacc:0 has 1,000 bytes, of which 800 are taken: the second needs 240 more"):
        device.weight(np.ones(30), "the second")
    assert device.live == 800


def test_a_product_says_what_it_reads_and_computes(model: str, device: Any) -> None:
    with device.step() as step:
        device.shape(np.array([5]), np.array([5]))
        device.linear("logits", np.ones((5, 3)), np.ones((7, 3)), np.ones(7))
        device.matmul(np.ones((2, 4, 3)), np.ones((2, 3, 6)))
    counts = step.kinds["logits"]
    assert (counts.flops, counts.weight_bytes) == (2 * 5 * 7 * 3 + 5 * 7, 8 * (7 * 3 + 7))
    assert step.kinds["attention"].flops == 2 * 2 * 4 * 3 * 6
    with device.step():
        pass
    assert device.steps == [step]


def test_a_share_of_its_memory_is_the_caches(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFACC_GIB", "0.25")
    llm = LLM(model, device="refacc", gpu_memory_utilization=0.5)
    device = llm.llm_engine.engine_core.model_executor.driver_worker.device
    assert device.total == 1 << 28 and (1 << 27) - 300_000 < device.peak <= 1 << 27


def test_a_device_that_is_too_small(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFACC_GIB", "0.01")
    with pytest.raises(ValueError, match=r"refacc:0 has 10,737,418 bytes, of which .* are taken: model\.layers.*needs"):
        LLM(model, device="refacc")


def test_without_memory_there_is_no_device(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import refacc

    monkeypatch.setenv("REFACC_GIB", "0")
    assert refacc.register() is None
    for odd in ("-1", "much", "nan", "inf"):
        monkeypatch.setenv("REFACC_GIB", odd)
        with pytest.raises(ValueError, match="REFACC_GIB must be a number of GiB, 0 for no device, got "):
            refacc.register()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enforce_eager", True), ("kv_cache_dtype", "int8"), ("attention_backend", "dense"), ("enable_lora", True),
        ("quantization", "int8"), ("cudagraph_mode", "FULL"),
    ],
)  # fmt: skip
def test_what_would_not_be_counted_is_refused(model: str, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}=.* is not there with device='refacc': use device='cpu'"):
        LLM(model, device="refacc", **{name: value})


def test_another_dtype_is_refused_and_the_default_is_float64(model: str) -> None:
    assert LLM(model, device="refacc").llm_engine.config.dtype == "float64"
    with pytest.raises(ValueError, match="dtype must be one of float64 with device='refacc', got 'bfloat16'"):
        LLM(model, device="refacc", dtype="bfloat16")


def test_the_command_prints_the_answer_and_the_table(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    from refacc.cli import main

    main([model, "What is a KV block?", "--max-tokens", "3"])
    on_the_cpu = LLM(model, device="cpu", dtype="float64")
    params = SamplingParams(temperature=0.0, max_tokens=3)
    text = on_the_cpu.generate("What is a KV block?", params, use_tqdm=False)[0].outputs[0].text
    said = capsys.readouterr().out
    assert said.startswith(f"{text.strip()}\n") and "equal in every step" in said
