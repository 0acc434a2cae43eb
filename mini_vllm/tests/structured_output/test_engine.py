"""Grammars in the engine: what waits and what does not, in every way of scheduling, and what ends a request."""

import json
import re
import threading
from typing import ClassVar

import numpy as np
import pytest

from mini_vllm import LLM, LLMEngine, SamplingParams
from mini_vllm.core.sched.output import GrammarOutput
from mini_vllm.request import RequestStatus
from mini_vllm.structured_output.backend_mini import MiniBackend
from mini_vllm.structured_output.utils import apply_grammar_bitmask, choice_as_grammar, convert_lark_to_ebnf
from mini_vllm.structured_outputs_params import StructuredOutputsParams
from mini_vllm.tests.helpers import FEW_GRAPHS, POCKET
from mini_vllm.tests.structured_output.drive import compile_at_once, matches, wait_for_grammars

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "n"],
}
KINDS = [
    {"json": SCHEMA},
    {"regex": "[a-z]{3,8} = [0-9]{1,4}"},
    {"choice": ["yes", "no", "maybe not"]},
    {"grammar": 'root ::= "(" root ")" | [a-z]{2,9}'},
]


def params(kind, **more):
    settings = {"temperature": 0.0, "max_tokens": 60, **more}
    return SamplingParams(structured_outputs=StructuredOutputsParams(**kind), **settings)


def run(llm, count=8, **more):
    """Requests with and without grammars, greedy and sampled, in one batch: their texts."""
    prompts = [f"{n} What is a KV block? Answer number {n}." for n in range(count)]
    wanted = [params(KINDS[n % 4], temperature=0.0 if n % 2 else 0.9, seed=n, **more) for n in range(count)]
    wanted[3] = SamplingParams(temperature=0.0, max_tokens=20)
    outputs = llm.generate(prompts, wanted, use_tqdm=False)
    return [(o.outputs[0].text, o.outputs[0].finish_reason) for o in outputs]


@pytest.fixture(scope="module")
def plain():
    return run(LLM(str(POCKET)))


def test_every_kind_is_obeyed(plain):
    for n, (text, reason) in enumerate(plain):
        if n == 3:
            continue
        assert reason == "stop"
        if n % 4 == 0:
            value = json.loads(text)
            assert len(value["name"]) <= 12 and 0 <= value["n"] <= 99
        elif n % 4 == 1:
            assert re.fullmatch(KINDS[1]["regex"], text)
        elif n % 4 == 2:
            assert text in KINDS[2]["choice"]
        else:
            assert re.fullmatch(r"(\(*)[a-z]{2,9}(\)*)", text) and text.count("(") == text.count(")")


