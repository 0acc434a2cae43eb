"""pocket-vl: the generator behind it (pictures, questions, rows), its layout, tokenizer, figures and card."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from mini_vllm import load_tokenizer
from mini_vllm.entrypoints.chat_utils import apply_chat_template
from mini_vllm.model_loader.safetensors_reader import SafetensorsFile
from mini_vllm.tests.golden.packed import read_packed
from models.training.chat_format import Conversation, to_ids
from models.training.pocket_vl import conversations, layout, pictures, questions, rows, suites
from models.training.pocket_vl.card import card, commands
from models.training.pocket_vl.make_random import make_random

FOLDER = Path(__file__).parent / "pocket-vl"
PICTURES = "a84db32d6afd4227548245ae50119113bca00fce64d607ba044a0f1981395d6c"
WEIGHTS = "69403cb098d6a2a5c62a02663d08bc7115a97ed8ca30708399eaa97066f14282"
GOLDEN = Path(__file__).parents[1] / "mini_vllm" / "tests" / "golden" / "pocket-vl.json.xz"
NAMES = {**pictures.COLOURS, **{name: (level,) * 3 for name, level in pictures.BACKGROUNDS.items()}}


def drawn(seed: int, count: int) -> list[pictures.Picture]:
    """Pictures of all kinds."""
    rng = np.random.default_rng(seed)
    return [conversations.draw(rng) for _ in range(count)]


def nearest(pixels: np.ndarray) -> np.ndarray:
    """The name of the colour that each pixel is nearest to, [height, width]."""
    names, table = list(NAMES), np.array(list(NAMES.values()), np.float64)
    return np.array(names)[((pixels[:, :, None] - table) ** 2).sum(-1).argmin(-1)]


def test_pictures_come_from_their_seed() -> None:
    """The same seed gives the same pixels, here and where the figures were measured."""
    first, again, other = drawn(5, 40), drawn(5, 40), drawn(6, 40)
    digest = hashlib.sha256(b"".join(picture.pixels.tobytes() for picture in first)).hexdigest()
    assert digest == PICTURES
    assert digest == hashlib.sha256(b"".join(picture.pixels.tobytes() for picture in again)).hexdigest()
    assert any((a.pixels != b.pixels).any() for a, b in zip(first, other, strict=True))
    assert {picture.kind for picture in first} == {"shapes", "large", "number", "word"}


def test_pictures_show_what_they_say() -> None:
    """Cells of the grid hold the colour of their thing, or the background; texts have their ink, and nothing else."""
    for picture in drawn(7, 60):
        seen = nearest(picture.pixels.astype(np.float64))
        if picture.kind == "shapes":
            cells = {(thing.row, thing.column): thing.colour for thing in picture.things}
            assert len(cells) == len(picture.things)
            for row in range(3):
                for column in range(3):
                    middle = seen[21 * row + 7 : 21 * row + 15, 21 * column + 7 : 21 * column + 15]
                    share = (middle == cells.get((row, column), picture.background)).mean()
                    assert share > (0.2 if (row, column) in cells else 0.95), (picture.things, row, column)
        else:
            ink = picture.ink or picture.things[0].colour
            assert (seen == ink).sum() > 5 and (seen == picture.background).mean() > 0.1


def test_glyphs_are_all_different() -> None:
    """A mirror image in the table, or one glyph for two characters, would be a question without an answer."""
    masks = {
        character: pictures.text_mask(character, 2).tobytes() for character in "0123456789" + conversations.LETTERS
    }
    assert len(set(masks.values())) == 36
    assert pictures.text_mask("L", 1)[:, 0].all() and pictures.text_mask("L", 1)[-1].all()
    assert pictures.text_mask("7", 1)[0].all() and not pictures.text_mask("7", 1)[1:, 0].any()
    assert pictures.text_mask("AB", 3).shape == (21, 33)


def test_answers_are_true() -> None:
    """Counted and compared again from the things of the picture."""
    rng, seen = np.random.default_rng(8), set()
    for picture in [pictures.draw_shapes(rng) for _ in range(150)]:
        turn = questions.relation(rng, picture)
        if turn is not None:
            first, second = ([t for t in picture.things if t.name == turn.slots[slot]] for slot in "ab")
            assert len(first) == len(second) == 1
            distance = {"left of": second[0].column - first[0].column, "above": second[0].row - first[0].row}
            distance |= {"right of": -distance["left of"], "below": -distance["above"]}
            assert turn.brief == ("Yes." if distance[turn.slots["r"]] > 0 else "No.")
            assert turn.answer.startswith(turn.brief[:-1])
            seen.add((turn.slots["r"], turn.brief))
        turn = questions.count(rng, picture)
        words = turn.slots["a"].split()
        number = sum(
            questions.plural(thing.shape) == words[-1]
            if words[-1] != "shapes"
            else words[0] in ("shapes", thing.colour)
            for thing in picture.things
        )
        assert turn.brief == f"{number}." and (f" {number or 'no'} " in turn.answer)
        turn = questions.exists(rng, picture)
        assert turn.brief == ("Yes." if turn.slots["a"].split(" ", 1)[1] in {t.name for t in picture.things} else "No.")
        several = [picture, *(pictures.draw_shapes(rng, most=4) for _ in range(2))]
        turn = questions.ask_several(rng, several)
        if turn.kind == "more":
            numbers = [sum(turn.slots["a"] in (questions.plural(t.shape), "shapes") for t in p.things) for p in several]
            assert turn.brief == f"Picture {int(np.argmax(numbers)) + 1}." and numbers.count(max(numbers)) == 1
    assert seen == {(name, answer) for name in questions.RELATIONS for answer in ("Yes.", "No.")}


def test_held_out_things_are_never_shown() -> None:
    """Pairs, numbers, words and wordings of the suites do not occur in 300 chats of training."""
    rng = np.random.default_rng(9)
    wordings = {text for kind in questions.HELD_OUT_QUESTIONS.values() for text in kind}
    assert not wordings & {text for kind in questions.QUESTIONS.values() for text in kind}
    assert set(questions.HELD_OUT_QUESTIONS) == set(questions.QUESTIONS)
    assert not set(conversations.WORDS) & set(conversations.HELD_OUT_WORDS)
    for _ in range(300):
        for picture in conversations.make_chat(rng, int(rng.integers(1, 3))).pictures:
            assert not pictures.HELD_OUT & {(thing.colour, thing.shape) for thing in picture.things}
            assert picture.text not in conversations.HELD_OUT_WORDS
            if picture.kind == "number" and len(picture.text) > 1:
                assert int(picture.text) not in conversations.HELD_OUT_NUMBERS


def test_suites_are_what_they_are_called() -> None:
    """Each suite's cases are the same every time, end in one question, and hold what it promises."""
    for name in suites.MAKERS:
        first, again = suites.suite(name, 3), suites.suite(name, 3)
        for case, same in zip(first, again, strict=True):
            assert (case.messages, case.expected) == (same.messages, same.expected)
            assert case.messages[-1][1].count(layout.IMAGE) == len(case.pictures) and case.expected
    assert all(case.pictures[0].text in conversations.HELD_OUT_WORDS for case in suites.suite("word", 20))
    assert all(int(case.pictures[0].text) in conversations.HELD_OUT_NUMBERS for case in suites.suite("number", 20))
    shown = [case.pictures[0].things[0] for case in suites.suite("shape_new_pair", 20)]
    assert {(thing.colour, thing.shape) for thing in shown} <= pictures.HELD_OUT


