"""Bad input for `record_server.py`: what the real server answers to each, beside `server_cases.py`."""

from mini_vllm.tests.golden.server_requests import SCHEMA, TOOL, Case, case, chat, completion, messages, responses, told

LONG = "A fox " * 400
LOOSE = {"loose": True}


def raw(name: str, path: str, content: str, content_type: str | None = "application/json") -> Case:
    headers = {} if content_type is None else {"headers": {"Content-Type": content_type}}
    return case(name, path, content=content, **headers)


SENT = [
    raw("not JSON", "/v1/completions", '{"model": "pocket", '), raw("no body", "/v1/completions", ""),
    raw("a list as body", "/v1/completions", "[1, 2]"), raw("a string as body", "/v1/chat/completions", '"hi"'),
    raw("null as body", "/v1/completions", "null"), raw("empty object", "/v1/chat/completions", "{}"),
    raw("text/plain", "/v1/completions", '{"model": "pocket", "prompt": "A"}', "text/plain"),
    raw("no content type", "/v1/chat/completions", '{"model": "pocket", "messages": []}', None),
    raw("a form", "/v1/completions", "prompt=A", "application/x-www-form-urlencoded"),
    raw("with charset", "/v1/completions", '{"prompt": "A", "max_tokens": 1, "temperature": 0}',
        "application/json; charset=utf-8"),
    raw("a comma too many", "/tokenize", '{"prompt": "A",}'),
    raw("not UTF-8 escaped", "/tokenize", '{"prompt": "\\ud800"}'),
    raw("NaN", "/v1/completions", '{"prompt": "A", "temperature": NaN, "max_tokens": 1}') | LOOSE,
    raw("Infinity", "/v1/completions", '{"prompt": "A", "temperature": Infinity, "max_tokens": 1}') | LOOSE,
]  # fmt: skip

COMPLETIONS = [
    completion("unknown model", model="gpt-4"), completion("model a number", model=4),
    completion("model empty", model=""),
    case("completion: no prompt", "/v1/completions", {"model": "pocket"}), completion("prompt empty", ""),
    completion("prompt empty list", []), completion("prompt None", None), completion("prompt of an empty list", [[]]),
    completion("prompts, one empty", ["A", ""]), completion("prompt a number", 5),
    completion("prompt an object", {"a": 1}),
    completion("prompts mixed", ["A", 1]), completion("prompt ids negative", [-1, 5]),
    completion("prompt ids out of range", [5000]), completion("prompt ids floats", [1.5]),
    completion("prompt too long", LONG), completion("prompt ids too long", [39] * 600),
    completion("prompt exactly full", [39] * 512), completion("too long with max_tokens", [39] * 500, max_tokens=13),
    completion("max_tokens over the model", max_tokens=600), completion("max_tokens 0", max_tokens=0),
    completion("max_tokens -1", max_tokens=-1), completion("max_tokens text", max_tokens="many"),
    completion("max_tokens float", max_tokens=1.5), completion("n 0", n=0), completion("n -1", n=-1),
    completion("n text", n="two"), completion("n None", n=None), completion("n huge", n=10**6),
    completion("temperature -1", temperature=-1),
    completion("temperature 3", temperature=3, seed=0, max_tokens=1, loose=True),
    completion("temperature text", temperature="hot"), completion("top_p 0", top_p=0),
    completion("top_p 1.5", top_p=1.5),
    completion("top_k -2", top_k=-2), completion("top_k 1.5", top_k=1.5), completion("min_p 2", min_p=2),
    completion("presence_penalty 3", presence_penalty=3), completion("frequency_penalty -3", frequency_penalty=-3),
    completion("repetition_penalty 0", repetition_penalty=0), completion("min_tokens -1", min_tokens=-1),
    completion("min_tokens over max_tokens", min_tokens=9), completion("stop empty", stop=""),
    completion("stop list with empty", stop=["a", ""]), completion("stop number", stop=3),
    completion("stop_token_ids text", stop_token_ids="a"), completion("stop_token_ids float", stop_token_ids=[1.5]),
    completion("stop with detokenize off", detokenize=False, stop="a"), completion("logprobs -1", logprobs=-1),
    completion("logprobs 21", logprobs=21), completion("logprobs true", logprobs=True),
    completion("prompt_logprobs -2", prompt_logprobs=-2), completion("prompt_logprobs 99", prompt_logprobs=99),
    completion("prompt_logprobs with stream", prompt_logprobs=1, stream=True),
    completion("stream_options without stream", stream_options={"include_usage": True}),
    completion("stream_options wrong", stream=True, stream_options={"include_usage": "maybe"}),
    completion("stream text", stream="perhaps"), completion("suffix", suffix="!"), completion("seed text", seed="s"),
    completion("seed too large", seed=2**64), completion("logit_bias out of range", logit_bias={"5000": 1}),
    completion("logit_bias not a number", logit_bias={"fox": 1}), completion("logit_bias a list", logit_bias=[1]),
    completion("logit_bias strong", logit_bias={"39": 1000}),
    completion("allowed_token_ids empty", allowed_token_ids=[]),
    completion("allowed_token_ids out of range", allowed_token_ids=[5000]), completion("priority", priority=1),
    completion("truncate -2", truncate_prompt_tokens=-2), completion("truncate too many", truncate_prompt_tokens=600),
    completion("truncation_side", truncation_side="middle", truncate_prompt_tokens=2),
    completion("cache_salt empty", cache_salt=""), completion("cache_salt number", cache_salt=3),
    completion("response_format unknown", response_format={"type": "poem"}),
    completion("json_schema missing", response_format={"type": "json_schema"}),
    completion("two constraints", structured_outputs={"choice": ["a"], "regex": "a"}),
    completion("no constraint", structured_outputs={}), completion("regex wrong", structured_outputs={"regex": "("}),
    completion("choice empty", structured_outputs={"choice": []}),
    completion("schema wrong", structured_outputs={"json": {"type": "poem"}}),
    completion("beam search, stream", use_beam_search=True, stream=True),
    completion("vllm_xargs", vllm_xargs={"a": {"b": 1}}),
    completion("prompt_embeds", prompt_embeds="AAAA"), completion("bad_words unknown here", bad_words="fox"),
]  # fmt: skip

