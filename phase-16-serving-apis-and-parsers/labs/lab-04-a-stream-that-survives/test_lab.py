"""Lab 16-04: any cut of the wire, any speed of a reader, any coming back: each token once, and computed once."""

from __future__ import annotations

import json
import random
import re

import pytest

from mini_vllm import LLMEngine, SamplingParams

PROMPT = list(b"a stream that survives")
TOKENS = 64


def params(max_tokens=TOKENS, **more):
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, **more)


def answer_of(prompt=PROMPT, max_tokens=TOKENS):
    """What the engine alone gives."""
    engine, tokens = LLMEngine(), []
    engine.add_request("alone", {"prompt_token_ids": list(prompt)}, params(max_tokens))
    while engine.has_unfinished_requests():
        tokens = [output.outputs[0].token_ids for output in engine.step()]
    return list(tokens[-1])


ANSWER = answer_of()
STRANGE = min(set(range(256)) - set(ANSWER))


def computed(engine):
    return engine.stats.num_generation_tokens


def used(engine):
    """Blocks that somebody holds."""
    pool = engine.scheduler.kv_cache_manager.block_pool
    return pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()


def pumped(hub, times):
    for _ in range(times):
        hub.pump()


def read_all(hub, stream, every=1, limit=400):
    """(tokens, finish reason, events) of a reader who reads every so many steps."""
    tokens, events = [], []
    for _ in range(limit):
        pumped(hub, every)
        assert stream.pending in (0, 1), f"{stream.pending} events wait: a slow reader must cost a bounded amount"
        while (event := stream.read()) is not None:
            events.append(event)
            tokens += event.token_ids
        if stream.finished:
            return tokens, events[-1].finish_reason, events
    assert stream.finished is True, f"no finish reason after {limit} rounds; {len(tokens)} tokens so far"
    return tokens, None, events


# ---- the wire ------------------------------------------------------------------------------------------------------

WIRE = (
    ": a comment\n\nid: 1\ndata: plain\n\nid: 2\r\ndata: two\r\ndata: lines é\r\n\r\nretry: 5\rid: 3\r"
    "data:🚀 <- four\r\rdata\n\nevent: x\nid: 4\n\ndata:  a space\n\ndata: [DONE]\n\ndata: cut off\n"
).encode()
EVENTS = [("1", "plain"), ("2", "two\nlines é"), ("3", "🚀 <- four"), ("3", ""), ("4", " a space"), ("4", "[DONE]")]


def decoded(impl, chunks):
    decoder, events = impl.EventDecoder(), []
    for chunk in chunks:
        events += decoder.feed(chunk)
    return events


def test_the_wire_in_one_piece(impl):
    assert decoded(impl, [WIRE]) == EVENTS
    assert decoded(impl, [b""]) == [] and decoded(impl, [b"data: a\n"]) == [], "an event that is not finished is none"
    assert decoded(impl, [b"x\n\ndata\n\n"]) == [("", "")], "a data line without a colon is an empty one"


def test_any_slicing(impl):
    """Each cut in two, each byte by itself, 200 random ways."""
    rng, ways = random.Random(0), [[bytes([each]) for each in WIRE]]
    ways += [[WIRE[:at], WIRE[at:]] for at in range(1, len(WIRE))]
    for _ in range(200):
        cuts = sorted(rng.choices(range(len(WIRE) + 1), k=6))
        ways.append([WIRE[a:b] for a, b in zip([0, *cuts], [*cuts, len(WIRE)], strict=True)])
    for chunks in ways:
        found = decoded(impl, chunks)
        at = len(chunks[0])
        near = WIRE[max(0, at - 6) : at + 6].hex(" ")
        assert found == EVENTS, (
            f"{len(chunks)} pieces, the first cut at byte {at} (…{near}…). Is something decoded, or taken for a line, "
            "before it is whole?"
        )


def test_as_early_as_it_is_complete(impl):
    decoder = impl.EventDecoder()
    assert decoder.feed(b"data: a\r\n\r") == [("", "a")], (
        "the second CR ends the line; a LF may come and says nothing new"
    )
    assert decoder.feed(b"\ndata: b\n") == [] and decoder.feed(b"\n") == [("", "b")]


@pytest.mark.parametrize(
    ("wire", "wanted"),
    [
        ("data: a\u2028b\x0bc\x0cd\x85e\x1cf\n\n", [("", "a\u2028b\x0bc\x0cd\x85e\x1cf")]),
        ("data: behind \n\n", [("", "behind ")]),
        ("data: a\n: ping\ndata: b\n\n", [("", "a\nb")]),
        ("data: 1: 2\n\ndata:3\n\n", [("", "1: 2"), ("", "3")]),
        ("Data: x\ndata : y\n data: z\n\n", []),
        ("id: 7\ndata: a\n\nid\ndata: b\n\n", [("7", "a"), ("", "b")]),
    ],
)
def test_lines_as_they_are(impl, wire, wanted):
    """Three line ends and no others, nothing stripped but one space, names to the letter."""
    assert decoded(impl, [wire.encode()]) == wanted


