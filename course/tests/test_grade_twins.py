"""What a submission may not take from the engine: each lab's twin under every name, and what holds or runs it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mini_vllm
from course.grade.facade import Facades
from course.grade.grading import LabResult, grade
from course.grade.intake import Submission
from course.grade.settings import Limits, Settings
from course.grade.twins import Twins
from course.labs import Lab, LabError, all_labs, find_labs

linux = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")
PLUGGED = [lab for lab in all_labs() if lab.plug]


@functools.cache
def modules() -> tuple[ModuleType, ...]:
    """Every module of the engine but its tests, and but the kernels, which want Triton."""
    names = [info.name for info in pkgutil.walk_packages(mini_vllm.__path__, "mini_vllm.")]
    left_out = ("mini_vllm.tests", "mini_vllm.kernels.")
    return (mini_vllm, *(importlib.import_module(name) for name in names if not name.startswith(left_out)))


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """(name, value) of all that a submission may ask for, the names of ``__all__`` too (they may be lazy)."""
    names = {*vars(module), *getattr(module, "__all__", ())}
    for name in sorted(name for name in names if not name.startswith("_") and name != "annotations"):
        value = getattr(module, name)
        if not isinstance(value, ModuleType):
            yield name, value


def twins(lab: Lab) -> list[Any]:
    """The objects that the plug names, and the classes whose methods it names; found without the code under test."""
    values = [pkgutil.resolve_name(name) for name in lab.plug]
    owners = [pkgutil.resolve_name(name.rpartition(".")[0]) for name in lab.plug]
    return [*values, *(owner for owner in owners if isinstance(owner, type))]


def is_one(value: Any, own: list[Any]) -> bool:
    """Whether a value is a twin, a subclass of one, or an instance."""
    classes = tuple(one for one in own if isinstance(one, type))
    if issubclass(type(value), type):  # Python 3.10 says that list[int] is an instance of type
        return value in own or issubclass(value, classes)
    return any(value is one for one in own) or isinstance(value, classes)


def ask(facades: Facades, module: ModuleType, name: str) -> tuple[Any, str]:
    """(value, "") where the facade hands it out, (None, why) where it refuses."""
    try:
        return getattr(facades.of(module), name), ""
    except PermissionError as error:
        return None, str(error)


def refuse(what: str) -> None:
    raise PermissionError(what)


@pytest.mark.parametrize("lab", PLUGGED, ids=lambda lab: lab.name)
def test_a_twin_is_withheld_under_every_name(lab: Lab) -> None:
    facades, own, met = Facades(["mini_vllm"], lab.plug, refuse), twins(lab), []
    for module in modules():
        answers = {name: (value, *ask(facades, module, name)) for name, value in public(module)}
        for name, (value, got, why) in answers.items():
            assert why or got is value, f"{module.__name__}.{name} is not itself behind the facade"
            if is_one(value, own):
                met.append(value)
                assert why.startswith(f"{module.__name__}.{name}, ") and "the engine's own solution (" in why
        if not all(is_one(value, own) for value, _, _ in answers.values()):  # models/qwen2.py has nothing but a twin
            assert any(not why for _, _, why in answers.values()), f"{module.__name__} hands out nothing at all"
    assert len(met) > len(lab.plug), "a plug has one name at least, and some have more"


@pytest.mark.parametrize("lab", PLUGGED, ids=lambda lab: lab.name)
def test_no_attribute_of_what_is_handed_out_is_a_twin(lab: Lab) -> None:
    """The second step: a default of a class, an attribute of a fresh object, an item of a container."""
    facades, own = Facades(["mini_vllm"], lab.plug, refuse), twins(lab)
    for module in modules():
        for name, value in public(module):
            if ask(facades, module, name)[1] or not str(getattr(value, "__module__", "mini_vllm")).startswith("mini_"):
                continue
            for step, found in second_steps(value):
                assert not is_one(found, own), f"{module.__name__}.{name}{step} is a twin"


def second_steps(value: Any) -> Iterator[tuple[str, Any]]:
    holders = [("", value)]
    if isinstance(value, type):
        with contextlib.suppress(Exception):  # it wants arguments
            holders.append(("()", value()))
    for call, holder in holders:
        for name in dir(holder):
            with contextlib.suppress(AttributeError, ValueError):  # a property that wants more
                if not name.startswith("_"):
                    yield f"{call}.{name}", getattr(holder, name)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    yield from ((f"[{key!r}]", item) for key, item in items)


def test_a_name_that_nobody_has_asked_for_yet_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    facade = Facades(["mini_vllm"], ["mini_vllm.core.sched.utils.check_stop"], refuse).of(mini_vllm)
    for name in ("check_stop", "SamplingParams"):
        monkeypatch.setattr(mini_vllm, name, None)  # so that it is put back
        monkeypatch.delattr(mini_vllm, name)
    assert facade.SamplingParams is mini_vllm.SamplingParams
    with pytest.raises(PermissionError, match=r"^mini_vllm.check_stop, the engine's own solution"):
        _ = facade.check_stop
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = facade.nothing


@pytest.mark.parametrize("name", ["math", "functools", "operator", "random", "numpy"])
def test_what_a_facade_copies_is_the_same_with_a_plug(name: str) -> None:
    module = importlib.import_module(name)
    faces = [
        vars(Facades(["numpy"], plug, refuse).of(module)) for plug in ((), ("mini_vllm.core.sched.utils.check_stop",))
    ]
    own = {"__getattr__", "attrgetter", "methodcaller"}  # made anew for each submission
    assert faces[0].keys() == faces[1].keys() and len(faces[0]) > 20
    assert all(value is faces[1][key] for key, value in faces[0].items() if key not in own)


def test_a_plug_that_leads_nowhere_is_named() -> None:
    names = Twins(["mini_vllm.core.sched.utils.chek_stop"])
    with pytest.raises(
        LabError, match=r"labs.toml: the plug 'mini_vllm.core.sched.utils.chek_stop' is not in the engine"
    ):
        names.reason(1)
    assert not names.concern("numpy") and not Twins(()).concern("mini_vllm")


def test_a_plug_is_one_name_or_a_list(tmp_path: Path) -> None:
    table = tmp_path / "labs.toml"
    row = "[phase-00-a.lab-0{n}-b]\ntag = 'CPU-OK'\nminutes = 1\nplug = {plug}\n"
    plugs = ("''", "'a.b'", "['a.b', 'a.c']", "[]")
    table.write_text("".join(row.format(n=n, plug=plug) for n, plug in enumerate(plugs)))
    assert [lab.plug for lab in all_labs(table)] == [(), ("a.b",), ("a.b", "a.c"), ()]


# through the whole grader

(LAB,) = find_labs("01-05")
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
NAMED = {
    "package": "mini_vllm.check_stop",
    "attribute": "mini_vllm.check_stop",
    "home": "mini_vllm.core.sched.utils.check_stop",
    "other-module": "mini_vllm.core.sched.scheduler.check_stop",
    "computed": "mini_vllm.core.sched.scheduler.check_stop",
    "default": "mini_vllm.engine.parts.EngineParts",
    "field": "mini_vllm.EngineParts",
    "instance": "mini_vllm.LLMEngine",
    "factory": "mini_vllm.engine.parts.make_scheduler",
    "subclass": "mini_vllm.AsyncScheduler",
    "caught": "mini_vllm.check_stop",
    "late": "mini_vllm.LLMEngine",
}


@pytest.fixture(scope="module")
def rows() -> dict[str, LabResult]:
    reference = (LAB.folder / "solution.py").read_text(encoding="utf-8")
    files = {name: reference + body for name, body in TAKEN.items()}
    files["honest"] = (
        reference + "from mini_vllm import FinishReason, SamplingParams\nimport mini_vllm.core.sched.scheduler\n"
    )
    learners = [Submission(name, {LAB.key: text.encode()}) for name, text in files.items()]
    grades = grade(learners, [LAB], Settings(limits=Limits(stops=1)), 2)
    return {row.submission: row for row in grades.rows}


@linux
@pytest.mark.parametrize("name", TAKEN)
def test_who_takes_the_engines_check_has_no_full_marks(name: str, rows: dict[str, LabResult]) -> None:
    row = rows[name]
    assert row.share < 1 and row.status == "tampered"
    assert any(f"asked for {NAMED[name]}, " in text and "the engine's own solution" in text for text in row.findings)


@linux
def test_who_writes_her_own_check_has_them(rows: dict[str, LabResult]) -> None:
    assert (rows["honest"].status, rows["honest"].share, rows["honest"].findings) == ("graded", 1.0, ())
