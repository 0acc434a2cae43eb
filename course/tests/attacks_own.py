# ruff: noqa: E501
"""More attacks, in the form of ``attacks.py``: they change or read an attribute of what is not the submission's own, or
go round a rule about it. Each is caught by its text or, where the text does not show it, by a look at the object."""

from __future__ import annotations

FIELD = "from dataclasses import dataclass, field\nclass N:\n    name = None\n"
DEEP = "class N:\n    gi_frame = f_back = f_globals = None\n"
CLOSED = "\ndef _lazy():\n    yield\n"

OWN = {
    # where a method's head stands, the name of its object means something else
    "store-in-a-default": (
        FIELD
        + "self = field(default=0)\nclass C:\n    def m(self, x=[0 for self.name in ('other',)]):\n        return x\n",
        "changes the attribute name of a Field",
    ),
    "store-in-a-decorator": (
        FIELD
        + "self = field()\ndef deco(x):\n    return lambda f: f\nclass C:\n    @deco([0 for self.name in ('other',)])\n"
        "    def m(self):\n        return 1\n",
        "changes the attribute name of a Field",
    ),
    "frame-in-a-default": (
        DEEP + "def g():\n    yield\nself = g()\nclass C:\n    def m(self, x=self.gi_frame):\n        return x\n",
        "reads the attribute gi_frame of a generator",
    ),
    # a class below one whose name means a built-in type by then
    "base-that-is-bound-again": (
        "class A:\n    pass\nA = str\nclass B(A):\n    def __contains__(self, x):\n        return True\n",
        "a class below A",
    ),
    "base-that-is-a-parameter": (
        "class A:\n    pass\ndef f(A):\n    class B(A):\n        def __contains__(self, x):\n            return True\n    return B\n",
        "a class below A",
    ),
    "pattern-of-a-parameter": (
        DEEP
        + "def g():\n    yield\ndef f(x, N):\n    match x:\n        case N(gi_frame=y):\n            return y\nf(g(), object)\n",
        "a pattern of the class N",
    ),
    "base-that-a-decorator-gives": (
        "def swap(c):\n    return str\n@swap\nclass A:\n    pass\nclass B(A):\n    def __contains__(self, x):\n        return True\n",
        "a class below A",
    ),
    "error-that-a-decorator-gives": (
        "def swap(c):\n    return Exception\n@swap\nclass E(ValueError):\n    pass\ndef f(g):\n    try:\n        return g()\n"
        "    except E:\n        return 2\n",
        "swallows E",
    ),
    "object-that-is-a-parameter": (
        "def f(object):\n    class B(object):\n        def __contains__(self, x):\n            return True\n    return B\n",
        "a class below object",
    ),
    "base-that-is-an-import-and-a-parameter": (
        "from enum import Enum\ndef f(Enum):\n    class B(Enum):\n        A = 1\n        def __contains__(self, x):\n            return True\n"
        "    return B\n",
        "a class below enum.Enum",
    ),
    "difference-to-whatever-comes": (
        "def swap(c):\n    return object\n@swap\nclass V:\n    def __sub__(self, other):\n        if not isinstance(other, V):\n"
        "            return NotImplemented\n        return 0\n",
        "says __sub__",
    ),
    "base-of-a-loop": (
        "class A:\n    pass\nfor A in (str,):\n    class B(A):\n        def split(self):\n            return self\n",
        "a class below A",
    ),
    # a function that only calls itself a kernel, so that nothing is looked at in it
    "decorator-that-is-called-jit": (
        FIELD + "def my_jit(f):\n    return f\n@my_jit\ndef put(o):\n    o.name = 'other'\nput(field(default=0))\n",
        "changes the attribute name of a Field",
    ),
    # a store, in each spelling, on a field of a data class: its name becomes source of the standard library
    "store": (FIELD + "one = field(default=0)\none.name = 'other'\n", "changes the attribute name of a Field"),
    "store-through-a-parameter": (
        FIELD + "def put(o):\n    o.name = 'other'\nput(field(default=0))\n",
        "changes the attribute name of a Field",
    ),
    "store-by-unpacking": (
        FIELD + "def put(o):\n    o.name, rest = 'other', 1\nput(field())\n",
        "changes the attribute name of a Field",
    ),
    "store-by-a-starred-target": (
        FIELD + "def put(o):\n    first, *o.name = 'other'\nput(field())\n",
        "changes the attribute name of a Field",
    ),
    "store-with-an-annotation": (
        FIELD + "def put(o):\n    o.name: str = 'other'\nput(field())\n",
        "changes the attribute name of a Field",
    ),
    "store-that-adds": (
        FIELD + "def put(o):\n    o.name += 'other'\nput(field())\n",
        "changes the attribute name of a Field",
    ),
    "store-by-a-loop": (
        FIELD + "def put(o):\n    for o.name in ('other',):\n        pass\nput(field())\n",
        "changes the attribute name of a Field",
    ),
    "store-by-a-comprehension": (
        FIELD + "def put(o):\n    return [0 for o.name in ('other',)]\nput(field())\n",
        "changes the attribute name of a Field",
    ),
    "store-by-with": (
        FIELD
        + "from contextlib import nullcontext\ndef put(o):\n    with nullcontext('other') as o.name:\n        pass\nput(field())\n",
        "changes the attribute name of a Field",
    ),
    "store-by-setattr": (
        FIELD + "def put(o):\n    setattr(o, 'name', 'other')\nput(field())\n",
        "changes the attribute name of a Field",
    ),
    "store-by-the-setattr-of-object": (
        FIELD + "def put(o):\n    object.__setattr__(o, 'name', 'other')\nput(field())\n",
        "changes the attribute name of a Field",
    ),
    "delete": (FIELD + "def put(o):\n    del o.name\nput(field())\n", "changes the attribute name of a Field"),
    "delete-by-delattr": (
        FIELD + "def put(o):\n    delattr(o, 'name')\nput(field())\n",
        "changes the attribute name of a Field",
    ),
    "store-out-of-a-list": (
        FIELD + "some = [field()]\nsome[0].name = 'other'\n",
        "changes the attribute name of a Field",
    ),
    "store-out-of-an-own-object": (
        FIELD
        + "class Box:\n    def __init__(self, o):\n        self.o = o\nbox = Box(field())\nbox.o.name = 'other'\n",
        "changes the attribute name of a Field",
    ),
    # an object that is called self and is none
    "self-of-another": (
        FIELD + "class M:\n    def put(self):\n        self.name = 'other'\nM.put(field())\n",
        "calls a method of its own with a Field",
    ),
    "self-of-another-by-a-value": (
        FIELD + "class M:\n    def put(self):\n        self.name = 'other'\nfor way in [M.put]:\n    way(field())\n",
        "calls a method of its own with a Field",
    ),
    "self-of-another-by-map": (
        FIELD + "class M:\n    def put(self):\n        self.name = 'other'\nlist(map(M.put, [field()]))\n",
        "calls a method of its own with a Field",
    ),
    "self-of-another-by-a-decorator": (
        FIELD
        + "def grab(way):\n    way(field())\n    return way\nclass M:\n    @grab\n    def put(self):\n        self.name = 'other'\n",
        "calls a method of its own with a Field",
    ),
    "self-of-a-static-method": (
        FIELD + "class M:\n    @staticmethod\n    def put(self):\n        self.name = 'other'\nM.put(field())\n",
        "changes the attribute name of a Field",
    ),
    "self-bound-again": (
        FIELD + "class M:\n    def put(self, o):\n        self = o\n        self.name = 'other'\nM().put(field())\n",
        "changes the attribute name of a Field",
    ),
    "self-of-an-inner-function": (
        FIELD
        + "class M:\n    def put(self, o):\n        def inner(self):\n            self.name = 'other'\n        inner(o)\nM().put(field())\n",
        "changes the attribute name of a Field",
    ),
    "self-of-an-inner-lambda": (
        FIELD
        + "class M:\n    def put(self, o):\n        way = lambda self: setattr(self, 'name', 'other')\n        way(o)\nM().put(field())\n",
        "changes the attribute name of a Field",
    ),
    "init-of-a-data-class": (
        FIELD + "@dataclass\nclass M:\n    name: str\nM.__init__(field(), 'other')\n",
        "uses the attribute __init__",
    ),
    "init-by-a-name-in-a-text": (
        FIELD + "@dataclass\nclass M:\n    name: str\ngetattr(M, '__init__')(field(), 'other')\n",
        "uses the attribute __init__",
    ),
    "init-by-methodcaller": (
        "from contextlib import suppress\nfrom operator import methodcaller\nmethodcaller('__init__', AssertionError)(suppress(KeyError))\n",
        "uses the attribute __init__",
    ),
    "suppress-begun-again": (
        "from contextlib import suppress\ns = suppress(KeyError)\ns.__init__(AssertionError)\n",
        "uses the attribute __init__",
    ),
    "exit-of-another": (
        "from decimal import localcontext\nc = localcontext()\nc.__enter__()\n",
        "uses the attribute __enter__",
    ),
    # other objects that become names, code or behaviour
    "attrname-of-a-cached-property": (
        "from functools import cached_property\nclass N:\n    attrname = None\nclass P:\n    x = cached_property(len)\nP.x.attrname = 'y'\n",
        "functools.cached_property otherwise than as a decorator",
    ),
    "attrname-through-a-parameter": (
        "from functools import cached_property\nclass N:\n    attrname = None\ndef put(o):\n    o.attrname = 'y'\nput(cached_property(len))\n",
        "functools.cached_property otherwise than as a decorator",
    ),
    "logger-that-swallows": (
        "import logging\nclass N:\n    propagate = None\nlogging.getLogger('a').propagate = False\n",
        "changes the attribute propagate of a Logger",
    ),
    "parent-of-a-logger": (
        "import logging\nclass N:\n    parent = None\ndef put(o):\n    o.parent = N()\nput(logging.getLogger('a'))\n",
        "changes the attribute parent of a Logger",
    ),
    "generator-of-a-context": (
        "from contextlib import contextmanager\nclass N:\n    gen = None\n@contextmanager\ndef room():\n    yield\nc = room()\nc.gen = iter('a')\n",
        "changes the attribute gen of a _GeneratorContextManager",
    ),
    "generator-of-a-context-handed-on": (
        "from contextlib import contextmanager\nclass N:\n    gen = None\n@contextmanager\ndef room():\n    yield\ndef put(o):\n    o.gen = iter('a')\nput(room())\n",
        "changes the attribute gen of a _GeneratorContextManager",
    ),
    "context-of-decimals": (
        "from decimal import getcontext\nclass N:\n    prec = None\ndef put(o):\n    o.prec = 1\nput(getcontext())\n",
        "changes the attribute prec of a Context",
    ),
    "numerator-of-a-fraction": (
        "from fractions import Fraction\nclass N:\n    _numerator = None\ndef put(o):\n    o._numerator = 0\nput(Fraction(1))\n",
        "changes the attribute _numerator of a Fraction",
    ),
    "items-of-a-queue": (
        "import queue\nclass N:\n    queue = None\ndef look(o):\n    return o.queue\nlook(queue.Queue())\n",
        "reads the attribute queue of a Queue",
    ),
    "dice-of-its-own": (
        "import random\nclass N:\n    random = None\ndef put(o):\n    o.random = lambda: 0\nput(random.Random())\n",
        "changes the attribute random of a",
    ),
    "function-of-a-partial": (
        "from functools import partial\nclass N:\n    func = None\ndef look(o):\n    return o.func\nlook(partial(print))\n",
        "reads the attribute func of a partial",
    ),
    "data-class-of-a-librarys-class": (
        "from dataclasses import dataclass\nfrom fractions import Fraction\ndataclass(Fraction)\n",
        "dataclasses.dataclass otherwise than as a decorator",
    ),
    "data-class-by-an-alias": (
        "import dataclasses as d\nfrom fractions import Fraction\nway = d.dataclass\nway(Fraction)\n",
        "dataclasses.dataclass otherwise than as a decorator",
    ),
    "order-of-a-librarys-class": (
        "from functools import total_ordering\nfrom fractions import Fraction\nlist(map(total_ordering, [Fraction]))\n",
        "functools.total_ordering otherwise than as a decorator",
    ),
    # reading what a class of the file only declares
    "frame-through-a-parameter": (
        DEEP + "def look(g):\n    return g.gi_frame.f_back.f_globals\nlook(i for i in ())\n",
        "reads the attribute gi_frame of a generator",
    ),
    "frame-of-an-own-generator": (
        DEEP + CLOSED[1:] + "g = _lazy()\ndef look(g):\n    return getattr(g, 'gi_frame')\nlook(g)\n",
        "reads the attribute gi_frame of a generator",
    ),
    "frame-by-attrgetter": (
        DEEP + "from operator import attrgetter\nlist(map(attrgetter('gi_frame.f_back'), [(i for i in ())]))\n",
        "reads the attribute gi_frame of a generator",
    ),
    "frame-by-methodcaller": (
        DEEP + "from operator import methodcaller\nlist(map(methodcaller('gi_frame'), [(i for i in ())]))\n",
        "methodcaller for gi_frame",
    ),
    "frame-by-a-pattern": (
        DEEP + "def look(g):\n    match g:\n        case object(gi_frame=f):\n            return f\n",
        "a pattern of object with gi_frame=",
    ),
    "frame-asked-for": (
        DEEP + "def look(g):\n    return hasattr(g, 'gi_frame')\nlook(i for i in ())\n",
        "reads the attribute gi_frame of a generator",
    ),
    "module-through-a-parameter": (
        "import warnings\nclass N:\n    _module = None\ndef look(w):\n    return w._module\nlook(warnings.catch_warnings())\n",
        "reads the attribute _module of a catch_warnings",
    ),
    "register-of-an-abstract-class": (
        "import abc\nclass N:\n    def register(self):\n        pass\nclass A(abc.ABC):\n    pass\nA.register(int)\n",
        "reads the attribute register of",
    ),
    "inherited-from-an-error": (
        "class N:\n    with_traceback = None\nclass E(ValueError):\n    def back(self):\n        return self.with_traceback(None)\nE().back()\n",
        "reads the attribute with_traceback of a E",
    ),
    "inherited-by-super": (
        "class N:\n    with_traceback = None\nclass E(ValueError):\n    def back(self):\n        return super().with_traceback(None)\nE().back()\n",
        "reads the attribute with_traceback of a super",
    ),
    "inherited-in-two-steps": (
        "class N:\n    with_traceback = None\nclass D(ValueError):\n    pass\nclass E(D):\n    def back(self):\n        return self.with_traceback(None)\nE().back()\n",
        "reads the attribute with_traceback of a E",
    ),
    "tables-of-an-enumeration": (
        "from enum import Enum\nclass N:\n    _value2member_map_ = None\nclass E(Enum):\n    A = 1\ndef look(e):\n    return e._value2member_map_\nlook(E)\n",
        "the attribute _value2member_map_",
    ),
    "mro-of-a-class": (
        "class N:\n    mro = None\n    @classmethod\n    def look(cls):\n        return cls.mro\nclass M:\n    @classmethod\n    def look(cls):\n        return cls.mro()\nM.look()\n",
        "reads the attribute mro of a type",
    ),
    # round the rules for what honest files say
    "error-turned-and-swallowed": (
        "def f(g):\n    try:\n        g()\n    except Exception as e:\n        raise RuntimeError('x') from e\ndef h(g):\n    try:\n        f(g)\n    except RuntimeError:\n        pass\n",
        "swallows Exception",
    ),
    "error-turned-into-the-end-of-a-loop": (
        "class L:\n    def __iter__(self):\n        return self\n    def __next__(self):\n        try:\n            return len(self)\n        except AssertionError as e:\n            raise StopIteration from e\n",
        "swallows AssertionError",
    ),
    "error-turned-into-a-missing-attribute": (
        "def f(x):\n    try:\n        return str(x)\n    except Exception as e:\n        raise AttributeError('x') from e\n",
        "swallows Exception",
    ),
    "difference-to-everything": (
        "class Zero:\n    def __sub__(self, other):\n        return 0\n    __rsub__ = __sub__\n",
        "says __sub__",
    ),
    "difference-to-numbers": (
        "class Zero:\n    def __sub__(self, other):\n        if not isinstance(other, (Zero, int)):\n            return NotImplemented\n        return 0\n",
        "says __sub__",
    ),
    "difference-with-an-isinstance-of-its-own": (
        "def isinstance(*a):\n    return True\nclass Zero:\n    def __sub__(self, other):\n        if not isinstance(other, Zero):\n            return NotImplemented\n        return 0\n",
        "says __sub__",
    ),
    "author-that-is-code": ("__author__ = lambda: 0\n", "says __author__"),
    "main-that-runs": ("__name__ = '__main__'\nif __name__ == '__main__':\n    import os\n", "imports os"),
    "main-with-an-else": ("if __name__ == '__main__':\n    pass\nelse:\n    import os\n", "imports os"),
    "template-bound-twice": (
        "T = '{}'\ndef f(x):\n    global T\n    T = '{0.__class__}'\n    return T.format(x)\n",
        "str.format",
    ),
    "template-of-a-parameter": ("T = '{}'\ndef f(T, x):\n    return T.format(x)\n", "str.format"),
    "bytes-of-the-error-stream": ("import sys\nb = sys.stderr.buffer\n", "sys.stderr for more than print"),
    "stream-for-a-print-of-its-own": (
        "import sys\ndef print(file):\n    return file.buffer\nprint(file=sys.stderr)\n",
        "sys.stderr for more than print",
    ),
}