def test_a_batch_is_its_number() -> None:
    """Ids, classes and pictures are those of seed and number; each picture has its 64 places, in order."""
    encode, special = rows.make_encoder(FOLDER)
    batch = rows.make_batch(1, 2, 40, 224, encode, special)
    again = rows.make_batch(1, 2, 40, 224, encode, special)
    other = rows.make_batch(1, 3, 40, 224, encode, special)
    assert (batch.ids == again.ids).all() and (batch.pixels == again.pixels).all()
    assert batch.ids.shape == other.ids.shape and (batch.ids != other.ids).any()
    assert (batch.ids == layout.IMAGE_ID).sum(axis=1).tolist() == [64 * count for count in rows.pictures_of(40)]
    assert len(batch.pixels) == len(batch.concepts) == sum(rows.pictures_of(40))
    assert not batch.classes[batch.ids == layout.IMAGE_ID].any()
    ends = [int(row_ids[row_classes == 2][-1]) for row_ids, row_classes in zip(batch.ids, batch.classes, strict=True)]
    assert set(ends) == {rows.END_ID}
    with pytest.raises(ValueError, match="first turn of 100 tokens does not fit into 90"):
        rows.cut([5] * 100, [1] * 100, 90)


def test_template_is_the_training_format() -> None:
    """Rendered by the folder's template, a chat has exactly the ids of the training."""
    tokenizer = load_tokenizer(FOLDER)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    special = {token: encode(token)[0] for token in layout.SPECIAL_TOKENS}
    assert special == {token: i for i, token in enumerate(layout.SPECIAL_TOKENS)}
    rng = np.random.default_rng(10)
    for count in (0, 1, 2, 3, 1, 1):
        chat = conversations.make_chat(rng, count)
        ids, _ = to_ids(Conversation(messages=chat.messages), encode, special)
        messages = [{"role": role, "content": content} for role, content in chat.messages]
        rendered = apply_chat_template((FOLDER / "chat_template.jinja").read_text(encoding="utf-8"), messages, False)
        assert encode(rendered) == ids + encode("\n")


