"""Lab 12-04: fewer passes, the same answer: text, tokens, cache."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
given = load(HERE / "given.py")
ARMS = json.loads((HERE / "captured" / "arms.json").read_text(encoding="utf-8"))
FORM = '[{]"name": "[A-Z][a-z]+", "day": "(Tuesday|Thursday)"[}]'
DOCUMENTS = ['{"name": "Alma", "day": "Thursday"}', '{"name": "Bruno", "day": "Tuesday"}']
QUESTION = given.small_tokens().encode(b"Alma, Thursday?")


def grammar(pattern=FORM, behind=b""):
    made = given.Grammar("REGEX", pattern)
    made.feed(behind)
    return made


def ids_of(*parts):
    tokens = given.small_tokens().tokens
    return [tokens.index(part if isinstance(part, bytes) else part.encode()) for part in parts]


def masked(served, prompt, start, max_tokens):
    """The answer without jumps: one pass a token."""
    place, ids = start.copy(), []
    while len(ids) < max_tokens and (place.allowed() or not place.may_end()):
        context = list(prompt) + ids
        logits = served.forward(context[len(served.cached) :], len(served.cached))[-1]
        token = int(np.argmax(np.where(served.tokens.mask(place), logits, -np.inf)))
        if token == served.tokens.eos_id:
            break
        ids.append(token)
        place.feed(served.tokens.tokens[token])
    return ids


# ---- what is forced ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behind", "wanted"),
    [
        ('', '{"name": "'), ('{"name": "A', ''), ('{"name": "Alma"', ', "day": "T'),
        ('{"name": "Alma", "day": "Th', 'ursday"}'), ('{"name": "Alma", "day": "Thursday"}', ''), ('{"na', 'me": "'),
    ],
)  # fmt: skip
def test_forced_text(impl, behind, wanted):
    place = grammar(behind=behind.encode())
    state = place.state
    assert impl.forced_text(place) == wanted.encode()
    assert place.state == state, "asking has moved the grammar"


def test_a_long_forced_text_has_no_limit(impl):
    """The longest text that is the only way on, however long it is."""
    wanted = b"once upon a time " * 30
    assert impl.forced_text(grammar("(once upon a time ){30}(A|B)")) == wanted


def test_where_the_text_may_end_nothing_is_forced(impl):
    """After `ab` one byte alone is allowed, and it need not come."""
    assert impl.forced_text(grammar("ab(cd)?")) == b"ab"
    assert impl.forced_text(grammar("ab(cd)?", b"ab")) == b"" and impl.forced_text(grammar("ab(cd)?", b"abc")) == b"d"


# ---- one jump ------------------------------------------------------------------------------------------------------


def jumped(impl, ids, behind, pattern=FORM):
    place = grammar(pattern, behind)
    text, before, state = impl.forced_text(place), list(ids), place.state
    new, keep = impl.jump(text, ids, place, given.small_tokens())
    assert ids == before and place.state == state, "the caller's ids, or its grammar, were changed"
    assert 0 <= keep <= len(ids) and new[:keep] == ids[:keep], "what is kept must be the same tokens"
    assert keep == len(ids) or len(new) == keep or new[keep] != ids[keep], f"{keep} are called the same, more are"
    return new, keep


def test_left_seam(impl):
    """The quote was sampled; the brace behind it is forced, and both are one token."""
    ids = ids_of('{"', "name", '": "', "Alma", '", "', "day", '": "', "Thursday", '"')
    new, keep = jumped(impl, ids, DOCUMENTS[0][:-1].encode())
    assert new == given.small_tokens().encode(DOCUMENTS[0].encode()) and keep == len(ids) - 1, (
        "this looks like *Leaving the left seam*: the sampled quote and the forced brace are one token"
    )


def test_right_seam(impl):
    """`"day": "T` is forced as text. No token that begins with this T is."""
    ids = ids_of('{"', "name", '": "', "Alma", '"')
    new, _ = jumped(impl, ids, b'{"name": "Alma"')
    text = given.small_tokens().text(new)
    assert not text.endswith(b"T"), (
        "the tokens end with a lone 'T': the model would choose 'Thursday' or 'Th'. "
        "This looks like *Forced text taken for forced tokens*"
    )
    assert text.startswith(b'{"name": "Alma", "day') and new == given.small_tokens().encode(text)


def test_at_the_end_nothing_is_held_back(impl):
    new, keep = jumped(
        impl, ids_of('{"', "name", '": "', "Alma", '", "', "day", '": "', "Th"), b'{"name": "Alma", "day": "Th'
    )
    assert given.small_tokens().text(new) == DOCUMENTS[0].encode() and keep == 7


def test_an_end_that_may_be_no_end(impl):
    """After `T` the text may end, and may go on: somebody has to be asked, before a token is cut there."""
    new, _ = jumped(impl, [], b"", '[{]"day": "T(hursday"[}])?')
    assert not given.small_tokens().text(new).endswith(b"T"), "a lone T, where Thursday is as legal"


def test_the_very_first_token_may_change(impl):
    """`{` was sampled, the quote behind it is forced, and `{"` is one token."""
    new, keep = jumped(impl, ids_of("{"), b"{")
    assert keep == 0 and new[:2] == ids_of('{"', "name")


def test_no_jump_takes_text_away(impl):
    """Forced is ` "`; with it the colon becomes `": "`, the last token. Whoever holds it back has less than before, and
    the model chooses the colon again, and again."""
    ids = ids_of('{"', "name", '":')
    new, keep = jumped(impl, ids, b'{"name":')
    assert given.small_tokens().text(new).startswith(b'{"name":'), (
        f'before the jump there was {{"name":, behind it there is {given.small_tokens().text(new)!r}. '
        "This looks like *Writing less than there was*"
    )
    assert new[:2] == ids[:2] and keep >= 2


# ---- answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("greedy", [True, False], ids=["whole tokens", "byte by byte"])
@pytest.mark.parametrize("document", DOCUMENTS)
def test_same_text(impl, document, greedy):
    plain = given.scripted(document, QUESTION, greedy)
    wanted = plain.tokens.text(masked(plain, QUESTION, grammar(), 60)).decode()
    assert wanted == document
    result = impl.generate(given.scripted(document, QUESTION, greedy), QUESTION, grammar(), 60)
    where = next((i for i, (a, b) in enumerate(zip(result.text.decode(), wanted, strict=False)) if a != b), None)
    assert result.text.decode() == wanted, (
        f"answer {result.text.decode()!r}, the masked run says {wanted!r}; they part at {where}. "
        "This looks like *Forced text taken for forced tokens*"
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_canonical(impl, document):
    served = given.scripted(document, QUESTION)
    result = impl.generate(served, QUESTION, grammar(), 60)
    assert result.ids == served.tokens.encode(result.text), "not the tokens in which this text is written"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_fewer_forwards(impl, document):
    plain = given.scripted(document, QUESTION)
    masked(plain, QUESTION, grammar(), 60)
    served = given.scripted(document, QUESTION)
    impl.generate(served, QUESTION, grammar(), 60)
    assert len(plain.rows) == 9 and len(served.rows) <= 4, f"{len(served.rows)} passes, {served.rows} rows"


@pytest.mark.parametrize("greedy", [True, False])
def test_rows_total(impl, greedy):
    served = given.scripted(DOCUMENTS[0], QUESTION, greedy)
    result = impl.generate(served, QUESTION, grammar(), 60)
    assert served.rows[0] >= len(QUESTION), "the prompt is computed once, and with it what was forced at the start"
    if greedy:
        assert sum(served.rows) <= len(QUESTION) + len(result.ids), f"rows {served.rows}: something is computed twice"


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("document", DOCUMENTS)
def test_cache_agrees(impl, document, greedy):
    """Beyond `num_computed_tokens` the cache may hold anything; up to it, these tokens; and no fewer than it does."""
    served = given.scripted(document, QUESTION, greedy)
    result = impl.generate(served, QUESTION, grammar(), 60)
    whole = QUESTION + result.ids
    agree = next((i for i, (a, b) in enumerate(zip(served.cached, whole, strict=False)) if a != b), None)
    if agree is None:
        agree = min(len(served.cached), len(whole))
    text = served.tokens.tokens
    held = text[served.cached[agree]] if agree < len(served.cached) else b""
    assert result.num_computed_tokens == agree, (
        f"num_computed_tokens is {result.num_computed_tokens}; cache and output agree on {agree} tokens, and then the "
        f"cache holds {held!r}: an old token was replaced and its KV kept, or KV that is there was forgotten"
    )


def test_the_cache_is_right_at_every_pass(impl):
    """Before each pass: what is computed is what stands before the new tokens."""
    served, seen = given.scripted(DOCUMENTS[1], QUESTION, greedy=False), []
    real = served.forward

    def forward(ids, start):
        seen.append((served.cached[:start], list(ids)))
        return real(ids, start)

    served.forward = forward
    result = impl.generate(served, QUESTION, grammar(), 60)
    for before, ids in seen:
        text = served.tokens.text((before + ids)[len(QUESTION) :])
        assert result.text.startswith(text), f"a pass over {text!r}, which is not the beginning of the answer"


def test_the_model_may_end_it(impl):
    served = given.scripted("ab", QUESTION)
    result = impl.generate(served, QUESTION, grammar("ab(cd)?"), 60)
    assert result.text == b"ab" and served.tokens.eos_id not in result.ids
    assert impl.generate(given.scripted("abcd", QUESTION), QUESTION, grammar("ab(cd)?"), 60).text == b"abcd"


@pytest.mark.parametrize("limit", [0, 1, 2, 4, 8, 9])
def test_max_tokens(impl, limit):
    place = grammar()
    state, prompt = place.state, tuple(QUESTION)
    served = given.scripted(DOCUMENTS[0], QUESTION)
    result = impl.generate(served, prompt, place, limit)
    wanted = given.small_tokens().encode(DOCUMENTS[0].encode())[:limit]
    assert result.ids == wanted and place.state == state and result.num_computed_tokens <= len(prompt) + limit
    assert result.text == given.small_tokens().text(wanted)


def test_nothing_fits(impl):
    """A vocabulary without line ends."""
    with pytest.raises(ValueError, match=re.escape("no token of the vocabulary fits after b'xa'")):
        impl.generate(given.scripted("xa", QUESTION), QUESTION, grammar("[xy]a[\n\r]"), 60)


# ---- pocket --------------------------------------------------------------------------------------------------------


def test_forty_answers_as_predicted(impl):
    predicted, rows = impl.predicted_right_answers(), ARMS["append"]
    assert rows["valid"] == 40 and abs(predicted - rows["right"]) <= 5, (
        f"you predicted {predicted} right answers of 40; it is {rows['right']}, all of them valid JSON. Read some: "
        f"{rows['answers'][1]} · {rows['answers'][3]}"
    )


@pytest.mark.parametrize("number", [1, 12, 20, 36])
def test_pocket_is_right(impl, number):
    """The trap, on a trained model: each of these is asked for a Thursday or a colour that a lone letter gives away."""
    question, answer = given.requests()[number]
    prompt, start = given.pocket_prompt(question), given.Grammar("JSON", given.SCHEMA)
    served = given.pocket()
    result = impl.generate(served, prompt, start, 60)
    assert result.text.decode() == answer, (
        f"{question} Your answer: {result.text.decode()}. This looks like *Forced text taken for forced tokens*"
    )
    assert result.ids == served.tokens.encode(result.text)
    assert len(served.rows) <= 12 and sum(served.rows) <= len(prompt) + len(result.ids), served.rows