@pytest.mark.parametrize(
    "settings",
    [
        {"async_scheduling": True},
        {"max_num_batched_tokens": 7, "block_size": 4},
        {"num_blocks": 12, "block_size": 8, "max_model_len": 80},
        {"num_blocks": 12, "block_size": 8, "max_model_len": 80, "async_scheduling": True},
        pytest.param({"max_num_seqs": 3}, marks=pytest.mark.slow),
        pytest.param({"enforce_eager": True}, marks=pytest.mark.slow),
        pytest.param({"enable_prefix_caching": False, "scheduling_policy": "priority"}, marks=pytest.mark.slow),
        pytest.param({"cudagraph_mode": "FULL", "cudagraph_capture_sizes": FEW_GRAPHS}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_same_texts_however_it_is_scheduled(plain, settings):
    llm = LLM(str(POCKET), **settings)
    compile_at_once(llm.llm_engine)
    assert run(llm) == plain
    if "num_blocks" in settings:
        assert llm.llm_engine.stats.num_preemptions > 0


@pytest.mark.slow
def test_the_same_texts_on_two_ranks_and_in_a_core_of_its_own(plain):
    llm = LLM(str(POCKET), tensor_parallel_size=2)
    try:
        assert run(llm) == plain
    finally:
        llm.llm_engine.shutdown()


def test_a_core_in_a_process_of_its_own(plain):
    pytest.importorskip("zmq")
    pytest.importorskip("msgspec")
    engine = LLMEngine(str(POCKET), enable_multiprocessing=True)
    try:
        engine.add_request("a", "What is a KV block?", params({"regex": "[a-z]{3} [0-9]{2}"}))
        while engine.has_unfinished_requests():
            outputs = engine.step()
        assert re.fullmatch("[a-z]{3} [0-9]{2}", outputs[-1].outputs[0].text)
    finally:
        engine.shutdown()


def test_a_grammar_is_compiled_once_for_n_completions_and_again_for_none():
    llm = LLM(str(POCKET))
    outputs = llm.generate("Hello", params({"regex": "(foo|bar){1,5}z"}, temperature=1.0, n=4, seed=1), use_tqdm=False)
    texts = [completion.text for completion in outputs[0].outputs]
    assert len(set(texts)) > 1 and all(re.fullmatch("(foo|bar){1,5}z", text) for text in texts)
    llm.generate(["Hello"] * 3, params({"regex": "(foo|bar){1,5}z"}), use_tqdm=False)
    backend = llm.llm_engine.scheduler.structured_output_manager.backend
    assert isinstance(backend, MiniBackend) and backend.num_compiled == 1


def test_who_waits_for_a_grammar_does_not_hold_up_the_others(monkeypatch):
    gate, real = threading.Event(), MiniBackend.compile_grammar

    def slow(self, *args):
        assert gate.wait(300)
        return real(self, *args)

    monkeypatch.setattr(MiniBackend, "compile_grammar", slow)
    engine = LLMEngine(str(POCKET), max_num_seqs=1)
    engine.add_request("constrained", "Hello", params({"choice": ["yes", "no"]}))
    engine.add_request("free", "Hello", SamplingParams(temperature=0.0, max_tokens=3))
    request = engine.scheduler.requests["constrained"]
    assert request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    while "free" in engine.scheduler.requests:
        engine.step()
    for _ in range(20):  # nothing can be planned, and nobody gives up
        assert engine.step() == []
    assert list(engine.scheduler.skipped_waiting) == [request] and engine.scheduler.table.num_waiting == 1
    gate.set()
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert outputs[0].outputs[0].text in ("yes", "no")


def test_who_waits_for_a_grammar_can_be_aborted(monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(MiniBackend, "compile_grammar", lambda self, *args: gate.wait(300))
    engine = LLMEngine(str(POCKET))
    engine.add_request("a", "Hello", params({"choice": ["yes", "no"]}))
    engine.step()
    assert engine.abort_request("a")[0].outputs[0].finish_reason == "abort"
    assert not engine.has_unfinished_requests() and not engine.scheduler.skipped_waiting
    gate.set()


def one(engine, request_params, prompt="Hello"):
    engine.add_request("a", prompt, request_params)
    while engine.has_unfinished_requests():
        outputs = engine.step()
    return outputs[-1].outputs[0]


@pytest.mark.parametrize("settings", [{}, {"async_scheduling": True}], ids=str)
def test_a_grammar_that_fails_ends_its_request_alone(monkeypatch, settings):
    def broken(self, *args):
        raise ValueError("no such thing")

    engine = LLMEngine(str(POCKET), **settings)
    with monkeypatch.context() as patch:
        patch.setattr(MiniBackend, "compile_grammar", broken)
        ended = one(engine, params({"choice": ["yes", "no"]}))
    assert ended.finish_reason == "error" and ended.token_ids == []
    assert ended.stop_reason == "the grammar cannot be compiled: no such thing"
    assert one(engine, params({"choice": ["yes", "no"]})).text in ("yes", "no")


def test_a_dead_end_is_an_error_of_that_request():
    class Lacking:
        """Bytes, but no q."""

        is_byte_level, vocab_size, eos_token_id, bos_token_id, all_special_ids = True, 257, 256, None, [256]

        def encode(self, text, add_special_tokens=True):
            return list(text.encode())

        def decode(self, ids, skip_special_tokens=True):
            return b"".join(map(self.id_to_bytes, ids)).decode(errors="replace")

        def id_to_bytes(self, token_id):
            return bytes([token_id]) if token_id < 256 and token_id != ord("q") else b""

        def convert_ids_to_bytes(self, ids):
            return [self.id_to_bytes(each) for each in ids]

    engine = LLMEngine(tokenizer=Lacking())
    engine.add_request("good", "abc", params({"regex": "ab{3}"}))
    engine.add_request("bad", "abc", params({"regex": "abq"}))
    last = {}
    while engine.has_unfinished_requests():
        last.update({output.request_id: output.outputs[0] for output in engine.step()})
    assert last["good"].text == "abbb" and last["good"].finish_reason == "stop"
    assert last["bad"].finish_reason == "error" and "dead end of the grammar" in last["bad"].stop_reason


def test_too_many_readings_are_an_error_of_that_request():
    text = 'root ::= s\ns ::= x s "b" | y s "c" | ""\nx ::= "a"\ny ::= "a"'
    ended = one(LLMEngine(), params({"grammar": text}, max_tokens=200, logit_bias={ord("a"): 100.0}))
    assert ended.finish_reason == "error" and "too ambiguous" in ended.stop_reason


def test_the_end_of_a_grammar_is_the_end_of_its_request():
    engine = LLMEngine(str(POCKET))
    ended = one(engine, params({"choice": ["yes"]}, ignore_eos=True))
    assert ended.text == "yes" and ended.finish_reason == "stop"


def test_min_tokens_can_forbid_the_only_legal_token():
    ended = one(LLMEngine(str(POCKET)), params({"choice": ["yes"]}, min_tokens=30))
    assert ended.finish_reason == "error" and "every token is masked" in ended.stop_reason


def test_stop_strings_and_lengths_end_it_too():
    engine = LLMEngine(str(POCKET))
    assert one(engine, params({"regex": "a+b"}, max_tokens=5, logit_bias={1: -1.0})).finish_reason in ("length", "stop")
    stopped = one(engine, params({"regex": "(xy){20}"}, stop="xyxy"))
    assert stopped.text == "" and stopped.stop_reason == "xyxy"


def test_logprobs_are_those_of_legal_tokens():
    ended = one(LLMEngine(str(POCKET)), params({"choice": ["yes", "no"]}, logprobs=5))
    first = ended.logprobs[0]
    assert sum(np.exp(entry.logprob) for entry in first.values() if np.isfinite(entry.logprob)) == pytest.approx(1.0)


def test_reset_preempts_and_the_grammar_goes_on():
    for settings in ({}, {"async_scheduling": True}):
        engine = LLMEngine(str(POCKET), **settings)
        expected = one(engine, params(KINDS[1])).text
        engine.add_request("a", "Hello", params(KINDS[1]))
        wait_for_grammars(engine)
        for step in range(100):
            if step in (3, 6):
                engine.reset_prefix_cache(reset_running_requests=True)
            outputs = engine.step()
            if not engine.has_unfinished_requests():
                break
        assert outputs[-1].outputs[0].text == expected


def test_reasoning_is_free_until_it_ends():
    config = {"reasoning_parser": f"{__name__}:EndsWithColon"}
    engine = LLMEngine(structured_outputs_config=config)
    bias = {ord(":"): 60.0}
    ended = one(engine, params({"regex": "ab"}, logit_bias=bias))
    assert ended.text == ":ab"
    gated = one(LLMEngine(structured_outputs_config={**config, "enable_in_reasoning": True}), params({"regex": "ab"}))
    assert gated.text == "ab"
    assert one(engine, params({"regex": "ab"}), prompt="thought:").text == "ab"


class EndsWithColon:
    """A reasoning parser for the test above: a colon ends the thinking."""

    def __init__(self, tokenizer):
        assert tokenizer.encode(":") == [ord(":")]

    def is_reasoning_end(self, input_ids):
        return ord(":") in input_ids

    def is_reasoning_end_streaming(self, input_ids, delta_ids):
        return ord(":") in delta_ids


class SeesTheWhole(EndsWithColon):
    """Notes how many ids it was shown, and the last; fails at a zero."""

    seen: ClassVar[list] = []

    def is_reasoning_end_streaming(self, input_ids, delta_ids):
        self.seen.append((len(input_ids), input_ids[-1]))
        return 1 // input_ids[-1] > 1 or ord(":") in delta_ids


class NotCopied(list):
    """Ids of a request: whoever goes through all of them, or takes more than the last few, fails."""

    def __iter__(self):
        raise AssertionError("all ids were read")

    __reversed__ = copy = __add__ = __iter__

    def __getitem__(self, at):
        assert not isinstance(at, slice), "ids were copied"
        return super().__getitem__(at)


@pytest.mark.parametrize(("drafts", "kept"), [("ab:cd", "ab"), ("abcd", "abcd"), (":", ""), ("", "")])
def test_looking_for_the_end_of_thinking_among_drafts_costs_the_drafts_alone(drafts, kept):
    engine = LLMEngine(structured_outputs_config={"reasoning_parser": f"{__name__}:SeesTheWhole"})
    engine.add_request("a", "thought", params({"regex": "ab"}))
    while not engine.scheduler.running:
        engine.step()
    (request,) = engine.scheduler.running
    manager, ids = engine.scheduler.structured_output_manager, [*request.all_token_ids] * 5000
    SeesTheWhole.seen, request.all_token_ids = [], NotCopied(ids)
    found = manager.drafts_of_thinking(request, [*map(ord, drafts)])
    assert found == [*map(ord, kept)] and len(request.all_token_ids) == len(ids)
    assert SeesTheWhole.seen == [(len(ids) + i + 1, ord(char)) for i, char in enumerate(drafts[: len(kept) + 1])]
    request.all_token_ids = ids


def test_a_parser_that_fails_among_drafts_leaves_the_request_as_it_was():
    engine = LLMEngine(structured_outputs_config={"reasoning_parser": f"{__name__}:SeesTheWhole"})
    engine.add_request("a", "thought", params({"regex": "ab"}))
    while not engine.scheduler.running:
        engine.step()
    (request,) = engine.scheduler.running
    before = [*request.all_token_ids]
    with pytest.raises(ZeroDivisionError):
        engine.scheduler.structured_output_manager.drafts_of_thinking(request, [5, 0])
    assert request.all_token_ids == before


def test_drafts_get_a_row_each_and_are_taken_back():
    engine = LLMEngine(str(POCKET))
    engine.add_request("a", "Hello", params({"regex": "abcd"}))
    while not engine.scheduler.running:
        engine.step()
    manager, requests = engine.scheduler.structured_output_manager, engine.scheduler.requests
    grammar = requests["a"].structured_output_request.grammar
    done = grammar.num_processed_tokens
    left = "abcd"[len(b"".join(engine.tokenizer.convert_ids_to_bytes(requests["a"].output_token_ids))) :]
    drafts = engine.tokenizer.encode(left, add_special_tokens=False)
    manager._grammar_bitmask = manager.backend.allocate_token_bitmask(8)
    rows = manager.grammar_bitmask(requests, ["a"], {"a": [*drafts, -1]})
    assert len(rows) == len(drafts) + 2 and grammar.num_processed_tokens == done
    legal = [np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() for row in rows]
    assert all(draft in allowed for draft, allowed in zip(drafts, legal, strict=False))
    assert legal[len(drafts)] == [engine.tokenizer.eos_token_id] and (rows[-1] == -1).all()
    assert grammar.validate_tokens([*drafts, 5, 6]) == drafts


def test_rows_of_bits_meet_their_logits_whatever_their_order():
    logits = np.zeros((3, 40), np.float32)
    words = np.zeros((2, 2), np.int32)
    words[0, 0], words[1, 1] = 1 << 3, 1 << 7
    apply_grammar_bitmask(logits, ["a", "b", "c"], GrammarOutput(["c", "a"], words))
    assert np.flatnonzero(np.isfinite(logits[0])).tolist() == [39]
    assert np.isfinite(logits[1]).all() and np.flatnonzero(np.isfinite(logits[2])).tolist() == [3]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({}, "You must use one kind"),
        ({"regex": "a", "json": {}}, "You can only use one kind .*json, regex"),
        ({"json": 3}, "structured_outputs.json must be a JSON schema"),
        ({"choice": "ab"}, "choice must be a list of strings"),
        ({"choice": [1]}, "choice must be a list"),
        ({"regex": 1}, "regex must be text"),
        ({"json_object": False}, "True or None"),
        ({"json_object": "yes"}, "must be True or False"),
        ({"regex": "a", "whitespace_pattern": " "}, "has no effect in a request"),
    ],
)
def test_parameters_are_checked_when_they_are_made(kind, words):
    with pytest.raises(ValueError, match=words):
        StructuredOutputsParams(**kind)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({"choice": []}, "cannot be an empty list"),
        ({"grammar": "  "}, "cannot be an empty string"),
        ({"regex": "a("}, "structured_outputs.regex cannot be used: .*not closed"),
        ({"grammar": "root ::= root"}, "structured_outputs.grammar cannot be used: .*no text at all"),
        ({"json": "{"}, "structured_outputs.json cannot be used: Invalid JSON"),
        ({"json": {"type": "array", "contains": {}}}, "the keyword 'contains' is not supported"),
        ({"structural_tag": "{}"}, "needs 'structures' and 'triggers'"),
        ({"structural_tag": '{"structures": [{"begin": "<a", "end": "b"}], "triggers": ["x"]}'}, "starts with none"),
    ],
)
def test_what_cannot_be_compiled_is_refused_at_the_door(kind, words):
    engine = LLMEngine()
    with pytest.raises(ValueError, match=words):
        engine.add_request("a", "x", params(kind))
    assert not engine.has_unfinished_requests()


