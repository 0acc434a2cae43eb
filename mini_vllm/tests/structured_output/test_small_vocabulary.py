"""Grammars over a vocabulary made here, with no checkpoint: masks, going back, and rows for drafts."""

import functools
import random
from types import SimpleNamespace

import numpy as np
import pytest

from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.structured_output import StructuredOutputManager
from mini_vllm.structured_output.backend_types import TokenVocabulary
from mini_vllm.structured_output.request import StructuredOutputRequest
from mini_vllm.structured_outputs_params import StructuredOutputsParams
from mini_vllm.tests.structured_output.drive import allowed, grammar_of

WORDS = ['{"', '":', '", "', '"}', "true", "alse", "ab", "abc", "bca", "((", "))", ")(", "12", "12.", ".5", '["', '"]']
EOS = 256


@functools.lru_cache(maxsize=1)
def vocabulary() -> TokenVocabulary:
    tokens = [*(bytes([byte]) for byte in range(256)), b"", *(word.encode() for word in WORDS)]
    return TokenVocabulary(tokens, [EOS], len(tokens) + 3)


def choose(mask, rng):
    """A legal token that is not the end, a longer one if there is one."""
    legal = [token for token in np.flatnonzero(mask).tolist() if token != EOS]
    longer = [token for token in legal if token > EOS]
    return rng.choice(longer if longer and rng.random() < 0.7 else legal) if legal else None


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("REGEX", r"[abc]+(12)?[.]5"),
        ("GRAMMAR", 'root ::= ("(" root ")")* | "ab" "c"?'),
        ("JSON", '{"type": "object", "properties": {"ab": {"type": "boolean"}}, "required": ["ab"]}'),
        ("JSON_OBJECT", ""),
    ],
)
def test_a_mask_is_what_trying_each_token_gives(kind, spec):
    grammar, rng = grammar_of(kind, spec, vocabulary()), random.Random(1)
    for _ in range(15):
        mask = allowed(grammar)
        tried = [token for token in range(len(mask)) if grammar.validate_tokens([token]) == [token]]
        assert np.flatnonzero(mask).tolist() == tried
        token = choose(mask, rng)
        if token is None:
            return
        assert grammar.accept_tokens("", [token])


def test_rolling_back_gives_the_same_masks():
    grammar, rng = grammar_of("JSON_OBJECT", "", vocabulary()), random.Random(2)
    masks = [allowed(grammar)]
    for _ in range(20):
        assert grammar.accept_tokens("", [choose(masks[-1], rng)])
        masks.append(allowed(grammar))
    for back in (1, 4, 0, 15):
        grammar.rollback(back)
        del masks[len(masks) - back :]
        assert (allowed(grammar) == masks[-1]).all()
    with pytest.raises(ValueError, match="cannot roll back 1 tokens of 0"):
        grammar.rollback(1)


def test_the_bits_of_a_row():
    grammar = grammar_of("REGEX", "(ab|12)c?", vocabulary())
    rows = np.full((3, 9), 7, np.int32)
    grammar.fill_bitmask(rows, 1)
    assert (rows[[0, 2]] == 7).all() and rows[1, 8] == (1 << 7) + (1 << 8) + (1 << 13)  # ab, abc, 12
    assert rows[1, 3] == 2 + 0 and rows[1, 1] == 1 << 17  # a is 97, 1 is 49
    grammar.accept_tokens("", [263])
    grammar.fill_bitmask(rows, 2)
    assert rows[2, 8] == 1 and rows[2, 3] == 1 << 3, "the end, and c"
    grammar.accept_tokens("", [EOS])
    grammar.fill_bitmask(rows, 0)
    assert (rows[0] == -1).all()


def test_a_row_for_each_draft():
    manager = StructuredOutputManager(StructuredOutputsConfig(), 4, vocabulary, num_speculative_tokens=3)
    requests = {}
    for name, pattern in (("x", "abc[.]5"), ("y", "12"), ("z", "a")):
        state = StructuredOutputRequest(StructuredOutputsParams(regex=pattern))
        requests[name] = SimpleNamespace(
            request_id=name, structured_output_request=state, use_structured_output=True, output_token_ids=[]
        )
        manager.grammar_init(requests[name])
        while not state.is_grammar_ready:
            pass
    requests["z"].structured_output_request.grammar = None  # it could not be compiled
    requests["z"].structured_output_request.error = "why"
    rows = manager.grammar_bitmask(requests, ["y", "z", "x"], {"x": [264, 271, -1]})
    assert rows.shape == (6, 9), "one for y, one for z, four for x"
    bits = [np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() for row in rows]
    assert bits[0] == [ord("1"), 269] and (rows[1] == -1).all()
    assert bits[2] == [ord("a"), 263, 264] and bits[3] == [ord("."), 271]
    assert bits[4] == [EOS] and (rows[5] == -1).all(), "what comes after padding is free"
    grammar = requests["x"].structured_output_request.grammar
    assert grammar.num_processed_tokens == 0, "the drafts are not accepted yet"
    again = manager.grammar_bitmask(requests, ["x"], {"x": [264]})
    assert (again == rows[2:4]).all() and not np.shares_memory(again, rows)
    assert manager.grammar_bitmask(requests, []) is None
