"""Word lists of the generators: all our own, grouped by use; each `HELD_OUT_*` list never occurs in training."""

from __future__ import annotations

import random


def _split(text: str) -> list[str]:
    """Comma-separated words of a block, stripped."""
    return [word.strip() for word in text.replace("\n", " ").split(",") if word.strip()]


NAMES = _split("""Ada, Ben, Cora, Dan, Elsa, Finn, Greta, Hugo, Ida, Jonas, Kira, Leo, Mina, Nils, Olga, Paul, Rosa, Sam,
Tilda, Udo, Vera, Willem, Yara, Zoe, Amir, Bela, Chen, Dina, Emil, Farah, Goran, Hana, Ivan, Jun, Kofi, Lina, Marek,
Nora, Omar, Priya, Quinn, Ravi, Sofia, Tomas, Uma, Viktor, Wanda, Xenia, Yusuf, Zara, Anna, Bob, Clara, David, Eva,
Frank, Grace, Henry, Iris, Jack, Karin, Luis, Maria, Noah, Oscar, Petra, Robin, Sara, Tom, Ursula""")

HELD_OUT_NAMES = _split("Alma, Bruno, Celia, Dario, Edda, Felix, Gina, Harald, Ines, Jarek, Katya, Lorenz")

CITIES = _split("""Paris, London, Berlin, Madrid, Rome, Vienna, Oslo, Lisbon, Prague, Warsaw, Athens, Dublin, Helsinki,
Budapest, Zurich, Geneva, Munich, Hamburg, Lyon, Milan, Naples, Turin, Porto, Seville, Bergen, Malmo, Gdansk, Krakow,
Riga, Vilnius, Tallinn, Sofia, Bucharest, Belgrade, Zagreb, Istanbul, Ankara, Cairo, Tunis, Rabat, Lagos, Accra, Nairobi,
Kampala, Dakar, Cape Town, Delhi, Mumbai, Chennai, Pune, Dhaka, Lahore, Tehran, Baghdad, Beirut, Tokyo, Osaka, Kyoto,
Seoul, Busan, Beijing, Shanghai, Taipei, Hanoi, Bangkok, Manila, Jakarta, Sydney, Perth, Auckland, New York, Boston,
Chicago, Denver, Dallas, Houston, Seattle, Portland, Austin, Miami, Atlanta, Toronto, Montreal, Ottawa, Mexico City,
Havana, Bogota, Lima, Quito, La Paz, Santiago, Buenos Aires, Montevideo, Sao Paulo, Brasilia, Caracas""")

HELD_OUT_CITIES = _split("""Copenhagen, Stockholm, Brussels, Amsterdam, Edinburgh, Barcelona, Valencia, Marseille, Bordeaux,
Stuttgart, Dresden, Salzburg, Nagoya, Singapore, Melbourne, Brisbane, Vancouver, San Francisco, Philadelphia, Casablanca""")

HEROES = _split("""dragon, fox, robot, baker, fisherman, owl, mouse, bear, wizard, knight, gardener, sailor, cat, dog, hedgehog,
turtle, frog, rabbit, crow, donkey, goat, painter, clockmaker, shepherd, giant, ghost, snail, beaver, otter, wolf, pirate,
queen, king, princess, tailor, postman, miller, elephant, penguin, monkey, squirrel, badger, horse, duck, whale, tiger,
programmer, librarian, teacher, witch, elf, dwarf, unicorn, lion, astronaut, cook, singer, doctor, spider, bee, butterfly""")

OBJECTS = _split("""lamp, map, key, violin, clock, coin, kite, boat, book, bell, lantern, mirror, ring, umbrella, basket, letter,
compass, candle, drum, flute, hat, coat, button, spoon, teapot, wheel, ladder, rope, stone, feather, shell, seed, apple,
cake, pie, box, hammer, telescope, bicycle, balloon, scarf, blanket, pencil, brush, bottle, star, computer, block, crown,
sword, cup, chair, broom, magnet, whistle, pillow, bridge, door, tree, flower, pumpkin, radio, camera, cloud""")

PLACES = _split("""forest, harbour, village, courtyard, valley, desert, orchard, castle, library, market, garden, swamp, lighthouse,
mill, cave, meadow, old town, park, bay, tower, school, train station, bakery, workshop, attic""")

ADJECTIVES = _split("""small, old, young, curious, brave, shy, clever, quiet, friendly, stubborn, cheerful, sleepy, patient, lonely,
proud, careful, hungry, gentle, busy, tiny, tall, merry""")

OBJECT_ADJECTIVES = _split("""red, blue, green, golden, silver, wooden, rusty, shiny, heavy, broken, tiny, round, strange, warm, dusty,
yellow, striped, beautiful, simple, borrowed""")

THINGS = _split("""coffee, chess, football, weather, music, bread, cheese, winter, summer, rain, snow, gardens, trains, planes, cars,
boats, paint, poetry, history, cooking, pasta, rice, tea, bicycles, mountains, rivers, birds, fish, horses, stars, planets,
maps, clocks, paper, glass, wool, wood, iron, gold, salt, sugar, honey, apples, pears, lemons, onions, soup, tables, windows""")

QUERIES = _split("""cheap flights, bread recipe, train timetable, used bicycles, garden tools, history of tea, chess openings,
best hiking shoes, paged attention, python tutorial, local news, football results, moon phases, how to tie a knot,
winter tires, piano lessons, vegetarian soup, weather map, cat food, old maps, desk lamp, speed of light, red paint,
small houses, open source licence, concert tickets, museum hours, coffee grinder, running plan, map of the stars""")

