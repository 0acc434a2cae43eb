"""Plays the cases of `server_cases.py` against a server, and takes out of the answers what differs by chance.

Answer: {"status", "type", "headers", and one of "body" (JSON), "text", "events" ([name or None, data] each)}.
"""

import json
import re
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[3]
HEADERS = ("allow", "x-request-id", "access-control-allow-origin", "access-control-allow-methods", "www-authenticate")
CHANCE = (
    (re.compile(re.escape(str(ROOT)) + "/?"), ""),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "#"),
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])|(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])"), "#"),
    (re.compile(r"\bmsg_\d{10,}"), "msg_#"),
    (re.compile(r"(vllm-[\d.]+-)[0-9a-f]{8}\b"), r"\1#"),
    (re.compile(r"(errors\.pydantic\.dev/)[\d.]+/"), r"\1#/"),
    (re.compile(r'\n\n  File "[^"]+", line \d+, in \w+\n    [A-Z]+ /\S*'), ""),  # where FastAPI found the route
    (re.compile(r" at 0x[0-9a-f]+"), " at #"),
    (re.compile(r"\[\d\d:\d\d:\d\d\] /project/cpp/(\w+)\.cc:\d+"), r"\1"),
)
TIMES = ("created", "created_at", "completed_at")


def client_of(base_url: str, **options: Any) -> httpx.Client:
    """An httpx.Client that asks each question on a connection of its own, as after an error the real one hangs up."""
    return httpx.Client(base_url=base_url, timeout=120, limits=httpx.Limits(max_keepalive_connections=0), **options)


def play(client: httpx.Client, case: dict[str, Any]) -> dict[str, Any]:
    """One answer; no answer has status 0."""
    payload = {"content": case["content"].encode()} if "content" in case else {}
    if case.get("json") is not None:
        payload = {"json": case["json"]}
    try:
        response = client.request(case["method"], case["path"], headers=case.get("headers"), **payload)
    except httpx.TransportError as error:
        return {"status": 0, "text": type(error).__name__}
    content_type = response.headers.get("content-type")
    answer = {"status": response.status_code, "type": content_type, **_content(response.text, content_type or "")}
    headers = {name: response.headers[name] for name in HEADERS if name in response.headers}
    return normalised({**answer, "headers": headers})


def _content(text: str, content_type: str) -> dict[str, Any]:
    if content_type.startswith("text/event-stream"):
        return {"events": [_event(block) for block in text.split("\n\n") if block]}
    if text and content_type.startswith("application/json"):
        return {"body": json.loads(text)}
    return {"text": text}


def _event(block: str) -> list[Any]:
    """[name or None, what its data says]; lines other than event and data stay as they are in the name's place."""
    name, data = None, []
    for line in block.split("\n"):
        field, _, value = line.partition(": ")
        if field == "data":
            data.append(value)
        else:
            name = value if field == "event" else line
    joined = "\n".join(data)
    return [name, json.loads(joined) if joined[:1] in "{[" and joined != "[DONE]" else joined]


def normalised(value: Any) -> Any:
    """Ids, times, paths and versions of libraries as `#` or 0."""
    if isinstance(value, dict):
        return {key: 0 if key in TIMES and item else normalised(item) for key, item in value.items()}
    if isinstance(value, list):
        return [normalised(item) for item in value]
    if isinstance(value, str):
        for pattern, put in CHANCE:
            value = pattern.sub(put, value)
    return value


def metrics(text: str) -> list[dict[str, Any]]:
    """Of each family of a /metrics page: name, type, help, names of labels, buckets, and the values that no clock
    moves ({labels and sample: value})."""
    from prometheus_client.parser import text_string_to_metric_families

    families = []
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):
            continue
        labels = sorted({label for sample in family.samples for label in sample.labels if label != "le"})
        buckets = list(dict.fromkeys(s.labels["le"] for s in family.samples if "le" in s.labels))
        values = {
            " ".join([sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))]): sample.value
            for sample in family.samples
            if "second" not in family.name and "_created" not in sample.name and not family.name.startswith("p")
        }
        about = {"name": family.name, "type": family.type, "help": family.documentation, "labels": labels}
        families.append(normalised({**about, "buckets": buckets, "values": values}))
    return families


def openapi(document: dict[str, Any]) -> dict[str, Any]:
    """Paths with their methods, and the names of the fields of each schema."""
    schemas = document["components"]["schemas"].items()
    return {
        "paths": {path: sorted(methods) for path, methods in sorted(document["paths"].items())},
        "schemas": {name: sorted(schema.get("properties", {})) for name, schema in sorted(schemas)},
    }