NAMED = {"type": "function", "function": {"name": "other"}}
CHATS = [
    chat("unknown model", model="gpt-4"), case("chat: no messages", "/v1/chat/completions", {"model": "pocket"}),
    case("chat: messages empty", "/v1/chat/completions", {"model": "pocket", "messages": []}),
    case("chat: messages text", "/v1/chat/completions", {"model": "pocket", "messages": "Hi"}),
    case("chat: message text", "/v1/chat/completions", {"model": "pocket", "messages": ["Hi"]}),
    case("chat: no role", "/v1/chat/completions", {"messages": [{"content": "Hi"}]}),
    case("chat: no content", "/v1/chat/completions",
        {"messages": [{"role": "user"}], "max_tokens": 2, "temperature": 0}),
    chat("role a number", told((5, "Hi"))), chat("content a number", 5), chat("content an object", {"text": "Hi"}),
    chat("part unknown", [{"type": "smell", "smell": "x"}]), chat("part without text", [{"type": "text"}]),
    chat("an image", [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]),
    chat("too long", LONG), chat("max_tokens over the model", max_tokens=600),
    chat("max_completion_tokens over the model", max_tokens=None, max_completion_tokens=600),
    chat("max_tokens 0", max_tokens=0),
    chat("max_completion_tokens -1", max_completion_tokens=-1), chat("n 0", n=0), chat("n None", n=None, max_tokens=2),
    chat("temperature -0.1", temperature=-0.1), chat("top_p 2", top_p=2), chat("top_logprobs alone", top_logprobs=2),
    chat("top_logprobs 21", logprobs=True, top_logprobs=21), chat("top_logprobs -2", logprobs=True, top_logprobs=-2),
    chat("logprobs a number", logprobs=5, max_tokens=2),
    chat("stream_options without stream", stream_options={"include_usage": True}),
    chat("prompt_logprobs with stream", stream=True, prompt_logprobs=1),
    chat("response_format text", response_format="json"),
    chat("json_schema missing", response_format={"type": "json_schema"}),
    chat("json_schema without schema", response_format={"type": "json_schema", "json_schema": {"name": "x"}},
        max_tokens=2),
    chat("tools empty", tools=[]), chat("tool_choice without tools", tool_choice="auto"),
    chat("tool_choice unknown", tools=[TOOL], tool_choice="perhaps"),
    chat("tool_choice other", tools=[TOOL], tool_choice=NAMED),
    chat("tool_choice without name", tools=[TOOL], tool_choice={"type": "function", "function": {}}),
    chat("tool_choice required, no parser", tools=[TOOL], tool_choice="required"),
    chat("tools wrong", tools=[{"type": "function"}]),
    chat("continue and generate", continue_final_message=True, add_generation_prompt=True),
    chat("continue with a user", continue_final_message=True, add_generation_prompt=False),
    chat("template broken", chat_template="{% if %}"), chat("reasoning_effort", reasoning_effort="most"),
    chat("priority", priority=1), chat("two constraints", structured_outputs={"json": {}, "regex": "a"}),
    chat("format and constraint", structured_outputs={"regex": "a"}, response_format=SCHEMA),
    chat("bad_words text", bad_words="fox"), chat("bad_words empty", bad_words=[""]), chat("cache_salt", cache_salt=""),
    chat("thinking budget", thinking_token_budget=5), chat("arguments not JSON", [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}]}]),
]  # fmt: skip

