"""Before lab code serves: faults that one prompt never meets stop it at once, and what was not called is named."""

from __future__ import annotations

import pytest

from course.plugs import parts as plugs
from course.plugs import warmup
from course.tests.test_plugs import all_present, wrong  # noqa: F401
from mini_vllm import LLM
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.engine.parts import PartError

pytestmark = pytest.mark.maintainer

SAMPLE = ", ".join(f"{name} (00-03)" for name in ("softmax", "apply_top_k", "apply_top_p", "sample"))
MISSED = f"not exercised: {SAMPLE}, BlockPool.evict_blocks (02-01)\n"
WRONG = {
    "touch never removes": (
        "                self.free_block_queue.remove(block)\n",
        "                pass\n",
        r"I1 broken: block \d+ is in the free queue",
    ),
    "a hash without its parent": (
        "parent_block_hash if parent_block_hash is not None else NONE_HASH",
        "NONE_HASH",
        "two blocks with another parent have one hash",
    ),
    "usage asks for what is not there": (
        "return 1.0 - self.get_num_free_blocks()",
        "return self.nobody()",
        "get_usage raised AttributeError",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_that_one_prompt_never_meets(name: str, wrong) -> None:  # noqa: F811
    all_present()
    old, new, message = WRONG[name]
    wrong("02-01", old, new)
    with pytest.raises(PartError, match=message):
        LLM(with_labs="02-01,solution")


def test_what_nobody_called_is_named(capsys: pytest.CaptureFixture[str], wrong) -> None:  # noqa: F811
    all_present()
    plugs.engine_parts("solution")
    assert capsys.readouterr().err.endswith(f"8 requests with one beginning in a small pool; {MISSED}")
    plugs.engine_parts("03-01,solution")
    assert capsys.readouterr().err.endswith("; every function was called\n")
    plugs.engine_parts("02-06,solution")  # the toy model has no attention
    plugs.engine_parts("solution", quiet=True)
    assert "warm-up" not in capsys.readouterr().err
    wrong("00-03", "return int(np.argmax(probs /", "return 3 + 0 * int(np.argmax(probs /")
    plugs.engine_parts("00-03,solution")
    assert "lab 00-03: the tokens are not ours; `course milestone` says which part" in capsys.readouterr().err


def test_the_requests_hit_preempt_and_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[LLMEngine] = []
    original = LLMEngine.__init__

    def kept(self: LLMEngine, *args: object, **more: object) -> None:
        original(self, *args, **more)  # type: ignore[arg-type]
        engines.append(self)

    monkeypatch.setattr(LLMEngine, "__init__", kept)
    warmup._serve(None)
    stats = engines[0].stats
    assert stats.num_preemptions and stats.prefix_cache.hits


def test_what_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch, wrong) -> None:  # noqa: F811
    all_present()
    monkeypatch.setattr(warmup, "SECONDS", 0.2)
    wrong("01-05", "def check_stop(", "def check_stop(*_):\n    while True:\n        pass\n\n\ndef other(")
    with pytest.raises(PartError, match="it ran longer than 0 s; does a loop never end"):
        LLM(with_labs="01-05,solution")
