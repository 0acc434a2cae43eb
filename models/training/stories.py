"""Short stories of 60 to 120 words from a small grammar: eight plots, each sentence in several wordings."""

from __future__ import annotations

import random

from models.training.words import ADJECTIVES, HEROES, NAMES, OBJECT_ADJECTIVES, OBJECTS, PLACES

OPENINGS = [
    "Once there was {a_hero} called {name} who lived {near}.",
    "Long ago, {near}, lived {a_hero} named {name}.",
    "{name} was {a_hero} who lived {near}.",
    "In a house {near} lived {a_hero}. The name of the {hero} was {name}.",
]

PLOTS: dict[str, list[list[str]]] = {
    "lost": [
        ["{name} owned {an_object} and loved it more than anything else.",
         "The dearest thing in the house was {an_object}.",
         "Each evening {name} cleaned {an_object} with great care."],
        ["One morning the {object} was gone.", "Then, on a windy day, the {object} disappeared.",
         "But one day the {object} was not in its place."],
        ["{name} looked under the bed, behind the door and in the well, and found nothing.",
         "The {hero} searched the whole {place} until the sun went down.",
         "{name} asked everybody in the {place}, but nobody had seen it."],
        ["At last {a_helper} named {friend} came along and said: I found this on the road.",
         "In the evening {a_helper} called {friend} knocked at the door with the {object} under one arm.",
         "Then {friend}, {a_helper}, remembered a strange light in the {place}, and there it was."],
        ["{name} was so glad that the two drank tea until midnight.",
         "From that day {name} and {friend} were best friends.",
         "{name} laughed and let {friend} use the {object} every Sunday."],
    ],
    "gift": [
        ["One day {name} found {an_object} in the {place}.", "On a walk the {hero} found {an_object} beside the path.",
         "One rainy day {an_object} lay on the steps of the house."],
        ["{name} did not know what it was good for.", "It was nice to look at, but {name} had no use for it.",
         "{name} turned it around three times and wondered whose it was."],
        ["So {name} carried the {object} to {friend}, {a_helper} who knew many things.",
         "The next day {name} showed it to {friend}, {a_helper}."],
        ["{friend} became quiet and said: I have wished for {an_object_plain} since I was small.",
         "{friend} smiled and said: with this I could finish my work at last."],
        ["{name} gave it away at once.", "Then keep it, said {name}, and meant it.",
         "{name} thought for a moment and put the {object} into the hands of {friend}."],
        ["The walk home felt lighter than any walk before.", "That night {name} slept better than ever.",
         "A week later {friend} brought a cake, and it was the best cake in the {place}."],
    ],
    "journey": [
        ["For a long time the {hero} had wanted to see the {place2}.", "{name} dreamed every night of the {place2}.",
         "A traveller had told {name} of the {place2}, far away."],
        ["So one morning {name} packed some bread and {an_object} and left.",
         "With nothing but {an_object} and a little food, {name} set out."],
        ["The road was long, and on the third day it grew dark and cold.",
         "Soon a storm came up, and the road turned into mud.", "Then a wide river crossed the path."],
        ["Many would have turned back, but {name} remembered the {object}.",
         "{name} sat down, took out the {object} and had an idea."],
        ["With its help, and with some help from {friend}, {a_helper} who was going the same way, it worked.",
         "It took all night, but the {object} did what it had to do."],
        ["In the morning {name} stood before the {place2} and could not say a word.",
         "The next day {name} saw the {place2}, and it was even more beautiful than in the dreams."],
        ["Going home was easy, for now {name} knew the way.", "And then it was time to go home and tell everyone."],
    ],
    "fear": [
        ["{name} was afraid of only one thing, and that was the dark.",
         "Everyone liked {name}, but nobody knew that the {hero} feared thunder.",
         "{name} had never crossed the old bridge, because it was so high."],
        ["One night {friend}, {a_helper}, called for help from the {place}.",
         "Then a message came: {friend}, {a_helper}, was lost in the {place}."],
        ["{name} took {an_object}, closed both eyes and counted to ten.",
         "The heart of {name} beat like a drum, but the hand held {an_object}."],
        ["Step by step the {hero} went on, and the {object} made it a little easier.",
         "The {object} was no magic thing, but it was good to hold on to something."],
        ["When the two came home, {name} noticed that the fear had stayed behind.",
         "{friend} was safe, and {name} had forgotten to be afraid."],
        ["Being brave, said {friend}, is being afraid and going all the same.",
         "Since then the {object} hangs on the wall, and nobody needs it any more."],
    ],
    "contest": [
        ["Every year the people of the {place} held a contest.", "In autumn there was a great contest in the {place}."],
        ["The prize was {an_object}, and all the strong and famous came to win it.",
         "Whoever won was given {an_object}, and many wanted it."],
        ["{name} had trained for weeks, but so had {friend}, {a_helper}.",
         "Nobody thought that {a_hero_plain} could win, and {friend}, {a_helper}, laughed out loud."],
        ["Half way along, {friend} fell and could not get up.", "Then, close to the end, {friend} got stuck in the mud."],
        ["{name} stopped, turned around and helped.", "{name} could have won, but went back to help."],
        ["The two came in last, arm in arm, and everybody cheered.",
         "They were last of all, and the crowd was louder than ever before."],
        ["The judges cut no corners: the {object} went to both, and it was used in turns.",
         "In the end the {object} was given to {name}, who shared it with {friend}."],
    ],
    "repair": [
        ["{name} had {an_object}, and one day it broke.", "On the table lay {an_object} that no longer worked."],
        ["The smith said it was too old, and the merchant said: buy a new one.",
         "First {name} tried glue, then a string, then kind words. Nothing helped."],
        ["Only {friend}, {a_helper} from the {place}, asked to have a look.",
         "Then {friend}, {a_helper}, came by and sat down beside it."],
        ["Together they took the {object} apart, piece by piece, and put every piece on a cloth.",
         "They worked for three days and made many mistakes."],
        ["On the third evening they found one grain of sand.", "The fault was tiny: one screw was the wrong way round."],
        ["Now the {object} works better than before.", "When it worked again, they both shouted for joy."],
        ["And {name} learned that a thing that can be opened can be understood.",
         "Since that day people bring their broken things to {name}."],
    ],
    "secret": [
        ["In the house stood {an_object} that hummed softly each night.",
         "{name} had bought {an_object} at the market, and at midnight it began to glow."],
        ["One night {name} stayed awake and listened.", "{name} could not sleep, so the {hero} got up and followed the sound."],
        ["The sound led out of the door, through the {place}, to a small gate.",
         "It pointed, clear as a finger, towards the {place2}."],
        ["Behind it sat {friend}, {a_helper}, who had been waiting for a hundred years.",
         "There {name} met {friend}, {a_helper} with a long story to tell."],
        ["I called with the {object}, said {friend}, and you are the first who came.",
         "You have good ears, said {friend}. Most people only sleep."],
        ["They talked until the morning, and {name} came back every night.",
         "What {friend} told is a secret, but {name} has been smiling ever since."],
    ],
    "trade": [
        ["{name} had only one thing in the world, and that was {an_object}.", "All that {name} owned was {an_object}."],
        ["{friend}, {a_helper}, offered a sack of flour for it, and {name} said yes.",
         "On the way to the market {friend}, {a_helper}, wanted it badly and paid with a fat goose."],
        ["The next one gave a cart, and the one after that gave a small house in the {place}.",
         "Then came a better offer, and a better one after that."],
        ["By evening {name} was rich and sat alone in a big room.", "In the end {name} had everything and was bored."],
        ["So {name} went to {friend} and asked: may I see the {object} again?",
         "I miss my {object}, said the {hero}, and walked all the way back."],
        ["{friend} laughed, and they shared it from then on.", "{friend} gave it back for one good song."],
        ["Some things are worth more than their price.", "Ever since, {name} has never sold the {object} again."],
    ],
}

