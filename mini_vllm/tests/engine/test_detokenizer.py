"""Streaming text: whole characters only, stop strings across tokens, the same text as decoding at once."""

from __future__ import annotations

import random

import pytest

from mini_vllm.engine.detokenizer import IncrementalDetokenizer, check_stop_strings
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tests.tokenizers.test_tokenizer import random_text, simple_spec
from mini_vllm.tokenizers.bpe import BPETokenizer
from mini_vllm.tokenizers.byte import ByteTokenizer
from mini_vllm.tokenizers.hf import HFTokenizer

TOKENIZER = BPETokenizer(simple_spec(["t h", "th e", "Ġ the", "Ã ©", "ð Ł", "ðŁ ĳ"]))


def stream(tokenizer, ids, chunk=1, prompt=(), **kwargs):
    """The pieces as a client sees them, and the stop string that ended it."""
    params = SamplingParams(max_tokens=None, **kwargs)
    detokenizer = IncrementalDetokenizer(tokenizer, params, prompt)
    pieces = []
    for at in range(0, len(ids), chunk):
        stop = detokenizer.update(ids[at : at + chunk], False)
        finished = stop is not None or at + chunk >= len(ids)
        pieces.append(detokenizer.get_next_output_text(finished, delta=True))
        if stop:
            return pieces, stop
    return pieces, None


@pytest.mark.parametrize("tokenizer", [TOKENIZER, ByteTokenizer()], ids=["bpe", "byte"])
@pytest.mark.parametrize("chunk", [1, 3])
def test_pieces_join_to_the_full_text_and_no_piece_has_half_a_character(tokenizer, chunk):
    rng = random.Random(chunk)
    for _ in range(150):
        text = random_text(rng)
        ids = tokenizer.encode(text)
        pieces, _ = stream(tokenizer, ids, chunk)
        assert "".join(pieces) == text
        assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_an_emoji_over_four_tokens_comes_at_once():
    pieces, _ = stream(ByteTokenizer(), list("a👋b".encode()))
    assert pieces == ["a", "", "", "", "👋", "b"]


def test_random_bytes_stream_to_what_decode_gives():
    rng = random.Random(4)
    for _ in range(200):
        ids = [rng.randrange(257) for _ in range(rng.randrange(1, 20))]
        pieces, _ = stream(ByteTokenizer(), ids)
        assert "".join(pieces) == ByteTokenizer().decode(ids)
        assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])


def test_a_character_begun_by_the_prompt_is_finished_by_the_output():
    prompt, output = [0xE2, 0x82], [0xAC, 33]  # the euro sign
    assert "".join(stream(ByteTokenizer(), output, prompt=prompt)[0]) == "€!"
    assert "".join(stream(ByteTokenizer(), output)[0]) == "\ufffd!"


def test_special_tokens_are_left_out_or_shown():
    spec = simple_spec([])
    spec["added_tokens"] = [{"id": 256, "content": "<|e|>", "special": True}]
    tokenizer = BPETokenizer(spec)
    assert "".join(stream(tokenizer, [104, 256, 105])[0]) == "hi"
    assert "".join(stream(tokenizer, [104, 256, 105], skip_special_tokens=False)[0]) == "h<|e|>i"


@pytest.mark.parametrize("chunk", [1, 2, 5, 50])
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_across_tokens(chunk, include):
    ids = list(b"one two STOP three")
    pieces, stop = stream(ByteTokenizer(), ids, chunk, stop=["STOP", "never"], include_stop_str_in_output=include)
    assert stop == "STOP" and "".join(pieces) == ("one two STOP" if include else "one two ")


def test_nothing_of_a_stop_string_is_shown_before_it_is_known():
    pieces, stop = stream(ByteTokenizer(), list(b"abcSTOP"), stop="STOP")
    assert stop == "STOP" and pieces == ["", "", "", "a", "b", "c", ""]
    pieces, stop = stream(ByteTokenizer(), list(b"abSTx"), stop="STOP")
    assert stop is None and pieces == ["", "", "", "a", "bSTx"]


def test_the_stop_string_that_ends_first_wins_and_old_text_is_not_searched_again():
    assert check_stop_strings("a b c", 5, ["c", "b"], False) == ("b", 2)
    assert check_stop_strings("a b c", 5, [" b", "b", "a b"], False) == (" b", 1)  # at one end the list decides
    assert check_stop_strings("a b c", 5, ["a b c", "b"], True) == ("b", 3)  # it began later
    assert check_stop_strings("a b c", 1, ["b", "a"], False) is None
    assert check_stop_strings("xxab", 1, ["ab"], False) == ("ab", 2)
    assert check_stop_strings("xxabc", 2, ["ab"], True) == ("ab", 4)
    assert check_stop_strings("abc", 0, ["c"], False) is None