def tensors_of(folder: Path) -> Iterable[tuple[str, str, tuple[int, ...]]]:
    """Name, stored type and shape of each tensor."""
    for name, info in SafetensorsFile(folder / "model.safetensors").tensors.items():
        yield name, info.dtype, info.shape


def test_a_random_checkpoint_has_the_layout(tmp_path: Path) -> None:
    """The names of LLaVA 1.5, float16, 1.9 million numbers; a seed decides them; each byte has a token."""
    make_random(tmp_path / "a", seed=3)
    make_random(tmp_path / "b", seed=3)
    make_random(tmp_path / "c", seed=4, tokenizer=FOLDER)
    found = list(tensors_of(tmp_path / "a"))
    assert {name: shape for name, _, shape in found} == layout.shapes() and {kind for _, kind, _ in found} == {"F16"}
    assert sum(int(np.prod(shape)) for _, _, shape in found) == 1_918_464
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert files[0] == files[1] != files[2]
    assert load_tokenizer(tmp_path / "a").decode(load_tokenizer(tmp_path / "a").encode("Ä <image>")) == "Ä "
    assert (tmp_path / "c" / "tokenizer.json").read_bytes() == (FOLDER / "tokenizer.json").read_bytes()


def test_settings_are_those_of_the_layout(tmp_path: Path) -> None:
    """Each JSON file of the folder, and the template, is what `layout` writes."""
    layout.write_settings(tmp_path)
    for path in tmp_path.iterdir():
        assert (FOLDER / path.name).read_bytes() == path.read_bytes(), path.name
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    text, vision = config["text_config"], config["vision_config"]
    assert text["head_dim"] in (32, 64, 80, 96, 112, 128)  # what vLLM's CPU backend can
    assert vision["image_size"] % vision["patch_size"] == 0 and config["image_seq_length"] == 64


def test_figures_meet_their_goals() -> None:
    """metrics.json holds every suite, each of 500 cases, and the goals are met."""
    report = json.loads((FOLDER / "metrics.json").read_text(encoding="utf-8"))
    assert list(report["metrics"]) == list(suites.MAKERS)
    assert set(report["goals"]) == {"colour", "shape", "count", "digit"} and min(report["goals"].values()) == 0.95
    for name, entry in report["metrics"].items():
        assert entry["count"] == 500 and entry["value"] >= report["goals"].get(name, 0.8), name


def test_the_card_is_made_of_the_figures() -> None:
    """The table and the commands of the card are those of metrics.json and training.json."""
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == card(FOLDER), (
        "run `python -m models.training.pocket_vl.card models/pocket-vl`"
    )
    two = json.loads((FOLDER / "training.json").read_text(encoding="utf-8")) * 2
    assert "--out run2" in commands(two) and commands(two).count("--resume run1/state.pt") == 1


def test_the_folder_is_small_and_the_weights_are_those_of_the_figures() -> None:
    """At most 4 MB; the hash is that of the file which was evaluated; no number is lost in float16."""
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 4e6
    digest = hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest()
    assert digest == WEIGHTS
    found = list(tensors_of(FOLDER))
    assert {name: shape for name, _, shape in found} == layout.shapes() and {kind for _, kind, _ in found} == {"F16"}


def test_vllms_answers_are_the_expected_ones() -> None:
    """The recorded run of the real vLLM: prompts are the suites', and nearly all of its answers are right."""
    answers = read_packed(GOLDEN)["answers"]
    encode, special = rows.make_encoder(FOLDER)
    right = 0
    for answer in answers:
        case = suites.suite(answer["suite"], answer["case"] + 1)[-1]
        ids, _ = to_ids(Conversation(messages=case.messages), encode, special)
        asked = [*ids, *encode("\n"), special["<|assistant|>"], *encode("\n")]
        assert answer["prompt_token_ids"] == asked
        assert len(answer["logprobs"]) == len(answer["token_ids"]) and answer["token_ids"][-1] == rows.END_ID
        right += answer["text"] == case.expected
    assert len(answers) == 60 and right >= 55