OTHERS = [
    case("tokenize: nothing said", "/tokenize", {}), case("tokenize: a number", "/tokenize", {"prompt": 5}),
    case("tokenize: unknown model", "/tokenize", {"model": "gpt-4", "prompt": "A"}),
    case("tokenize: continue and generate", "/tokenize",
        {"messages": told(("user", "Hi")), "add_generation_prompt": True,
         "continue_final_message": True}),
    case("detokenize: text", "/detokenize", {"tokens": "A"}),
    case("detokenize: negative", "/detokenize", {"tokens": [-1]}),
    case("detokenize: out of range", "/detokenize", {"tokens": [5000]}), case("detokenize: none", "/detokenize", {}),
    case("detokenize: unknown model", "/detokenize", {"model": "gpt-4", "tokens": [1]}),
    case("detokenize: too large", "/detokenize", {"tokens": [2**70]}),
    responses("unknown model", model="gpt-4"), case("responses: no input", "/v1/responses", {"model": "pocket"}),
    responses("input a number", 5), responses("input empty", ""), responses("max_output_tokens 0", max_output_tokens=0),
    responses("too long", LONG), responses("temperature -1", temperature=-1), responses("prompt", prompt={"id": "x"}),
    responses("max_output_tokens over the model", max_output_tokens=600),
    responses("format and constraint", structured_outputs={"regex": "a"},
        text={"format": {"type": "json_schema", "name": "x",
              "schema": {}}}),
    messages("unknown model", model="gpt-4"), messages("max_tokens 0", max_tokens=0), messages("model empty", model=""),
    case("messages: no max_tokens", "/v1/messages", {"model": "pocket", "messages": told(("user", "Hi"))}),
    messages("too long", LONG), messages("temperature -1", temperature=-1), messages("content a number", 5),
    case("messages: role", "/v1/messages", {"model": "pocket", "max_tokens": 2, "messages": told(("pirate", "Hi"))}),
    raw("messages: not JSON", "/v1/messages", "{"), messages("max_tokens over the model", max_tokens=600),
    messages("tool_choice", tool_choice={"type": "tool"}),
    messages("count, unknown model", path="/v1/messages/count_tokens",
             model="gpt-4"),
    case("invocations: neither", "/invocations", {"hello": 1}), raw("invocations: not JSON", "/invocations", "{"),
]  # fmt: skip

# Played on a server of its own. The engine takes the grammar backend of its first such request for all of them, while
# each request is checked with the backend that it was given: what one allows, the other may not be able to compile.
DEADLY = [
    completion("choice", structured_outputs={"choice": ["runs", "waits"]}),
    completion("grammar wrong", structured_outputs={"grammar": "root ::="}), completion("afterwards"),
]  # fmt: skip
