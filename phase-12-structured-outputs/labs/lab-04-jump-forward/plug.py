"""Lab 12-04 in the engine: our room for jumps, with what is forced and how it is written from a learner's functions.

The engine never takes back a token that it has told. Where the lab would write one anew, nothing is jumped, and the
masks lead on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course.labs import load
from course.plugs.guards import Watch
from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.parts import EngineParts
from mini_vllm.structured_output.jump_forward import JumpForward
from mini_vllm.structured_outputs_params import StructuredOutputsParams

given: Any = load(Path(__file__).with_name("given.py"))


class LabJumpForward(JumpForward):
    """`forced_text` and `jump` of a lab's module, each answer looked at before it is used."""

    def __init__(self, module: Any, watch: Watch, vocabulary: Any, tokenizer: Any) -> None:
        super().__init__(vocabulary, tokenizer)
        self.module, self.watch = module, watch
        self.tokens = given.Tokens(vocabulary.tokens, vocabulary.stop_token_ids[0], self.encode)

    def forced_text(self, grammar: Any) -> bytes:
        """The lab's, held against ours."""
        here = place(grammar)
        text = self.watch.call(self.module.forced_text, here)
        self.watch.require(isinstance(text, bytes), f"forced_text must return bytes, got {text!r}")
        forced = grammar.forced_bytes(max(len(text) + 1, 256))
        self.watch.require(text == forced, f"forced_text says {text!r} where the grammar leaves {forced!r}")
        self.watch.require(here.state == place(grammar).state, "forced_text moved the grammar")
        return text

    def write(self, text: bytes, ids: Sequence[int], grammar: Any) -> list[int]:
        """The lab's new tokens; none where it would replace old ones."""
        old, here = list(ids), place(grammar)
        answer = self.watch.call(self.module.jump, text, old, here, self.tokens)
        known = isinstance(answer, tuple) and len(answer) == 2
        self.watch.require(known, f"jump must return the new ids and how many stay, got {answer!r}")
        new, stay = answer
        self.watch.require(old == list(ids), "jump changed the ids that it was given")
        self.watch.require(here.state == place(grammar).state, "jump moved the grammar")
        self.watch.require(list(new[:stay]) == old[:stay], f"jump says that {stay} ids stay, and changed one of them")
        before, after = self.bytes_of(old), self.bytes_of(new)
        self.watch.require(after.startswith(before), f"jump took text away: {before!r} became {after!r}")
        self.watch.require((before + text).startswith(after), f"jump wrote {after!r}, forced was {before + text!r}")
        return [int(each) for each in new[stay:]] if stay == len(old) else []

    @staticmethod
    def prove(parts: EngineParts) -> None:
        """See `prove` below."""
        prove(parts)


def place(grammar: Any) -> Any:
    """Where the engine's grammar stands, as the lab knows places."""
    made = object.__new__(given.Grammar)
    made._pushdown, made._number = grammar.pushdown, grammar.pushdown.number(grammar._history[-1])
    return made


def prove(parts: EngineParts) -> None:
    """Raises AssertionError where pocket's answers under a schema are not those of masks alone, or not cheaper."""
    prompts = [f"<|user|>\n{question}<|end|>\n<|assistant|>\n" for question, _ in given.requests()[::5]]
    form = StructuredOutputsParams(json=given.SCHEMA)
    found = []
    for its_parts, jumps in ((None, False), (parts, True)):
        settings = {"disable_any_whitespace": True, "jump_forward": jumps}
        llm = LLM(str(given.POCKET), with_labs=its_parts, structured_outputs_config=settings, dtype="float64")
        params = SamplingParams(temperature=0.0, max_tokens=60, structured_outputs=form)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        found.append(([output.outputs[0].text for output in outputs], llm.llm_engine.stats.num_steps))
    (masks, most), (mine, steps) = found
    for wanted, text in zip(masks, mine, strict=True):
        assert text == wanted, f"{text} where masks alone give {wanted}: is forced text taken for forced tokens?"
    assert steps < most, f"{steps} steps with jumps and {most} without"
