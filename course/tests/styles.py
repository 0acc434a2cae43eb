# ruff: noqa: E501
"""Thirty more styles in which a right file may be written: what stands at its top, and what a function says around its
answer. Written for the language's sake, after its rules; see ``honest.py`` for the form."""

from __future__ import annotations

from course.tests.honest import Style, wrapped

TOPS: dict[str, tuple[str, str]] = {
    "tells-about-itself": (
        '__author__ = "a learner"\n__version__ = "1.0.2"\n__all__ = ["main"]\n__credits__ = ["a", "b"]\n',
        "answer = {call}\nreturn answer\n",
    ),
    "turns-errors": (
        "class LabError(Exception):\n    pass\ndef _checked(fn):\n    try:\n        value = fn()\n    except Exception as error:\n"
        "        raise LabError(f'{{error}}') from error\n    else:\n        return value\n",
        "_checked(lambda: 1)\nreturn {call}\n",
    ),
    "turns-errors-plainly": (
        "def _checked(fn):\n    try:\n        return fn()\n    except Exception:\n        raise RuntimeError('no') from None\n",
        "_checked(int)\nreturn {call}\n",
    ),
    "own-operators": (
        "class Vec:\n    __slots__ = ('x', 'y')\n    def __init__(self, x, y=0):\n        self.x, self.y = x, y\n"
        "    def __add__(self, other):\n        if not isinstance(other, Vec):\n            return NotImplemented\n        return Vec(self.x + other.x, self.y + other.y)\n"
        "    def __sub__(self, other):\n        if isinstance(other, Vec):\n            return Vec(self.x - other.x, self.y - other.y)\n        return NotImplemented\n"
        "    def __mul__(self, other):\n        return Vec(self.x * other.x, self.y * other.y) if isinstance(other, Vec) else NotImplemented\n"
        "    def __iadd__(self, other):\n        if not isinstance(other, Vec):\n            return NotImplemented\n        self.x += other.x\n        return self\n"
        "    def __neg__(self):\n        return Vec(-self.x, -self.y)\n    def __repr__(self):\n        return f'Vec({{self.x}}, {{self.y}})'\n",
        "v = Vec(1, 2) + Vec(3) - -Vec(1) * Vec(2, 2)\nv += Vec(5)\nassert v.x == 11, v\nreturn {call}\n",
    ),
    "doctests": (
        'import doctest\ndef twice(x):\n    """Twice.\n\n    >>> twice(2)\n    4\n    """\n    return 2 * x\nif __name__ == "__main__":\n    doctest.testmod()\n',
        "assert twice(2) == 4\nreturn {call}\n",
    ),
    "a-main": (
        "import sys\nimport argparse\ndef main(argv):\n    print(len(argv))\n    return 0\nif __name__ == '__main__':\n    import sys\n    sys.exit(main(sys.argv))\n",
        "return {call}\n",
    ),
    "prints": (
        "import sys\nfrom sys import stdout\ndef log(*args, level=1):\n    print('[lab]', *args, sep=' ', end='\\n', file=sys.stderr, flush=True)\n",
        "log('{name}')\nprint('x', file=stdout)\nreturn {call}\n",
    ),
    "walrus": (
        "import re\n",
        "if (found := re.match(r'(\\w+)', '{name}')) and (n := len(found.group(1))) > 0:\n    assert n\nwhile (n := n - 1) > 0:\n    pass\nreturn (answer := {call})\n",
    ),
    "functools": (
        "import functools\nfrom functools import lru_cache, partial, reduce, cache\n@lru_cache(maxsize=None)\ndef fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n"
        "@cache\ndef const():\n    return 7\ndef logged(times):\n    def outer(fn):\n        @functools.wraps(fn)\n        def inner(*args, **kwargs):\n            for _ in range(times - 1):\n                pass\n            return fn(*args, **kwargs)\n        return inner\n    return outer\n@logged(times=2)\ndef add(a, b=1):\n    return a + b\n",
        "assert fib(10) == 55 and const() == 7 and partial(add, 1)(b=2) == 3 and reduce(add, [1, 2, 3], 0) == 6\nfib.cache_clear()\nreturn {call}\n",
    ),
    "itertools": (
        "from itertools import accumulate, chain, combinations, count, cycle, groupby, islice, pairwise, product, repeat, starmap, takewhile, dropwhile, tee, zip_longest, compress, permutations\nimport itertools as it\n",
        "xs = [3, 1, 2, 2]\nassert list(accumulate(xs)) == [3, 4, 6, 8] and [*chain.from_iterable([xs, xs])] == xs * 2\n"
        "assert {{k: len(list(g)) for k, g in groupby(sorted(xs))}} == {{1: 1, 2: 2, 3: 1}} and list(islice(count(1), 3)) == [1, 2, 3]\n"
        "a, b = tee(xs)\nnext(b)\nassert list(zip(a, b)) == list(pairwise(xs)) and len(list(product(xs, repeat=2))) == 16\n"
        "assert list(zip_longest([1], [2, 3], fillvalue=0)) == [(1, 2), (0, 3)] and list(it.repeat(1, 2)) == [1, 1]\nreturn {call}\n",
    ),
    "typing": (
        "from collections.abc import Callable, Iterator, Mapping, Sequence\nfrom typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, NewType, Optional, Protocol, TypedDict, TypeVar, Union, cast, overload\n"
        "T = TypeVar('T')\nUserId = NewType('UserId', int)\nLIMIT: Final[int] = 3\nMode = Literal['a', 'b']\nPairs = dict[str, list[tuple[int, int]]]\n"
        "if TYPE_CHECKING:\n    from collections.abc import Iterable\nclass Told(TypedDict, total=False):\n    key: str\n    n: int\n"
        "class Sized2(Protocol):\n    def size(self) -> int: ...\nclass Stack(Generic[T]):\n    most: ClassVar[int] = 9\n    def __init__(self) -> None:\n        self.rows: list[T] = []\n    def push(self, one: T) -> 'Stack[T]':\n        self.rows.append(one)\n        return self\n    def size(self) -> int:\n        return len(self.rows)\n"
        "class Point(NamedTuple):\n    x: int\n    y: int = 0\n    @property\n    def far(self) -> int:\n        return abs(self.x) + abs(self.y)\n"
        "@overload\ndef same(x: int) -> int: ...\n@overload\ndef same(x: str) -> str: ...\ndef same(x):\n    return x\n",
        "s: Stack[int] = Stack()\nassert s.push(1).push(cast(int, 2)).size() == 2 and Point(1, -2).far == 3 and UserId(3) == 3\nrow: Told = {{'key': 'a'}}\nrow['n'] = same(1)\nreturn {call}\n",
    ),
    "dataclasses": (
        "from dataclasses import InitVar, asdict, astuple, dataclass, field, replace\nimport dataclasses\n@dataclass(frozen=True, order=True)\nclass Key:\n    rank: int\n    label: str = field(default='', compare=False)\n"
        "@dataclass(slots=True)\nclass Job:\n    key: Key\n    tags: list = field(default_factory=list)\n    data: dict = field(default_factory=dict, repr=False)\n    size: InitVar[int] = 0\n    total: int = field(init=False, default=0)\n    def __post_init__(self, size):\n        self.total = size * 2\n    @classmethod\n    def of(cls, rank, **more):\n        return cls(Key(rank), **more)\n    def grow(self, by=1):\n        self.total += by\n        return self\n"
        "@dataclass(frozen=True)\nclass Cold:\n    n: int\n    half: int = 0\n    def __post_init__(self):\n        object.__setattr__(self, 'half', self.n // 2)\n",
        "job = Job.of(2, tags=['a'], size=3)\njob.tags += ['b']\njob.data['k'] = job.key.rank\njob.total += 1\nassert job.grow(2).total == 9 and Cold(4).half == 2 and min(Key(2), Key(1)).rank == 1\nassert asdict(replace(Key(1), rank=4)) == {{'rank': 4, 'label': ''}} and astuple(Key(1)) == (1, '')\nreturn {call}\n",
    ),
    "linked-list": (
        "class Node:\n    def __init__(self, value, prev=None, next=None):\n        self.value, self.prev, self.next = value, prev, next\n"
        "class Chain:\n    def __init__(self, values=()):\n        self.head = Node(None)\n        self.tail = Node(None)\n        self.head.next, self.tail.prev = self.tail, self.head\n        self.size = 0\n        for value in values:\n            self.append(value)\n"
        "    def append(self, value):\n        node = Node(value, self.tail.prev, self.tail)\n        self.tail.prev.next = node\n        self.tail.prev = node\n        self.size += 1\n        return node\n"
        "    def remove(self, node):\n        node.prev.next = node.next\n        node.next.prev = node.prev\n        node.prev = node.next = None\n        self.size -= 1\n"
        "    def __iter__(self):\n        node = self.head.next\n        while node is not self.tail:\n            yield node.value\n            node = node.next\n    def __len__(self):\n        return self.size\n",
        "chain = Chain([1, 2])\nchain.remove(chain.head.next)\nchain.append(5).value = 6\nassert [*chain] == [2, 6] and len(chain) == 2\nreturn {call}\n",
    ),
    "tree": (
        "class Tree:\n    def __init__(self, key, parent=None):\n        self.key = key\n        self.parent = parent\n        self.children = {{}}\n        self.count, self.leaf = 0, False\n"
        "    def add(self, path):\n        node = self\n        for part in path:\n            node.count += 1\n            if part not in node.children:\n                node.children[part] = Tree(part, node)\n            node = node.children[part]\n        node.leaf = True\n        return node\n    def depth(self):\n        return 1 + max((child.depth() for child in self.children.values()), default=0)\n"
        "    @property\n    def root(self):\n        return self if self.parent is None else self.parent.root\n",
        "tree = Tree('')\nleaf = tree.add('abc')\nleaf.count += 1\nassert leaf.root is tree and tree.depth() == 4 and leaf.parent.key == 'b' and leaf.leaf\nreturn {call}\n",
    ),
    "recursion": (
        "def flat(x):\n    return [y for each in x for y in flat(each)] if isinstance(x, (list, tuple)) else [x]\ndef hanoi(n, a='a', b='b', c='c'):\n    if n:\n        yield from hanoi(n - 1, a, c, b)\n        yield a, c\n        yield from hanoi(n - 1, b, a, c)\n"
        "def counted(n):\n    calls = 0\n    def walk(n):\n        nonlocal calls\n        calls += 1\n        return n and n + walk(n - 1)\n    return walk(n), calls\n",
        "assert flat([1, [2, (3,)]]) == [1, 2, 3] and len(list(hanoi(3))) == 7 and counted(3) == (6, 4)\nreturn {call}\n",
    ),
    "contexts": (
        "from contextlib import closing, contextmanager, nullcontext, suppress\nclass Timer:\n    def __enter__(self):\n        self.open = True\n        return self\n    def __exit__(self, kind, error, trace):\n        self.open = False\n        return False\n"
        "@contextmanager\ndef depth(box):\n    box.append(1)\n    try:\n        yield box\n    finally:\n        box.pop()\n",
        "with Timer() as timer, depth([]) as box, nullcontext(3) as three:\n    assert timer.open and box == [1] and three == 3\nwith suppress(KeyError, IndexError):\n    [][0]\nassert not timer.open\nreturn {call}\n",
    ),
    "enums": (
        "from enum import Enum, IntEnum, Flag, auto, unique\n@unique\nclass State(Enum):\n    WAITING = 'waiting'\n    RUNNING = 'running'\n    @property\n    def short(self):\n        return self.value[0]\n    @classmethod\n    def parse(cls, text):\n        return cls(text.lower())\n"
        "class Level(IntEnum):\n    LOW = 1\n    HIGH = 2\nclass Bits(Flag):\n    A = auto()\n    B = auto()\n",
        "state = State.parse('RUNNING')\nmatch state:\n    case State.WAITING:\n        found = 0\n    case State.RUNNING:\n        found = 1\nassert found and state.short == 'r' and State['WAITING'].name == 'WAITING' and Level.HIGH > Level.LOW and Bits.A in (Bits.A | Bits.B) and len(State) == 2\nreturn {call}\n",
    ),
    "patterns": (
        "from dataclasses import dataclass\n@dataclass\nclass Dot:\n    x: int\n    y: int = 0\nclass Op:\n    __match_args__ = ('kind',)\n    def __init__(self, kind):\n        self.kind = kind\n"
        "def kind(value):\n    match value:\n        case Dot(x=0, y=0):\n            return 'origin'\n        case Dot(x=x) if x > 0:\n            return 'right'\n        case [first, *rest]:\n            return f'list of {{1 + len(rest)}}'\n        case {{'k': int(n), **more}}:\n            return f'map {{n}} {{len(more)}}'\n        case str() as text:\n            return text\n        case None | False:\n            return 'none'\n        case _:\n            return 'other'\n",
        "assert [kind(v) for v in (Dot(0), Dot(2), [1, 2], {{'k': 1, 'z': 2}}, 'a', None)] == ['origin', 'right', 'list of 2', 'map 1 1', 'a', 'none']\nreturn {call}\n",
    ),
    "generators": (
        "def running():\n    total, n = 0, 0\n    while True:\n        got = yield total / n if n else None\n        total, n = total + got, n + 1\ndef take(n, xs):\n    for i, x in enumerate(xs):\n        if i >= n:\n            return 'done'\n        yield x\ndef both():\n    end = yield from take(1, 'ab')\n    yield end\n",
        "mean = running()\nnext(mean)\nassert mean.send(2) == 2 and mean.send(4) == 3\nmean.close()\nassert list(both()) == ['a', 'done'] and sum(x * x for x in range(3) if x) == 5\nreturn {call}\n",
    ),
    "properties": (
        "class Temp:\n    scale = 2\n    made = 0\n    def __init__(self, c=0):\n        self._c = c\n        self.__hidden = c\n        Temp.made += 1\n    @property\n    def f(self):\n        return self._c * 9 / 5 + 32\n    @f.setter\n    def f(self, value):\n        self._c = (value - 32) * 5 / 9\n    @f.deleter\n    def f(self):\n        self._c = 0\n    @classmethod\n    def boiling(cls):\n        cls.last = cls(100)\n        return cls.last\n    @staticmethod\n    def twice(x):\n        return 2 * x\n    def hidden(self):\n        return self.__hidden\n    def __bool__(self):\n        return self._c != 0\n",
        "t = Temp.boiling()\nt.f = 32\nassert not t and t.hidden() == 100 and Temp.twice(2) == 4 and Temp.made >= 1 and Temp.last is t\ndel t.f\nreturn {call}\n",
    ),
    "templates": (
        "ROW = '{{:>5}}|{{name:<4}}|'\nimport textwrap\nfrom string import ascii_lowercase\n",
        "two_of = '{{}}-{{}}'\nassert ROW.format(1, name='a') == '    1|a   |' and two_of.format(1, 2) == '1-2' and '%03d %s' % (1, 'x') == '001 x'\nassert f'{{3.14159:.2f}} {{1_000:,}} {{\"a\"!r:>5}} {{255:#x}}' == \"3.14 1,000   'a' 0xff\"\nassert 'abc'.translate(str.maketrans('a', 'b')) == 'bbc' and textwrap.dedent('  a') == 'a' and ', '.join(map(str, [1, 2])) == '1, 2' and ascii_lowercase.index('c') == 2\nreturn {call}\n",
    ),
    "logging": (
        "import logging\nlogger = logging.getLogger(__name__)\nLOG = logging.getLogger('lab')\n",
        "logger.debug('%s begins', '{name}')\nLOG.info('a %d', 1)\nlogger.warning('w')\nreturn {call}\n",
    ),
    "errors": (
        "class LabError(ValueError):\n    def __init__(self, what, code=1):\n        super().__init__(what)\n        self.what, self.code = what, code\n    def __str__(self):\n        return f'{{self.what}} ({{self.code}})'\nclass Deep(LabError):\n    pass\n",
        "try:\n    raise Deep('x', code=3)\nexcept LabError as error:\n    assert str(error) == 'x (3)' and error.code == 3 and error.args == ('x',)\nelse:\n    raise AssertionError\nfinally:\n    done = True\ntry:\n    int('x')\nexcept (TypeError, ValueError):\n    pass\nassert done, 'not done'\nreturn {call}\n",
    ),
    "comprehensions": (
        "from operator import attrgetter, itemgetter, methodcaller\nclass One:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n    def both(self):\n        return self.a + self.b\n",
        "ones = [One(a, b) for a in range(2) for b in range(2) if a <= b]\nassert [o.both() for o in sorted(ones, key=attrgetter('a', 'b'), reverse=True)] == [2, 1, 0]\nassert sorted([(2, 'a'), (1, 'b')], key=itemgetter(0))[0] == (1, 'b') and list(map(methodcaller('upper'), 'ab')) == ['A', 'B']\n"
        "table = {{(i, j): i * j for i in range(2) for j in range(2)}}\n(first, *rest), last = [1, 2, 3], 4\nassert {{*table.values()}} == {{0, 1}} and {{**table, 'x': 1}}['x'] == 1 and rest == [2, 3] and [x if x else -x for x in (0, 1)] == [0, 1]\n"
        "for i, (a, b) in enumerate(zip([1, 2], [3, 4], strict=True), start=1):\n    assert a + 2 == b\nassert max(ones, key=lambda o: o.a).a == 1\nreturn {call}\n",
    ),
    "collections": (
        "from collections import ChainMap, Counter, OrderedDict, defaultdict, deque, namedtuple\nimport collections\nPair = namedtuple('Pair', ['left', 'right'], defaults=[0])\nclass Lru:\n    def __init__(self, size):\n        self.size, self.rows = size, OrderedDict()\n    def __getitem__(self, key):\n        self.rows.move_to_end(key)\n        return self.rows[key]\n    def __setitem__(self, key, value):\n        self.rows[key] = value\n        if len(self.rows) > self.size:\n            self.rows.popitem(last=False)\n    def __contains__(self, key):\n        return key in self.rows\n    def __delitem__(self, key):\n        del self.rows[key]\n",
        "lru = Lru(1)\nlru['a'] = 1\nlru['b'] = 2\nassert 'a' not in lru and lru['b'] == 2\ndel lru['b']\ncounts = Counter('aab')\ncounts.update('b')\nassert (counts - Counter('a')).total() == 3 and counts.most_common(1)[0][1] == 2\nring = deque([1, 2, 3], maxlen=3)\nring.rotate(1)\nring.appendleft(9)\nassert ring[0] == 9 and Pair(1)._replace(right=2)._asdict() == {{'left': 1, 'right': 2}} and ChainMap({{'a': 1}}, {{'b': 2}})['b'] == 2\ngroups = collections.defaultdict(list)\ngroups['x'].append(1)\nnested = defaultdict(lambda: defaultdict(int))\nnested['a']['b'] += 1\nreturn {call}\n",
    ),
    "numbers": (
        "import bisect\nimport heapq\nimport math\nimport statistics\nfrom decimal import Decimal\nfrom fractions import Fraction\nfrom heapq import heappop, heappush\n",
        "heap = []\nfor item in [(2, 'b'), (1, 'a')]:\n    heappush(heap, item)\nassert heappop(heap)[1] == 'a' and heapq.nsmallest(1, heap) == [(2, 'b')] and bisect.bisect_left([1, 3], 2) == 1\nassert math.isclose(math.sqrt(2) ** 2, 2) and -(-7 // 2) == math.ceil(7 / 2) and Fraction(1, 3).limit_denominator(10).numerator == 1 and Decimal('1.25').quantize(Decimal('0.1')) and statistics.median([1, 2, 3]) == 2\nassert (5).bit_length() == 3 and int.from_bytes(b'\\x01', 'big') == 1 and divmod(7, 2) == (3, 1) and round(2.5) == 2 and 1 << 3 ^ 1 == 9 and ~0 == -1\nreturn {call}\n",
    ),
    "module-state": (
        "import copy\nimport json\nimport random\nimport time\n_calls = 0\n_seen = {{}}\ndef _count():\n    global _calls\n    _calls += 1\n    _count.last = _calls\n    return _calls\n_count.last = 0\n",
        "_count()\nassert _count.last == _calls > 0\n_seen.setdefault('{name}', []).append(time.perf_counter() >= 0)\nrng = random.Random(3)\nassert sorted(rng.sample(range(9), 3)) and json.loads(json.dumps({{'a': [1, None]}})) == {{'a': [1, None]}} and copy.deepcopy(_seen) == _seen\nreturn {call}\n",
    ),
    "strategies": (
        "from abc import ABC, abstractmethod\nclass Policy(ABC):\n    name = 'none'\n    def __init__(self, *, limit=3):\n        self.limit = limit\n    @abstractmethod\n    def pick(self, rows):\n        ...\n    def __call__(self, rows):\n        return self.pick(rows)[: self.limit]\nclass Fifo(Policy):\n    name = 'fifo'\n    def pick(self, rows):\n        return list(rows)\nclass Lifo(Policy):\n    name = 'lifo'\n    def pick(self, rows):\n        return super().pick(rows) or list(reversed(rows))\nPOLICIES = {{policy.name: policy for policy in (Fifo, Lifo)}}\n",
        "policy = POLICIES['lifo'](limit=2)\npolicy.limit -= 1\nassert policy([1, 2]) == [2] and Fifo()('ab') == ['a', 'b'] and isinstance(policy, Policy) and issubclass(Lifo, Policy) and type(policy).__name__ == 'Lifo'\nreturn {call}\n",
    ),
    "loops": (
        "from collections.abc import Iterator\nclass Steps:\n    def __init__(self, stop):\n        self.at, self.stop = 0, stop\n    def __iter__(self) -> Iterator[int]:\n        return self\n    def __next__(self) -> int:\n        if self.at >= self.stop:\n            raise StopIteration\n        self.at += 1\n        return self.at\n",
        "total = 0\nfor step in Steps(3):\n    if step == 2:\n        continue\n    total += step\nelse:\n    total *= 10\nwhile True:\n    total -= 1\n    if total < 39:\n        break\nassert total == 38 and list(Steps(2)) == [1, 2] and any(s > 1 for s in Steps(2))\nreturn {call}\n",
    ),
    "strings": (
        "import re\nimport struct\nimport hashlib\nimport base64\nWORD = re.compile(r'(?P<w>[a-z]+)(\\d*)', re.I)\n",
        "found = WORD.search('ab12')\nassert found and found.group('w') == 'ab' and found.groups() == ('ab', '12') and found.span() == (0, 4) and found.start() == 0 and WORD.sub('x', 'ab1 c') == 'x x'\nassert struct.unpack('<I', struct.pack('<I', 5)) == (5,) and len(hashlib.sha256(b'a').hexdigest()) == 64 and base64.b64encode(b'a') == b'YQ=='\nassert 'a,b'.split(',') == 'a b'.split() and 'Ab'.swapcase() == 'aB' and b'ab'.hex() == '6162' and 'x'.encode('utf-8').decode() == 'x' and ' a '.strip().rjust(3, '.') == '..a'\nreturn {call}\n",
    ),
}
"""Style -> the top of the file, and the body around ``{call}``; braces are doubled."""

