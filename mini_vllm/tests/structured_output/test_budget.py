"""What a step of a grammar may cost: hostile grammars end with a named error, everyday ones do not notice."""

import numpy as np
import pytest

from mini_vllm import SamplingParams, StructuredOutputsParams
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.structured_output.automata import budget
from mini_vllm.structured_output.automata.expression import GrammarError
from mini_vllm.structured_output.automata.rule_automaton import disjoint
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.structured_output.drive import allowed, backend, grammar_of, pocket_vocabulary
from mini_vllm.tests.structured_output.hostile_patterns import EVERYDAY, FAMILIES, hostile, walk

WORST = "(.{0,50}){0,50}"
OVERSHOOT = 8 * 1024 * 256
"""What one row can spend between two looks at what is left."""


def test_a_mask_that_would_cost_seconds_is_a_named_error():
    grammar = grammar_of("REGEX", WORST, pocket_vocabulary())
    for _ in range(2):  # the second time it is known
        with pytest.raises(GrammarError, match="too ambiguous: one step would look at more than 150000 readings"):
            allowed(grammar)
        made = len(grammar.pushdown.configurations)
        assert made < 1000 and grammar.num_processed_tokens == 0
    with pytest.raises(GrammarError, match="one step"):
        grammar_of("REGEX", WORST, pocket_vocabulary()).fill_bitmask(np.zeros((1, 128), np.int32), 0)
    assert len(grammar.pushdown.configurations) == made


SOURCES = [
    ("REGEX", "(a{1,40}){1,40}"),
    ("JSON", '{"type": "string", "pattern": "(a{0,40}){0,40}"}'),
    ("GRAMMAR", 'root ::= x+\nx ::= y{1,40}\ny ::= "a"'),
    ("CHOICE", '["aaaa", "aaab"]'),
    ("STRUCTURAL_TAG", '{"structures": [{"begin": "a", "end": "b"}], "triggers": ["a"]}'),
]


def test_every_way_into_a_row_counts(monkeypatch):
    ways = {
        "accept": lambda grammar: grammar.accept_tokens("", list(b"aaaa")),
        "validate": lambda grammar: grammar.validate_tokens(list(b"aaaa")),
        "forced": lambda grammar: grammar.forced_bytes(),
        "ends": lambda grammar: grammar.ends_after(b"aaaa"),
        "mask": allowed,
    }
    monkeypatch.setattr(budget, "STEP_EFFORT", 10)
    for name, way in ways.items():
        for kind, text in SOURCES:
            if kind == "STRUCTURAL_TAG" and name == "forced":
                continue  # its text may end, so that nothing is forced
            grammar = grammar_of(kind, text)
            with pytest.raises(GrammarError, match="one step would look at more than 10"):
                way(grammar)
            assert grammar.num_processed_tokens == 0, name


def test_a_request_whose_every_step_costs_a_little_ends_too(monkeypatch):
    monkeypatch.setattr(budget, "REQUEST_EFFORT", 30_000)
    monkeypatch.setattr(budget, "TOKEN_EFFORT", 10)
    grammar = grammar_of("REGEX", "(a{1,40}){1,40}")
    with pytest.raises(GrammarError, match="its request has looked at 30000 readings, and at 10 more for each"):
        for _ in range(200):
            grammar.accept_tokens("", [ord("a")])
    taken = grammar.num_processed_tokens
    assert 5 < taken < 200
    with pytest.raises(GrammarError, match="its request"):
        grammar.accept_tokens("", [ord("a")])
    assert grammar.num_processed_tokens == taken


def test_what_has_been_made_costs_the_next_request_nothing():
    made = backend(pocket_vocabulary())
    first, second = (made.compile_grammar(*_key("[a-z ]{0,200}")) for _ in range(2))
    allowed(first)
    allowed(second)
    assert first._account.spent > 10 >= second._account.spent


def _key(pattern):
    from mini_vllm.structured_output.backend_types import StructuredOutputOptions

    return StructuredOutputOptions.REGEX, pattern


@pytest.mark.parametrize(("kind", "text"), EVERYDAY, ids=lambda each: each[:24])
def test_everyday_grammars_go_on(kind, text):
    found = walk(backend(pocket_vocabulary()), kind, text, num_tokens=60)
    assert (found.verdict, found.error) == ("went on", "")


def test_the_families_are_many_texts():
    cases = hostile(240)
    assert len(set(cases)) == 240 and {family for family, _, _ in cases} == {each.__name__ for each in FAMILIES}


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 12))])
def test_no_step_of_a_hostile_grammar_looks_further_than_its_budget(part):
    engine, verdicts = backend(pocket_vocabulary()), []
    for _, kind, text in hostile(240)[part::12][: None if part else 4]:
        found = walk(engine, kind, text, seed=part)
        verdicts.append(found.verdict)
        assert found.verdict != "refused" or found.error
        assert found.verdict != "ended" or "too ambiguous" in found.error
        assert all(spent <= budget.STEP_EFFORT + OVERSHOOT for spent in found.spent)
    assert verdicts


def test_many_overlapping_sets_are_cut_as_few_are():
    rng = np.random.default_rng(0)
    edges = [(int.from_bytes(rng.bytes(32), "little"), int(rng.integers(50))) for _ in range(80)]
    edges += [((1 << int(rng.integers(1, 256))) - 1, number) for number in range(50, 90)]
    parts = disjoint(edges)
    assert sum(bits.bit_count() for bits, _ in parts) == 256
    for bits, targets in parts:
        for byte in (byte for byte in range(256) if bits >> byte & 1):
            assert targets == tuple(sorted({target for edge, target in edges if edge >> byte & 1}))


SETTINGS = [
    {},
    {"async_scheduling": True},
    {"structured_outputs_config": {"jump_forward": True}},
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: next(iter(each), "plain"))
@pytest.mark.parametrize("where", ["mask", "accept", "forced", "drafts"])
def test_the_request_ends_and_the_others_go_on(settings, where, monkeypatch):
    """The budget is met in a mask for real, and elsewhere by an error that such a step raises."""
    from mini_vllm.structured_output.backend_mini import MiniGrammar

    bad = StructuredOutputsParams(regex=WORST if where == "mask" else "a{3}b*c{400}")
    if where != "mask":
        name = {"accept": "accept_tokens", "forced": "forced_bytes", "drafts": "validate_tokens"}[where]
        real = getattr(MiniGrammar, name)

        def step(self, *args, **more):
            if len(self.pushdown.states) > 400:
                raise budget.StepError("the grammar is too ambiguous: one step")
            return real(self, *args, **more)

        monkeypatch.setattr(MiniGrammar, name, step)
    engine = LLMEngine(str(POCKET), **settings)
    engine.add_request("good", "abc abc abc", _params(StructuredOutputsParams(regex="(abc ){4}")))
    engine.add_request("free", "abc abc", SamplingParams(temperature=0.0, max_tokens=5))
    engine.add_request("bad", "aaa ccc aaa ccc ccc", _params(bad))
    last = {}
    while engine.has_unfinished_requests():
        last.update({output.request_id: output.outputs[0] for output in engine.step()})
    assert last["good"].text == "abc abc abc abc " and last["good"].finish_reason == "stop"
    assert last["free"].finish_reason == "length"
    never = {"forced": "jump_forward", "drafts": "speculative"}
    if where in never and never[where] not in str(settings):
        return  # nobody asks for it
    assert last["bad"].finish_reason == "error"
    assert last["bad"].stop_reason.startswith("the grammar cannot go on: the grammar is too ambiguous")


def _params(structured):
    return SamplingParams(temperature=0.0, max_tokens=40, structured_outputs=structured)
