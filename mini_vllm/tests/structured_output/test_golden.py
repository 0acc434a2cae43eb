"""Beside the real thing: vLLM v0.22.1's answers on models/pocket, and xgrammar's masks, both recorded."""

import functools
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.structured_outputs_params import StructuredOutputsParams
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.golden.structured_output_cases import MASKS, MAX_TOKENS, PROMPTS, REQUESTS
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.structured_output.drive import allowed, backend, pocket_vocabulary

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
TIE = 1e-4
"""Below this gap between the two likeliest legal tokens, which one wins is a matter of rounding."""

CONTROL = "a string of limited length: xgrammar lets control characters through, which JSON forbids"
QUOTE = 'a pattern with " or \\ in it: xgrammar knows no escapes there, and leaves those characters out'
QUOTED = "email: xgrammar takes a quoted local part too"
URI = "uri: RFC 3986 allows digits in a scheme, and is read more loosely behind it"
ZERO = "xgrammar writes -0.0 (though not -0); ours never writes a negative zero"
LEADING = "ipv4: xgrammar takes leading zeros (01.2.3.4), which RFC 6943 calls ambiguous and Python's ipaddress refuses"
ROOT = "a root that refers to itself: xgrammar's mask lacks tokens that its own accept_token takes"
SECOND = "second 60 is a second in the minute before midnight alone, by UTC; ours never writes it"
LENGTHS = "hostname: labels of 63 characters and names of 253 (RFC 1035), and no two hyphens in a row"
SPACE = "\\S: xgrammar takes U+3000 and other white space of ECMA-262 for none"
ARGUED = {
    '{"type": "string", "format": "time"}': SECOND,
    '{"type": "string", "format": "date-time"}': SECOND,
    '{"type": "string", "format": "hostname"}': LENGTHS,
    r"\s*\S+": SPACE,
    '{"type": "string", "minLength": 2, "maxLength": 5}': CONTROL,
    '{"type": "string", "pattern": "[^x]\\"?\\\\\\\\*\\\\n?"}': QUOTE,
    '{"type": "string", "format": "email"}': QUOTED,
    '{"type": "string", "format": "uri"}': URI,
    '{"type": "number", "minimum": -1.5, "maximum": 2.25}': ZERO,
    '{"type": "string", "format": "ipv4"}': LEADING,
    'root ::= "(" root ")" | "x"': ROOT,
}
"""Where masks differ, and why ours stays as it is."""


@functools.lru_cache(maxsize=1)
def recorded_masks():
    return read_packed(GOLDEN / "structured-output-masks.json.xz")["masks"]


def text_of(spec):
    return spec if isinstance(spec, str) else json.dumps(spec)


@pytest.mark.parametrize("number", range(len(MASKS)))
def test_masks_are_xgrammars_or_the_difference_is_argued(number):
    kind, spec = MASKS[number]
    vocabulary = pocket_vocabulary()
    grammar = backend(vocabulary).compile_grammar(StructuredOutputOptions[kind], text_of(spec))
    argued = text_of(spec) in ARGUED
    seen = 0
    for path in recorded_masks()[number]:
        grammar.reset()
        for token, count, digest, theirs_alone, ours_alone in path:
            mask = allowed(grammar)
            mask[theirs_alone] = True
            mask[ours_alone] = False
            assert int(mask.sum()) == count
            assert hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()[:12] == digest
            assert argued or not (theirs_alone or ours_alone)
            assert grammar.accept_tokens("", [token])
            seen += bool(theirs_alone or ours_alone)
    assert bool(seen) == argued, "an argument that nothing needs"


def test_enough_is_compared():
    equal = [spec for _, spec in MASKS if text_of(spec) not in ARGUED]
    assert len(equal) >= 60
    assert sum(len(path) for paths in recorded_masks() for path in paths) > 3000


@pytest.fixture(scope="module")
def answers():
    return read_packed(GOLDEN / "structured-outputs.json.xz")["answers"]


AHEAD, CHUNKS = {"async_scheduling": True}, {"max_num_batched_tokens": 8}


@pytest.mark.parametrize(
    "settings", [{}, *(pytest.param(each, marks=pytest.mark.slow) for each in (AHEAD, CHUNKS))], ids=str
)
def test_greedy_tokens_are_those_of_the_real_engine(answers, settings):
    replay(answers, settings)


@pytest.mark.parametrize("settings", [AHEAD, CHUNKS], ids=str)
def test_every_third_answer_is_the_same_however_it_is_scheduled(answers, settings):
    replay(answers, settings, every=3)


def replay(answers, settings, every=1):
    llm = LLM(str(POCKET), **{"enable_chunked_prefill": True, **settings})
    prompts = [prompt for _ in REQUESTS for prompt in PROMPTS]
    params = [
        SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, structured_outputs=StructuredOutputsParams(**request))
        for request in REQUESTS
        for _ in PROMPTS
    ]
    expected = [answer for of_request in answers for answer in of_request][::every]
    # all in one batch: sixteen grammars beside each other
    outputs = llm.generate(prompts[::every], params[::every], use_tqdm=False)
    ties = 0
    for output, answer in zip(outputs, expected, strict=True):
        ids, theirs = list(output.outputs[0].token_ids), answer["token_ids"]
        if ids != theirs:
            at = next(n for n, (a, b) in enumerate(zip(ids, theirs, strict=False)) if a != b)
            assert answer["gaps"][at] < TIE, (output.prompt, output.outputs[0].text, answer["text"])
            ties += 1
            continue
        assert output.outputs[0].text == answer["text"]
        assert output.outputs[0].finish_reason == answer["finish_reason"]
    assert ties <= len(expected) // 100
