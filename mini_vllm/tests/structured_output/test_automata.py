"""Regexes and EBNF as automata: judged by `re`, by a parser written for the test, and by a mask made the slow way."""

import itertools
import json
import random
import re
import time

import numpy as np
import pytest

from mini_vllm.structured_output.automata import grammar as grammars
from mini_vllm.structured_output.automata import rule_automaton
from mini_vllm.structured_output.automata.expression import GrammarError
from mini_vllm.structured_output.automata.grammar import Grammar
from mini_vllm.structured_output.automata.regex_parser import parse_regex
from mini_vllm.structured_output.automata.rule_automaton import disjoint
from mini_vllm.structured_output.automata.token_trie import TokenTrie
from mini_vllm.structured_output.automata.unicode_ranges import characters, complement, normalize
from mini_vllm.tests.structured_output.drive import allowed, byte_vocabulary, grammar_of, matches, pocket_vocabulary

PATTERNS = [
    "a*b",
    "(ab|a)*c",
    "[a-c]{2,4}",
    "(a|b)*abb",
    "x?y+z*",
    "[^ab]c",
    "[0-9]+[.][0-9]+",
    "(a|ab)(c|bcd)",
    "a{0,300}b",
    "(|a)b",
    "é+",
    "[à-ü]x",
    "a{3}",
    "a{2,}b",
    "(a{2}){1,3}",
    "a*?b+?",
    "(?:ab)+",
    "(?P<n>a)|(?<m>b)",
    r"\x61\u0062?",
    r"[\]\-a]+",
    r"\.\*",
    "^ab?$",
    "(^a|b)c",
    "a|b|",
    r"[^\x00-z]",
    "[a-]b",
    "日?本",
    r"[\U0001F600-\U0001F64F]",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_regex_matches_what_re_matches(pattern):
    grammar, rng = grammar_of("REGEX", pattern), random.Random(0)
    judge = re.compile(pattern.replace("(?<m>", "(?P<m>"))
    alphabet, own = list("abcxyz0.1éàü]-*日本😀{"), [c for c in pattern if c.isalpha()] or ["a"]
    hits = 0
    for _ in range(2500):
        text = "".join(rng.choice(own if rng.random() < 0.8 else alphabet) for _ in range(rng.randrange(8)))
        expected = judge.fullmatch(text) is not None
        assert matches(grammar, text) == expected, text
        hits += expected
    assert hits or pattern in (r"\.\*", r"[\U0001F600-\U0001F64F]", r"\x61\u0062?", "[0-9]+[.][0-9]+")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a(", "column 3: the group is not closed"),
        ("a)", r"unmatched '\)'"),
        ("*a", r"nothing to repeat before '\*'"),
        ("a**", "two repetitions in a row"),
        ("[a", r"'\[' is not closed"),
        ("[]", r"an empty \[\]"),
        ("[b-a]", "to a later one"),
        ("(?=a)b", "lookahead is not supported"),
        ("(?<!a)b", "lookbehind is not supported"),
        (r"\bword", "word boundaries"),
        (r"(a)\1", "backreferences"),
        (r"\p{L}", "Unicode classes"),
        ("(?i)a", "flags"),
        ("a{3,2}", "cannot be"),
        ("a{1,x}", "number"),
        ("a^", r"'\^' may stand at the start"),
        ("$a", r"'\$' may stand at the end"),
        (r"\u12", "ends too early"),
        ("a\\", "too early"),
        ("(" * 300 + "a" + ")" * 300, "more than 200 groups"),
        ("a{999999999}", "at most 100000"),
        (r"[^\s\S]", "no text at all"),
        pytest.param("a{99999}b{99999}c{99999}", "more than 200000 states", marks=pytest.mark.slow),
        pytest.param("(a|b)*a(a|b){40}", "too ambiguous", marks=pytest.mark.slow),
        pytest.param("(a?){3000}", "too ambiguous", marks=pytest.mark.slow),
    ],
)
def test_a_regex_that_cannot_be_is_refused(pattern, words):
    with pytest.raises(GrammarError, match=words):
        grammar_of("REGEX", pattern)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("a{999}b{999}c{999}", "more than 2000 states"), ("(a|b)*a(a|b){40}", "too ambiguous"),
     ("(a?){300}", "too ambiguous")],
)  # fmt: skip
def test_a_regex_beyond_a_lower_limit_is_refused(pattern, words, monkeypatch):
    """As those above at the real limits, which take seconds; smaller ones are within these too."""
    monkeypatch.setattr(rule_automaton, "MAX_STATES", 2000)
    monkeypatch.setattr(grammars, "MAX_STATES", 2000)
    monkeypatch.setattr(rule_automaton, "MAX_EFFORT", 30_000)
    grammar_of("REGEX", "a{999}|(a|b)*a(a|b){3}|(a?){30}")
    with pytest.raises(GrammarError, match=words):
        grammar_of("REGEX", pattern)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no rule"),
        ('root = "a"\nx ::= "b"', "'::=' must follow"),
        ('root ::= "a', "line 1, column 12: .*not closed"),
        ("root ::= a", "'root' refers to 'a'"),
        ('a ::= "x"', "no rule 'root'"),
        ('root ::= "a"\nroot ::= "b"', "defined twice"),
        ('root ::= ("a"', "the group is not closed"),
        ('root ::= | "a"', "may not be empty"),
        ("root ::= TagDispatch(x)", "the macro TagDispatch"),
        ('root ::= a\na ::= b "x" | "z"\nb ::= a "y" | "q"', r"left recursion .*a -> b -> a"),
        ('root ::= "a" root', "no text at all"),
        ('root ::= a\na ::= b a | "x"\nb ::= "y"?', "left recursion"),
        (r'root ::= "\q"', r"\\q is no escape"),
        ("root ::= ~", "'~' cannot stand here"),
    ],
)
def test_a_grammar_that_cannot_be_is_refused(text, words):
    with pytest.raises(GrammarError, match=words):
        grammar_of("GRAMMAR", text)


