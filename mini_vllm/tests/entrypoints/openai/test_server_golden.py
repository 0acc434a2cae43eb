"""Each request of `server_cases.py` to our server, against what the real one answered: status, type, headers, body.

A difference is an entry of `server_differences.toml` with its reason, or a failure. What generates is `slow`.
"""

import fnmatch
import sys
from pathlib import Path

import pytest

from mini_vllm.tests.entrypoints.openai.servers import Server
from mini_vllm.tests.golden.packed import read_packed

pytest.importorskip("prometheus_client", reason="needs the extra serve")

from mini_vllm.tests.golden import record_server, server_cases, server_table
from mini_vllm.tests.golden.server_compare import differences
from mini_vllm.tests.golden.server_play import client_of, metrics, openapi, play

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GOLDEN = Path(record_server.__file__).parent
RECORDED = read_packed(GOLDEN / "server.json.xz")
TABLE = tomllib.loads((GOLDEN / "server_differences.toml").read_text(encoding="utf-8"))
CASES = {"plain": server_cases.PLAIN, "keyed": server_cases.KEYED}
ARGS = {"plain": server_cases.ARGS, "keyed": server_cases.KEYED_ARGS}
CUT = {
    "chat: tool cut, stream": "finish_reason: 'tool_calls', ours 'length'",
    "chat: tool required, stream": "finish_reason: 'tool_calls', ours 'length'",
    "messages: tool wanted, stream": "stop_reason: 'tool_use', ours 'max_tokens'",
}
"""Streams that end in the middle of a call: docs/parsers.md, report 53269. Of the cases "keyed"."""


def server(which, *more):
    return Server("models/pocket", *record_server.options(ARGS[which]), *more)


def quick(case):
    """Ours generates nothing for it: the real server refused it, or generated it by mistake, or failed."""
    return 400 <= RECORDED["plain"]["answers"][case["name"]]["status"] < 500 or case["name"] in server_table.KINDS


def argued(name, line):
    """The entries that explain one difference of one case."""
    path = line.partition(": ")[0]
    return [
        number
        for number, entry in enumerate(TABLE["difference"])
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in entry["cases"])
        and any(fnmatch.fnmatchcase(path, pattern.replace("[", "[[]")) for pattern in entry["at"])
    ]


def judged(which, cases, answers):
    """Differences without a reason, and the numbers of the entries that explained others."""
    unexplained, used = [], set()
    for case in cases:
        theirs = RECORDED[which]["answers"][case["name"]]
        for line in differences(theirs, answers[case["name"]], case.get("loose", False)):
            reasons = argued(case["name"], line)
            used.update(reasons)
            if not reasons:
                unexplained.append(f"{case['name']} {line}")
    return unexplained, used


@pytest.fixture(scope="module")
def asked_quickly():
    """(answers to what generates nothing, /metrics, /openapi.json), after one completion."""
    with server("plain") as running, client_of(running.url) as client:
        answers = {case["name"]: play(client, case) for case in CASES["plain"] if quick(case)}
        client.post("/v1/completions", json={"prompt": "A", "max_tokens": 2})
        yield answers, client.get("/metrics").text, client.get("/openapi.json").json()


@pytest.fixture(scope="module")
def asked():
    """All answers, in the order of the recording."""
    answers = {}
    for which, cases in CASES.items():
        with server(which) as running, client_of(running.url) as client:
            answers[which] = {case["name"]: play(client, case) for case in cases}
    return answers


def test_the_recording_is_of_these_cases():
    digest = record_server.digest(server_cases.PLAIN + server_cases.KEYED + server_cases.DEADLY)
    assert RECORDED["provenance"]["cases sha256"] == digest, "record_server.py has to run again"


def test_what_is_refused_is_refused_in_the_same_way(asked_quickly):
    answers, _, _ = asked_quickly
    assert len(answers) > 150
    unexplained, _ = judged("plain", [case for case in CASES["plain"] if quick(case)], answers)
    assert not unexplained, "\n".join(unexplained)


def test_the_pages_table_of_bad_input(asked_quickly):
    assert server_table.on_the_page() == server_table.table(asked_quickly[0]), (
        "python -m ...golden.server_table prints it"
    )


def test_names_types_labels_and_buckets_of_metrics(asked_quickly):
    theirs = {family["name"]: family for family in RECORDED["plain"]["metrics"]}
    ours = {family["name"]: family for family in metrics(asked_quickly[1])}
    left_out = {
        name for name in theirs if any(fnmatch.fnmatchcase(name, each) for each in TABLE["metrics"]["left_out"])
    }
    assert sorted(set(theirs) - set(ours)) == sorted(left_out)
    assert sorted(set(ours) - set(theirs)) == []
    for name, family in ours.items():
        assert (name, family["type"], family["buckets"]) == (name, theirs[name]["type"], theirs[name]["buckets"])
        assert (name, family["labels"]) == (name, theirs[name]["labels"])


def test_paths_and_fields_of_openapi(asked_quickly):
    theirs, ours = RECORDED["plain"]["openapi"], openapi(asked_quickly[2])
    left_out = TABLE["openapi"]["left_out"]
    assert ours["paths"] == {path: methods for path, methods in theirs["paths"].items() if path not in left_out}
    for name, fields in ours["schemas"].items():
        if name in theirs["schemas"]:
            assert (name, fields) == (name, theirs["schemas"][name])
    assert {"CompletionRequest", "ChatCompletionRequest", "TokenizeChatRequest"} <= set(ours["schemas"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("which", CASES)
def test_every_answer(asked, which):
    unexplained, _ = judged(which, CASES[which], asked[which])
    cut = [line for line in unexplained if line.endswith(CUT.get(line.partition(" .")[0], "\n"))]
    assert len(cut) == len(unexplained), "\n".join(unexplained)
    assert len(cut) == len(CUT) * (which == "keyed"), cut


@pytest.mark.slow
def test_streams_that_were_cut_with_parsers_as_released():
    cases = [case for case in CASES["keyed"] if case["name"] in CUT]
    with server("keyed", "--parsers-as-released") as running, client_of(running.url) as client:
        answers = {case["name"]: play(client, case) for case in cases}
    unexplained, _ = judged("keyed", cases, answers)
    found = [line for line in unexplained if "prompt_tokens_details" not in line]  # it tells what was asked before
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_reason_is_needed(asked):
    used = set().union(*(judged(which, cases, asked[which])[1] for which, cases in CASES.items()))
    assert [entry["why"] for number, entry in enumerate(TABLE["difference"]) if number not in used] == []


def test_what_ends_the_real_server_does_not_end_ours():
    recorded = RECORDED["deadly"]
    assert [answer["status"] for answer in recorded.values()] == [200, 500, 500]
    with server("plain") as running, client_of(running.url) as client:
        answers = [play(client, case) for case in server_cases.DEADLY]
    assert [answer["status"] for answer in answers] == [200, 400, 200]