def test_a_schema_that_is_no_json_is_refused_at_the_door():
    deep: dict = {}
    for _ in range(3000):
        deep = {"items": deep}
    engine = LLMEngine()
    for schema in (deep, {"enum": {1, 2}}, {"const": b"x"}):
        with pytest.raises(ValueError, match=r"structured_outputs\.json cannot be (written|used)"):
            engine.add_request("a", "x", params({"json": schema}))
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"backend": "outlines"}, "'outlines' is not here"),
        ({"backend": "lm-format-enforcer"}, "is not here"),
        ({"backend": "x"}, "backend must be one of"),
        ({"speed": 1}, "unknown key 'speed'"),
        ({"disable_additional_properties": True}, "only supported for the guidance backend"),
        ({"reasoning_parser_plugin": "x"}, "reasoning parser plugin 'x' cannot be loaded"),
        (3, "must be a dict"),
    ],
)
def test_settings_are_checked(config, words):
    with pytest.raises(ValueError, match=words):
        LLMEngine(structured_outputs_config=config)


def test_without_a_tokenizer_there_are_no_grammars():
    with pytest.raises(ValueError, match="skip_tokenizer_init"):
        LLMEngine(skip_tokenizer_init=True).add_request("a", [1, 2], params({"regex": "a"}))


