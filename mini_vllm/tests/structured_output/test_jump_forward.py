"""Jump-forward: the tokens that masks alone give, in fewer passes, however it is scheduled; both seams; refusals.

Requests are of a form that pocket was trained on. There the canonical tokens of forced text are the tokens that pocket
would choose, so that with jumps every token is the same, sampled ones too.
"""

import json

import pytest

from mini_vllm import LLM, LLMEngine, SamplingParams
from mini_vllm.structured_output.backend_types import StructuredOutputOptions, TokenVocabulary
from mini_vllm.structured_output.jump_forward import JumpForward
from mini_vllm.structured_outputs_params import StructuredOutputsParams
from mini_vllm.tests.helpers import FEW_GRAPHS, POCKET
from mini_vllm.tests.structured_output.drive import backend, compile_at_once, pocket_vocabulary, wait_for_grammars

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]+$"},
        "colour": {"enum": ["blue", "black"]},
        "day": {"enum": ["Tuesday", "Thursday"]},
    },
    "required": ["name", "colour", "day"],
    "additionalProperties": False,
}
ASKED = [("Alma", "blue", "Thursday"), ("Bruno", "black", "Tuesday"), ("Celia", "blue", "Tuesday")]
PLAIN = {"disable_any_whitespace": True}
JUMPS = {**PLAIN, "jump_forward": True}


def questions():
    """Six, which begin alike."""
    asked = [f"Write a JSON object with name {n}, colour {c} and day {d}." for n, c, d in ASKED]
    return [f"<|user|>\n{question}<|end|>\n<|assistant|>\n" for question in [*asked, *asked]]


def params(number=0, **more):
    settings = {"temperature": 0.9 if number % 2 else 0.0, "seed": number, "max_tokens": 60, **more}
    return SamplingParams(structured_outputs=StructuredOutputsParams(json=SCHEMA), **settings)


def run(llm, wanted=None):
    """Tokens, texts and reasons; one request has no grammar."""
    wanted = wanted or [params(n) for n in range(6)]
    free = SamplingParams(temperature=0.7, seed=5, max_tokens=17)
    outputs = llm.generate([*questions()[: len(wanted)], "Tell me a joke."], [*wanted, free], use_tqdm=False)
    return [(o.token_ids, o.text, o.finish_reason) for output in outputs for o in output.outputs]


def make(settings, **more):
    return LLM(str(POCKET), dtype="float64", structured_outputs_config=settings, **more)


def jumps_of(llm):
    return llm.llm_engine.scheduler.structured_output_manager.jump_forward


def slowly(*values):
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.fixture(scope="module")
def both():
    """An engine with masks alone, and one that jumps. A test leaves them idle."""
    return make(PLAIN), make(JUMPS)


@pytest.fixture(scope="module")
def plain(both):
    return run(both[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 8, "block_size": 4},
        {"num_blocks": 16, "block_size": 8, "max_model_len": 100},
        *slowly(
            {},
            {"long_prefill_token_threshold": 2, "max_num_seqs": 3},
            {"enable_prefix_caching": False, "scheduling_policy": "priority"},
            {"num_blocks": 40, "block_size": 3, "max_model_len": 100},
            {"enforce_eager": True},
            {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": FEW_GRAPHS},
        ),
    ],
    ids=str,
)
def test_the_same_tokens_however_it_is_scheduled(plain, settings):
    llm = make(JUMPS, **settings)
    compile_at_once(llm.llm_engine)
    assert run(llm) == plain
    assert run(llm) == plain  # what is cached now was written by jumps
    assert jumps_of(llm).num_jumps >= 24
    if "num_blocks" in settings:
        assert llm.llm_engine.stats.num_preemptions > 0


@pytest.mark.slow
def test_the_same_tokens_on_two_ranks(plain):
    llm = make(JUMPS, tensor_parallel_size=2)
    try:
        assert run(llm) == plain
    finally:
        llm.llm_engine.shutdown()


@pytest.mark.usefixtures("core_elsewhere")
def test_the_same_tokens_from_a_core_in_a_process_of_its_own(plain):
    llm = make(JUMPS, enable_multiprocessing=True)
    try:
        assert run(llm) == plain
    finally:
        llm.llm_engine.shutdown()


def test_forced_tokens_cost_one_chunk(both, monkeypatch):
    """What a step tells is what the next one computes; the last piece, with the end, is never computed."""
    engine = both[1].llm_engine
    engine.reset_prefix_cache()
    engine.add_request("a", questions()[0], params())
    wait_for_grammars(engine)
    plans, schedule = [], engine.scheduler.schedule
    monkeypatch.setattr(engine.scheduler, "schedule", lambda: plans.append(schedule()) or plans[-1])
    told = []
    while engine.has_unfinished_requests():
        told += [len(output.outputs[0].token_ids) for output in engine.step()]
    rows = [plan.num_scheduled_tokens["a"] for plan in plans]
    assert rows[0] == len(engine.tokenizer.encode(questions()[0])) and told[-1] == 24
    new = [after - before for before, after in zip([0, *told], told, strict=False)]
    assert rows[1:] == new[:-1] and len(plans) == 9 and max(new) >= 4


