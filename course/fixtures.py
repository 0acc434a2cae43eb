"""Pytest fixtures that several labs use, loaded by ``course.pytest_plugin``, and the one comparison of arrays."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from course import labs


def close(got: Any, want: Any, what: str, atol: float = 1e-12) -> None:
    """Arrays of all labs: no masked one, shape, type, every number, no relative tolerance; NaN is close to nothing."""
    import numpy as np

    want = np.asarray(want)
    have, need = (f"{type(x).__name__} {np.shape(x)} {getattr(x, 'dtype', 'without a dtype')}" for x in (got, want))
    np.testing.assert_equal(have, need, err_msg=f"{what}: kind, shape and type")
    np.testing.assert_allclose(got, want, rtol=0, atol=atol, equal_nan=False, err_msg=what)


def patience(seconds: float) -> float:
    """How long a test waits for what should come: ``seconds`` for a learner's file or a mutant, which may hang; much
    longer for ours, which a busy machine makes late and nothing else."""
    return seconds if labs.wanted_impl() == "starter" or labs.SOURCES else 15 * seconds


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
