"""The table of bad input in docs/serving.md: what the real server answered, and what ours does.

PYTHONPATH=. python -m mini_vllm.tests.golden.server_table    # prints it
"""

import re
from pathlib import Path
from typing import Any

from mini_vllm.tests.golden.packed import read_packed

KINDS = {
    "not JSON": "a body that is not JSON", "a list as body": "a list as body", "text/plain": "another content type",
    "NaN": "`temperature: NaN`", "completion: unknown model": "a model that is not there",
    "completion: prompt empty": "an empty prompt", "completion: prompt empty list": "`prompt: []`",
    "completion: prompt of an empty list": "`prompt: [[]]`",
    "completion: prompt ids negative": "a negative token id",
    "completion: prompt ids out of range": "a token id too large",
    "completion: prompt too long": "a prompt that is too long", "not UTF-8 escaped": "half of a surrogate pair",
    "completion: max_tokens 0": "`max_tokens: 0`",
    "completion: max_tokens over the model": "`max_tokens` over the context",
    "completion: max_tokens text": "`max_tokens: \"many\"`", "completion: n -1": "`n: -1`",
    "completion: n huge": "`n: 1000000`", "completion: n, greedy": "`n: 2`, greedy",
    "completion: temperature -1": "`temperature: -1`", "completion: top_p 1.5": "`top_p: 1.5`",
    "completion: min_tokens over max_tokens": "`min_tokens` over `max_tokens`",
    "completion: stop empty": "`stop: \"\"`",
    "completion: logprobs 21": "`logprobs: 21`", "completion: stream_options without stream": "`stream_options` alone",
    "completion: suffix": "`suffix`", "completion: logit_bias out of range": "`logit_bias` of no token",
    "completion: regex wrong": "a regex that is not one", "completion: schema wrong": "a JSON schema that is not one",
    "completion: two constraints": "two constraints", "completion: cache_salt empty": "`cache_salt: \"\"`",
    "chat: messages empty": "`messages: []`", "chat: no role": "a message without role",
    "chat: an image": "an image for a text model", "chat: top_logprobs alone": "`top_logprobs` without `logprobs`",
    "chat: tools empty": "`tools: []`", "chat: tools, no parser": "`tools` without a parser",
    "chat: template of its own": "a chat template in the request",
    "messages: temperature -1": "/v1/messages, `temperature: -1`",
    "no such path": "a path that is not there", "completions by GET": "another method",
}  # fmt: skip
WIDTH = 110
PAGE = Path(__file__).resolve().parents[3] / "docs" / "serving.md"
BEGIN, END = "<!-- bad input: begin -->\n", "<!-- bad input: end -->"


def table(ours: dict[str, dict[str, Any]]) -> str:
    """The lines of the table; `ours`: our answers by the names of cases."""
    recorded = read_packed(Path(__file__).with_name("server.json.xz"))["plain"]["answers"]
    lines = ["| Request | vLLM 0.22.1 | here |", "|---|---|---|"]
    for name, kind in KINDS.items():
        theirs, here = said(recorded[name]), said(ours[name])
        lines.append(f"| {kind} | {theirs} | {'the same' if theirs == here else here} |")
    return "\n".join(lines) + "\n"


def said(answer: dict[str, Any]) -> str:
    """Status and message; of a report of pydantic's, the first thing that it says."""
    body = answer["body"]
    message = body.get("detail") or body.get("error", {}).get("message") or "an answer"
    first = re.search(r"""'msg': (?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")""", message)
    if first:
        message = (first[1] or first[2]).removeprefix("Value error, ")
    message = re.sub(r"^1 validation error:\n  (.*) \[.*\]$", r"\1", message)
    message = " ".join(message.split()).replace("|", "\\|").replace("<", "&lt;")
    return f"{answer['status']}: {message if len(message) <= WIDTH else message[: WIDTH - 1].rstrip() + '…'}"


def on_the_page() -> str:
    """The table as it stands in docs/serving.md."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip("\n") + "\n"


def main() -> None:
    from mini_vllm.tests.entrypoints.openai.test_server_golden import CASES, client_of, play, server

    with server("plain") as running, client_of(running.url) as client:
        print(table({case["name"]: play(client, case) for case in CASES["plain"] if case["name"] in KINDS}))


if __name__ == "__main__":
    main()
