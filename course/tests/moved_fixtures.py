"""A small engine whose files have moved: `pool.py` was cut in two, `engine.py` is a package now, `outputs.py` lost a
name."""

from __future__ import annotations

import shutil
from pathlib import Path

from course.labs import ROOT

TABLE = """\
[modules]
"pool" = "core.pool"
"engine" = "engine.core"
"moe" = "layers.moe"
"moe.align" = "layers.moe.align"
"models.layers" = "layers.arithmetic"
"tests.test_pool" = "tests.core.test_pool"

[names]
"pool:Block" = "core.utils"
"pool:hash_block" = "core.utils"
"pool:_private" = "core.utils"
"engine:LLMEngine" = "engine.llm_engine"
"outputs:Reason" = "engine"
"""

HEAD = "import sys\nimport time\nfrom importlib import import_module\nfrom types import ModuleType\n\n"

PUBLIC = """\
_PUBLIC = {
    "mini_vllm.core.pool": ("Pool",),
    "mini_vllm.core.utils": ("Block",),
    "mini_vllm.engine": ("Reason",),
    "mini_vllm.engine.core": ("EngineCore",),
    "mini_vllm.engine.llm_engine": ("LLMEngine",),
    "mini_vllm.outputs": ("Output",),
    "mini_vllm.request": ("Request",),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_MODULE_OF)
"""

HOOK = """\
class Reason: ...


def __getattr__(name):
    from mini_vllm.moved import missing

    raise missing(__name__, name)
"""

FORMER_TEST = "from mini_vllm.pool import Pool\n\n\ndef test_take():\n    assert len(Pool().take(2)) == 2\n"

FILES = {
    "request.py": "class Request: ...\n",
    "outputs.py": "class Output: ...\n",
    "core/__init__.py": "",
    "core/pool.py": '''"""The pool."""

from mini_vllm.core.utils import Block

LIMIT = 4


class Pool:
    """Blocks."""

    def take(self, n):
        """Takes n blocks."""
        return [Block() for _ in range(n)]

    def give(self, blocks):
        """Takes blocks back."""
        return len(blocks)
''',
    "core/utils.py": '''"""Blocks."""

import math


class Block:
    """One block."""

    def size(self):
        """Its size."""
        return math.prod((2, 8))


def hash_block(x):
    """A number for x."""
    return hash(x)


def _private(x):
    return x
''',
    "engine/__init__.py": HOOK,
    "engine/core.py": "class EngineCore: ...\n",
    "engine/llm_engine.py": "class LLMEngine: ...\n",
    "layers/__init__.py": "",
    "layers/arithmetic.py": "def add(a, b): return a + b\n",
    "layers/moe/__init__.py": "",
    "layers/moe/align.py": "def align(x): return x\n",
    "models/__init__.py": "",
    "tests/__init__.py": "",
    "tests/core/__init__.py": "",
    "tests/core/test_pool.py": FORMER_TEST.replace("mini_vllm.pool", "mini_vllm.core.pool"),
}

FORMER_POOL = '''"""The pool."""

import math

LIMIT = 4


class Block:
    """One block."""

    def size(self):
        """Its size."""
        return math.prod((2, 8))


def hash_block(x):
    """A number for x."""
    return hash(x)


def _private(x):
    return x


class Pool:
    """Blocks."""

    def take(self, n):
        """Takes n blocks."""
        return [Block() for _ in range(n)]

    def give(self, blocks):
        """Takes blocks back."""
        return len(blocks)
'''


def house(root: Path) -> Path:
    """The engine after its move, in ``root/mini_vllm``, with the real `moved.py`, `__getattr__` and finder."""
    package = root / "mini_vllm"
    for name, text in FILES.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text, encoding="utf-8")
    real = (ROOT / "mini_vllm" / "__init__.py").read_text(encoding="utf-8")
    lazy = real[real.index("def __getattr__") :]
    (package / "__init__.py").write_text(f"{HEAD}{PUBLIC}\n\n{lazy}", encoding="utf-8")
    (package / "moved.toml").write_text(TABLE, encoding="utf-8")
    shutil.copy(ROOT / "mini_vllm" / "moved.py", package / "moved.py")
    return package
