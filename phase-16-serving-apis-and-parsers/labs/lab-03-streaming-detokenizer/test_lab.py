"""Lab 16-03: whole characters, as early as they are certain; text up to a stop string, however it is cut."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BYTES = [bytes([each]) for each in range(256)] + [None]  # a tokenizer of bytes; 256 is its end
GREETING = "naïve café — 你好 🚀🇫🇷"
STOPS = ["\nUser:", "</s>"]


def fed(impl, data, pieces=BYTES):
    """Texts of a detokenizer that is fed these ids, and what `flush` gives."""
    detokenizer = impl.StreamingDetokenizer(pieces)
    return [detokenizer.feed(each) for each in data], detokenizer.flush()


OPEN = {
    chr(point).encode()[:length]
    for point in (*range(0x80, 0xD800, 64), *range(0xE000, 0x110000, 64))
    for length in range(1, len(chr(point).encode()))
}


def still_open(data):
    """How many bytes at the end begin a character: by the list of all beginnings."""
    return next((length for length in (3, 2, 1) if data[-length:] in OPEN and length <= len(data)), 0)


def certain(data):
    """What is certain after each byte."""
    texts, given = [], ""
    for end in range(1, len(data) + 1):
        text = data[: end - still_open(data[:end])].decode("utf-8", "replace")
        texts.append(text[len(given) :])
        given = text
    return texts


def stopped(impl, chunks, stop, include=False):
    """(text, stop string) of chunks."""
    buffer = impl.StopStrings(stop, include)
    text = "".join([buffer.feed(chunk) for chunk in chunks]) + buffer.flush()
    return text, buffer.stopped


def wanted_stop(text, stop, include=False):
    """The same of a whole text, by trying each place."""
    for end in range(len(text) + 1):
        for each in sorted(stop, key=len, reverse=True):
            if text[:end].endswith(each):
                return text[: end if include else end - len(each)], each
    return text, None


# ---- characters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (b"", 0), (b"abc", 0), (b"a\xc3", 1), (b"\xc3\xa9", 0), (b"\xe4\xbd", 2), (b"\xe4\xbd\xa0", 0),
        (b"\xf0\x9f\x9a", 3), (b"\xf0\x9f\x9a\x80", 0), (b"\xf0\x9f\x9a\x80\xf0", 1), (b"\x9f\x9a", 0),
        (b"\xff", 0), (b"\xc0", 0), (b"\xc1", 0), (b"\xf5", 0), (b"\xf4", 1), (b"\xc2", 1),
        (b"\xe0\x80", 0), (b"\xe0\xa0", 2), (b"\xed\xa0", 0), (b"\xed\x9f", 2), (b"\xf0\x80", 0), (b"\xf4\x90", 0),
        (b"\xe4a", 0), (b"\xe4\xe4", 1), (b"\xf0\x9f\xc3", 1),
    ],
)  # fmt: skip
def test_open_bytes(impl, data, length):
    assert impl.open_bytes(data) == length, f"{data.hex(' ')}"


def test_open_bytes_of_all_pairs(impl):
    """All pairs of bytes. This looks like *The lead byte alone* where it is red."""
    for pair in map(bytes, itertools.product(range(256), repeat=2)):
        wanted = 2 if pair in OPEN else int(pair[1:] in OPEN)
        assert impl.open_bytes(pair) == wanted, f"{pair.hex(' ')}: {wanted} bytes can still be completed"


def test_ascii_streams_one_character_a_token(impl):
    assert fed(impl, b"def f():\n") == (list("def f():\n"), "")


def test_a_rocket_waits_until_it_is_complete(impl):
    assert fed(impl, "🚀".encode()) == (["", "", "", "🚀"], "")
    assert "".join(bytes([each]).decode("utf-8", "replace") for each in "🚀".encode()) == "\ufffd" * 4, (
        "a token decoded by itself"
    )


def test_a_greeting(impl):
    texts, rest = fed(impl, GREETING.encode())
    assert "".join(texts) == GREETING and rest == "", "this looks like *Each token by itself*"
    assert texts.count("") == 17 and len(texts) == 36
    assert fed(impl, "🇫🇷".encode())[0] == ["", "", "", "🇫", "", "", "", "🇷"], "a flag is two characters"


def test_what_is_no_text(impl):
    detokenizer = impl.StreamingDetokenizer(BYTES)
    assert [detokenizer.feed(each) for each in (0xC3, 256, 0xA9, 256)] == ["", "", "é", ""]


@pytest.mark.parametrize("token", [257, 1000, -1])
def test_a_token_outside_is_refused(impl, token):
    with pytest.raises(ValueError, match=f"token {token} is outside of a vocabulary of 257"):
        impl.StreamingDetokenizer(BYTES).feed(token)


def test_broken_bytes_take_no_hostages(impl):
    """A good character behind a broken one comes at once."""
    for data in (b"\xffa", b"\xf0a", b"\xe4\xbda", b"\xed\xa0\x80a", b"\xc0\x80a", b"\xf5\x80\x80\x80a", b"\x80a"):
        texts, rest = fed(impl, data)
        assert texts == certain(data), f"{data.hex(' ')}: {texts}"
        assert texts[-1].endswith("a") and rest == ""


def test_any_bytes(impl):
    """Random bytes, mostly of long characters: after each one, all that is certain, and nothing else."""
    rng = random.Random(0)
    for _ in range(200):
        data = bytes(rng.choice(b"a\x80\xbf\xa0\x9f\xc3\xe4\xed\xf0\xf4\xff") for _ in range(rng.randrange(1, 12)))
        texts, rest = fed(impl, data)
        assert texts == certain(data), data.hex(" ")
        whole = data.decode("utf-8", "replace")
        assert "".join(texts) + rest in (whole, whole[: len("".join(texts))])


def test_tokens_of_several_bytes(impl):
    pieces = [b"na\xc3", b"\xaf", b"ve \xf0\x9f", b"\x9a\x80\xf0", b"\x9f\x87", b"", b"\xab!", None]
    assert fed(impl, [0, 1, 2, 3, 4, 5, 6, 7], pieces) == (["na", "ï", "ve ", "🚀", "", "", "🇫!", ""], "")


def test_cut_in_a_character(impl):
    """U+FFFD or nothing, as you decided; no error, and no second time."""
    detokenizer = impl.StreamingDetokenizer(BYTES)
    assert "".join(map(detokenizer.feed, b"ok \xf0\x9f\x9a")) == "ok "
    assert detokenizer.flush() in ("\ufffd", ""), "the three bytes are one character that was cut"
    assert detokenizer.flush() == "" and detokenizer.feed(ord("a")) == "a"


def test_two_detokenizers_share_nothing(impl):
    one, two = impl.StreamingDetokenizer(BYTES), impl.StreamingDetokenizer(BYTES)
    one.feed(0xF0)
    assert two.feed(ord("a")) == "a" and two.flush() == ""


# ---- stop strings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "stop", "given", "found"),
    [
        ("one\nUser: two", STOPS, "one", "\nUser:"),
        ("one</s>\nUser:", STOPS, "one", "</s>"),
        ("one</s", STOPS, "one</s", None),
        ("aab", ["ab"], "a", "ab"),
        ("aaab", ["aab"], "a", "aab"),
        ("xab", ["ab", "xab"], "", "xab"),
        ("xab", ["xab", "ab"], "", "xab"),
        ("xaby", ["xaby", "ab"], "x", "ab"),
        ("b a", ["a", "b"], "", "b"),
        ("one🚀two", ["🚀"], "one", "🚀"),
        ("ababac", ["abac"], "ab", "abac"),
        ("", ["a"], "", None),
        ("abc", [], "abc", None),
    ],
)
def test_the_first_that_is_complete(impl, text, stop, given, found):
    assert wanted_stop(text, stop) == (given, found)
    for chunks in ([text], text, [text[:2], "", text[2:]]):
        assert stopped(impl, chunks, stop) == (given, found), f"in chunks {list(chunks)}"


@pytest.mark.parametrize("include", [False, True])
def test_any_cut_says_the_same(impl, include):
    """Random texts of few letters, random stop strings, random chunks."""
    rng = random.Random(2)
    for _ in range(500):
        text = "".join(rng.choices("ab<", k=rng.randrange(1, 14)))
        stop = ["".join(rng.choices("ab<", k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 4))]
        cuts = sorted(rng.choices(range(len(text) + 1), k=3))
        chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        wanted = wanted_stop(text, stop, include)
        assert stopped(impl, chunks, stop, include) == wanted, f"{chunks}, stop {stop}, include {include}"


def test_no_more_is_held_than_must_be(impl):
    """After each character: what is held is the beginning of a stop string, and the longest that the text ends with."""
    assert impl.StopStrings([]).feed("abc") == "abc", "without stop strings nothing is held"
    rng = random.Random(3)
    for _ in range(200):
        text = "".join(rng.choices("ab<", k=12))
        stop = ["".join(rng.choices("ab<", k=rng.randrange(1, 6))) for _ in range(2)]
        buffer, total, given = impl.StopStrings(stop), "", ""
        for character in text:
            total, given = total + character, given + buffer.feed(character)
            if buffer.stopped is not None:
                break
            starts = [each[:n] for each in stop for n in range(1, len(each)) if total.endswith(each[:n])]
            held = total[len(given) :]
            assert held == max(starts, key=len, default=""), f"of {total!r} {held!r} is held, stop {stop}"


def test_with_include_nothing_waits(impl):
    buffer = impl.StopStrings(STOPS, include=True)
    assert [buffer.feed(each) for each in ("one\nUs", "er", ": two")] == ["one\nUs", "er", ":"]
    assert buffer.stopped == "\nUser:" and buffer.feed("more") == "" and buffer.flush() == ""


def test_a_false_alarm_and_the_end(impl):
    buffer = impl.StopStrings(STOPS)
    assert [buffer.feed(each) for each in ("one\nUs", "ual", " </")] == ["one", "\nUsual", " "]
    assert buffer.flush() == "</" and buffer.flush() == "" and buffer.stopped is None


def test_behind_a_stop_string_nothing_comes(impl):
    buffer = impl.StopStrings(STOPS)
    assert buffer.feed("one</s> two") == "one" and buffer.stopped == "</s>"
    assert buffer.feed("three\nUser:") == "" and buffer.flush() == "" and buffer.stopped == "</s>"


def test_an_empty_stop_string_is_refused(impl):
    with pytest.raises(ValueError, match=re.escape("stop cannot contain an empty string.")):
        impl.StopStrings(["a", ""])


def test_held_as_predicted(impl):
    buffer, held, given = impl.StopStrings(STOPS), [], 0
    for number, character in enumerate(impl.ANSWER, 1):
        given += len(buffer.feed(character))
        held.append(number - given)
    mean, predicted = sum(held) / len(held), impl.predicted_held()
    assert abs(predicted - mean) <= 0.1, (
        f"you predicted {predicted}; your buffer holds {mean:.2f} on average, {max(held)} at most, nothing at "
        f"{held.count(0)} of {len(held)} steps; upstream's rule holds 5 at each"
    )


# ---- both, beside the engine ---------------------------------------------------------------------------------------


def test_both_say_what_the_engine_says(impl):
    """Pocket's tokens through your two buffers, and the text that the engine gives for them."""
    from mini_vllm import LLM, SamplingParams

    llm = LLM(str(HERE.parents[2] / "models" / "pocket"))
    tokenizer = llm.get_tokenizer()
    pieces = [tokenizer.id_to_bytes(each) for each in range(tokenizer.vocab_size)]
    prompt, stop = "<|user|>\nTell me a story about a fox and a violin.<|end|>\n<|assistant|>\n", [" the", "."]
    params = [SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, stop=each) for each in ([], stop)]
    free, cut = (each.outputs[0] for each in llm.generate([prompt] * 2, params, use_tqdm=False))
    detokenizer, buffer, text = impl.StreamingDetokenizer(pieces), impl.StopStrings(stop), ""
    for token in free.token_ids:
        text += buffer.feed(detokenizer.feed(token))
    assert (text, buffer.stopped) == (cut.text, cut.stop_reason) and len(cut.token_ids) < len(free.token_ids)