def test_broken_bytes(impl):
    assert decoded(impl, [b"data: a\xffb\n\n"]) == [("", "a\ufffdb")]


@pytest.mark.parametrize("wire", [b"data: " + b"x" * 200, b": " + b"x" * 200, b"data: x\n" * 30, b"y: 12345\n" * 20])
def test_an_endless_event(impl, wire):
    decoder = impl.EventDecoder(max_bytes=100)
    for length in (90, 94, 94):  # up to 100 bytes, each time anew
        assert decoder.feed(b"data: " + b"x" * length + b"\n\n") == [("", "x" * length)]
    with pytest.raises(ValueError, match="an event of more than 100 bytes"):
        for byte in wire:
            decoder.feed(bytes([byte]))
    assert decoder.feed(b"\n\n") == [], "what was too long is not kept, in part or whole"


def test_a_million_bytes_by_default(impl):
    """1 << 20, line ends not counted."""
    whole = b"data: " + b"x" * ((1 << 20) - 6)
    decoder = impl.EventDecoder()
    assert decoder.feed(whole) == [], "not one byte too many yet"
    with pytest.raises(ValueError, match="an event of more than 1048576 bytes"):
        decoder.feed(b"x")


def test_what_is_encoded_is_decoded(impl):
    events = [impl.Event(str(n), (n, n + 1), None if n < 3 else "length") for n in range(4)]
    wire = b"".join(map(impl.encode_event, events))
    found = decoded(impl, [wire[:11], wire[11:]])
    assert [(i, json.loads(data)["token_ids"]) for i, data in found] == [(str(n), [n, n + 1]) for n in range(4)]


# ---- speeds --------------------------------------------------------------------------------------------------------


def test_slow_and_fast_get_the_same(impl):
    hub = impl.StreamHub(LLMEngine())
    fast = read_all(hub, hub.open(PROMPT, params()))
    assert (fast[0], fast[1], len(fast[2])) == (ANSWER, "length", TOKENS)
    hub = impl.StreamHub(LLMEngine())
    tokens, reason, events = read_all(hub, hub.open(PROMPT, params()), every=8)
    assert tokens == ANSWER, f"{len(tokens)} of {TOKENS} tokens: what is merged must keep all of them"
    assert reason == "length" and len(events) <= TOKENS // 8 + 1
    assert [event.finish_reason for event in events] == [None] * (len(events) - 1) + ["length"]


def test_never_read_then_once(impl):
    engine = LLMEngine()
    hub = impl.StreamHub(engine)
    stream = hub.open(PROMPT, params())
    assert stream.pending == 0 and stream.read() is None and not stream.finished
    while hub.pump():
        assert stream.pending in (0, 1)
    event = stream.read()
    assert list(event.token_ids) == ANSWER and event.finish_reason == "length"
    assert stream.pending == 0 and stream.read() is None and stream.finished
    assert hub.pump() is False, "no work, no step"


def test_each_event_is_made_once(impl):
    hub = impl.StreamHub(LLMEngine())
    one, two = hub.open(PROMPT, params(8)), hub.open(PROMPT[:9], params(8))
    pumped(hub, 3)
    first = one.read()
    assert len(first.token_ids) == 3 and one.read() is None and one.pending == 0 and two.pending == 1
    assert list(first.token_ids) + read_all(hub, one)[0] == answer_of(max_tokens=8)
    assert read_all(hub, two)[0] == answer_of(PROMPT[:9], 8)


# ---- coming back ---------------------------------------------------------------------------------------------------


def test_doubled_as_predicted(impl):
    """Events of what a reader who reads once in 8 steps gets, counted as if each held one token."""
    hub = impl.StreamHub(LLMEngine())
    _, _, events = read_all(hub, hub.open(PROMPT, params()), every=8)
    seen = sum(len(event.token_ids) for event in events[:3])
    predicted = impl.predicted_doubled()
    assert predicted == seen - 3, f"you predicted {predicted}; she had seen {seen} tokens, and the server thought 3"