def test_rules_in_a_long_chain_are_compiled_in_a_moment():
    chain = "\n".join(f'r{n} ::= r{n + 1} "a"' for n in range(6000))
    start = time.process_time()
    grammar_of("GRAMMAR", f'root ::= r0\n{chain}\nr6000 ::= "b"')
    assert time.process_time() - start < 10  # the square of the rules takes a minute


def test_sums_with_left_recursion():
    text = 'root ::= e\ne ::= e "+" t | t\nt ::= t "*" f | f\nf ::= "(" e ")" | [0-9]+'
    grammar, rng = grammar_of("GRAMMAR", text), random.Random(1)
    hits = 0
    for _ in range(4000):
        sample = "".join(rng.choice("12+*()") for _ in range(rng.randrange(1, 8)))
        try:
            compile(re.sub(r"\d+", "1", sample), "", "eval")
            expected = not re.search(r"\+\+|\*\*|^[+*]|[(+*]\+|\)\(|\d\(|\)\d", sample)
        except SyntaxError:
            expected = False
        assert matches(grammar, sample) == (expected and "()" not in sample), sample
        hits += expected
    assert hits > 100


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ('root ::= s\ns ::= s s | "a" | "b" s "c"', ["a", "aa", "baac", "bbaaacc"], ["", "ba", "bc"]),
        ('root ::= "x"{2,700} "y"', ["xxy", "x" * 699 + "y", "x" * 700 + "y"], ["xy", "x" * 701 + "y"]),
        ('root ::= [a-c]{300,} "d"', ["abc" * 100 + "d", "a" * 999 + "d"], ["a" * 299 + "d"]),
        ('root ::= "" | "(" root ")"', ["", "()", "((()))"], ["(", "(()"]),
        ('root ::= "é\\n\\x41\\"" [^"\\\\]', ['é\nA"z', 'é\nA"日'], ['é\nA""']),
        ('root ::= a (= "x") "x" # comment\na ::= "1"', ["1x"], ["1"]),
        ('start: a b*\na: \'x\' | "y"\nb: "," a // Lark', ["x", "x,y,x"], ["", "x,"]),
        ("x: y\n| \"q\"\ny: 'z'", ["z", "q"], ["x"]),
    ],
)
def test_what_a_grammar_allows(text, good, bad):
    grammar = grammar_of("GRAMMAR", text)
    assert [each for each in good if not matches(grammar, each)] == []
    assert [each for each in bad if matches(grammar, each)] == []


def test_too_many_readings_end_with_an_error():
    grammar = grammar_of("GRAMMAR", 'root ::= s\ns ::= x s "b" | y s "c" | ""\nx ::= "a"\ny ::= "a"')
    with pytest.raises(GrammarError, match="too ambiguous"):
        grammar.accept_tokens("", [ord("a")] * 40)


