# ruff: noqa: E501
"""Attacks on the grader, as what stands behind the reference of a lab. Each is meant to win: to have the points of tests
that it does not pass, or to reach what judges them.

``HELD`` are told by the small language, each with a word of its reason. ``WEAK`` is inside the language, and must lose in
the tests of the labs."""

from __future__ import annotations

import ast

from course.labs import functions, stub_message

D = "_U = chr(95) * 2\n"
"""Two underscores that no reader of the text sees."""

REVIEW = {
    "update-wrapper": (
        "import functools\nclass Catch:\n    def __setattr__(self, name, value):\n        self.got = value\n"
        "functools.update_wrapper(Catch(), print, assigned=('__se' + 'lf__',), updated=())\n",
        "uses functools.update_wrapper",
    ),
    "wraps-with-names": (
        "from functools import wraps\n_c = wraps(print, assigned=('__se' + 'lf__',), updated=())(len)\n",
        "functools.wraps otherwise",
    ),
    "match-args-at-run-time": (
        "import abc\n" + D + "class P(abc.ABC):\n    __match_args__ = (_U + 'globals' + _U,)\nP.register(type(print))\n"
        "def f(x):\n    match x:\n        case P(g):\n            return g\n",
        "__match_args__ with names made",
    ),
    "eq-by-type": (D + "Yes = type('Yes', (), {_U + 'eq' + _U: lambda s, o: True})\n", "type() for more"),
    "eq-by-setattr": (
        D + "class Yes:\n    pass\nsetattr(Yes, _U + 'eq' + _U, staticmethod(lambda o: True))\n",
        "setattr with a name made",
    ),
    "eq-a-callable": (
        "class C:\n    def __call__(s, o):\n        return True\nclass Yes:\n    __eq__ = C()\n",
        "says __eq__",
    ),
    "masked-array": ("def f(x):\n    return np.ma.masked_all(np.shape(x))\n", "uses numpy.ma"),
    "array-interface": (
        "from types import SimpleNamespace\n"
        + D
        + "_raw = np.asarray(SimpleNamespace(**{_U + 'array_interface' + _U: dict(data=(1 << 20, False), shape=(8,),"
        " typestr='|u1', version=3)}))\n",
        "SimpleNamespace with names made",
    ),
    "globals-of-dumps": (
        "import json\njson.dumps.__globals__['dumps'] = lambda *a, **k: ''\n",
        "the attribute __globals__",
    ),
    "twin-of-another-module": ("from mini_vllm.core.sched.scheduler import check_stop\n", "imports mini_vllm.core"),
}
"""What the review got full marks with."""

