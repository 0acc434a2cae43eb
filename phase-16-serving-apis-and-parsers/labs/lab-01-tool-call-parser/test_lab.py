"""Lab 16-01: the stream says what the whole text says, however it is cut, and says it as early as it can."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CAPTURE = json.loads((HERE / "captured" / "texts.json").read_text(encoding="utf-8"))["texts"]
WEATHER = {"name": "get_weather", "arguments": {"city": "Paris"}}
ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}
ROCKET = {"name": "launch", "arguments": {"what": "🚀 é < <tool_call", "deep": {"list": [1, [], {}]}}}


def block(call):
    return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


TEXT = f"Sure. {block(WEATHER)} and <today> {block(ADD)}done <too"
CONTENT = "Sure.  and <today> done <too"


def streamed(impl, chunks):
    """(content, calls) of a text in chunks; every event looked at."""
    parser, content, calls = impl.StreamingToolParser(), "", []
    for events in [*map(parser.feed, chunks), parser.finish()]:
        for kind, value in events:
            assert kind in ("text", "tool_call"), f"an event of kind {kind!r}"
            if kind == "text":
                assert isinstance(value, str) and value, f"a text event that holds {value!r}"
                content += value
            else:
                calls.append(value)
    return content, calls


def slicings(text, number, seed=0):
    """Each single cut, one character at a time, and random ones."""
    yield from ([text[:at], text[at:]] for at in range(len(text) + 1))
    yield list(text)
    rng = random.Random(seed)
    for _ in range(number):
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(1, 9)))
        yield [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def verdict(parse, *args):
    """What comes out, "refused" where ValueError does; anything else is an error that nobody expects."""
    try:
        return parse(*args)
    except ValueError:
        return "refused"


# ---- the whole text ------------------------------------------------------------------------------------------------


def test_batch_parse(impl):
    assert impl.parse_tool_calls(f"Sure. {block(WEATHER)}") == ("Sure. ", [WEATHER])
    assert impl.parse_tool_calls("no call < here") == ("no call < here", [])
    assert impl.parse_tool_calls("") == ("", [])
    assert impl.parse_tool_calls(f"<tool_call>\n {json.dumps(ADD, indent=2)}\n</tool_call>") == ("", [ADD])
    more = {"arguments": {}, "name": "now", "id": 7}
    assert impl.parse_tool_calls(block(more)) == ("", [more]), "arguments may come first, and other keys stay"


def test_multiple_calls_in_order(impl):
    content, calls = impl.parse_tool_calls(TEXT)
    assert calls == [WEATHER, ADD]
    assert content == CONTENT, "the content is the text without its blocks, every other character kept"
    assert impl.parse_tool_calls(f"\n {block(ADD)}\n\n") == ("\n \n\n", [ADD]), "white space is content, too"


def test_a_lone_closing_tag_is_content(impl):
    text = f"</tool_call> a {block(ADD)}</tool_call>"
    assert impl.parse_tool_calls(text) == ("</tool_call> a </tool_call>", [ADD])
    assert streamed(impl, text) == ("</tool_call> a </tool_call>", [ADD])


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "add", "arguments": {"a": 1}',
        "",
        "null",
        "[1]",
        '"add"',
        '{"name": "add"}',
        '{"arguments": {}}',
        '{"name": 5, "arguments": {}}',
        '{"name": "add", "arguments": "{}"}',
        '{"name": "add", "arguments": null}',
        "{'name': 'add', 'arguments': {}}",
        '<tool_call>{"name": "add", "arguments": {}}',
    ],
)
def test_a_malformed_call_is_loud(impl, body):
    text = f"{block(ADD)} x <tool_call>{body}</tool_call> y"
    message = re.escape(f"tool call 2 is not JSON with a name and arguments: {body!r}")
    with pytest.raises(ValueError, match=message):
        impl.parse_tool_calls(text)
    with pytest.raises(ValueError, match=message):
        streamed(impl, text)


def test_a_deep_one_is_a_value_error_too(impl):
    """A model may write anything. This looks like *An error of another kind*."""
    text = f"<tool_call>{'[' * 100_000}</tool_call>"
    with pytest.raises(ValueError, match="tool call 1 is not JSON with a name and arguments"):
        impl.parse_tool_calls(text)
    with pytest.raises(ValueError, match="tool call 1 is not JSON with a name and arguments"):
        streamed(impl, [text[:5000], text[5000:]])


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_python_reads_beyond_json_is_no_call(impl, word):
    """JSON has no such numbers: whoever gets them cannot write them again. This looks like *Any JSON is a call*."""
    body = f'{{"name": "add", "arguments": {{"a": [1, {word}]}}}}'
    message = re.escape(f"tool call 1 is not JSON with a name and arguments: {body!r}")
    with pytest.raises(ValueError, match=message):
        impl.parse_tool_calls(f"<tool_call>{body}</tool_call>")
    with pytest.raises(ValueError, match=message):
        streamed(impl, f"<tool_call>{body}</tool_call>")


def test_an_unterminated_block_fails_at_the_end(impl):
    cut = f"{block(ADD)}<tool_call>" + json.dumps(WEATHER)
    for text in (cut, cut + "</tool_call", cut[:-1]):
        with pytest.raises(ValueError, match=r"tool call 2 does not end: '\{"):
            impl.parse_tool_calls(text)
        parser = impl.StreamingToolParser()
        assert ("tool_call", ADD) in parser.feed(text), "the first call is complete, and sure"
        with pytest.raises(ValueError, match=r"tool call 2 does not end: '\{"):
            parser.finish()


# ---- the same in chunks --------------------------------------------------------------------------------------------


def test_the_stream_says_what_the_whole_says(impl):
    """Each of the cuts in two, one character at a time, and fifty random ways."""
    for text in (TEXT, f"🚀{block(ROCKET)}{block(ADD)}<<tool_call", f"<<tool_call>{json.dumps(ADD)}</tool_call>"):
        whole = impl.parse_tool_calls(text)
        for chunks in slicings(text, 50):
            found = streamed(impl, chunks)
            assert found == whole, f"cut as {chunks}: {found}, and the whole text says {whole}"


def test_any_text_of_tags_and_pieces(impl):
    """Random texts, held against a pattern of Python's `re`, in random chunks."""
    rng = random.Random(1)
    pieces = ["<", "</", "tool_call>", "<tool", "_call>", "<tool_call", " ", "é\n", block(ADD), block(WEATHER), "<<"]
    for _ in range(400):
        text = "".join(rng.choices(pieces, k=rng.randrange(1, 8)))
        content = re.sub("<tool_call>(.*?)</tool_call>", "", text, flags=re.DOTALL)
        calls = re.findall("<tool_call>(.*?)</tool_call>", text, re.DOTALL)
        wanted = "refused"
        if "<tool_call>" not in re.split("</tool_call>", text)[-1] and all(each[:2] == '{"' for each in calls):
            wanted = (content, [json.loads(each) for each in calls])
        assert verdict(impl.parse_tool_calls, text) == wanted, text
        cuts = sorted(rng.choices(range(len(text) + 1), k=3))
        chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert verdict(streamed, impl, chunks) == wanted, chunks


