"""One run of a parser over a text, as plain data that compares and packs well: for the recorder and for the replays.

A step is "-" (no delta), "=" (the text of the step as content, nothing else) or the delta as JSON, with the fields
that were set. Ids of calls are "#0", "#1" … in the order of their coming. "!Error" ends a run.
"""

import json

from mini_vllm.tests.golden.parser_cases import DEALS, steps
from mini_vllm.tool_parsers.json_text import JsonPrefix, rest_of_json


def named(value, ids):
    """`value` with each id of a call as its number."""
    if isinstance(value, dict):
        return {
            key: ids.setdefault(each, f"#{len(ids)}") if key == "id" and isinstance(each, str) else named(each, ids)
            for key, each in value.items()
        }
    return [named(each, ids) for each in value] if isinstance(value, list) else value


def delta_code(message, delta_text, ids):
    """A `DeltaMessage` or None, as above."""
    if message is None:
        return "-"
    data = named(message.model_dump(exclude_unset=True), ids)
    return "=" if data == {"content": delta_text} else json.dumps(data, ensure_ascii=False)


def whole_code(call):
    """What a function of the whole answer gives, or the name of its error."""
    try:
        found = call()
    except Exception as error:
        return f"!{type(error).__name__}"
    return named(found.model_dump(), {}) if hasattr(found, "model_dump") else found


def tool_run(make_parser, tokenizer, text, request, deals=DEALS):
    """A tool parser on one text: as a whole, and as each of `deals` gives it out."""
    run = {"whole": whole_code(lambda: make_parser().extract_tool_calls(text, request))}
    for deal in deals:
        parser = make_parser()
        run[deal] = stream(parser.extract_tool_calls_streaming, tokenizer, text, deal, request)
        state = json.dumps([parser.prev_tool_call_arr, parser.streamed_args_for_tool], default=str, ensure_ascii=False)
        run[deal].append(state)
    return run


def stream(extract, tokenizer, text, deal, *request):
    """The codes of all steps."""
    codes, ids, before, ids_before = [], {}, "", []
    for delta, delta_ids in steps(tokenizer, text, deal):
        after, ids_after = before + delta, ids_before + delta_ids
        try:
            message = extract(before, after, delta, ids_before, ids_after, delta_ids, *request)
        except Exception as error:
            codes.append(f"!{type(error).__name__}")
            break
        codes.append(delta_code(message, delta, ids))
        before, ids_before = after, ids_after
    return codes


def reasoning_run(make_parser, tokenizer, text, request, deals=DEALS):
    """A reasoning parser on one text: as a whole, its questions about tokens, and as each of `deals` gives it out."""
    parser = make_parser()
    pieces = [tokenizer.id(token) for token in tokenizer.split(text)]
    run = {"whole": whole_code(lambda: list(parser.extract_reasoning(text, request)))}
    run["is_reasoning_end"] = whole_code(lambda: bool(parser.is_reasoning_end(list(pieces))))
    run["extract_content_ids"] = whole_code(lambda: parser.extract_content_ids(list(pieces)) or [])
    run["count_reasoning_tokens"] = whole_code(lambda: parser.count_reasoning_tokens(list(pieces)))
    ends = range(1, len(pieces) + 1)
    run["ends"] = whole_code(
        lambda: "".join("01"[bool(parser.is_reasoning_end_streaming(pieces[:i], pieces[i - 1 : i]))] for i in ends)
    )
    for deal in deals:
        run[deal] = stream(make_parser().extract_reasoning_streaming, tokenizer, text, deal)
    return run


def both_run(make_parser, tokenizer, text, request, prompt_ids, deals=DEALS):
    """The parser of both on one text, step by step."""
    run = {}
    for deal in deals:
        parser, codes, ids = make_parser(), [], {}
        for delta, delta_ids in steps(tokenizer, text, deal):
            try:
                message = parser.parse_delta(delta, list(delta_ids), request, prompt_token_ids=prompt_ids)
            except Exception as error:
                codes.append(f"!{type(error).__name__}")
                break
            codes.append(delta_code(message, delta, ids))
        run[deal] = codes
    return run


def calls_of(codes):
    """(content, [[name, arguments], …]) that the deltas of a run add up to; content but for what "=" stands for."""
    content, calls = "", {}
    for delta in (json.loads(code) for code in codes if code.startswith("{")):
        content += delta.get("content") or ""
        for part in delta.get("tool_calls") or ():
            call, function = calls.setdefault(part["index"], ["", ""]), part.get("function") or {}
            call[0] += function.get("name") or ""
            call[1] += function.get("arguments") or ""
    return content, list(calls.values())


def in_json(codes):
    """Whether all arguments of a stream are JSON, or a beginning of it."""
    return all(JsonPrefix().grows(arguments) for _, arguments in calls_of(codes)[1])


def begins(codes, whole):
    """Whether the stream is a beginning of the whole answer; of arguments of JSON, where that has no calls."""
    content, calls = calls_of(codes)
    found = whole["tool_calls"] if isinstance(whole, dict) else []
    if not found:
        return in_json(codes)
    expected = [(call["function"]["name"], call["function"]["arguments"]) for call in found]
    texts = (whole["content"] or "").strip(), content.strip()  # a stream may have sent the text behind the calls too
    in_text = "=" in codes or texts[0].startswith(texts[1]) or texts[1].startswith(texts[0])
    pairs = zip(calls, expected, strict=False)
    return (
        in_text
        and (len(calls) <= len(expected) or in_json(codes))  # one that was cut is none as a whole
        and all(
            name == there and rest_of_json(sent, all_of_it) is not None for (name, sent), (there, all_of_it) in pairs
        )
    )