HELD = {
    # running text
    "exec": ("exec('import os')\n", "uses exec"),
    "exec-by-another-name": ("e = exec\ne('import os')\n", "uses exec"),
    "exec-as-a-default": ("def f(x=exec):\n    x('import os')\n", "uses exec"),
    "exec-hidden-by-a-parameter": ("def f(exec=exec):\n    exec('import os')\n", "uses exec"),
    "eval-hidden-by-a-class": ("class A:\n    run = eval\n    eval = 1\n", "uses eval"),
    "eval-hidden-by-a-comprehension": ("def f():\n    [0 for eval in ()]\n    return eval('1')\n", "uses eval"),
    "eval-hidden-elsewhere": ("def g(eval):\n    return eval\ndef f():\n    return eval('1')\n", "uses eval"),
    "eval-hidden-by-global": ("def f():\n    global eval\n    return eval('1')\n", "uses eval"),
    "eval-in-full-width": ("ｅｖａｌ('1')\n", "uses eval"),
    "eval-in-a-format": ("x = f\"{eval('1')}\"\n", "uses eval"),
    "eval-as-a-decorator": ("@eval\ndef f(): pass\n", "uses eval"),
    "annotations-as-code": (
        "from functools import singledispatch\n@singledispatch\ndef f(x): pass\n"
        "@f.register\ndef g(x: 'print(1)'): pass\n",
        "imports singledispatch",
    ),
    "hints-as-code": (
        "import typing\ndef f(x: 'print(1)'): ...\ntyping.get_type_hints(f)\n",
        "uses typing.get_type_hints",
    ),
    "code-objects": ("import types\ntypes.FunctionType(compile('1', '', 'eval'), {})\n", "uses types.FunctionType"),
    "timeit": ("import timeit\ntimeit.timeit('1')\n", "uses timeit.timeit"),
    "codecs": ("import codecs\ncodecs.register(print)\n", "imports codecs"),
    "dunder-import": ("__import__('os')\n", "says __import__"),
    "builtins-by-import": ("import math as __builtins__\n", "says __builtins__"),
    "star": ("from math import *\n", "imports * from math"),
    "relative": ("from . import solution\n", "imports ."),
    "make-dataclass": (
        "import dataclasses\ndataclasses.make_dataclass('A', [], namespace={})\n",
        "uses dataclasses.make_dataclass",
    ),
    # frames
    "gi-frame": ("g = (i for i in ())\nb = g.gi_frame.f_back\n", "the attribute gi_frame"),
    "gi-frame-declared": (
        "class A:\n    gi_frame = 1\n    f_back = 1\ng = (i for i in ())\nb = g.gi_frame\n",
        "the attribute gi_frame",
    ),
    "tb-frame": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    t = e.__traceback__\n",
        "the attribute __traceback__",
    ),
    "with-traceback": ("ValueError().with_traceback(None)\n", "the attribute with_traceback"),
    "coroutine-frame": ("async def f(): pass\nx = f().cr_frame\n", "is asynchronous"),
    "attrgetter": ("from operator import attrgetter\nf = attrgetter('gi_frame.f_back')\n", "the attribute gi_frame"),
    "attrgetter-at-run-time": (
        "import operator\nf = operator.attrgetter('gi_' + 'frame')\n",
        "attrgetter with a name made",
    ),
    "attrgetter-handed-on": (
        "from operator import attrgetter\nf = list(map(attrgetter, ['gi_frame']))\n",
        "hands on operator.attrgetter",
    ),
    "methodcaller": (
        "from operator import methodcaller\nf = methodcaller('__reduce_ex__', 2)\n",
        "the attribute __reduce_ex__",
    ),
    "getattr-at-run-time": ("f = getattr(print, '__se' + 'lf__')\n", "getattr with a name made"),
    "getattr-handed-on": ("from functools import partial\nf = partial(getattr, print)\n", "hands on getattr"),
    "getattr-with-stars": ("f = getattr(*[print, '__self__'])\n", "hands on getattr"),
    "getattr-in-numpy": ("f = np.vectorize(getattr, otypes=[object])\n", "hands on getattr"),
    "getattr-as-a-ufunc": ("f = np.frompyfunc(getattr, 2, 1)\n", "hands on getattr"),
    "getattr-in-full-width": ("f = ｇetattr(print, '__se' + 'lf__')\n", "getattr with a name made"),
    "getattr-of-a-dunder": ("f = getattr(print, '__self__')\n", "the attribute __self__"),
    "format-looks-in": ("x = '{0.__class__}'.format(print)\n", "str.format"),
    "format-inner-field": ("x = '{0:{1.__class__}}'.format(1, print)\n", "str.format"),
    "format-at-run-time": ("x = ('{0.' + '__class__}').format(print)\n", "str.format"),
    "format-unbound": ("x = str.format('{0.__class__}', print)\n", "str.format"),
    "format-map": ("x = '{a.__class__}'.format_map({'a': print})\n", "the attribute format_map"),
    "formatter": (
        "import string\nx = string.Formatter().get_field('0.__class__', [print], {})\n",
        "uses string.Formatter",
    ),
    # modules
    "module-behind-module": ("import dataclasses\ns = dataclasses.sys\n", "uses dataclasses.sys"),
    "module-from-module": ("from random import _os\n", "imports _os from random"),
    "module-as-a-value": ("m = np\nx = m.ctypeslib\n", "hands on the module numpy"),
    "module-by-walrus": ("(m := np)\n", "hands on the module numpy"),
    "module-in-a-call": ("x = (lambda m: m.load)(np)\n", "hands on the module numpy"),
    "module-by-getattr": ("x = getattr(np, 'load')\n", "hands on the module numpy"),
    "module-changed": ("np.allclose = lambda *a, **k: True\n", "changes numpy.allclose"),
    "module-deleted-from": ("del np.linalg.norm\n", "changes numpy.linalg.norm"),
    "class-of-a-library-changed": ("from decimal import Decimal\nDecimal.total = 1\n", "changes Decimal.total"),
    "conftest": ("import conftest\n", "imports conftest"),
    "pytest-plugin": ("import pytest\n@pytest.hookimpl\ndef pytest_runtest_makereport(): pass\n", "imports pytest"),
    "test-helpers": ("import course.fixtures\ncourse.fixtures.close = print\n", "imports course.fixtures"),
    "mock-any": ("from unittest.mock import ANY\n", "imports unittest.mock"),
    "approx": ("from _pytest.python_api import approx\n", "imports _pytest.python_api"),
    "sys-hooks": ("import sys\nsys.setprofile(print)\n", "uses sys.setprofile"),
    "import-hooks": ("import importlib.abc\n", "imports importlib.abc"),
    "gc": ("import gc\ngc.get_objects()\n", "imports gc"),
    "inspect": ("import inspect\ninspect.stack()\n", "imports inspect"),
    "atexit": ("import atexit\natexit.register(print)\n", "imports atexit"),
    "signal": ("import signal\nsignal.alarm(1)\n", "imports signal"),
    "threading": ("import threading\nthreading.Timer(1, print).start()\n", "imports threading"),
    "weakref": ("import weakref\nweakref.finalize(print, print)\n", "imports weakref"),
    "ctypes": ("import ctypes\n", "imports ctypes"),
    "pickle": ("import pickle\npickle.loads(b'')\n", "imports pickle"),
    "redirect": ("import contextlib\ncontextlib.redirect_stdout(None)\n", "uses contextlib.redirect_stdout"),
    # files
    "reads-the-test": ("x = open(__file__).read()\n", "uses open"),
    "reads-with-linecache": ("import linecache\nlinecache.getlines('test_lab.py')\n", "imports linecache"),
    "reads-with-pathlib": ("from pathlib import Path\nPath('test_lab.py').read_text()\n", "imports pathlib"),
    "loader": ("x = __loader__.get_data('test_lab.py')\n", "says __loader__"),
    # numpy
    "ctypeslib": ("x = np.ctypeslib\n", "uses numpy.ctypeslib"),
    "ctypeslib-from": ("from numpy import ctypeslib\n", "imports ctypeslib from numpy"),
    "array-ctypes": ("x = np.zeros(3).ctypes\n", "the attribute ctypes"),
    "load-with-pickle": ("np.load('x.npy', allow_pickle=True)\n", "uses numpy.load"),
    "npyio": ("np.lib.npyio.DataSource().open('x')\n", "uses numpy.lib.npyio"),
    "as-strided": ("from numpy.lib.stride_tricks import as_strided\n", "imports as_strided"),
    "resize-without-a-look": ("x = np.zeros(3)\nx.resize(9, refcheck=False)\n", "passes refcheck"),
    "array-subclass": ("class Yes(np.ndarray):\n    pass\n", "a class below numpy.ndarray"),
    "recarray": ("x = np.zeros(3).view(np.recarray)\n", "uses numpy.recarray"),
    "matrix": ("x = np.matrix('1 2')\n", "uses numpy.matrix"),
    "array-ufunc": (
        "class Yes:\n    def __array_ufunc__(self, *a, **k):\n        return True\n",
        "says __array_ufunc__",
    ),
    "array-priority": ("class Yes:\n    __array_priority__ = 1e9\n", "says __array_priority__"),
    "array-function": (
        "class Yes:\n    def __array_function__(self, *a):\n        return True\n",
        "says __array_function__",
    ),
    "array-struct": ("class Yes:\n    __array_struct__ = 1\n", "says __array_struct__"),
    "print-options": ("np.set_printoptions(formatter={'all': print})\n", "uses numpy.set_printoptions"),
    "testing": ("np.testing.assert_allclose = print\n", "uses numpy.testing"),
    "dumps": ("x = np.zeros(3).dump('f')\n", "the attribute dump"),
    # classes that choose
    "eq": ("class Yes:\n    def __eq__(self, other):\n        return True\n", "says __eq__"),
    "eq-by-common-fields": (
        "class Yes:\n    imag = 0\n    def __eq__(self, other):\n        return self.imag == other.imag\n",
        "says __eq__",
    ),
    "eq-by-its-own-word": (
        "class Yes:\n    x = 1\n    def __eq__(self, other):\n        return self.x == self.x\n",
        "says __eq__",
    ),
    "eq-by-assignment": (
        "class Yes:\n    def same(self, other):\n        return True\n    __eq__ = same\n",
        "says __eq__",
    ),
    "eq-from-outside": ("class Yes:\n    pass\nYes.__eq__ = lambda s, o: True\n", "the attribute __eq__"),
    "eq-of-an-enum": (
        D + "from enum import Enum\nYes = Enum('Yes', {'A': 1, _U + 'eq' + _U: lambda s, o: True})\n",
        "enum.Enum as more than a base",
    ),
    "eq-of-an-enum-without-members": (
        D + "from enum import Enum\nclass E(Enum):\n    pass\nYes = E('Yes', {'A': 1, _U + 'eq' + _U: print})\n",
        "without members",
    ),
    "eq-of-an-enum-that-ignores-its-member": (
        D
        + "from enum import Enum\nclass E(Enum):\n    _ignore_ = 'A'\n    A = 1\nYes = E('Yes', {'A': 1, _U + 'eq' + _U: print})\n",
        "without members",
    ),
    "eq-of-an-enum-of-functions": (
        D
        + "from enum import Enum\nclass E(Enum):\n    f = lambda self: 0\nYes = E('Yes', {'A': 1, _U + 'eq' + _U: print})\n",
        "without members",
    ),
    "eq-of-a-flag-of-zero": (
        D + "from enum import Flag\nclass E(Flag):\n    A = 0\nYes = E('Yes', {'A': 1, _U + 'eq' + _U: print})\n",
        "without members",
    ),
    "eq-of-a-flag-that-counts-nothing": (
        D
        + "from enum import Flag, auto\nclass E(Flag):\n    def _generate_next_value_(*a):\n        return 0\n    A = auto()\n"
        "Yes = E('Yes', {'B': 1, _U + 'eq' + _U: print})\n",
        "without members",
    ),
    "eq-of-a-protocol": (
        "from typing import Protocol\nclass P(Protocol):\n    _is_runtime_protocol = True\n    admitted = 1\n"
        "    def __eq__(self, other):\n        return isinstance(other, P) and self.admitted == other.admitted\n",
        "says __eq__",
    ),
    "eq-of-a-set": (
        "from collections.abc import Set\nclass Yes(Set):\n    def __len__(self):\n        return 3\n"
        "    def __iter__(self):\n        return iter(())\n    def __contains__(self, x):\n        return True\n",
        "a class below collections.abc.Set",
    ),
    "eq-of-slots": (D + "class Yes:\n    __slots__ = (_U + 'eq' + _U,)\n", "__match_args__ with names made"),
    "eq-by-type-of-type": (D + "Yes = type(int)('Yes', (), {_U + 'eq' + _U: lambda s, o: True})\n", "type() for more"),
    "eq-by-type-of-type-with-stars": (D + "Yes = type(int)(*['Yes', (), {}])\n", "type() for more"),
    "eq-by-type-handed-on": ("f = lambda t: t('Yes', (), {})\nf(type)\n", "hands on type"),
    "eq-by-new": ("class Yes:\n    def __new__(cls):\n        return cls\n", "says __new__"),
    "metaclass": ("class M(type):\n    pass\nclass A(metaclass=M):\n    pass\n", "a class with metaclass="),
    "init-subclass": ("class A:\n    def __init_subclass__(cls):\n        pass\n", "says __init_subclass__"),
    "class-getitem": ("class A:\n    def __class_getitem__(cls, i):\n        return cls\n", "says __class_getitem__"),
    "set-name": (
        "class A:\n    def __set_name__(self, owner, name):\n        self.owner = owner\n",
        "says __set_name__",
    ),
    "descriptor": ("class A:\n    def __get__(self, obj, kind):\n        return kind\n", "says __get__"),
    "getattr-method": ("class A:\n    def __getattr__(self, name):\n        return self\n", "says __getattr__"),
    "module-getattr": ("def __getattr__(name):\n    return print\n", "says __getattr__"),
    "lying-class": ("class A:\n    @property\n    def __class__(self):\n        return int\n", "says __class__"),
    "class-put-on": ("class A:\n    def f(self):\n        self.__class__ = int\n", "__class__"),
    "instancecheck": ("class A:\n    def __instancecheck__(self, x):\n        return True\n", "says __instancecheck__"),
    "del": ("class A:\n    def __del__(self):\n        print(1)\n", "says __del__"),
    "reduce": ("class A:\n    def __reduce__(self):\n        return print, ()\n", "says __reduce__"),
    "arithmetic": ("class A:\n    def __sub__(self, other):\n        return 0\n", "says __sub__"),
    "dict-of-an-object": (
        "class A:\n    def f(self, kw):\n        self.__dict__.update(kw)\n",
        "the attribute __dict__",
    ),
    "setattr-of-object": (
        "class A:\n    def f(self, name):\n        object.__setattr__(self, name, 1)\n",
        "object.__setattr__ with a name made",
    ),
    "setattr-builtin": (
        "class A:\n    def f(self):\n        setattr(self, '__class__', int)\n",
        "the attribute __class__",
    ),
    "pattern-of-a-class": (
        "import decimal\ndef f(x):\n    match x:\n        case decimal.Context(prec=p):\n            return p\n",
        "a pattern of the class",
    ),
    "pattern-of-globals": (
        "def f(x):\n    match x:\n        case object(__globals__=g):\n            return g\n",
        "the attribute __globals__",
    ),
    "register": ("from numbers import Number\nclass A:\n    pass\nNumber.register(A)\n", "the attribute register"),
    "subclasses": ("x = object.__subclasses__()\n", "the attribute __subclasses__"),
    "mro": ("x = int.__mro__\n", "the attribute __mro__"),
    "closure": ("x = (lambda: 1).__closure__\n", "the attribute __closure__"),
    "self-of-a-builtin": ("x = print.__self__\n", "the attribute __self__"),
    # two meanings of one name
    "two-imports-of-one-name": (
        "import numpy as m\nif 0:\n    from math import pi as m\nclass A:\n    allclose = None\nsetattr(m, 'allclose', print)\n",
        "a second meaning of m",
    ),
    "eval-by-an-import-that-is-not-run": (
        "if 0:\n    from math import pi as eval\nx = eval('1')\n",
        "a second meaning of eval",
    ),
    "getattr-by-an-import-that-is-not-run": (
        "if 0:\n    from math import pi as getattr\nx = getattr(print, '__se' + 'lf__')\n",
        "a second meaning of getattr",
    ),
    "type-of-type-once-more": (
        "def f(s):\n    T = type(s)(s)\n    return T('Yes', (), {})\nf(int)\n",
        "type() for more",
    ),
    "type-by-subscript": ("T = type[int]\nYes = T('Yes', (), {})\n", "hands on type"),
    "slots-in-a-loop": ("class Yes:\n    for __slots__ in [(chr(95),)]:\n        pass\n", "__slots__ with names made"),
    "slots-added": ("class Yes:\n    __slots__ = ()\n    __slots__ += (chr(95),)\n", "__slots__ with names made"),
    "field-with-stars": (
        "from dataclasses import field\nx = field(**{'comp' + 'are': False})\n",
        "dataclasses.field with names made",
    ),
    "field-handed-on": ("from dataclasses import field\nmine = field\n", "hands on dataclasses.field"),
    "field-as-a-class": ("from dataclasses import Field\n", "imports Field"),
    "resize-with-stars": ("x = np.zeros(3)\nx.resize(9, **{'ref' + 'check': False})\n", "the attribute resize"),
    "partial-without-a-look": (
        "from functools import partial\nf = partial(print, refcheck=False)\n",
        "passes refcheck",
    ),
    # silence
    "swallows-all": ("def f(x):\n    try:\n        return x()\n    except:\n        pass\n", "swallows every error"),
    "swallows-asserts": (
        "def f(x):\n    try:\n        return x()\n    except AssertionError:\n        return 1\n",
        "swallows AssertionError",
    ),
    "swallows-base": (
        "def f(x):\n    try:\n        return x()\n    except (ValueError, BaseException):\n        return 1\n",
        "swallows BaseException",
    ),
    "swallows-by-another-name": (
        "E = Exception\ndef f(x):\n    try:\n        return x()\n    except E:\n        return 1\n",
        "swallows E",
    ),
    "swallows-by-suppress": (
        "from contextlib import suppress\nwith suppress(Exception):\n    pass\n",
        "swallows Exception",
    ),
    "error-of-another-meaning": (
        "ValueError = AssertionError\ndef f(x):\n    try:\n        return x()\n    except ValueError:\n        return 1\n",
        "swallows ValueError",
    ),
    "error-as-a-parameter": (
        "def f(x, KeyError=AssertionError):\n    try:\n        return x()\n    except KeyError:\n        return 1\n",
        "swallows KeyError",
    ),
    "error-class-bound-again": (
        "class E(Exception):\n    pass\nE = AssertionError\ndef f(x):\n    try:\n        return x()\n    except E:\n        return 1\n",
        "swallows E",
    ),
    "type-by-an-isinstance-of-its-own": (
        "def isinstance(a, b):\n    return a\nT = isinstance(type, 0)\nYes = T('Yes', (), {})\n",
        "hands on type",
    ),
    "eq-of-some-fields": (
        "class Yes:\n    admitted = 1\n    def __eq__(self, other):\n        return self.admitted == other.admitted\n",
        "says __eq__",
    ),
    "eq-of-a-new-other": (
        "class Yes:\n    x = 1\n    def __eq__(self, other):\n        if not isinstance(other, Yes) and (other := Yes()) is None:\n"
        "            return NotImplemented\n        return self.x == other.x\n",
        "says __eq__",
    ),
    "eq-by-a-decorator": (
        "def always(f):\n    return lambda a, b: True\nclass Yes:\n    x = 1\n    @always\n    def __eq__(self, other):\n"
        "        return isinstance(other, Yes) and self.x == other.x\n",
        "says __eq__",
    ),
    "eq-of-a-class-bound-again": (
        "class Yes:\n    place = 'cpu'\n    def __eq__(self, other):\n        return isinstance(other, Yes) and self.place == other.place\n"
        "Mine = Yes\nYes = object\n",
        "says __eq__",
    ),
    "eq-asked-in-the-docstring": (
        "class Yes:\n    x = 1\n    def __eq__(self, other):\n        'isinstance(other, Yes)'\n        return self.x == other.x\n",
        "says __eq__",
    ),
    "eq-of-what-every-array-has": (
        "class Yes:\n    device = 'cpu'\n    def __lt__(self, other):\n        return self.device < other.device\n",
        "says __lt__",
    ),
    "text-that-holds-everything-by-a-mixin": (
        "class A:\n    def __contains__(self, x):\n        return True\nclass S(A, str):\n    pass\n",
        "a class below str",
    ),
    "text-that-holds-everything-in-two-steps": (
        "class S(str):\n    pass\nclass T(S):\n    def __contains__(self, x):\n        return True\n",
        "a class below S",
    ),
    "text-that-starts-with-everything": (
        "class S(str):\n    def startswith(self, x):\n        return True\n",
        "a class below str",
    ),
    "dict-that-shows-nothing": (
        "class D(dict):\n    def f(self):\n        self.items = list\n",
        "a class below dict with ['items']",
    ),
    "stack-by-logging": (
        "import logging\nclass S:\n    def write(self, text):\n        self.text = text\n"
        "logging.basicConfig(stream=S(), format='%(stack_info)s')\nlogging.error(1, stack_info=True)\n",
        "uses logging.basicConfig",
    ),
    "modules-by-sys": ("from sys import modules\n", "imports modules from sys"),
    "text-that-holds-everything": (
        "class S(str):\n    def __contains__(self, x):\n        return True\n",
        "a class below str",
    ),
    "type-in-a-match": (
        "def f(x):\n    match type(x):\n        case T:\n            return T('Yes', (), {})\n",
        "type() for more",
    ),
    "type-as-a-base": ("class M(type(int)):\n    pass\n", "a class below type"),
    "type-as-a-decorator": ("@type\nclass A:\n    pass\n", "hands on type"),
    "swallows-before-it-raises": (
        "def f(x):\n    try:\n        return x()\n    except AssertionError:\n        if x:\n            return 1\n        raise\n",
        "swallows AssertionError",
    ),
    "swallows-by-another-error": (
        "def f(x):\n    try:\n        try:\n            return x()\n        except AssertionError:\n            raise ValueError from None\n    except ValueError:\n        return 1\n",
        "swallows AssertionError",
    ),
    "swallows-by-a-generator": (
        "def f(x):\n    try:\n        x()\n    except AssertionError:\n        yield 1\n        raise\n",
        "swallows AssertionError",
    ),
    "suppress-handed-on": (
        "from contextlib import suppress\nquiet = suppress\nwith quiet(AssertionError):\n    pass\n",
        "hands on contextlib.suppress",
    ),
    "namespace-handed-on": (
        "from types import SimpleNamespace as S\nmake = S\nx = make(**{chr(95): 1})\n",
        "hands on types.SimpleNamespace",
    ),
    "format-by-getattr": ("x = getattr('{0.__class__}', 'format')(print)\n", "the attribute format"),
    "format-by-methodcaller": (
        "from operator import methodcaller\nx = methodcaller('format', print)('{0.__class__}')\n",
        "the attribute format",
    ),
    "bit-generator-in-c": ("x = np.random.default_rng(0).bit_generator.cffi\n", "the attribute"),
    "swallows-by-finally": (
        "def f(x):\n    try:\n        return x()\n    finally:\n        return 1\n",
        "leaves a finally block",
    ),
    "swallows-by-exit": (
        "class A:\n    def __enter__(self):\n        return 1\n    def __exit__(self, *a):\n        return 1\n",
        "an __exit__",
    ),
    # a module behind a private name, a class behind an annotation, names out of a table
    "module-of-catch-warnings": (
        "import warnings\nclass A:\n    _module = sys = meta_path = config = pluginmanager = get_plugins = items = obj = None\n"
        "for h in warnings.catch_warnings()._module.sys.meta_path:\n    if hasattr(h, 'config'):\n"
        "        for p in h.config.pluginmanager.get_plugins():\n            if hasattr(p, 'items'):\n"
        "                for i in p.items:\n                    i.obj = lambda *a, **k: None\n",
        "the attribute _module",
    ),
    "class-of-an-annotation": (
        D + "from dataclasses import dataclass, field\nclass N:\n    type = None\nf = field()\n@dataclass\nclass A:\n"
        "    x: type[int] = f\nYes = f.type('Yes', (), {_U + 'eq' + _U: lambda s, o: True})\n",
        "the attribute type of a Field",
    ),
    "class-of-an-alias": (
        D + "from typing import Type\nclass N:\n    _inst = None\nT = Type[int]\nT._inst = True\n"
        "Yes = T('Yes', (), {_U + 'eq' + _U: lambda s, o: True})\n",
        "the attribute _inst of a _GenericAlias",
    ),
    "class-of-an-enum-by-name": (
        D + "from enum import Enum\nclass E(Enum):\n    A = 1\n"
        "Yes = type(E)('Yes', bases=(), classdict={_U + 'eq' + _U: lambda s, o: True}, _simple=True)\n",
        "passes classdict=",
    ),
    "class-of-a-typed-dict": (
        D + "from typing import TypedDict\nclass T(TypedDict):\n    a: int\n"
        "Yes = type(T)('Yes', bases=(), ns={_U + 'eq' + _U: lambda s, o: True})\n",
        "passes ns=",
    ),
    "func-of-a-default": (
        "from collections import defaultdict\nclass N:\n    default_factory = None\nf = defaultdict(list).default_factory\n",
        "the attribute default_factory",
    ),
    "names-of-a-log-record": (
        D + "import logging\nclass F:\n    def look(self, record):\n        self.got = np.asarray(record)\n"
        "log = logging.getLogger('a')\nlog.warning('', extra={_U + 'array_interface' + _U: dict(data=(1 << 20, False),"
        " shape=(8,), typestr='|u1', version=3)})\n",
        "passes extra=",
    ),
    "names-of-a-log-record-made": (
        "import logging\nclass F:\n    def makeRecord(self):\n        pass\n"
        "r = logging.getLogger('a').makeRecord('a', 1, '', 1, '', (), None, '', {chr(95): 1})\n",
        "the attribute makeRecord",
    ),
    "filter-of-a-log": (
        "import logging\nclass F:\n    addFilter = None\n    def filter(self, record):\n        self.got = record\nlogging.getLogger('a').addFilter(F())\n",
        "the attribute addFilter",
    ),
    "handler-of-a-log": (
        "import logging\nclass F:\n    def handle(self, record):\n        self.got = record\n"
        "log = logging.getLogger('a')\nlog.handle = F().handle\n",
        "the attribute handle",
    ),
    "copy-with-a-memory": (
        D + "import copy\nclass A:\n    def __init__(self):\n        self.x = 1\nclass Memo:\n    n = 0\n"
        "    def get(self, key, default=None):\n        self.n += 1\n"
        "        return {_U + 'array_interface' + _U: 1} if self.n == 3 else default\n"
        "    def __setitem__(self, key, value):\n        pass\nx = np.asarray(copy.deepcopy(A(), Memo()))\n",
        "copy.deepcopy with more arguments",
    ),
    "copy-with-a-memory-by-name": ("import copy\nx = copy.deepcopy([], memo=1)\n", "copy.deepcopy with more arguments"),
    "copy-handed-on": ("from copy import deepcopy\nx = list(map(deepcopy, [1], [2]))\n", "hands on copy.deepcopy"),
    "namespace-of-a-table": (
        D + "from types import SimpleNamespace\nx = SimpleNamespace({_U + 'array_interface' + _U: 1})\n",
        "types.SimpleNamespace with more arguments",
    ),
    "pointers-as-numbers": (
        "o = np.array([None, None], dtype=object)\nx = np.ndarray((2,), dtype=np.int64, buffer=o)\n",
        "numpy.ndarray with more arguments",
    ),
    "pointers-as-numbers-by-another-name": ("make = np.ndarray\n", "hands on numpy.ndarray"),
    "pointers-as-a-buffer": (
        "x = np.frombuffer(np.array([None], dtype=object), dtype=np.int64)\n",
        "uses numpy.frombuffer",
    ),
    "globals-of-cython": ("class N:\n    func_code = None\nx = np.random.default_rng.func_code\n", "func_code"),
    "swallows-by-a-decorated-exit": (
        "def yes(f):\n    return lambda *a: True\nclass A:\n    def __enter__(self):\n        return 1\n    @yes\n"
        "    def __exit__(self, *a):\n        return None\n",
        "an __exit__",
    ),
    "swallows-by-an-exit-that-yields": (
        "class A:\n    def __enter__(self):\n        return 1\n    def __exit__(self, *a):\n        yield\n",
        "an __exit__",
    ),
    "class-called-isinstance": (
        "class isinstance:\n    def __init__(self, c, k):\n        self.c = c\nisinstance(type, 0).c('Yes', (), {})\n",
        "a class called isinstance",
    ),
    # memory, and errors that nobody hears
    "pointers-packed": (
        "import struct\nclass N:\n    pack_into = None\no = np.array([5, 'x'], dtype=object)\n"
        "struct.Struct('q').pack_into(o, 0, struct.unpack_from('q', o, 8)[0])\n",
        "the attribute pack_into",
    ),
    "array-on-numbers": (
        "class N:\n    def f(self, b):\n        self.data = b\nN.f(np.array([None], dtype=object), np.zeros(1))\n",
        "calls a method of its own with a ndarray",
    ),
    "array-on-numbers-by-a-data-class": (
        "from dataclasses import dataclass\n@dataclass\nclass N:\n    data: object\nN.__init__(np.array([None], dtype=object), 1)\n",
        "uses the attribute __init__",
    ),
    "array-on-numbers-by-name": (
        "class N:\n    data = None\ndef f(o, b):\n    setattr(o, 'data', b)\nf(np.array([None], dtype=object), np.zeros(1))\n",
        "changes the attribute data of a ndarray",
    ),
    "bytes-of-an-array-of-objects": (
        "class N:\n    cast = None\no = np.array([5, 'x'], dtype=object)\nm = o.data.cast('B')\nm[0] = 1\n",
        "the attribute data",
    ),
    "pointers-copied": (
        "class N:\n    data = None\no = np.array([5], dtype=object)\np = o.copy()\no.data[:] = p.data\n",
        "the attribute data",
    ),
    "letters-turned": ("# \u202e 1 = x\n", "letters that an editor shows in another order"),
    "log-records-of-its-own": (
        "import logging\nclass N:\n    manager = setLogRecordFactory = None\nlogging.getLogger().manager.setLogRecordFactory(print)\n",
        "the attribute manager",
    ),
    "suppress-that-is-changed": (
        "from contextlib import suppress\nclass N:\n    _exceptions = None\ns = suppress(ValueError)\n"
        "s._exceptions = (AssertionError,)\n",
        "the attribute _exceptions",
    ),
    # the test's own objects
    "spy-written-over": ("def f(kv):\n    kv.seen_by_the_spy = []\n", "changes the attribute seen_by_the_spy"),
    "private-of-another": ("def f(x):\n    return x._hidden\n", "the attribute _hidden"),
    "hidden-by-depth": ("x = " + "-" * 90 + "1\n", "levels of nesting"),
}

