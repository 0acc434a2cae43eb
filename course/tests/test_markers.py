"""The rule that a test which needs torch says so, on small texts."""

from __future__ import annotations

import pytest

from course.tests.markers import unmarked

pytestmark = pytest.mark.maintainer


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("torch = pytest.importorskip('torch')", ["1: the module"]),
        ("pytestmark = pytest.mark.needs_torch\ntorch = pytest.importorskip('torch')", []),
        ("pytestmark = [needs_x, pytest.mark.needs_torch]\nON_GPU = triton_or_skip()", []),
        ("pytestmark = needs_x\nON_GPU = triton_cpu.triton_or_skip()", ["2: the module"]),
        ("def test_a():\n    import torch.nn\n\ndef test_b():\n    pass", ["1: test_a"]),
        ("@pytest.mark.needs_torch\ndef test_a():\n    from transformers import AutoModel", []),
        ("def lib():\n    return pytest.importorskip('safetensors.numpy')\n\ndef test_a():\n    lib()", ["4: test_a"]),
        ("def lib():\n    import torch\n\n@pytest.mark.needs_torch\ndef test_a():\n    lib()", []),
        ("@pytest.fixture\ndef lib():\n    import torch\n\ndef test_a(lib):\n    pass", ["5: test_a"]),
        ("class TestA:\n    def test_b(self):\n        import triton", ["2: test_b"]),
        ("@pytest.mark.needs_torch\nclass TestA:\n    def test_b(self):\n        import triton", []),
        ("np = pytest.importorskip('numpy')\nimport torchless", []),
    ],
)
def test_who_does_not_is_found(text: str, found: list[str]) -> None:
    assert unmarked(text) == found
