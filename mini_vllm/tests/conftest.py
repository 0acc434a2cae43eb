"""What every room of these tests shares: the tokenizers of the repository's own checkpoints are read once; a core that
is elsewhere."""

from pathlib import Path

import pytest

from mini_vllm.model_loader import checkpoint
from mini_vllm.tests.helpers import MODELS

_READ = {}
_LOAD = checkpoint.load_tokenizer


def _load_tokenizer(folder):
    """The loader's, of which a folder of models/ has one in this process. Nobody may write to it."""
    path = Path(folder).resolve()
    if path.parent != MODELS:
        return _LOAD(folder)
    if path not in _READ:
        _READ[path] = _LOAD(folder)
    return _READ[path]


@pytest.fixture(autouse=True, scope="session")
def _tokenizers_are_read_once():
    """Engines get them; `tokenizers.registry.load_tokenizer`, which the tests of loading call, stays as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "load_tokenizer", _load_tokenizer)
        yield


@pytest.fixture
def tokenizers_read_anew(monkeypatch):
    """For a test that is about an engine's own tokenizer, or that writes to it."""
    monkeypatch.setattr(checkpoint, "load_tokenizer", _LOAD)


@pytest.fixture(params=["thread", pytest.param("process", marks=pytest.mark.slow)])
def core_elsewhere(request, monkeypatch):
    """Where the core of an engine with `enable_multiprocessing` is: in a thread behind the same sockets, or, slowly, in
    its process."""
    pytest.importorskip("zmq")
    pytest.importorskip("msgspec")
    if request.param == "thread":
        from mini_vllm.engine import mp_client
        from mini_vllm.tests.engine.core_thread import CoreThread

        monkeypatch.setattr(mp_client, "CoreEngineProcManager", CoreThread)