NEAR = ["near the {place}", "at the edge of the {place}", "not far from the {place}", "behind the {place}"]
ASKS = ["Tell me a story", "Write a short story", "Tell a short story", "Can you tell me a story", "I want to hear a story",
        "Please write a story", "Make up a story", "Tell me a little story", "A story", "Write me a tale", "story"]
HELD_OUT_ASKS = ["Could I hear a bedtime story", "Please invent a story", "Let me have a nice little story"]


def with_article(noun: str) -> str:
    """`noun` with a or an."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def write_story(rng: random.Random, hero: str | None = None, thing: str | None = None, place: str | None = None) -> str:
    """One story about `hero`, `thing` and `place` (drawn where None)."""
    hero = hero or rng.choice(HEROES)
    thing = thing or rng.choice(OBJECTS)
    place = place or rng.choice(PLACES)
    helper = rng.choice([word for word in HEROES if word != hero])
    name, friend = rng.sample(NAMES, 2)
    slots = {
        "hero": hero, "object": thing, "place": place, "name": name, "friend": friend,
        "place2": rng.choice([word for word in PLACES if word != place]),
        "a_hero": with_article(f"{rng.choice(ADJECTIVES)} {hero}"), "a_hero_plain": with_article(hero),
        "an_object": with_article(f"{rng.choice(OBJECT_ADJECTIVES)} {thing}"), "an_object_plain": with_article(thing),
        "a_helper": with_article(f"{rng.choice(ADJECTIVES)} {helper}"),
    }
    plot = PLOTS[rng.choice(sorted(PLOTS))]
    near = rng.choice(NEAR)
    lines = [rng.choice(OPENINGS).replace("{near}", near), *(rng.choice(variants) for variants in plot)]
    return " ".join(line.format(**slots) for line in lines)


def story_turn(rng: random.Random, held_out: bool = False) -> tuple[str, str, list[str]]:
    """A request, its story, and the words that the request names (the story must hold them)."""
    hero, thing, place = rng.choice(HEROES), rng.choice(OBJECTS), rng.choice(PLACES)
    ask = rng.choice(HELD_OUT_ASKS if held_out else ASKS)
    kind = rng.choice(["none", "hero", "hero", "both", "both", "both", "thing", "place"])
    if kind == "none":
        return f"{ask}.", write_story(rng), []
    if kind == "hero":
        return f"{ask} about {with_article(hero)}.", write_story(rng, hero), [hero]
    if kind == "both":
        joint = rng.choice(["and", "and", "with", "who finds"])
        return f"{ask} about {with_article(hero)} {joint} {with_article(thing)}.", write_story(rng, hero, thing), [hero, thing]
    if kind == "thing":
        return f"{ask} about {with_article(thing)}.", write_story(rng, None, thing), [thing]
    where = rng.choice(["in the", "near the", "from the"])
    return f"{ask} about {with_article(hero)} {where} {place}.", write_story(rng, hero, None, place), [hero, place]
