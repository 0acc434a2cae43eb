"""Starts the server of real vLLM 0.22.1 on a free port and talks to it. Given material: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER --parser hermes

`--parser` is the tool-call parser that the server is started with. Bodies of responses go to FOLDER/result.json as they
came, streams as the list of their `data:` lines. Messages of errors are cut where a path of the machine begins.
"""

import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB of KV cache on the CPU backend
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}
OPTIONS = ["--served-model-name", "pocket", "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASK = [{"role": "user", "content": "What is a KV block?"}]
RAIN = [{"role": "user", "content": "What is the weather in Oslo?"}]


def chat(messages, **more) -> tuple[str, dict]:
    return "/v1/chat/completions", {"model": "pocket", "messages": messages, "temperature": 0, "max_tokens": 60, **more}


def text(prompt, **more) -> tuple[str, dict]:
    return "/v1/completions", {"model": "pocket", "prompt": prompt, "temperature": 0, "max_tokens": 24, **more}


NAMED = {"type": "function", "function": {"name": "get_weather"}}
STREAMS = {
    "chat": chat(ASK, stream=True, stream_options={"include_usage": True}),
    "cut": chat(ASK, stream=True, max_tokens=5),
    "two": chat(ASK, stream=True, n=2, max_tokens=6, temperature=0.8, seed=1),
    "text": text("A KV block", stream=True),
    "held": text("A KV block", stream=True, stop=["\nUser: thank you"]),
    "bytes": chat(ASK, stream=True, structured_outputs={"choice": ["naïve café — 你好 🚀🇫🇷"]}),
    "tool auto": chat(RAIN, stream=True, tools=[WEATHER]),
    "tool required": chat(RAIN, stream=True, tools=[WEATHER], tool_choice="required"),
    "tool named": chat(RAIN, stream=True, tools=[WEATHER], tool_choice=NAMED),
}
WHOLE = {
    "chat": chat(ASK),
    "tool auto": chat(RAIN, tools=[WEATHER]),
    "tool required": chat(RAIN, tools=[WEATHER], tool_choice="required"),
    "tool named": chat(RAIN, tools=[WEATHER], tool_choice=NAMED),
}
BAD = {
    "a field that does not exist": chat(ASK, max_tokenz=5),
    "an unknown model": chat(ASK, model="pocket-2"),
    "more tokens than the model has": chat(ASK, max_tokens=100_000),
    "prompt and tokens together too long": text("word " * 1500, max_tokens=1000),
    "a prompt that is too long": text("word " * 3000),
    "no messages": chat([]),
    "max_tokens 0": chat(ASK, max_tokens=0),
    "max_tokens -1": chat(ASK, max_tokens=-1),
    "temperature -1": chat(ASK, temperature=-1),
    "temperature 'hot'": chat(ASK, temperature="hot"),
    "a number as text": chat(ASK, max_tokens="5"),
    "an empty stop string": chat(ASK, stop=""),
    "stream_options without stream": chat(ASK, stream_options={"include_usage": True}),
    "tool_choice without tools": chat(ASK, tool_choice="required"),
    "a role that does not exist": chat([{"role": "wizard", "content": "Hello"}]),
    "a body that is no JSON": ("/v1/chat/completions", '{"model": "pocket", '),
}


def post(port: int, path: str, body: dict | str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    data = body if isinstance(body, str) else json.dumps(body)
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    return connection.getresponse()


def gauges(port: int) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    names = ("num_requests_running", "kv_cache_usage_perc")
    return {name: float(re.search(rf"^vllm:{name}{{.*}} (\S+)$", page, re.M)[1]) for name in names}


def leave(port: int) -> dict:
    """What the gauges say while somebody reads a long stream, and after she has hung up."""
    path, body = text("A KV block", stream=True, max_tokens=1900, ignore_eos=True)
    response = post(port, path, body)
    for _ in range(12):
        response.readline()
    before = gauges(port)
    response.close()
    start, after = time.monotonic(), gauges(port)
    while after["num_requests_running"] and time.monotonic() - start < 30:
        time.sleep(0.02)
        after = gauges(port)
    return {"before": before, "after": after}


def talk(port: int) -> dict:
    rows: dict = {"streams": {}, "whole": {}, "bad": []}
    for name, (path, body) in STREAMS.items():
        response = post(port, path, body)
        lines = response.read().decode().split("\n\n")
        rows["streams"][name] = {"type": response.getheader("Content-Type"), "lines": [line for line in lines if line]}
    for name, (path, body) in WHOLE.items():
        rows["whole"][name] = json.loads(post(port, path, body).read())
    for name, (path, body) in BAD.items():
        response = post(port, path, body)
        answer = json.loads(response.read())
        if error := answer.get("error"):
            error["message"] = error["message"].partition("\n\n  File")[0]  # paths of this machine
        rows["bad"].append({"what": name, "status": response.status, "error": error})
    return {**rows, "leave": leave(port)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parser", default="hermes")
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("vllm")), "serve", args.model, "--host", "127.0.0.1"]
    command += ["--port", str(port), *OPTIONS, "--enable-auto-tool-choice", "--tool-call-parser", args.parser]
    server = subprocess.Popen(command, env={**SETTINGS, **os.environ}, start_new_session=True)
    try:
        limit = time.monotonic() + 400
        while True:
            try:
                gauges(port)
                break
            except (OSError, TypeError):
                if server.poll() is not None or time.monotonic() > limit:
                    raise SystemExit("the server did not start") from None
                time.sleep(0.5)
        result = talk(port)
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