@pytest.mark.parametrize("every", [1, 8])
@pytest.mark.parametrize("away", [0, 3, 8])
def test_coming_back_loses_and_doubles_nothing(impl, every, away):
    engine = LLMEngine()
    hub = impl.StreamHub(engine)
    stream, tokens = hub.open(PROMPT, params(), key="k"), []
    for _ in range(3):
        pumped(hub, every)
        event = stream.read()
        tokens += event.token_ids
    stream.close()
    assert stream.read() is None and stream.pending == 0
    pumped(hub, away)
    assert stream.read() is None, "who has left reads nothing"
    again = hub.open(PROMPT, params(), key="k", last_event_id=event.id)
    rest, reason, _ = read_all(hub, again, every)
    twice = len(tokens) + len(rest) - TOKENS
    assert tokens + rest == ANSWER and reason == "length", (
        f"{len(tokens) + len(rest)} tokens arrived, {TOKENS} were made: {twice} came twice or are missing, from token "
        f"{len(tokens)} on. What does your id count?"
    )
    assert computed(engine) <= TOKENS, f"{computed(engine)} tokens were computed for an answer of {TOKENS}"


@pytest.mark.parametrize("key", ["k", ""])
def test_coming_back_after_the_end(impl, key):
    engine = LLMEngine()
    hub = impl.StreamHub(engine)
    stream = hub.open(PROMPT, params(), key=key)
    pumped(hub, 5)
    last = stream.read().id
    stream.close()
    other = hub.open(PROMPT, params(), key=key)
    assert read_all(hub, other)[0] == ANSWER
    made = computed(engine)
    again = hub.open(PROMPT, params(), key=key, last_event_id=last)
    event = again.read()
    assert list(event.token_ids) == ANSWER[5:] and event.finish_reason == "length" and again.finished
    for each in (other, again):
        each.close()
    pumped(hub, 20)
    assert hub.open(PROMPT, params(), key=key).read().finish_reason == "length", (
        "an answer that is finished has no grace"
    )
    assert computed(engine) == made and not engine.has_unfinished_requests(), "a finished key needs no engine"


@pytest.mark.parametrize(("key", "last"), [("k", "garbage"), ("k", "-1"), ("k", "²"), ("k", ""), (None, "3")])
def test_an_id_of_no_event(impl, key, last):
    engine = LLMEngine()
    with pytest.raises(ValueError, match=f"last_event_id '{last}' is of no event"):
        impl.StreamHub(engine).open(PROMPT, params(), key=key, last_event_id=last)
    assert not engine.has_unfinished_requests(), "she was refused, and her request is computed nevertheless"


@pytest.mark.parametrize("ended", [False, True], ids=["while it runs", "behind its end"])
def test_an_id_that_this_answer_has_not_given(impl, ended):
    """It is of another answer, which was longer. Whoever takes it gives the reader nothing, and calls that all."""
    engine = LLMEngine()
    hub = impl.StreamHub(engine)
    longer = hub.open(PROMPT, params(), key="longer")
    pumped(hub, TOKENS)
    last = longer.read().id
    short = params(max_tokens=4)
    stream = hub.open(PROMPT, short, key="k")
    pumped(hub, 4 if ended else 2)
    stream.read()
    with pytest.raises(ValueError, match=f"last_event_id '{re.escape(last)}' is of no event"):
        hub.open(PROMPT, short, key="k", last_event_id=last)
    rest, reason, _ = read_all(hub, hub.open(PROMPT, short, key="k"))
    assert rest == ANSWER[:4] and reason == "length", "who was refused has taken nothing from the others"


# ---- leaving -------------------------------------------------------------------------------------------------------


def test_leaving_frees_blocks(impl):
    engine = LLMEngine()
    hub = impl.StreamHub(engine)
    stream = hub.open(PROMPT, params())
    pumped(hub, 12)
    assert used(engine) > 0
    stream.close()
    stream.close()
    hub.pump()
    assert used(engine) == 0, f"{used(engine)} blocks are held for a reader who has left"
    assert not engine.has_unfinished_requests() and hub.pump() is False


@pytest.mark.parametrize(("settings", "grace"), [({}, 8), ({"grace_steps": 3}, 3), ({"grace_steps": 0}, 0)])
def test_leaving_with_a_key(impl, settings, grace):
    engine = LLMEngine()
    hub = impl.StreamHub(engine, **settings)
    stream = hub.open(PROMPT, params(), key="k")
    pumped(hub, 20)
    last = stream.read().id
    stream.close()
    pumped(hub, grace + 1)
    assert used(engine) == 0, f"{used(engine)} blocks are held {grace + 1} steps behind the last reader"
    again = hub.open(PROMPT, params(), key="k", last_event_id=last)
    assert read_all(hub, again)[0] == ANSWER[20:], "who comes back late still gets the rest of the whole answer"


def test_the_grace_begins_anew(impl):
    engine = LLMEngine()
    hub = impl.StreamHub(engine, grace_steps=5)
    for _ in range(3):
        hub.open(PROMPT, params(), key="k").close()
        pumped(hub, 5)
    assert read_all(hub, hub.open(PROMPT, params(), key="k"))[0] == ANSWER
    assert computed(engine) <= TOKENS, f"{computed(engine)} tokens were computed for an answer of {TOKENS}"


