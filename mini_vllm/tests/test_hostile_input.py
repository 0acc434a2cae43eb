"""Each input of `hostile_input.py` is one clear error of a kind that a caller can expect, soon, and without the memory
that it asks for: a process that may have 3 GiB more than it has runs them all."""

import resource

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.hostile_input import CALLS, ENGINES, FOLDERS, HI, SMALL, TEMPLATES, pocket_with, template

EXPECTED = (ValueError, TypeError, FileNotFoundError, NotADirectoryError)
pytestmark = [
    pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here"),
    pytest.mark.timeout(300),
]


@pytest.fixture(autouse=True)
def little_memory():
    """What is taken before a size is looked at, fails here with a MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def llm():
    return LLM(str(POCKET), **SMALL)


@pytest.mark.parametrize(("name", "files", "words"), FOLDERS, ids=[case[0] for case in FOLDERS])
def test_a_damaged_checkpoint(name, files, words, tmp_path):
    with pytest.raises(EXPECTED, match=words) as caught:
        LLM(str(pocket_with(tmp_path / "pocket", **files)), **SMALL)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(("name", "text", "words"), TEMPLATES, ids=[case[0] for case in TEMPLATES])
def test_a_template_that_asks_for_too_much(name, text, words, tmp_path):
    llm = LLM(str(pocket_with(tmp_path / "pocket", **template(text))), load_format="dummy", **SMALL)
    with pytest.raises(ValueError, match=words):
        llm.chat(HI, SamplingParams(max_tokens=1))
    assert not llm.llm_engine.has_unfinished_requests()


@pytest.mark.parametrize(("name", "args", "words"), ENGINES, ids=[case[0] for case in ENGINES])
def test_an_engine_that_cannot_be(name, args, words):
    args = {k: str(POCKET) if v is True else v for k, v in args.items()}
    with pytest.raises(EXPECTED, match=words) as caught:
        LLM(**args)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(("name", "call", "words"), CALLS, ids=[case[0] for case in CALLS])
def test_a_call_that_cannot_be(name, call, words, llm):
    with pytest.raises(EXPECTED, match=words):
        call(llm)
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.generate([1, 2], SamplingParams(max_tokens=1), use_tqdm=False)[0].finished