def test_n_completions_jump_each_for_itself(both):
    wanted = params(1, n=3)
    outputs = [llm.generate(questions()[0], wanted, use_tqdm=False)[0] for llm in both]
    texts = [[o.token_ids for o in output.outputs] for output in outputs]
    assert texts[0] == texts[1] and len(texts[0]) == 3


ENDS = pytest.mark.parametrize(
    "more",
    [{"max_tokens": 2}, {"max_tokens": 9}, {"min_tokens": 30}, {"ignore_eos": True}, {"stop_token_ids": [361]},
     {"presence_penalty": 0.5}, *slowly({"max_tokens": 1}, {"max_tokens": 5}, {"min_tokens": 20})],
    ids=str,
)  # fmt: skip


def check_the_end(both, more, count):
    one, other = (run(llm, [params(n, **more) for n in range(count)]) for llm in both)
    assert len(one) == count + 1 and one == other


@ENDS
def test_what_ends_a_request_ends_it_in_the_middle_of_a_jump(both, more):
    check_the_end(both, more, 2)


@pytest.mark.slow
@ENDS
def test_what_ends_six_requests_ends_them_in_the_middle_of_a_jump(both, more):
    check_the_end(both, more, 6)


@pytest.mark.parametrize("more", [{"stop": '"col'}, {"stop": 'day": "T', "include_stop_str_in_output": True}], ids=str)
def test_a_stop_string_cuts_the_text(both, more):
    """Tokens of the same jump behind it are told, as those of accepted drafts are."""
    one, other = (run(llm, [params(n, **more) for n in range(6)]) for llm in both)
    assert [each[1:] for each in one] == [each[1:] for each in other]
    assert all(longer[: len(ids)] == ids for (ids, *_), (longer, *_) in zip(one, other, strict=True))


def test_who_cannot_jump_is_led_by_masks(both):
    llm = both[1]
    before = jumps_of(llm).num_jumps
    for more in ({"logprobs": 2}, {"bad_words": ["zebra"]}, {"allowed_token_ids": list(range(4096))}):
        text = llm.generate(questions()[0], params(**more), use_tqdm=False)[0].outputs[0].text
        assert json.loads(text)["name"] == "Alma" and jumps_of(llm).num_jumps == before


def test_a_reset_in_the_middle(both):
    engine = both[1].llm_engine
    expected = both[0].generate(questions()[0], params(1), use_tqdm=False)[0].outputs[0].token_ids
    engine.add_request("a", questions()[0], params(1))
    wait_for_grammars(engine)
    for step in range(100):
        if step in (2, 4):
            engine.reset_prefix_cache(reset_running_requests=True)
        outputs = engine.step()
        if not engine.has_unfinished_requests():
            break
    assert outputs[-1].outputs[0].token_ids == expected


def test_every_key_is_there_that_is_read():
    """Under the KV oracle: bytes are tokens, so that all but the last byte of a long forced text is jumped."""
    choices = ["one long forced beginning A and an end", "one long forced beginning B and another end"]
    settings = {"block_size": 3, "num_blocks": 40, "max_num_batched_tokens": 11, "max_num_seqs": 3}
    found = []
    for config in (PLAIN, JUMPS):
        engine = LLMEngine(structured_outputs_config=config, **settings)
        for n in range(5):
            wanted = SamplingParams(
                temperature=1.0, seed=n, max_tokens=60, structured_outputs=StructuredOutputsParams(choice=choices)
            )
            engine.add_request(str(n), "tell me which one", wanted)
        wait_for_grammars(engine)
        last = {}
        while engine.has_unfinished_requests():
            last.update({output.request_id: output.outputs[0].text for output in engine.step()})
        found.append((last, engine.stats.num_steps))
    assert found[0][0] == found[1][0] and set(found[0][0].values()) <= set(choices)
    assert found[1][1] * 2 < found[0][1]


def toy(config, wanted, prompt="tell me", count=6):
    """Texts of a model whose tokens are bytes: a text has one way to be written."""
    engine = LLMEngine(structured_outputs_config=config, max_num_seqs=count)
    for n in range(count):
        engine.add_request(str(n), prompt, SamplingParams(seed=n, max_tokens=60, **wanted))
    wait_for_grammars(engine)
    last = {}
    while engine.has_unfinished_requests():
        last.update({output.request_id: output.outputs[0].text for output in engine.step()})
    return last, engine.stats.num_steps