def test_a_closing_tag_as_data(impl):
    """Whether a block ends at the first closing tag or at the first that is no data is yours; but decide it once."""
    quoted = {"name": "say", "arguments": {"text": 'write "</tool_call>" \\'}}
    text = f"a {block(quoted)} b {block(ADD)} c"
    whole = verdict(impl.parse_tool_calls, text)
    assert whole in ("refused", ("a  b  c", [quoted, ADD])), whole
    for chunks in slicings(text, 20):
        assert verdict(streamed, impl, chunks) == whole, f"whole: {whole}, but not as {chunks}"


def test_a_tag_across_chunks_is_not_leaked(impl):
    parser = impl.StreamingToolParser()
    assert parser.feed("Sure. <tool") == [("text", "Sure. ")], "what may be a tag is held, what cannot be is not"
    assert parser.feed("_call>") == [] and parser.feed(json.dumps(ADD) + "</tool_c") == []
    assert parser.feed("all> ok") == [("tool_call", ADD), ("text", " ok")]
    assert parser.finish() == []


def test_a_false_alarm_is_released(impl):
    parser = impl.StreamingToolParser()
    assert parser.feed("<to") == []
    assert parser.feed("day>") == [("text", "<today>")]
    assert parser.feed("a <") == [("text", "a ")] and parser.feed("tool_") == []
    assert parser.finish() == [("text", "<tool_")], "what was held at the end of the text is text"