ARRAYS: dict[str, tuple[str, str]] = {
    "einsum": (
        "",
        "a, b = np.arange(6.0).reshape(2, 3), np.ones((3, 2))\nassert np.allclose(np.einsum('ij,jk->ik', a, b, optimize=True), a @ b) and (a.T @ a).shape == (3, 3)\nassert np.allclose(np.tensordot(a, b, axes=1), np.matmul(a, b)) and a.sum(axis=1, keepdims=True).shape == (2, 1)\nreturn {call}\n",
    ),
    "in-place": (
        "",
        "a = np.zeros(3)\nnp.add.at(a, [0, 0, 1], 1.0)\nnp.multiply(a, 2, out=a)\nnp.maximum(a, 0.5, out=a, where=a < 1)\na += 1\na[a > 4], a[:1] = 0, 7\nassert a.tolist() == [7, 3, 1.5] and np.add.reduce(a) == a.sum() and np.maximum.accumulate(a)[-1] == 7\nnp.clip(a, 0, 1, out=a)\nreturn {call}\n",
    ),
    "broadcasts": (
        "import numpy as np\nimport numpy.typing as npt\nfrom numpy.typing import NDArray\nFloats = npt.NDArray[np.float64]\n",
        "grid = np.linspace(0, 1, 4)\ngaps: Floats = grid[:, None] - grid[np.newaxis, :]\nlower = np.tril(np.ones((4, 4), dtype=bool))\nheat = np.where(lower, gaps, -np.inf)\nheat = np.exp(heat - heat.max(axis=-1, keepdims=True))\nheat /= heat.sum(axis=-1, keepdims=True)\nassert heat.shape == (4, 4) and np.all(np.isfinite(heat)) and grid.dtype == np.float64 and grid.ndim == 1 and grid.size == 4 and lower.any() and not lower.all()\nassert np.broadcast_to(grid, (2, 4)).shape == (2, 4) and np.expand_dims(grid, 0).squeeze().shape == (4,) and grid.reshape(2, -1).transpose(1, 0).ravel().astype(np.float32).itemsize == 4\nreturn {call}\n",
    ),
    "arrays-sorted": (
        "",
        "x = np.array([3, 1, 2], dtype=np.int64)\norder = np.argsort(-x, kind='stable')\nvalues, index, counts = np.unique(x, return_inverse=True, return_counts=True)\nassert order.tolist() == [0, 2, 1] and np.take_along_axis(x, order, 0)[0] == 3 and np.searchsorted(values, 2) == 1 and np.cumsum(x)[-1] == 6 and int(np.argmax(x)) == 0 and x[::-1].copy().item(0) == 2\nassert np.concatenate([x, x]).shape == np.hstack((x, x)).shape and np.stack([x, x]).shape == (2, 3) and np.bincount(x).max() == 1 and np.flatnonzero(x > 1).tolist() == [0, 2] and np.diff(x).tolist() == [-2, 1] and np.pad(x, (0, 1)).size == 4\nreturn {call}\n",
    ),
    "arrays-random": (
        "import numpy as np\nRNG = np.random.default_rng(0)\n",
        "rng = np.random.default_rng(1)\nx = rng.standard_normal((2, 3)).astype(np.float32)\nassert x.std() > 0 and rng.integers(0, 5, size=3).max() < 5 and rng.choice([1, 2]) in (1, 2) and rng.random() < 1 and rng.permutation(3).size == 3\nwith np.errstate(divide='ignore', invalid='ignore'):\n    y = np.log(np.zeros(1))\nassert np.isneginf(y).all() and np.linalg.norm(x) > 0 and np.finfo(np.float32).eps > 0 and np.iinfo(np.int8).max == 127 and np.nan_to_num(np.array([np.nan]))[0] == 0 and x.view(np.uint8).nbytes == 24 and np.frompyfunc(int, 1, 1)(1.5) == 1\nreturn {call}\n",
    ),
}


def _made(top: str, around: str) -> Style:
    def body(name: str, call: str, args: str) -> str:
        return around.format(name=name, call=call)

    return wrapped(top.format(), body)


MORE: dict[str, Style] = {name: _made(*rows) for name, rows in {**TOPS, **ARRAYS}.items()}