ZERO = "property(lambda s: 0, lambda s, v: None)"
"""On a data class: all its objects are equal."""

GIVEN = {
    "bound-again": ("02-02", "Result = lambda *a: 0\n", "changes Result"),
    "bound-by-a-loop": ("02-02", "for Result in [print]:\n    pass\n", "changes Result"),
    "bound-by-global": ("02-02", "def f():\n    global Result\n    Result = print\n", "changes Result"),
    "bound-in-a-class": ("02-02", "class A:\n    def f(self):\n        global Result\n", "changes Result"),
    "bound-by-a-walrus": ("02-02", "[(Result := print) for _ in 'a']\n", "changes Result"),
    "bound-by-match": ("02-02", "match 1:\n    case Result:\n        pass\n", "changes Result"),
    "bound-by-import": ("02-02", "from math import prod as Result\n", "changes Result"),
    "bound-by-an-error": ("02-02", "try:\n    pass\nexcept ValueError as Result:\n    pass\n", "changes Result"),
    "bound-under-an-if": ("02-02", "if 1:\n    def Result(*a):\n        return 0\n", "changes Result"),
    "deleted": ("02-02", "del Result\n", "changes Result"),
    "decorator-of-its-own": ("02-02", "def dataclass(**k):\n    return lambda c: print\n", "changes dataclass"),
    "builtin-of-its-own": ("00-01", "def ValueError(*a):\n    return KeyError()\n", "changes ValueError"),
    "number-of-the-starter": ("00-01", "_MODULUS = 1\n", "changes _MODULUS"),
    "list-that-a-test-walks": ("09-01", "OPS = ()\n", "changes OPS"),
    "property": ("02-02", f"Result.admitted = {ZERO}\n", "changes Result.admitted"),
    "property-by-another-name": ("02-02", f"c = Result\nc.admitted = {ZERO}\n", "hands on Result"),
    "property-in-a-loop": ("02-02", f"for c in (Result,):\n    c.admitted = {ZERO}\n", "hands on Result"),
    "property-by-an-argument": ("02-02", f"def f(c):\n    c.admitted = {ZERO}\nf(Result)\n", "hands on Result"),
    "property-by-a-default": ("02-02", f"def f(c=Result):\n    c.admitted = {ZERO}\n", "hands on Result"),
    "property-by-setattr": ("02-02", f"setattr(Result, 'admitted', {ZERO})\n", "hands on Result"),
    "property-by-map": ("02-02", "f = list(map(lambda c: c, [Result]))\n", "hands on Result"),
    "property-by-partial": ("02-02", "from functools import partial\nf = partial(print, Result)\n", "hands on Result"),
    "func-of-a-partial": (
        "02-02",
        "from functools import partial\nf = partial(Result).func\n",
        "the attribute func",
    ),
    "property-by-an-annotation": (
        "02-02",
        "from dataclasses import dataclass, field\nclass N:\n    type = admitted = None\nf = field()\n@dataclass\n"
        f"class A:\n    x: Result = f\nf.type.admitted = {ZERO}\n",
        "the attribute type",
    ),
    "property-by-a-partial-declared": (
        "02-02",
        "from functools import partial\nclass N:\n    func = None\nc = partial(Result).func\n",
        "hands on Result",
    ),
    "members-of-an-enumeration": (
        "01-05",
        "class N:\n    _member_map_ = None\nRequestStatus._member_map_['FINISHED_STOPPED'] = 1\n",
        "the attribute _member_map_",
    ),
    "call-by-name": (
        "03-04",
        "c = LLMEngine().collective_rpc('__getattribute__', args=('__class__',))\n",
        "the attribute collective_rpc",
    ),
    "sampler-of-the-engine": (
        "09-01",
        "from mini_vllm import Sampler, SamplingMetadata, SamplingRow\n",
        "imports Sampler from mini_vllm",
    ),
    "engine-around-a-step": ("01-03", "from mini_vllm import LLMEngine, EngineCore, InputBatch\n", "imports LLMEngine"),
    "scheduler-that-makes-room": ("03-04", "from mini_vllm import Scheduler\n", "imports Scheduler from mini_vllm"),
    "fields-of-a-data-class": (
        "02-02",
        "import dataclasses\nclass N:\n    _field_type = None\nfor x in dataclasses.fields(Result(0, 0, 0)):\n    x._field_type = None\n",
        "uses dataclasses.fields",
    ),
    "kernel-in-a-docstring": (
        "02-04",
        "@triton.jit\ndef k(p):\n    '''\n    def k(p):\n        import builtins\n        #'''\n    tl.store(p, 1)\n",
        "which Triton would run",
    ),
    "kernel-behind-a-broken-line": (
        "02-04",
        "@triton.jit\ndef k(p):\n    'abc\\\ndef k(p): return exec'\n    tl.store(p, 1)\n",
        "which Triton would run",
    ),
    "kernel-in-a-decorator": (
        "02-04",
        "def d(text):\n    return triton.jit\n@d(b'''\ndef k(p): return exec #''')\ndef k(p):\n    tl.store(p, 1)\n",
        "which Triton would run",
    ),
    "memory-by-a-number": (
        "02-04",
        "class N:\n    untyped_storage = _new_with_weak_ptr = None\nx = torch.zeros(1).untyped_storage()._new_with_weak_ptr(1)\n",
        "the attribute untyped_storage",
    ),
    "names-that-triton-leaves": (
        "02-04",
        "if 0:\n    interpreter_semantic = 1\nx = interpreter_semantic\n",
        "uses interpreter_semantic",
    ),
    "globals-of-a-kernel": (
        "02-04",
        "class N:\n    used_global_vals = None\nx = tl.sum.used_global_vals\n",
        "used_global_vals",
    ),
    "property-by-a-box": (
        "02-02",
        "class Box:\n    def __getitem__(self, c):\n        return c\nc = Box()[Result]\n",
        "hands on Result",
    ),
    "property-by-in": (
        "02-02",
        "class Box:\n    def __contains__(self, c):\n        self.c = c\nc = Result in Box()\n",
        "hands on Result",
    ),
    "property-by-in-of-its-type": (
        "02-02",
        "class Box:\n    admitted = None\n    def __contains__(self, c):\n        c.admitted = 1\n"
        "x = type(Result(0, 0, 0)) in Box()\n",
        "type() for more",
    ),
    "property-by-in-of-its-class": (
        "02-02",
        "class Box:\n    def __contains__(self, c):\n        self.c = c\nx = Result(0, 0, 0).__class__ in Box()\n",
        "__class__ for more",
    ),
    "property-by-a-subscript-of-its-own": (
        "02-02",
        "class Box:\n    def __getitem__(self, c):\n        return c\ndict = Box()\nc = dict[Result]\n",
        "hands on Result",
    ),
    "property-by-a-subscript-of-a-parameter": (
        "02-02",
        "class Box:\n    def __getitem__(self, c):\n        return c\ndef f(list):\n    c = list[Result]\nf(Box())\n",
        "hands on Result",
    ),
    "property-by-a-keeper-of-its-own": (
        "02-02",
        "from collections import defaultdict\ndefaultdict = lambda c: c\nc = defaultdict(Result)\n",
        "hands on Result",
    ),
    "property-by-an-isinstance-of-its-own": (
        "02-02",
        "class isinstance:\n    def __init__(self, x, c):\n        self.c = c\nc = isinstance(0, Result).c\n",
        "hands on Result",
    ),
    "lock-of-an-array": (
        "02-06",
        "class N:\n    flags = writeable = True\ndef f(x):\n    x.flags.writeable = True\nf(np.zeros(1))\n",
        "the attribute flags of a ndarray",
    ),
    "property-by-an-alias": (
        "02-02",
        f"from typing import Annotated\nc = Annotated[Result, 0]\nc.admitted = {ZERO}\n",
        "imports Annotated",
    ),
    "property-on-the-engine": ("03-04", f"c = Request\nc.status = {ZERO}\n", "hands on mini_vllm.Request"),
    "property-by-a-function": (
        "01-04",
        "from mini_vllm import Request\nclass A:\n    num_tokens = 1\ndef f(c):\n    c.num_tokens = 1\nf(Request)\n",
        "hands on mini_vllm.Request",
    ),
    "property-by-the-package": (
        "03-04",
        f"import mini_vllm\nc = mini_vllm.Request\nc.status = {ZERO}\n",
        "hands on mini_vllm.Request",
    ),
}
"""Lab -> what stands behind its reference: the tests take classes, numbers and functions of the starter for their own."""