@pytest.mark.parametrize("seed", range(30))
def test_characters_are_their_bytes_and_no_others(seed):
    rng = random.Random(seed)
    edges = [
        0,
        0x7F,
        0x80,
        0x7FF,
        0x800,
        0xD7FF,
        0xE000,
        0xFFFF,
        0x10000,
        0x10FFFF,
        *(rng.randrange(0x110000) for _ in range(4)),
    ]
    ranges = normalize([tuple(sorted(rng.sample(edges, 2))) for _ in range(3)])
    grammar = Grammar({"root": characters(ranges)}).compile()
    from mini_vllm.structured_output.automata.pushdown import DEAD, Pushdown

    automaton = Pushdown(grammar, 4)
    for code in {*edges, *(e + d for e in edges for d in (-1, 1)), *(rng.randrange(0x110000) for _ in range(300))}:
        if not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            continue
        number = automaton.number(automaton.start)
        for byte in chr(code).encode():
            number = automaton.step(number, byte)
        assert (number != DEAD and bool(automaton.ends[number])) == any(a <= code <= b for a, b in ranges)
    assert complement(complement(ranges)) == ranges


def test_sets_of_bytes_are_cut_where_they_overlap():
    assert disjoint([(0b0111, 1), (0b1110, 2)]) == [(0b0110, (1, 2)), (0b0001, (1,)), (0b1000, (2,))]


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("REGEX", r"[a-z]+ \d{2}"),
        ("GRAMMAR", 'root ::= "(" root ")" | "x"'),
        ("JSON", '{"type": "object"}'),
        ("JSON", '{"type": "string", "minLength": 5, "maxLength": 400}'),
    ],
)
def test_a_mask_is_what_trying_each_token_gives(kind, spec):
    grammar, rng = grammar_of(kind, spec, pocket_vocabulary()), random.Random(0)
    tokens = grammar.trie.tokens
    for _ in range(12):
        mask = allowed(grammar)
        tried = [bool(tokens[t]) and grammar.validate_tokens([t]) == [t] for t in range(len(tokens))]
        tried[2] = grammar.is_accepting()
        assert np.flatnonzero(mask).tolist() == np.flatnonzero(tried).tolist()
        choices = [t for t in np.flatnonzero(mask).tolist() if t != 2]
        if not choices:
            return
        grammar.accept_tokens("", [rng.choice(choices)])


def test_rolling_back_gives_the_same_masks():
    grammar, rng = grammar_of("JSON", '{"type": "object"}', pocket_vocabulary()), random.Random(3)
    masks = [allowed(grammar)]
    for _ in range(25):
        token = rng.choice([t for t in np.flatnonzero(masks[-1]).tolist() if t != 2])
        assert grammar.accept_tokens("", [token])
        masks.append(allowed(grammar))
    for count in range(1, 26):
        grammar.rollback(1)
        assert (allowed(grammar) == masks[-1 - count]).all()
    with pytest.raises(ValueError, match="cannot roll back 1 tokens of 0"):
        grammar.rollback(1)


def test_a_wrong_token_changes_nothing_and_the_end_is_the_end():
    grammar = grammar_of("REGEX", "ab")
    assert not grammar.accept_tokens("", [ord("a"), ord("a")]) and grammar.num_processed_tokens == 0
    assert grammar.validate_tokens([ord("a"), ord("b"), 256, 7]) == [ord("a"), ord("b"), 256]
    assert grammar.accept_tokens("", [ord("a"), ord("b"), 256]) and grammar.is_terminated()
    assert not grammar.accept_tokens("", [ord("a")]) and allowed(grammar).all()
    grammar.rollback(1)
    assert not grammar.is_terminated() and np.flatnonzero(allowed(grammar)).tolist() == [256]
    grammar.reset()
    assert grammar.num_processed_tokens == 0


def test_places_far_from_the_ends_of_a_repetition_share_a_mask():
    grammar = grammar_of("JSON", '{"type": "string", "maxLength": 1500}')
    grammar.accept_tokens("", [ord('"')])
    for _ in range(1400):
        allowed(grammar)
        assert grammar.accept_tokens("", [ord("x")])
    assert grammar.masks.num_walks < 40
    assert grammar.accept_tokens("", [ord("x")] * 100) and np.flatnonzero(allowed(grammar)).tolist() == [ord('"')]


def test_the_table_starts_anew_before_it_is_too_large(monkeypatch):
    monkeypatch.setattr("mini_vllm.structured_output.automata.pushdown.MAX_CONFIGURATIONS", 20)
    grammar = grammar_of("GRAMMAR", 'root ::= "[" root "]" | "x"')
    assert grammar.accept_tokens("", [])
    for _ in range(200):
        assert allowed(grammar)[ord("[")] and grammar.accept_tokens("", [ord("[")])
    assert grammar.pushdown.generation > 5
    assert grammar.accept_tokens("", [ord("x"), *[ord("]")] * 200]) and grammar.is_accepting()