def test_two_brackets(impl):
    parser = impl.StreamingToolParser()
    assert parser.feed("a<") == [("text", "a")]
    assert parser.feed(f"{block(ADD)}") == [("text", "<"), ("tool_call", ADD)]


def test_several_calls_in_one_chunk(impl):
    """This looks like *One call a chunk* where the second comes late or never."""
    parser = impl.StreamingToolParser()
    events = parser.feed(TEXT)
    assert [value for kind, value in events if kind == "tool_call"] == [WEATHER, ADD]
    assert "".join(value for kind, value in events if kind == "text") == CONTENT[: -len("<too")]


def test_as_early_as_it_is_certain(impl):
    """Outside of a block only a beginning of the tag is held; a call comes with the last character of its tag."""
    text = f"if a < b: List<int> <tool <tool_calls> {block(ROCKET)} <<<tool_call {block(ADD)}<"
    parser, given, inside, total = impl.StreamingToolParser(), "", False, ""
    for character in text:
        total += character
        events = parser.feed(character)
        given += "".join(value for kind, value in events if kind == "text")
        if inside:
            assert (events != []) == total.endswith("</tool_call>"), f"{events} after {total[-30:]!r}"
            inside, given = events == [], total if events else given
            continue
        if inside := total.endswith("<tool_call>"):
            assert events == [] and given == total[: -len("<tool_call>")], "a tag that is complete is no text"
            continue
        held = total[len(given) :]
        assert "<tool_call>".startswith(held), f"{held!r} is held back, which cannot become {'<tool_call>'!r}"


def test_empty_chunks(impl):
    assert streamed(impl, ["", *TEXT, ""]) == impl.parse_tool_calls(TEXT)
    assert streamed(impl, []) == ("", [])


def test_two_parsers_share_nothing(impl):
    one, two = impl.StreamingToolParser(), impl.StreamingToolParser()
    one.feed("<tool_call>{")
    assert two.feed("x <") == [("text", "x ")] and two.finish() == [("text", "<")]


@pytest.mark.parametrize(
    ("text", "tag", "length"),
    [
        ("Sure. <tool", "<tool_call>", 5),
        ("Sure. <tool_call", "<tool_call>", 10),
        ("<tool_call>", "<tool_call>", 0),
        ("<<", "<tool_call>", 1),
        ("", "<tool_call>", 0),
        ("tool_call>", "<tool_call>", 0),
        ("xaa", "aab", 2),
        ("aaa", "aaa", 2),
        ("abab", "ababc", 4),
        ("a", "a", 0),
        ("[TOOL_", "[TOOL_CALLS]", 6),
    ],
)
def test_partial_tag_overlap(impl, text, tag, length):
    assert impl.partial_tag_overlap(text, tag) == length


def test_pieces_of_a_real_tokenizer(impl):
    """Pocket's tokens for the same text: the opening tag arrives in eight of them."""
    from mini_vllm.tokenizers.registry import load_tokenizer

    tokenizer = load_tokenizer(HERE.parents[2] / "models" / "pocket")
    pieces = [tokenizer.decode([each]) for each in tokenizer.encode(TEXT)]
    assert "".join(pieces) == TEXT and not any("<tool_call>" in piece for piece in pieces)
    assert streamed(impl, pieces) == (CONTENT, [WEATHER, ADD])


# ---- the released one ----------------------------------------------------------------------------------------------


def meant(result):
    """What a client has: arguments as what they mean, where they are JSON."""
    calls = []
    for name, arguments in result["calls"]:
        try:
            calls.append((name, json.loads(arguments)))
        except ValueError:
            calls.append((name, arguments))
    return result["content"], calls


def test_disagreements_as_predicted(impl):
    differ = [row["what"] for row in CAPTURE if meant(row["whole"]) != meant(row["streamed"])]
    predicted = impl.predicted_disagreements()
    assert predicted == len(differ), f"you predicted {predicted} of {len(CAPTURE)}; it is {len(differ)}: {differ}"


def test_yours_agrees_with_itself_on_all_of_them(impl):
    for row in CAPTURE:
        whole = verdict(impl.parse_tool_calls, row["text"])
        assert verdict(streamed, impl, row["text"]) == whole, f"{row['what']}: {whole} whole, another thing in a stream"
