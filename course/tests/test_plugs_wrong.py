"""Wrong labs in the engine: each fault is told in one sentence that names the lab, the part and the broken rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from course.contract import mistakes
from course.labs import SOURCES
from course.plugs import parts as plugs
from course.plugs.milestone_checks import greedy, random_prompts
from course.tests.test_plugs import PARTS, POCKET, all_present, generate, source, wrong  # noqa: F401
from mini_vllm import LLM, LLMEngine
from mini_vllm.engine.parts import PartError

pytestmark = pytest.mark.maintainer

WRONG = {
    "pool-hands-out-twice": (
        "02-01",
        "        blocks = self.free_block_queue.popleft_n(num_blocks)\n",
        "        blocks = self.free_block_queue.popleft_n(num_blocks)\n        blocks[0] = self.blocks[1]\n",
        r"lab 02-01 \(block pool\): I1 broken: block 1 handed out while in use by request '0'",
    ),
    "pool-forgets-to-evict": (
        "02-01",
        "            self._maybe_evict_cached_block(block)\n            block.ref_cnt += 1\n        return",
        "            block.ref_cnt += 1\n        return",
        r"lab 02-01 \(block pool\): I3 broken: block \d+ handed out with the hash of its old content",
    ),
    "free-clears-the-hash": (
        "02-01",
        "            block.ref_cnt -= 1\n",
        "            block.ref_cnt -= 1\n            self._maybe_evict_cached_block(block)\n",
        r"lab 02-01 \(block pool\): I4 broken: block \d+ lost its hash when it was freed",
    ),
    "touch-leaves-it-in-the-queue": (
        "02-01",
        "                self.free_block_queue.remove(block)\n",
        "                pass\n",
        r"lab 02-01 \(block pool\): I1 broken: block \d+ is in the free queue",
    ),
    "hash-without-parent": (
        "02-01",
        "parent_block_hash if parent_block_hash is not None else NONE_HASH",
        "NONE_HASH",
        r"lab 02-01 \(block hash\): two blocks with another parent have one hash",
    ),
    "scheduler-overdraws": (
        "03-01",
        "    return max(min(num_new_tokens, token_budget), 0)",
        "    return max(num_new_tokens, 0)",
        r"lab 03-01 \(scheduler step\): S2 broken: \d+ tokens are planned, max_num_batched_tokens is 16",
    ),
    "scheduler-overbooks": (
        "03-01",
        "len(running) < max_num_seqs",
        "True",
        r"lab 03-01 \(scheduler step\): S3 broken: \d+ requests run, max_num_seqs is 6",
    ),
    "scheduler-loses-a-request": (
        "03-01",
        "        running.append(waiting.popleft())\n",
        "        waiting.popleft()\n",
        r"lab 03-01 \(scheduler step\): S1 broken: request '0' is in neither queue",
    ),
    "check-stop-never-ends": (
        "01-05",
        "    params = request.sampling_params\n",
        "    return False\n    params = request.sampling_params\n",
        r"lab 01-05 \(stop conditions\): request '\d+' with .* must end .*, and check_stop says go on",
    ),
    "sample-outside-the-vocabulary": (
        "00-03",
        "        return int(np.argmax(scores))",
        "        return scores.size",
        r"lab 00-03 \(sampling\): sample returned (\d+), outside the vocabulary of \1 ids",
    ),
    "sample-raises": (
        "00-03",
        "    scores = np.asarray(logits, dtype=np.float64)\n",
        "    scores = np.asarray(logits, dtype=np.float64)[:-1] + np.ones(3)\n",
        r"lab 00-03 \(sampling\): sample raised ValueError: operands could not .*\(solution.py:\d+\)",
    ),
    "batch-in-int32": (
        "09-05",
        "    return chosen\n\n\ndef _refuse",
        "    return chosen.astype(np.int32)\n\n\ndef _refuse",
        r"lab 09-05 \(batch sampling\): sample_batch must return int64\[\d+\], got int32 of shape",
    ),
    "batch-outside-the-vocabulary": (
        "09-05",
        "    return chosen\n\n\ndef _refuse",
        "    return chosen + logits.shape[1]\n\n\ndef _refuse",
        r"lab 09-05 \(batch sampling\): sample_batch returned an id outside the vocabulary of \d+",
    ),
    "batch-not-the-largest": (
        "09-05",
        "    chosen = logits.argmax(axis=1)\n",
        "    chosen = logits.argmin(axis=1)\n",
        r"lab 09-05 \(batch sampling\): sample_batch chose \d+ in row \d+ at temperature 0, which is not the largest",
    ),
    "attention-shape": (
        "02-06",
        "    return np.stack(rows)",
        "    return np.stack(rows).reshape(len(q), -1)",
        r"lab 02-06 \(paged attention\): paged_attention_batch returned shape \(16, 256\), wanted \(16, 4, 64\)",
    ),
    "attention-nan": (
        "02-06",
        "    return np.stack(rows)",
        "    return np.stack(rows) * np.nan",
        r"lab 02-06 \(paged attention\): paged_attention_batch returned NaN or infinity in layer 0",
    ),
    "slots": (
        "02-06",
        "positions % block_size",
        "positions % (block_size - 1)",
        r"lab 02-06 \(paged attention\): build_slot_mapping: row 0 would write to other slots",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_part_is_told_which_rule_it_broke(name: str, wrong) -> None:  # noqa: F811
    lab, old, new, message = WRONG[name]
    wrong(lab, old, new)
    with pytest.raises(PartError, match=message) as caught:
        generate(POCKET, with_labs=[lab, "solution"])
    assert caught.value.lab == lab and caught.value.part in PARTS


def model_for(lab: str, model: Path | None) -> Path | None:
    """The toy model has no attention, and no draw of it depends on more than a token."""
    return POCKET if lab == "02-06" else model


@pytest.mark.parametrize("model", [None, pytest.param(POCKET, marks=pytest.mark.slow)], ids=["toy", "pocket"])
@pytest.mark.parametrize("lab", plugs.LABS)
def test_listed_mistakes_never_end_in_a_traceback(lab: str, model: Path | None) -> None:
    """Each mistake of a lab's README: a sentence of a guard, or tokens that the milestone compares; no other error."""
    path, model = source(lab), model_for(lab, model)
    expected, named = generate(model), []
    for patch in mistakes.patches(path.parent):
        SOURCES[path] = mistakes.apply_patch(path.read_text(encoding="utf-8"), mistakes.read_mistake(patch).diff)
        try:
            generate(model, with_labs=[lab, "solution"])
        except PartError as error:
            named.append(f"{patch.stem}: {error}")
        finally:
            del SOURCES[path]
    assert generate(model) == expected and all(f"lab {lab} (" in text for text in named)


def test_a_counter_moved_too_early(wrong) -> None:  # noqa: F811
    old = "        plan[request.request_id] = num_new_tokens\n"
    wrong("03-01", old, old + "        request.num_computed_tokens += num_new_tokens\n")
    with pytest.raises(PartError, match=r"S4 broken: schedule_step moved num_computed_tokens of request"):
        generate(with_labs="solution,03-01")


def test_a_preemption_that_forgets_to_preempt(wrong) -> None:  # noqa: F811
    wrong("03-01", "            preempt(victim)\n", "")
    with pytest.raises(PartError, match=r"preempt was not called for it|in neither queue"):
        LLM(num_blocks=5, block_size=4, with_labs="solution,03-01").generate(
            random_prompts(1, 3, 8), greedy(8), use_tqdm=False
        )


def test_the_oracle_names_the_labs() -> None:
    all_present()
    engine = LLMEngine(num_blocks=32, block_size=4, with_labs="solution")
    engine.add_request("a", "hello world", greedy(8))
    engine.step()
    engine.engine_core.model_runner.input_batch.block_table[0].table[0, :2] = [2, 1]
    with pytest.raises(PartError, match=r"lab 02-01 \(block pool\).*the KV oracle says: request 'a' would read"):
        engine.step()