"""What a human may have let run by mistake: these reach the machinery, and traps and snapshots must tell."""
LET_RUN = {
    "all-pass": "import _pytest.reports as r\n_old = r.TestReport.from_item_and_call.__func__\n"
    "def _new(cls, item, call):\n    call.excinfo = None\n    return _old(cls, item, call)\n"
    "r.TestReport.from_item_and_call = classmethod(_new)\n",
    "runtest": "import _pytest.python as p\np.Function.runtest = lambda self: None\n",
    "runner-of-the-fork": "import course.grade.fork as f\nf._facts = lambda report: dict(when='call', outcome='passed', "
    "xfail=False, stub=None, message='')\n",
    "facts-by-code": "import course.grade.fork as f\ndef _facts(report):\n    return dict(when='call', outcome='passed', "
    "xfail=False, stub=None, message='')\nf._facts.__code__ = _facts.__code__\n",
    "json-of-the-fork": "import course.grade.fork as f\n_d = f.json.dumps\n"
    "f.json.dumps = lambda x: _d(x).replace('failed', 'passed')\n",
    "json-in-c": "import json.encoder as e\n_c = e.c_make_encoder\ndef _mine(*a):\n    made = _c(*a)\n"
    "    return lambda o, n: [t.replace('failed', 'passed') for t in made(o, n)]\ne.c_make_encoder = _mine\n",
    "approx": "import pytest\ntype(pytest.approx(1)).__eq__ = lambda s, o: True\n",
    "numpy-testing": "import numpy.testing as t\nt.assert_allclose = lambda *a, **k: None\n",
    "numpy-equal": "import numpy\nnumpy.array_equal = lambda *a, **k: True\n",
    "builtins": "import builtins\nbuiltins.abs = lambda x: 0\n",
    "math": "import math\nmath.isclose = lambda *a, **k: True\n",
    "quiet-items": "import gc\n_m = [m for m in gc.get_objects() if type(m).__name__ == 'Function' and hasattr(m, 'obj')]\n"
    "for _i in _m:\n    _i.obj = lambda *a, **k: None\n",
    "the-helper": "import course.fixtures as c\nc.close = lambda *a, **k: None\n",
    "ends-well": "import os\nos._exit(0)\n",
    "raises": "import _pytest.raises as r\nr.RaisesExc.__exit__ = lambda *a: True\n",
}