def test_structural_tags():
    from mini_vllm.tests.structured_output.drive import grammar_of

    spec = {
        "structures": [
            {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
            {"begin": "<f=b>", "schema": {"enum": ["x"]}, "end": "</f>"},
        ],
        "triggers": ["<f="],
    }
    grammar = grammar_of("STRUCTURAL_TAG", json.dumps(spec))
    for text in ("", "hi <f", 'a <f=a>12</f> b <f=b>"x"</f>', "<<f=a>1</f>", "<f<f=a>1</f>"):
        assert matches(grammar, text), text
    for text in ("<f=", "<f=c>1</f>", "<f=a>x</f>", "<f=a>1", "<f=a>1</g>"):
        assert not matches(grammar, text), text


def test_other_spellings():
    assert choice_as_grammar(['a"b', "c\\d", "e\nf"]) == 'root ::= "a\\"b" | "c\\\\d" | "e\\nf"'
    assert convert_lark_to_ebnf("start: a\na: 'x' | \"y\"") == 'root ::= start\nstart ::= a\na ::= "x" | "y"'
    with pytest.raises(ValueError, match="not defined: b"):
        convert_lark_to_ebnf("a: b")


def test_json_in_one_form():
    engine = LLMEngine(str(POCKET), structured_outputs_config={"disable_any_whitespace": True})
    text = one(engine, params({"json": SCHEMA}, temperature=1.0, seed=4)).text
    assert re.fullmatch(r'\{"name": ".*", "n": \d+\}', text)


def test_what_a_core_elsewhere_gets_for_a_tokenizer():
    from mini_vllm.structured_output.vocabulary import UnsentTokenizer, token_vocabulary, tokenizer_for_core
    from mini_vllm.tokenizers.byte import ByteTokenizer

    assert tokenizer_for_core("a/folder") == "a/folder" and tokenizer_for_core(None) is None
    assert isinstance(tokenizer_for_core(ByteTokenizer()), ByteTokenizer)
    unsent = tokenizer_for_core(lambda: None)
    with pytest.raises(ValueError, match="UnsentTokenizer is none"):
        token_vocabulary(unsent, 10)
    assert isinstance(unsent, UnsentTokenizer)