def test_a_sampled_request_has_the_random_numbers_that_it_has_without():
    form = StructuredOutputsParams(regex="[a-z]{3}, and so on, [a-z]{12} as it is said [0-9]{4}")
    (masks, most), (jumps, fewer) = (toy(c, {"temperature": 50.0, "structured_outputs": form}) for c in (PLAIN, JUMPS))
    assert masks == jumps and len(set(masks.values())) == 6 and fewer < most


def test_nothing_is_forced_while_a_model_thinks():
    parser = {"reasoning_parser": "mini_vllm.tests.structured_output.test_engine:EndsWithColon"}
    form = {"structured_outputs": StructuredOutputsParams(regex="abc[xy]"), "temperature": 2.0}
    form["logit_bias"] = {ord(":"): 4.0}
    (masks, _), (jumps, _) = (toy({**config, **parser}, form) for config in (PLAIN, JUMPS))
    assert masks == jumps and any(not text.startswith(":") and ":abc" in text for text in jumps.values())


@pytest.fixture(scope="module")
def written(both):
    """(tokens, text) of what `write` makes of forced text behind some tokens."""
    vocabulary = pocket_vocabulary()
    tokenizer = both[0].get_tokenizer()
    ours, jump = backend(vocabulary), JumpForward(vocabulary, tokenizer)

    def write(kind, spec, before):
        grammar = ours.compile_grammar(StructuredOutputOptions[kind], spec)
        assert grammar.accept_tokens("", before)
        found = jump.write(grammar.forced_bytes(), before, grammar)
        return [vocabulary.tokens[each] for each in found]

    return write, lambda text: tokenizer.encode(text, add_special_tokens=False)


def test_the_last_token_is_held_back(written):
    write, encode = written
    assert b"".join(write("REGEX", r'day": "T(ues|hurs)day', encode("d"))) == b""  # `d` is no token of `day`
    assert write("REGEX", r'x day": "T(ues|hurs)day', encode("x")) == [b" day", b'":', b' "']  # and not `T`


def test_where_nothing_can_follow_all_is_written(written):
    write, encode = written
    assert write("REGEX", r"x day", encode("x")) == [b" day"]
    assert write("REGEX", r"x days?", encode("x")) == []


def test_a_token_that_was_told_is_not_taken_back(written):
    write, encode = written
    quote = encode('"')
    assert write("REGEX", r'"}', quote) == []  # as one text it is the token `"}`
    assert write("REGEX", r'"x', quote) == [b"x"]


def test_half_a_character_is_not_written(written):
    write, _ = written
    first, second = (bytes([byte]) for byte in "é".encode())
    vocabulary = pocket_vocabulary()
    half = vocabulary.tokens.index(first)
    assert write("CHOICE", '["é", "è"]', []) == []
    assert write("CHOICE", '["éa", "éb"]', [half]) == [] or second in write("CHOICE", '["éa", "éb"]', [half])


def test_the_window_may_begin_in_the_middle_of_a_character(written):
    write, encode = written
    halves = [pocket_vocabulary().tokens.index(bytes([byte])) for byte in "é".encode()]
    tail = encode(" one two three four five six seven eight nine ten eleven twelve")[:15]
    assert len(tail) == 15
    text = b"".join(pocket_vocabulary().tokens[each] for each in tail).decode()
    assert write("CHOICE", json.dumps([f"é{text} day"]), [*halves, *tail]) == [b" day"]


def test_two_ends_are_a_choice(both):
    vocabulary = pocket_vocabulary()
    two = TokenVocabulary(vocabulary.tokens, [*vocabulary.stop_token_ids, 1], vocabulary.vocab_size)
    grammar = backend(two).compile_grammar(StructuredOutputOptions.CHOICE, '["a"]')
    assert grammar.accept_tokens("", [two.tokens.index(b"a")])
    engine = both[0].llm_engine
    engine.add_request("a", "x", params())
    request = engine.scheduler.requests["a"]
    assert JumpForward(two, engine.tokenizer).advance(request, grammar) == []
    assert JumpForward(vocabulary, engine.tokenizer).advance(request, grammar) == vocabulary.stop_token_ids
    engine.abort_request("a")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"async_scheduling": True}, "set async_scheduling=False"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, "leave out speculative_config"),
    ],
)
def test_what_it_does_not_go_together_with_is_refused(more, words):
    with pytest.raises(ValueError, match=words):
        LLMEngine(structured_outputs_config=JUMPS, **more)


def test_it_is_ours_alone_and_off():
    with pytest.raises(ValueError, match="jump_forward needs the backend 'mini', got 'xgrammar'"):
        LLMEngine(structured_outputs_config={"backend": "xgrammar", "jump_forward": True})
    with pytest.raises(ValueError, match="jump_forward must be True or False"):
        LLMEngine(structured_outputs_config={"jump_forward": 1})
    llm = make(PLAIN)
    llm.generate("x", params(), use_tqdm=False)
    assert jumps_of(llm) is None
