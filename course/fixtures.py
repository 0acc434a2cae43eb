"""Pytest fixtures that several labs use; loaded by ``course.pytest_plugin``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def close(got: Any, want: Any, what: str, atol: float = 1e-12) -> None:
    """One comparison of arrays for all labs: shape, type, then every number, without a relative tolerance."""
    import numpy as np

    want = np.asarray(want)
    assert isinstance(got, np.ndarray), f"{what}: got {type(got).__name__}, expected an array"
    assert got.shape == want.shape, f"{what}: got shape {got.shape}, expected {want.shape}"
    assert got.dtype == want.dtype, f"{what}: got {got.dtype}, expected {want.dtype}"
    assert not np.isnan(got).any(), f"{what}: {np.isnan(got).sum()} of {got.size} values are NaN"
    with np.errstate(invalid="ignore"):
        off = np.where(got == want, 0, abs(got - want)).max(initial=0)
    assert off <= atol, f"{what}: got values off by up to {off:.3g}, expected at most {atol:g}"


@pytest.fixture(scope="session")
def greedy() -> Callable[[str, int], list[int]]:
    """``greedy(prompt, max_tokens)``: the toy model's most likely continuation, past EOS, by the engine as it comes."""

    def answer(prompt: str, max_tokens: int) -> list[int]:
        from mini_vllm import LLM, SamplingParams

        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        (output,) = LLM().generate(prompt, params, use_tqdm=False)
        return output.outputs[0].token_ids

    return answer


@pytest.fixture
def real_run(request: pytest.FixtureRequest, real_vllm_python: Path) -> Callable[..., tuple[str, dict[str, Any]]]:
    """``real_run(model, *options)``: log and result of the lab's ``real_run.py`` on the real vLLM."""
    from course.captures import run

    def call(model: str, *options: str) -> tuple[str, dict[str, Any]]:
        try:
            return run(str(real_vllm_python), request.path.parent / "real_run.py", model, *options, timeout_s=540)
        except SystemExit as error:
            reason = str(error)
        pytest.fail(reason, pytrace=False)

    return call