def test_min_tokens_gates_stop_strings():
    ids = list(b"a.b.c")
    assert stream(ByteTokenizer(), ids, stop=".")[0] == ["a", ""]
    pieces, stop = stream(ByteTokenizer(), ids, stop=".", min_tokens=2)
    assert stop == "." and "".join(pieces) == "a.b"  # the dot among the first two tokens does not count
    pieces, stop = stream(ByteTokenizer(), ids, chunk=5, stop=".", min_tokens=2)
    assert stop == "." and "".join(pieces) == "a.b"
    assert stream(ByteTokenizer(), ids, stop=".", min_tokens=4) == (["a", ".", "b", ".", "c"], None)


def test_a_stop_token_has_no_text_unless_asked():
    for include, text in ((False, "a"), (True, "ab")):
        params = SamplingParams(include_stop_str_in_output=include)
        detokenizer = IncrementalDetokenizer(ByteTokenizer(), params)
        assert detokenizer.update([97, 98], True) is None
        assert detokenizer.get_next_output_text(True, delta=False) == text
        assert detokenizer.output_token_ids == [97, 98]


def test_cumulative_text_holds_the_same_back():
    detokenizer = IncrementalDetokenizer(ByteTokenizer(), SamplingParams(stop="xyz"))
    detokenizer.update([97], False)
    assert detokenizer.get_next_output_text(False, delta=False) == ""
    detokenizer.update(list(b"bcd"), False)
    assert detokenizer.get_next_output_text(False, delta=False) == "ab"
    assert detokenizer.get_next_output_text(True, delta=False) == "abcd"


def test_without_detokenize_only_ids_are_kept():
    for tokenizer, params in ((ByteTokenizer(), SamplingParams(detokenize=False)), (None, SamplingParams())):
        detokenizer = IncrementalDetokenizer(tokenizer, params)
        assert detokenizer.update([97], False) is None
        assert detokenizer.get_next_output_text(True, delta=True) == "" and detokenizer.output_token_ids == [97]


@pytest.mark.needs_torch
def test_a_tokenizer_that_is_not_byte_level(tmp_path):
    """Sentencepiece style: a space is part of the next word and vanishes at the start; rare characters are bytes."""
    tk = pytest.importorskip("tokenizers")
    vocab = {"<unk>": 0, **{f"<0x{b:02X}>": b + 1 for b in range(256)}, "▁hi": 257, "▁you": 258, "▁": 259, "x": 260}
    inner = tk.Tokenizer(tk.models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    parts = [
        tk.decoders.Replace("▁", " "),
        tk.decoders.ByteFallback(),
        tk.decoders.Fuse(),
        tk.decoders.Strip(" ", 1, 0),
    ]
    inner.decoder = tk.decoders.Sequence(parts)
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = HFTokenizer(tmp_path)
    emoji = [b + 1 for b in "👋".encode()]
    ids = [257, 258, 259, *emoji, 258, 260]
    pieces, _ = stream(tokenizer, ids)
    assert pieces == ["hi", " you", " ", "", "", "", "👋", " you", "x"]
    assert "".join(pieces) == tokenizer.decode(ids)
    assert "".join(stream(tokenizer, [258], prompt=[257])[0]) == " you"
    assert "".join(stream(tokenizer, emoji[:2])[0]) == tokenizer.decode(emoji[:2])


@pytest.mark.needs_torch
@pytest.mark.parametrize(("spaces", "skip", "expected"), [(True, False, "hi <a> <b> you"),
                                                          (False, False, "hi <a><b> you"),
                                                          (False, True, "hi you"), (True, True, "hi you")])  # fmt: skip
def test_spaces_between_special_tokens(spaces, skip, expected, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"hi": 0, "you": 1, "<a>": 2, "<b>": 3}, unk_token="hi"))
    inner.add_special_tokens(["<a>", "<b>"])
    inner.save(str(tmp_path / "tokenizer.json"))
    params = SamplingParams(spaces_between_special_tokens=spaces, skip_special_tokens=skip)
    detokenizer = IncrementalDetokenizer(HFTokenizer(tmp_path), params)
    for token_id in (0, 2, 3, 1):
        detokenizer.update([token_id])
    assert detokenizer.get_next_output_text(finished=True, delta=False) == expected