def test_two_readers_of_one_key(impl):
    engine = LLMEngine()
    hub = impl.StreamHub(engine)
    first = hub.open(PROMPT, params(), key="k")
    pumped(hub, 5)
    second = hub.open(PROMPT, params(), key="k")
    assert list(second.read().token_ids) == ANSWER[:5], "who comes second begins at the beginning"
    first.close()
    first.close()
    tokens = ANSWER[:5] + read_all(hub, second)[0]
    third = read_all(hub, hub.open(PROMPT, params(), key="k"))[0]
    assert tokens == third == ANSWER and computed(engine) == TOKENS, f"{computed(engine)} tokens were computed"


# ---- keys ----------------------------------------------------------------------------------------------------------


def test_a_key_of_another_request(impl):
    hub = impl.StreamHub(LLMEngine())
    read_all(hub, hub.open(PROMPT, params(8), key="k"))
    for prompt, other in ((PROMPT[:-1], params(8)), (PROMPT, params(9)), (PROMPT, params(8, seed=1))):
        with pytest.raises(ValueError, match="Idempotency-Key 'k' was used with another request"):
            hub.open(prompt, other, key="k")
    assert read_all(hub, hub.open(PROMPT, params(8), key="l"))[0] == ANSWER[:8]


def test_the_same_prompt_without_a_key(impl):
    engine = LLMEngine()
    hub = impl.StreamHub(engine)
    for _ in range(2):
        assert read_all(hub, hub.open(PROMPT, params(8)))[0] == ANSWER[:8]
    assert computed(engine) == 16, "without a key a second order is a second order"


@pytest.mark.parametrize(("settings", "kept"), [({"max_keys": 4}, 4), ({}, 64)])
def test_keys_are_bounded(impl, settings, kept):
    engine, last = LLMEngine(), kept + 6
    hub = impl.StreamHub(engine, **settings)
    for number in range(last):
        read_all(hub, hub.open(PROMPT, params(2), key=f"k{number}"))
    made = computed(engine)
    for number in reversed(range(last - kept, last)):
        assert read_all(hub, hub.open(PROMPT, params(2), key=f"k{number}"))[0] == ANSWER[:2]
    assert computed(engine) == made, f"the {kept} that were opened last are kept"
    read_all(hub, hub.open(PROMPT, params(2), key=f"k{last - kept - 1}"))
    assert computed(engine) == made + 2, "and no more: a server that keeps every key runs out of memory"


@pytest.mark.parametrize("key", ["k", ""])
def test_a_key_that_is_opened_again_is_among_the_last(impl, key):
    engine = LLMEngine()
    hub = impl.StreamHub(engine, max_keys=2)
    for each in (key, "other", key):
        read_all(hub, hub.open(PROMPT, params(2), key=each))
    with pytest.raises(ValueError, match="Idempotency-Key 'other' was used with another request"):
        hub.open(PROMPT, params(3), key="other")  # who is refused has opened nothing
    read_all(hub, hub.open(PROMPT, params(2), key="third"))
    made = computed(engine)
    for each in ("third", key):
        assert read_all(hub, hub.open(PROMPT, params(2), key=each))[0] == ANSWER[:2]
    assert computed(engine) == made, f"the two that were opened last are {key!r} and 'third'"
    read_all(hub, hub.open(PROMPT, params(2), key="other"))
    assert computed(engine) == made + 2, "three answers are kept, and max_keys is 2"


def test_the_same_prompt_in_another_sequence(impl):
    engine = LLMEngine()
    hub = impl.StreamHub(engine)
    for prompt in (tuple(PROMPT), list(PROMPT), bytes(PROMPT)):
        assert read_all(hub, hub.open(prompt, params(8), key="k"))[0] == ANSWER[:8]
    assert computed(engine) == 8, "the same tokens are the same request"


def test_arguments_are_copied(impl):
    hub = impl.StreamHub(LLMEngine())
    prompt, mine = list(PROMPT), params(8, stop_token_ids=[STRANGE])
    assert STRANGE not in ANSWER
    stream = hub.open(prompt, mine, key="k")
    prompt.append(7)
    mine.max_tokens = 3
    mine.stop_token_ids.append(ANSWER[4])
    assert read_all(hub, stream)[0] == ANSWER[:8]
    again = params(8, stop_token_ids=[STRANGE])
    assert hub.open(PROMPT, again, key="k").read().finish_reason == "length"
    assert again == params(8, stop_token_ids=[STRANGE]), "the parameters were changed"


def test_what_the_engine_refuses(impl):
    engine = LLMEngine()
    hub = impl.StreamHub(engine)
    with pytest.raises(ValueError, match="prompt has 4400 tokens"):
        hub.open(PROMPT * 200, params(8), key="k")
    assert read_all(hub, hub.open(PROMPT, params(8), key="k"))[0] == ANSWER[:8], "the key of a refused request is free"