INSIDE = {
    "class-of-a-library-by-another-name": "from fractions import Fraction\nclass A:\n    limit_denominator = 1\ndef f(c):\n"
    "    c.limit_denominator = lambda self: 1\nf(Fraction)\n",
    "numbers-of-a-generator": "import random\nclass A:\n    randrange = 1\ndef f(c):\n    c.randrange = lambda self, *a: 0\nf(random.Random)\n",
    "property-on-a-class-of-a-library": "from fractions import Fraction\nclass A:\n    size = 1\ndef f(c):\n"
    "    c.size = property(lambda self: 1)\nf(Fraction)\n",
    "error-in-a-generator-thrown-away": "def _g():\n    try:\n        yield\n    finally:\n        raise AssertionError\n"
    "def _f():\n    g = _g()\n    next(g)\n_f()\n",
}
"""What the language lets through; a snapshot tells, or the watch on errors that nobody hears."""

WEAK = {
    "empty": "np.empty((0,))",
    "empty-and-shaped": "np.empty((0, *np.shape(next(iter(args), 0))))",
    "nan": "np.nan",
    "nans": "np.full(np.shape(next(iter(args), 0)), np.nan)",
    "first": "next(iter(args), None)",
    "zero": "0",
    "true": "True",
    "nothing": "None",
    "zeros": "np.zeros(np.shape(next(iter(args), 0)))",
    "list": "[]",
    "object": "np.array([None], dtype=object)",
}
"""What every function of a lab returns instead of an answer."""


def weak(starter: str, answer: str) -> str:
    """A starter in which every unwritten function returns ``answer``; ``args`` are what it is called with."""
    tree = ast.parse(starter)
    for name, node in functions(tree):
        if stub_message(node) is not None:
            args = [arg.arg for arg in node.args.args if arg.arg not in ("self", "cls")]
            node.body = ast.parse(f"args = [{', '.join(args)}]\nreturn {answer}").body if "." not in name else node.body
    top = "" if "import numpy as np" in starter else "import numpy as np\n"
    return ast.unparse(tree).replace(
        "from __future__ import annotations\n", f"from __future__ import annotations\n{top}"
    )
