"""What a submission may not take from the engine: its lab's twin, under every name, and what holds or runs it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mini_vllm
from course.grade.faults import outside
from course.grade.grading import grade
from course.grade.intake import Submission
from course.grade.language import DISPATCH, WORDS
from course.grade.settings import Limits, Settings
from course.labs import ROOT, Lab, all_labs, find_labs
from course.tests.test_grade import linux
from course.tests.test_language import language

pytestmark = pytest.mark.maintainer

(LAB,) = find_labs("01-05")
LABS = [lab for lab in all_labs() if "mini_vllm" in lab.allowed_imports]
DATA = set(WORDS["further"]["mini_vllm"].split())
REFERENCE = (LAB.folder / "solution.py").read_text(encoding="utf-8")
TAKEN = {
    "package": "from mini_vllm import check_stop\n",
    "attribute": "import mini_vllm\ncheck_stop = mini_vllm.check_stop\n",
    "home": "import mini_vllm.core.sched.utils\ncheck_stop = mini_vllm.core.sched.utils.check_stop\n",
    "other-module": "from mini_vllm.core.sched.scheduler import check_stop\n",
    "computed": "import mini_vllm.core.sched.scheduler as s\ncheck_stop = getattr(s, 'check_' + 'stop')\n",
    "default": "from mini_vllm.engine.parts import EngineParts\ncheck_stop = EngineParts().check_stop\n",
    "field": "import dataclasses\nfrom mini_vllm import EngineParts as E\n"
    "check_stop = {f.name: f.default for f in dataclasses.fields(E)}['check_stop']\n",
    "instance": "from mini_vllm import LLMEngine\ncheck_stop = LLMEngine().scheduler.check_stop\n",
    "factory": "import mini_vllm.engine.parts as p\ncheck_stop = p.make_scheduler\n",
    "subclass": "import mini_vllm\nclass S(mini_vllm.AsyncScheduler):\n    pass\n",
    "caught": "try:\n    from mini_vllm import check_stop\nexcept PermissionError:\n    pass\n",
    "late": "def check_stop(request, max_model_len):\n    import mini_vllm as e\n"
    "    return e.LLMEngine().scheduler.check_stop(request, max_model_len)\n",
}
"""What stands under the reference in place of its own ``check_stop``."""


@pytest.mark.parametrize("name", TAKEN)
def test_who_takes_the_engines_check_is_held(name: str) -> None:
    found = outside(REFERENCE + TAKEN[name], language(LAB))
    assert found and all(int(line.partition(":")[0]) > REFERENCE.count("\n") for line in found)


@pytest.mark.parametrize("form", ["from mini_vllm import {}\n", "import mini_vllm\nmini_vllm.{}()\n"])
@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_of_the_engine_a_lab_gives_data_and_what_its_own_files_take(lab: Lab, form: str) -> None:
    text = (lab.folder / "solution.py").read_text(encoding="utf-8")
    found = outside(text + "".join(map(form.format, mini_vllm.__all__)), language(lab))
    lines = {(int(one.partition(":")[0]) - text.count("\n") - 1) // form.count("\n") for one in found}
    given = {name for n, name in enumerate(mini_vllm.__all__) if n not in lines}
    own = {name.rpartition(".")[2] for name in language(lab).own["names"] if name.startswith("mini_vllm.")}
    assert given - own == DATA - own and own <= {*mini_vllm.__all__}


def test_what_calls_by_a_name_in_a_text_is_listed() -> None:
    """Functions of the engine that hand an argument of theirs to `getattr` or an import as the name."""
    found = set()
    files = [path for path in (ROOT / "mini_vllm").rglob("*.py") if "tests" not in path.parts]
    for node in [n for path in files for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
            continue
        given = {arg.arg for arg in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
        for call in [n for n in ast.walk(node) if isinstance(n, ast.Call)]:
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            named = {"getattr": call.args[1:2], "setattr": call.args[1:2], "import_module": call.args[:1]}.get(name, [])
            words = {n.id for each in named for n in ast.walk(each) if isinstance(n, ast.Name)}
            found |= {node.name} if words & given else set()
    assert found <= DISPATCH and "collective_rpc" in found


def test_a_plug_is_one_name_or_a_list(tmp_path: Path) -> None:
    table = tmp_path / "labs.toml"
    row = "[phase-00-a.lab-0{n}-b]\ntag = 'CPU-OK'\nminutes = 1\nplug = {plug}\n"
    plugs = ("''", "'a.b'", "['a.b', 'a.c']", "[]")
    table.write_text("".join(row.format(n=n, plug=plug) for n, plug in enumerate(plugs)))
    assert [lab.plug for lab in all_labs(table)] == [(), ("a.b",), ("a.b", "a.c"), ()]


@linux
@pytest.mark.slow
def test_who_writes_her_own_check_has_every_point() -> None:
    text = REFERENCE + "from mini_vllm import Request, RequestStatus\n"
    grades = grade([Submission("honest", {LAB.key: text.encode()})], [LAB], Settings(limits=Limits(stops=1)), 1)
    assert [(row.status, row.share, row.findings) for row in grades.rows] == [("graded", 1.0, ())]