def test_the_tree_holds_every_token_once():
    tokens = [b"a", b"ab", b"abc", b"b", b"", b"ab"]
    trie = TokenTrie.build(tokens, 8)
    assert trie.num_nodes == 5 and trie.longest == 3 and trie.num_words == 1
    assert trie.node_of_token[4] == trie.node_of_token[7] == 0 and trie.node_of_token[1] == trie.node_of_token[5]
    alive = np.zeros(trie.num_nodes, bool)
    alive[trie.node_of_token[1]] = True
    assert trie.pack(alive).tolist() == [0b100010]
    assert byte_vocabulary().stop_token_ids == [256]


def test_dot_and_classes_are_those_of_ecmascript():
    grammar = grammar_of("REGEX", r".\d\w\s\S")
    assert matches(grammar, "\n1_\u00a0é") and not matches(grammar, "x٣_ é")  # an Arabic digit is none of [0-9]
    assert parse_regex("") == parse_regex("^$")


def test_a_capital_class_leaves_out_whatever_anybody_calls_by_the_small_one():
    spaces = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000 and re.match(r"\s", chr(code))]
    spaces.append("\ufeff")  # to ECMA-262, and not to Python
    for pattern in (r"\S", r"[\S]", r"[^\s]", r"[^\sx]", r"[\Sx]"):
        grammar = grammar_of("REGEX", pattern)
        assert [each for each in spaces if matches(grammar, each)] == [], pattern
        assert all(matches(grammar, each) for each in "aé日\x00")
        grammar = grammar_of("JSON", json.dumps({"type": "string", "pattern": f"^{pattern}$"}))
        assert [each for each in spaces if matches(grammar, json.dumps(each, ensure_ascii=False))] == []
    narrow = grammar_of("REGEX", r"[^\S]")
    assert all(matches(narrow, each) for each in " \t\n\xa0") and not any(
        matches(narrow, each) for each in "\ufeff\x1fé"
    )
    assert all(matches(grammar_of("REGEX", r"[\s\S]"), each) for each in ["é", "\n", *spaces])
    grammar = grammar_of("JSON", json.dumps({"type": "string", "pattern": r"^(?!.*\s)(?!\x1f?x)[\s\S]{1,2}$"}))
    assert not any(matches(grammar, json.dumps(f"a{each}")) for each in spaces) and matches(grammar, '"ab"')
    assert matches(grammar_of("REGEX", r"\W\D"), "éé")


@pytest.mark.parametrize(
    "pattern", ["(^a)+", "(^a)*b", "(^a|b)*", "(?:^a){2}", "((^a)b)+", "(x|(^a){1,1}){0,3}", "(^a){2,}", "((^)a)*?"]
)
def test_a_group_that_is_opened_by_a_start_is_not_repeated(pattern):
    for kind, text in (("REGEX", pattern), ("JSON", json.dumps({"type": "string", "pattern": f"^{pattern}$"}))):
        with pytest.raises(GrammarError, match=r"a group with '\^' cannot be repeated"):
            grammar_of(kind, text)


@pytest.mark.parametrize("pattern", ["(^a)?b", "(^a|b)c", "^(^a){1}b", "(^a){0,1}b", "((^a)|b)c", "^^a", "(^a)b+"])
def test_a_start_that_stands_once_changes_nothing(pattern):
    grammar, judge = grammar_of("REGEX", pattern), re.compile(pattern)
    texts = ["".join(each) for n in range(5) for each in itertools.product("abc", repeat=n)]
    assert [matches(grammar, text) for text in texts] == [judge.fullmatch(text) is not None for text in texts]


def test_a_group_behind_the_name_of_a_rule():
    """As in llama.cpp's grammar of C."""
    text = """root ::= term
    term ::= factor(("*" | "/") factor)*   # one ::= (
    factor ::= [0-9]+ | "("term ")"
    """
    grammar = grammar_of("GRAMMAR", text)
    assert all(matches(grammar, each) for each in ("1", "1*2/3", "(4*5)*6"))
    assert not any(matches(grammar, each) for each in ("", "1*", "factor", "(4*5"))


@pytest.mark.parametrize(
    "text", ['root ::= TagDispatch((a))\na ::= "x"', 'root ::= "n ::= " n("a")', 'root ::= x ("a")']
)
def test_a_name_that_no_rule_has_is_refused_by_name(text):
    with pytest.raises(GrammarError, match=r"the macro \w+\(…\) is not supported|'x', which is not defined"):
        grammar_of("GRAMMAR", text)


