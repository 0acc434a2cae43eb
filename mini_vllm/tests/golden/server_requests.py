"""How the cases of `server_cases.py` are written down: one function a route, with what most requests share."""

from typing import Any

API_KEY = "let-me-in"
ASKED = "What is the weather in Paris?"
KV = "What is a KV block?"
OBJECT = {
    "type": "object", "properties": {"word": {"enum": ["block", "cache"]}, "count": {"enum": [1, 2]}},
    "required": ["word", "count"], "additionalProperties": False,
}  # fmt: skip
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip
Case = dict[str, Any]


def case(name: str, path: str, body: Any = None, method: str = "", **extra: Any) -> Case:
    """One request: GET without a body, POST of JSON with one, unless `method`, `content` or `headers` say otherwise."""
    method = method or ("GET" if body is None and "content" not in extra else "POST")
    return {"name": name, "method": method, "path": path, "json": body, **extra}


def completion(name: str, prompt: Any = "The scheduler", **fields: Any) -> Case:
    loose = {"loose": True} if fields.pop("loose", False) else {}
    body = {"model": "pocket", "prompt": prompt, "temperature": 0, "max_tokens": 6, **fields}
    return case(f"completion: {name}", "/v1/completions", body, **loose)


def chat(name: str, content: Any = KV, **fields: Any) -> Case:
    loose = {"loose": True} if fields.pop("loose", False) else {}
    headers = {"headers": fields.pop("headers")} if "headers" in fields else {}
    turns = isinstance(content, list) and content and isinstance(content[0], dict) and "role" in content[0]
    messages = content if turns else [{"role": "user", "content": content}]
    body = {"model": "pocket", "messages": messages, "temperature": 0, "max_tokens": 6, **fields}
    return case(f"chat: {name}", "/v1/chat/completions", body, **loose, **headers)


def told(*turns: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


def responses(name: str, input_: Any = KV, **fields: Any) -> Case:
    body = {"model": "pocket", "input": input_, "temperature": 0, "max_output_tokens": 6, **fields}
    return case(f"responses: {name}", "/v1/responses", body)


def messages(name: str, content: Any = KV, **fields: Any) -> Case:
    path = fields.pop("path", "/v1/messages")
    body = {"model": "pocket", "messages": told(("user", content)), "max_tokens": 6, "temperature": 0, **fields}
    return case(f"messages: {name}", path, body)


def keyed(one: Case) -> Case:
    return {**one, "headers": {**one.get("headers", {}), "Authorization": f"Bearer {API_KEY}"}}


STREAM: dict[str, Any] = {"stream": True}
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
EVERY: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": OBJECT}}
TOP: dict[str, Any] = {"temperature": 1, "top_k": 1}  # greedy, where `n` is not refused