HELD_OUT_QUERIES = _split("""second hand violins, tall ladder rental, owl sounds at night, lemon cake with honey, sailing school,
repair a wooden chair, green curtains, train museum, mountain weather, flight of the crow""")

LANGUAGES = _split("""French, German, Spanish, Italian, Polish, Czech, Dutch, Swedish, Danish, Finnish, Greek, Turkish, Arabic,
Hindi, Japanese, Korean, Chinese, Portuguese, Hungarian, Latin""")

PHRASES = _split("""good morning, see you soon, thank you, the train is late, I like tea, where is the station, the cat sleeps,
happy birthday, good night, the door is open, we are at home, it is raining, the soup is hot, I will be late, call me back,
dinner is ready, the meeting is at noon, please water the plants, the keys are on the table, I found your book, well done,
the lamp is broken, the boat leaves at six, do not forget the bread, all is well""")

HELD_OUT_PHRASES = _split("""the kite is in the tree, my coat is wet, the fox ran home, we need more paint, the bell rings at nine,
your letter came today, bring a warm blanket, the old bridge is closed""")

DEVICES = _split("""lamp, heater, fan, radio, oven, kettle, printer, television, garden lights, coffee machine, kitchen light,
bedroom lamp, air conditioning, washing machine, music, alarm, door light, pump, projector, screen""")

DAYS = _split("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")

FOREIGN = _split("""quantum gravity, photosynthesis, the French Revolution, sourdough, the stock market, plate tectonics, opera,
basketball, volcanoes, dinosaurs, black holes, the Roman Empire, knitting, surfing, democracy, inflation, vitamin C,
the Great Wall, mitochondria, electricity, magnetism, gravity, evolution, the moon, Jupiter, Saturn, penguins, sharks,
blockchain, bitcoin, solar power, wind energy, nuclear fusion, a carburetor, a telescope, jazz, baroque music, cubism,
impressionism, Shakespeare, Mozart, Einstein, Newton, Napoleon, Cleopatra, Mars, the Nile, the Alps, the Sahara, Everest,
Kubernetes, Docker, PostgreSQL, React, Java, Rust, COBOL, HTML, a compiler, a database, a firewall, a browser, a mouse pad,
chocolate, vanilla, tofu, espresso, origami, yoga, karate, golf, tennis, rugby, poker, bridge building, sailing knots,
tax law, a mortgage, insurance, marketing, a haiku, a sonnet, a noun, an adverb, algebra, calculus, topology, pi,
a triangle, the Pythagorean theorem, a prime number, osmosis, entropy, an atom, a proton, helium, carbon, rust on iron,
glaciers, hurricanes, tides, earthquakes, the ozone layer, antibiotics, vaccines, a virus, the heart, the liver, sleep,
dreams, happiness, love, the meaning of life, philosophy, Plato, stoicism, karma, a fjord, a monsoon, a cactus, an orchid""")

HELD_OUT_FOREIGN = _split("""photography, a submarine, the Eiffel Tower, ballet, magnesium, a saxophone, cricket, the Amazon,
Picasso, a logarithm, the Vikings, ceramics, a kangaroo, MongoDB, Beethoven, snowboarding, chlorophyll, an eclipse,
the Berlin Wall, a cathedral, cinnamon, medieval castles, geology, a parachute, trigonometry""")

TECH_HEADS = _split("""caching, attention, block, decoding, scheduler, kernel, batching, parser, sampling, parallelism, engine, pool,
cache, table, graph, queue""")

SYLLABLES = _split("""ba, be, bo, da, di, do, fa, fe, ga, go, ha, ka, ke, ko, la, le, li, lo, ma, me, mi, mo, na, ne, no, pa, pe, po,
ra, re, ri, ro, sa, se, si, so, ta, te, ti, to, va, ve, vi, za, ze, zo, bran, cor, del, fen, gar, hol, kel, lin, mar, nor,
pel, ros, stan, tor, ul, ver, win, xan, yor, zel, th, sh, qu, dre, fli, gru, sto""")


VOWELS, CONSONANTS = "aeiouy", "bcdfghjklmnpqrstvwxz"


def invented_word(rng: random.Random, low: int = 2, high: int = 4) -> str:
    """A lower-case word that no list holds, of syllables or of letters: teaches copying, and not knowing."""
    if rng.random() < 0.5:
        return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(low, high)))
    parts = []
    for _ in range(rng.randint(1, 3)):
        parts.append(rng.choice(CONSONANTS) * (rng.random() < 0.85) + rng.choice(VOWELS) * rng.choice([1, 1, 1, 2])
                     + rng.choice(CONSONANTS) * rng.choice([0, 1, 1, 2]))
    return "".join(parts)


def altered(rng: random.Random, word: str) -> str:
    """A real word with a letter changed, lost, added, or with an ending: near to words, and not one that is known."""
    i = rng.randrange(len(word))
    letter = rng.choice(CONSONANTS + VOWELS)
    return rng.choice([word[:i] + letter + word[i + 1:], word[:i] + word[i + 1:] or word, word[:i] + letter + word[i:],
                       word + rng.choice(["s", "a", "er", "in", "o", "ing", "burg", "ville", "ton"])])