LARK = [
    ('start: "a" ["b"] "c"', ["ac", "abc"], ['a"c', "abbc", 'ab"c']),
    ('start: "a" ["b" | x] "c"\nx: "d" [y]\ny: "e"', ["ac", "abc", "adc", "adec"], ["aec", "a|c"]),
    ('start: "a" [["b"] "c"]', ["a", "ac", "abc"], ["ab"]),
    ('start: [x] "c"\nx: [a-z]', ["ac", "c"], ["xxc"]),
    ('start: ["x|" y ["]"]]\ny: "y"', ["", "x|y", "x|y]"], ["y", "x"]),
    ('start: "a"\n  | "b"\n| "c"', ["a", "b", "c"], ["ab"]),
    ('start: ("a" |\n  "b")+ // "c"\n!y: "#"', ["a", "ba"], ["c", ""]),
    ("start: 'a\"b' '\\'' x{2,3}\n?x: '//' | '#'", ["a\"b'//#"], ["a\"b'//"]),
    ("start: [0-9/~]+", ["1/~"], ["a"]),
]


@pytest.mark.parametrize(("text", "good", "bad"), LARK)
def test_lark_is_read_as_lark_reads_it(text, good, bad):
    grammar = grammar_of("GRAMMAR", text)
    assert [each for each in good if not matches(grammar, each)] == []
    assert [each for each in bad if matches(grammar, each)] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((f'start: "a" b\nb: "b"\n{each} c', f"line 3: {each} of Lark")
          for each in ("%ignore", "%import", "%declare", "%extend", "%override")),
        ('start: "a" -> add', "the alias -> of Lark"),
        ("start: /a+/", "the regular expression /…/ of Lark"),
        ('start: "a".."z"', "the range .. of Lark"),
        ('start: "a" ~ 3', "the repetition ~ of Lark"),
        ('start: "a"i "b"', "a flag behind a text of Lark"),
        ('start: pair{"a"}', "a template of Lark"),
        ('pair{x}: x x\nstart: "a"', r"templates of Lark \({x}\)"),
        ('start.2: "a"', r"priorities of Lark \(.2\)"),
        ('start: "a"\nhello world', "line 2: 'hello world' is no rule of Lark"),
        ('hello world\nstart: "a"', "line 1: 'hello world' is no rule of Lark"),
        ('start: "a"\nstart: "b"', "line 2: rule 'start' is defined twice"),
        ("start: 'a\"", "quotes in rule 'start' do not match"),
    ],
)  # fmt: skip
def test_marks_of_lark_that_are_not_kept_are_named(text, words):
    with pytest.raises(ValueError, match=words):
        grammar_of("GRAMMAR", text)


TRIGGERS = [["b", "abc"], ["abc", "b"], ["a", "ab"], ["ab", "a"], ["aab", "ab"], ["bcd", "abcde", "c"], ["é", "\xc3é"],
            ["<", "<f", "x<"]]  # fmt: skip


@pytest.mark.parametrize("triggers", TRIGGERS, ids=",".join)
def test_triggers_inside_one_another(triggers):
    tags = [{"begin": each, "schema": {"const": 1}, "end": "!"} for each in triggers]
    grammar = grammar_of("STRUCTURAL_TAG", json.dumps({"structures": tags, "triggers": triggers}))
    letters = [each.encode() for each in sorted({letter for each in triggers for letter in each} | {"z"})] + [b"1!"]
    for count in range(6):
        for parts in itertools.product(letters, repeat=count):
            text = b"".join(parts)
            assert matches(grammar, text) == _is_tagged(text, [each.encode() for each in triggers]), text


def _is_tagged(text, triggers):
    """By hand: up to the first trigger that is whole, free text; from there, one of the tags that begin with it."""
    ends = [(text.find(each) + len(each), each) for each in triggers if each in text]
    if not ends:
        return True
    end = min(end for end, _ in ends)
    for _, trigger in (pair for pair in ends if pair[0] == end):
        for begin in (each for each in triggers if each.startswith(trigger)):
            rest = text[end - len(trigger) :]
            if rest.startswith(begin + b"1!") and _is_tagged(rest[len(begin) + 2 :], triggers):
                return True
    return False


def test_forced_bytes():
    grammar = grammar_of(
        "JSON", '{"type": "object", "properties": {"block": {"type": "boolean"}}, "required": ["block"]}'
    )
    assert grammar.forced_bytes() == b"{"
    grammar.accept_tokens("", list(b'{"'))
    assert grammar.forced_bytes() == b'block"'
