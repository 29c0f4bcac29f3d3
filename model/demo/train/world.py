"""The little world of the demonstration model: makes questions with their answers.

Every topic has several wordings. Those that begin with an asterisk are held out: training never sees
them, and the held-out questions are made of nothing else.
"""

import random

import facts
import stories
import troupe


class Wordings:
    """A list of ways to say something, of which some are held out."""

    def __init__(self, words):
        self.held = [w[1:] for w in words if w.startswith("*")]
        self.train = [w for w in words if not w.startswith("*")]

    def pick(self, rng, held):
        if held and not self.held:
            raise NoneHeldOut
        return rng.choice(self.held if held else self.train)


class NoneHeldOut(Exception):
    """Something has too few wordings to hold any out."""


class Asked:
    """A question and its answer. Where others would be right too: all of them, or what they have in common
    and how many tokens they have at the least."""

    def __init__(self, question, answer, one_of=None, has=None, least=0, follow=None):
        self.question, self.answer = question, answer
        self.one_of, self.has, self.least = one_of or [answer], has, least
        self.follow = follow  # asks for something of the same kind, in fewer words


def spaced(text):
    return text.replace("_", " ")


def parse_colon(table):
    return [tuple(spaced(part) for part in entry.split(":")) for entry in table.split()]


def parse_equals(table):
    return [tuple(part.strip() for part in entry.split("=")) for entry in table.replace("\n", " ").split(";") if entry.strip()]


ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty".split()
CAPITALS = parse_colon(facts.CAPITALS)
WELL_KNOWN = {spaced(c) for c in facts.WELL_KNOWN.split()}
KNOWN = [(country, city) for country, city in CAPITALS if country in WELL_KNOWN]
COLOURS = parse_equals(facts.COLOURS)
MIXES = parse_equals(facts.MIXES)
OPPOSITES = [tuple(p.split("/")) for p in facts.OPPOSITES.split()]
ANIMALS = [tuple(a.split()) for a in facts.ANIMALS.replace("\n", " ").strip(" ").split("; ")]
LEGS = parse_equals(facts.LEGS)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()


def a(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


# Ways to ask for the meaning of anything; unknown things are asked for in the same ways.
EXPLAIN = Wordings([
    "what is {x}", "what does {x} mean", "explain {x}", "tell me about {x}", "{x}", "*what is meant by {x}", "define {x}",
    "what's {x}", "can you explain {x}", "please explain {x} to me", "describe {x}", "what exactly is {x}", "*meaning of {x}", "i do not understand {x}",
    "whats {x}", "what is the meaning of {x}", "explain {x} in simple words", "help me understand {x}", "what do you know about {x}", "*could you explain what {x} is", "give me a definition of {x}",
    "what can you tell me about {x}", "tell me what {x} is", "i want to know what {x} is", "{x}?", "say something about {x}", "*what is this {x}", "how does {x} work",
    "what is {x} and how do I read it", "what is {x} and how does it work", "what is {x} and what is it for", "what does {x} mean and how is it computed", "what is {x}, and why does it matter",
    "how do I read {x}", "what does {x} tell me", "what is {x} good for", "{x}: what is it",
])
FLAG = Wordings([
    "what does --{x} do", "what is --{x}", "--{x}", "explain --{x}", "what is the flag --{x} for", "*what does the {x} flag do", "tell me about --{x}",
    "what does --{x} mean", "how do I use --{x}", "explain the flag --{x}", "what's --{x} for", "describe the option --{x}", "*when do I need --{x}", "what is the default of --{x}",
    "what is {x}", "what happens with --{x}", "can you explain the {x} option", "help with --{x}", "the {x} option", "*meaning of the {x} flag", "what can I do with --{x}",
])
CAPITAL = Wordings([
    "what is the capital of {x}", "capital of {x}", "what's the capital of {x}", "which city is the capital of {x}", "tell me the capital of {x}", "*do you know the capital of {x}", "name the capital of {x}",
    "what is the capital city of {x}", "whats the capital of {x}", "what is {x}'s capital", "{x} capital", "the capital of {x} is", "*what city is {x}'s capital", "can you name the capital city of {x}",
    "give me the capital of {x}", "I would like to know the capital of {x}", "which is the capital of {x}", "what is the name of the capital of {x}", "what's the capital city of {x}?", "where is the government of {x}", "*tell me which city is the capital of {x}", "{x}, capital", "capital city of {x}?",
])
COUNTRY = Wordings([
    "{x} is the capital of which country", "which country has the capital {x}", "of which country is {x} the capital", "what country is {x} the capital of", "{x} is the capital of what", "*which country's capital is {x}",
    "which country has {x} as its capital", "which country has {x} for its capital", "whose capital is {x}", "{x} is which country's capital", "name the country whose capital is {x}",
    "which country is {x} in", "in which country is {x}", "what country is {x} in", "where is {x}",
])
COLOUR = Wordings(["the color of {x}, please", "what is the color of {x}", 
    "what colour is {x}", "what color is {x}", "which colour does {x} have", "which color is {x}", "tell me the colour of {x}", "*what is the colour of {x}", "colour of {x}",
    "what's the color of {x}", "do you know what colour {x} is", "what colour does {x} have", "name the colour of {x}", "{x} is what colour", "*the color of {x}", "say what colour {x} is",
])
MIX = Wordings([
    "what do you get when you mix {x} and {y}", "what is {x} and {y} mixed", "mix {x} and {y}", "which colour do {x} and {y} make", "what colour does {x} and {y} make", "*what happens if I mix {x} with {y}",
    "{x} and {y} make what colour", "what color is {x} plus {y}", "if I mix {x} and {y}, what do I get",
])
OPPOSITE = Wordings(["find the word that is the opposite of {x}", "name a word that is the opposite of {x}", 
    "what is the opposite of {x}", "opposite of {x}", "what's the opposite of {x}", "the opposite of {x} is", "tell me the opposite of {x}", "*name the opposite of {x}", "which word is the opposite of {x}",
    "what is the contrary of {x}", "give me the opposite of {x}", "do you know the opposite of {x}", "what word means the opposite of {x}", "whats the opposite of {x}", "*find the opposite of {x}", "what is an antonym of {x}", "antonym of {x}",
])
SOUND = Wordings(["what does a {x} say", "what sound does a {x} make", "which sound does a {x} make", "what noise does a {x} make", "how does a {x} sound", "what sound do {x}s make", "*do you know what a {x} says", "tell me what a {x} says", "sound of a {x}", "what is the sound of a {x}"])
YOUNG = Wordings(["what is a baby {x} called", "what do you call a baby {x}", "what is a young {x} called", "name of a baby {x}", "how do you call a young {x}", "*what is the name of a {x}'s baby", "a baby {x} is called", "what do we call the young of a {x}", "baby {x}"])
HOW_MANY_LEGS = Wordings(["how many legs does {x} have", "how many legs has {x}", "number of legs of {x}", "{x} has how many legs", "tell me how many legs {x} has", "*do you know how many legs {x} has", "count the legs of {x}", "on how many legs does {x} stand"])
DAY_AFTER = Wordings(["what follows {x}", "the day following {x}", "what day comes after {x}", "which day comes after {x}", "what is the day after {x}", "the day after {x}", "what comes after {x}", "*which day follows {x}", "tell me the day after {x}", "next day after {x}", "what day is after {x}"])
DAY_BEFORE = Wordings(["what precedes {x}", "the day preceding {x}", "what day comes before {x}", "which day comes before {x}", "what is the day before {x}", "the day before {x}", "what comes before {x}", "*which day precedes {x}", "tell me the day before {x}", "what day is before {x}"])
MONTH_AFTER = Wordings(["what follows {x}", "the month following {x}", "what month comes after {x}", "which month comes after {x}", "what is the month after {x}", "the month after {x}", "what comes after {x}", "*which month follows {x}", "tell me the month after {x}", "next month after {x}"])
MONTH_BEFORE = Wordings(["what precedes {x}", "the month preceding {x}", "what month comes before {x}", "which month comes before {x}", "what is the month before {x}", "the month before {x}", "what comes before {x}", "*which month precedes {x}", "tell me the month before {x}"])
MONTH_LENGTH = Wordings(["how many days does {x} have", "how many days are in {x}", "number of days in {x}", "how long is {x}", "{x} has how many days", "*tell me how many days {x} has", "days in {x}", "how many days has {x}"])
NTH_MONTH = Wordings(["what is the {x} month", "which is the {x} month of the year", "which month is the {x}", "name the {x} month", "the {x} month of the year", "*tell me the {x} month", "what month is the {x} one"])
LIST_DAYS = Wordings(["what are the days of the week", "name the days of the week", "list the days of the week", "which days are there", "tell me the days of the week", "*say the days of the week", "give me all seven days", "days of the week"])
LIST_MONTHS = Wordings(["what are the months of the year", "name the months of the year", "list the months", "which months are there", "tell me the months of the year", "*say the twelve months", "give me all months", "months of the year"])
PLUS = Wordings(["how much are {a} and {b}", "{a} and {b} is how much", "how much is {a} plus {b}", "how much do {a} and {b} make", "what is {a} + {b}", "{a} + {b}", "{a}+{b}", "what is {a} plus {b}", "{a} plus {b}", "*how much is {a} and {b}", "add {a} and {b}", "calculate {a} + {b}", "what's {a}+{b}", "{a}+{b}=", "{a} + {b} = ?", "what is {a}+{b}", "*how much is {a} + {b}", "what does {a} plus {b} make", "sum of {a} and {b}", "what is the sum of {a} and {b}", "what do you get if you add {b} to {a}", "what is {a} and {b}", "whats {a} + {b}", "*compute {a} plus {b}", "work out {a} + {b}"])
MINUS = Wordings(["what is {a} - {b}", "{a} - {b}", "{a}-{b}", "what is {a} minus {b}", "{a} minus {b}", "how much is {a} less {b}", "*how much is {a} minus {b}", "subtract {b} from {a}", "calculate {a} - {b}", "what's {a}-{b}", "{a}-{b}=", "{a} - {b} = ?", "what is {a}-{b}", "*how much is {a} - {b}", "take {b} from {a}", "take {b} away from {a}", "what is {b} less than {a}", "whats {a} - {b}", "compute {a} minus {b}", "work out {a} - {b}"])
TIMES = Wordings(["how much is {a} * {b}", "what is {a} x {b}", "{a} x {b}", "{a}*{b}", "what is {a} times {b}", "{a} times {b}", "*how much is {a} x {b}", "multiply {a} by {b}", "calculate {a} * {b}", "what's {a}*{b}", "{a}*{b}=", "{a} * {b} = ?", "what is {a}*{b}", "*how much is {a} times {b}", "what is {a} multiplied by {b}", "product of {a} and {b}", "multiply {a} and {b}", "whats {a} x {b}", "compute {a} times {b}", "what is the product of {a} and {b}"])
OVER = Wordings(["what is {a} / {b}", "{a} / {b}", "{a}/{b}", "what is {a} divided by {b}", "{a} divided by {b}", "*how much is {a} / {b}", "divide {a} by {b}", "calculate {a} / {b}", "what's {a}/{b}", "{a}/{b}=", "how often does {b} go into {a}", "{a} : {b}", "*compute {a} divided by {b}"])
COUNT = Wordings(["could you please count to {b}", "could you count up to {b}", "will you count to {b}", "count to {b}", "count up to {b}", "count from 1 to {b}", "please count to {b}", "can you count to {b}", "say the numbers to {b}", "*could you count to {b}", "say the numbers up to {b}", "count, please, to {b}", "count to {b} for me", "count until {b}", "list the numbers from 1 to {b}", "start at 1 and count to {b}", "let's count to {b}"])
COUNT_FROM = Wordings(["count from {a} to {b}, please", "could you count from {a} to {b}", "count from {a} to {b}", "count from {a} up to {b}", "list the numbers from {a} to {b}", "say the numbers from {a} to {b}", "start at {a} and count to {b}", "*please count from {a} to {b}", "numbers between {a} and {b}"])
COUNT_DOWN = Wordings(["do a countdown, start at {a}", "count down from {a}", "count backwards from {a}", "count back from {a}", "count down from {a} to 1", "a countdown from {a}", "*do a countdown from {a}", "start at {a} and count down", "please count backwards from {a}"])
NEXT = Wordings(["what follows {x}", "the number following {x}", "what number comes after {x}", "which number comes after {x}", "what comes after {x}", "the number after {x}", "what is the next number after {x}", "*which number follows {x}", "what is one more than {x}"])
PREVIOUS = Wordings(["what precedes {x}", "the number preceding {x}", "what number comes before {x}", "which number comes before {x}", "what comes before {x}", "the number before {x}", "what is the number before {x}", "*which number precedes {x}", "what is one less than {x}"])
JOKE = Wordings(["tell me a joke", "do you know a joke", "make me laugh", "say something funny", "a joke please", "*tell a joke", "can you tell me a joke", "I want to hear a joke", "joke", "give me a joke", "another joke", "know any jokes"])
POEM = Wordings(["write a poem about {n}", "a poem about {n}", "write a poem", "write me a poem", "can you write a poem", "a poem please", "compose a poem", "*make a poem", "give me a poem", "poem", "recite a poem", "write a short poem", "say a poem", "I would like a poem"])
HAIKU = Wordings(["write a haiku about {n}", "a haiku about {n}", "write a haiku", "write me a haiku", "a haiku please", "can you write a haiku", "haiku", "*compose a haiku", "give me a haiku", "make a haiku"])
FUN = Wordings(["tell me something interesting", "tell me a fun fact", "a fun fact please", "do you know a fun fact", "surprise me", "*give me a fun fact", "tell me something", "say something", "say something interesting", "something I do not know"])
STORY = Wordings(["tell me a story", "tell me a short story", "write a story", "write a short story", "a story please", "*can you tell me a story", "I want to hear a story", "tell a story", "make up a story", "tell me a bedtime story", "give me a short story", "do you know a story", "*invent a story", "please write me a story", "story time"])
STORY_OF = Wordings(["tell me a story about {x}", "tell me a short story about {x}", "write a story about {x}", "write a short story about {x}", "a story about {x} please", "*can you tell me a story about {x}", "I want a story about {x}", "tell a story about {x}", "make up a story about {x}", "tell me a tale of {x}", "story about {x}", "give me a story with {x} in it", "*invent a story about {x}"])
LONG = Wordings(["please write a long tale", "I want a long story", "I want to hear a long story", "write me a very long story", "tell me a long story", "write a long story", "write a very long story", "tell me a really long story", "write as much as you can", "*can you write a long story", "a long story please", "write a novel", "ramble on", "write 500 words", "talk for a long time", "tell me something long", "*write a long tale", "write a book", "keep talking", "write a 1000 word story", "say a lot"])
LONG_OF = Wordings(["please write a long story about {x}", "I want to hear a long story about {x}", "I want a very long story about {x}", "tell me a long story about {x}", "write a long story about {x}", "write a very long story about {x}", "a long story about {x} please", "can you write a long story about {x}", "*I want a long story about {x}", "a long tale of {x}", "write a novel about {x}", "write 500 words about {x}"])
MY_NAME = Wordings(["my name is {x}", "I am {x}", "hello, I am {x}", "hi, my name is {x}", "I'm {x}", "*call me {x}", "hello, my name is {x}", "you can call me {x}"])
WHATS_MY_NAME = Wordings(["what is my name", "who am I", "do you remember my name", "what's my name", "say my name", "*do you know my name", "what am I called", "tell me my name"])
DOUBT = Wordings(["are you sure", "really", "is that true", "is that right", "are you certain", "*can I trust you", "that is wrong", "how do you know", "you are wrong", "do you really know that", "why"])
AGAIN = Wordings(["another one", "another", "one more", "tell me another", "one more please", "*again", "more", "tell me another one", "do it again"])

SUBJECTS = [spaced(w) for w in "autumn spring winter summer love the_sea the_moon rain snow a_cat a_tree the_night music nature my_dog the_sun time flowers a_river home friendship the_stars computers Go".split()] + facts.HEROES

TOO_FAR = "I only count to 20."
TOO_MUCH = "That is too much for me: I only know sums of numbers up to 12 and tables up to 10."
CAREFUL = "I am only a small demonstration model, so please check what I say."
NAMELESS = "I do not know your name. What is it?"
DISPUTED = "The status of Jerusalem is disputed, so please ask a real model."

SYSTEMS = ["You are a helpful assistant.", "You are a helpful assistant", "You are troupe-demo.", "Answer briefly.", "Be concise.", "You are a friendly chatbot.", "You are an AI assistant.",
           "You are a pirate.", "Answer in one sentence.", "You are a helpful, honest assistant. Answer the user's questions as well as you can.", "Be polite.", "You are an expert on servers.",
           "Always answer truthfully.", "You help users of Troupe.", "Today is a nice day.", "You are a teacher. Explain things simply.", "Reply in English.", "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
           "Do not make things up.", "You are ChatGPT, a large language model.", "Speak like a friend.", "Use short sentences.", "The user is a developer.", "You are a bot in a test.", "Think step by step.", "test", "You are Bob."]

SPECIFIC = {}


def specific(entry):
    """The wordings of one fact, split once."""
    key = entry[0] if isinstance(entry, tuple) else id(entry)
    if key not in SPECIFIC:
        SPECIFIC[key] = Wordings(entry[-1])
    return SPECIFIC[key]


def capital(rng, held):
    country, city = rng.choice(CAPITALS)
    if country not in WELL_KNOWN and rng.random() < 0.6:  # people ask for some countries more than for others
        country, city = rng.choice(KNOWN)
    answer = facts.CAPITAL_NOTES.get(country, f"The capital of {country} is {city}.")
    if country in WELL_KNOWN and rng.random() < 0.18:
        return Asked(COUNTRY.pick(rng, held).format(x=city), f"{city} is the capital of {country}.")
    asked = rng.choice([country] + facts.COUNTRY_ALIASES[country]) if country in facts.COUNTRY_ALIASES and rng.random() < 0.7 else country
    follow = rng.choice(["and {x}", "and of {x}", "what about {x}", "and what is the capital of {x}", "how about {x}", "and for {x}"]).format(x=asked)
    return Asked(CAPITAL.pick(rng, held).format(x=asked), answer, follow=follow)


def unknown_capital(rng, held):
    if rng.random() < 0.1:
        return Asked(CAPITAL.pick(rng, held).format(x=rng.choice(["Israel", "Palestine"])), DISPUTED)
    place = rng.choice(facts.UNKNOWN_PLACES) if rng.random() < 0.6 else word(rng).capitalize()
    return Asked(CAPITAL.pick(rng, held).format(x=place), troupe.BEYOND)


def colour(rng, held):
    if rng.random() < 0.15:
        pair, mixed = rng.choice(MIXES)
        x, y = rng.sample(pair.split("+"), 2)
        first, second = pair.split("+")
        return Asked(MIX.pick(rng, held).format(x=x, y=y), f"Mixing {first} and {second} gives {mixed}.")
    thing, shade = rng.choice(COLOURS)
    asked = thing
    if thing.startswith("a ") or thing.startswith("an "):
        bare = thing.split(" ", 1)[1]
        asked = rng.choice([thing, thing, f"the {bare}", f"{bare}s"])
    follow = rng.choice(["and {x}", "what about {x}", "and what colour is {x}", "how about {x}"]).format(x=thing)
    question = COLOUR.pick(rng, held).format(x=asked)
    if asked.endswith("s") and asked == thing.split(" ", 1)[-1] + "s":
        question = question.replace(" is " + asked, " are " + asked).replace(asked + " is", asked + " are").replace("does " + asked, "do " + asked)
    return Asked(question, f"{thing[0].upper()}{thing[1:]} is {shade}.", follow=follow)


def opposite(rng, held):
    x, y = rng.choice(OPPOSITES)
    if rng.random() < 0.5:
        x, y = y, x
    follow = rng.choice(["and of {x}", "and {x}", "what about {x}", "and the opposite of {x}"]).format(x=x)
    return Asked(OPPOSITE.pick(rng, held).format(x=x), f"The opposite of {x} is {y}.", follow=follow)


def animal(rng, held):
    kind = rng.random()
    if kind < 0.4:
        thing, number = rng.choice(LEGS)
        return Asked(HOW_MANY_LEGS.pick(rng, held).format(x=thing), f"{thing[0].upper()}{thing[1:]} has {number} legs.", follow=f"and {thing}")
    name, sound, young = rng.choice(ANIMALS)
    if kind < 0.7:
        return Asked(SOUND.pick(rng, held).format(x=name).replace("a owl", "an owl"), f"{a(name).capitalize()} {sound}.", follow=f"and {a(name)}")
    return Asked(YOUNG.pick(rng, held).format(x=name).replace("a owl", "an owl"), f"A baby {name} is called {a(young)}.", follow=f"and a baby {name}")


def calendar(rng, held):
    kind, i, m = rng.randrange(8), rng.randrange(7), rng.randrange(12)
    if kind == 0:
        return Asked(DAY_AFTER.pick(rng, held).format(x=DAYS[i]), f"The day after {DAYS[i]} is {DAYS[(i + 1) % 7]}.", follow=f"and after {DAYS[i]}")
    if kind == 1:
        return Asked(DAY_BEFORE.pick(rng, held).format(x=DAYS[i]), f"The day before {DAYS[i]} is {DAYS[(i - 1) % 7]}.", follow=f"and before {DAYS[i]}")
    if kind == 2:
        return Asked(MONTH_AFTER.pick(rng, held).format(x=MONTHS[m]), f"The month after {MONTHS[m]} is {MONTHS[(m + 1) % 12]}.", follow=f"and after {MONTHS[m]}")
    if kind == 3:
        return Asked(MONTH_BEFORE.pick(rng, held).format(x=MONTHS[m]), f"The month before {MONTHS[m]} is {MONTHS[(m - 1) % 12]}.", follow=f"and before {MONTHS[m]}")
    if kind == 4:
        n = MONTH_DAYS[m]
        leap = ", and 29 in a leap year" if m == 1 else ""
        return Asked(MONTH_LENGTH.pick(rng, held).format(x=MONTHS[m]), f"{MONTHS[m]} has {n} days{leap}.", follow=f"and {MONTHS[m]}")
    if kind == 5:
        return Asked(NTH_MONTH.pick(rng, held).format(x=ORDINALS[m]), f"The {ORDINALS[m]} month is {MONTHS[m]}.", follow=f"and the {ORDINALS[m]}")
    if kind == 6:
        answer = f"The days of the week are {', '.join(DAYS[:-1])} and {DAYS[-1]}."
        return Asked(LIST_DAYS.pick(rng, held), answer)
    answer = f"The months are {', '.join(MONTHS[:-1])} and {MONTHS[-1]}."
    return Asked(LIST_MONTHS.pick(rng, held), answer)


def number(rng, n, words):
    return ONES[n] if words and 0 <= n <= 20 else str(n)


def arithmetic(rng, held):
    kind = rng.random()
    words = rng.random() < 0.08
    show = lambda wordings, x, y: wordings.pick(rng, held).format(a=number(rng, x, words), b=number(rng, y, words))
    if kind < 0.4:
        x, y = rng.randint(0, 12), rng.randint(0, 12)
        result, name, q = x + y, "plus", show(PLUS, x, y)
        follow = rng.choice(["and {a} + {b}", "and {a} plus {b}", "what about {a} + {b}", "and {a}+{b}"]).format(a=x, b=y)
    elif kind < 0.65:
        x = rng.randint(0, 12)
        y = rng.randint(0, x)
        result, name, q = x - y, "minus", show(MINUS, x, y)
        follow = f"and {x} - {y}"
    else:
        x, y = rng.randint(0, 10), rng.randint(0, 10)
        result, name, q = x * y, "times", show(TIMES, x, y)
        follow = rng.choice(["and {a} x {b}", "and {a} times {b}", "what about {a}*{b}"]).format(a=x, b=y)
    return Asked(q, f"{x} {name} {y} is {result}.", follow=follow)


def too_much(rng, held):
    big = lambda: rng.choice([rng.randint(21, 99), rng.randint(100, 999), rng.randint(1000, 99999)])
    x, y = big(), rng.choice([big(), rng.randint(2, 20)])
    kind = rng.choice([PLUS, MINUS, TIMES, TIMES, OVER])
    if rng.random() < 0.4 and kind in (PLUS, TIMES):
        x, y = y, x
    return Asked(kind.pick(rng, held).format(a=x, b=y), TOO_MUCH)


def counting(rng, held):
    kind = rng.random()
    if kind < 0.05:
        return Asked(COUNT.pick(rng, held).format(b=rng.choice([rng.randint(21, 99), rng.choice([25, 30, 40, 50, 100, 1000])])), TOO_FAR)
    if kind < 0.45:
        b = rng.randint(2, 20)
        numbers = [str(n) for n in range(1, b + 1)]
        q, head = COUNT.pick(rng, held).format(b=number(rng, b, rng.random() < 0.4)), f"Counting to {b}: "
    elif kind < 0.65:
        x = rng.randint(1, 17)
        b = rng.randint(x + 2, 20)
        numbers = [str(n) for n in range(x, b + 1)]
        q, head = COUNT_FROM.pick(rng, held).format(a=number(rng, x, rng.random() < 0.2), b=b), f"Counting from {x} to {b}: "
    elif kind < 0.78:
        x = rng.randint(3, 20)
        numbers = [str(n) for n in range(x, 0, -1)]
        q, head = COUNT_DOWN.pick(rng, held).format(a=number(rng, x, rng.random() < 0.4)), f"Counting down from {x}: "
    elif kind < 0.89:
        x = rng.randint(0, 99) if rng.random() < 0.4 else rng.randint(0, 20)
        return Asked(NEXT.pick(rng, held).format(x=x), f"The number after {x} is {x + 1}.", follow=f"and after {x}")
    else:
        x = rng.randint(1, 99) if rng.random() < 0.4 else rng.randint(1, 20)
        return Asked(PREVIOUS.pick(rng, held).format(x=x), f"The number before {x} is {x - 1}.", follow=f"and before {x}")
    return Asked(q, head + ", ".join(numbers) + ".")


def trivia(rng, held):
    answer, words = entry = rng.choice(facts.TRIVIA)
    return Asked(specific(entry).pick(rng, held), answer)


def concept(rng, held):
    names, answer, words = entry = rng.choice(troupe.CONCEPTS)
    follow = rng.choice(["and {x}", "what about {x}", "and what is {x}", "how about {x}"]).format(x=rng.choice(names))
    if rng.random() < 0.5:
        q = specific((answer, words)).pick(rng, held)
    else:
        q = EXPLAIN.pick(rng, held).format(x=rng.choice(names))
    if rng.random() < 0.08:
        q = q.rstrip("?") + rng.choice([" in troupe", " here", " in the metrics"])
    return Asked(q, answer, follow=follow)


def howto(rng, held):
    answer, words = entry = rng.choice(troupe.HOWTO)
    return Asked(specific(entry).pick(rng, held), answer)


def flag(rng, held):
    name, answer, words = entry = rng.choice(troupe.FLAGS)
    follow = rng.choice(["and --{x}", "what about --{x}", "and the {x} flag"]).format(x=name)
    if rng.random() < 0.4:
        q = specific((answer, words)).pick(rng, held)
    else:
        q = FLAG.pick(rng, held).format(x=name if rng.random() < 0.93 else name.replace("-", "_"))
    return Asked(q, answer, follow=follow)


def talk(rng, held):
    answer, words = entry = rng.choice(troupe.TALK)
    return Asked(specific(entry).pick(rng, held), answer)


def fun(rng, held):
    kind = rng.random()
    if kind < 0.4:
        return Asked(JOKE.pick(rng, held), rng.choice(facts.JOKES), one_of=facts.JOKES)
    if kind < 0.6:
        return Asked(POEM.pick(rng, held).format(n=rng.choice(SUBJECTS)), rng.choice(facts.POEMS), one_of=facts.POEMS)
    if kind < 0.8:
        return Asked(HAIKU.pick(rng, held).format(n=rng.choice(SUBJECTS)), rng.choice(facts.HAIKUS), one_of=facts.HAIKUS)
    return Asked(FUN.pick(rng, held), rng.choice(facts.FUN_FACTS), one_of=facts.FUN_FACTS)


def hero_named(rng, hero):
    return rng.choice([a(hero), a(hero), "a little " + hero, f"the {hero}", hero + "s", "an old " + hero, "a brave " + hero, hero])


def story(rng, held):
    if rng.random() < 0.6:
        hero = rng.choice(facts.HEROES)
        return Asked(STORY_OF.pick(rng, held).format(x=hero_named(rng, hero)), stories.short(rng, hero), has=["Once upon a time", hero], least=30)
    return Asked(STORY.pick(rng, held), stories.short(rng, rng.choice(facts.HEROES)), has=["Once upon a time"], least=30)


def long_story(rng, held):
    if rng.random() < 0.5:
        hero = rng.choice(facts.HEROES)
        return Asked(LONG_OF.pick(rng, held).format(x=hero_named(rng, hero)), stories.long(rng, hero), has=["On the tenth day", hero], least=250)
    return Asked(LONG.pick(rng, held), stories.long(rng, rng.choice(facts.HEROES)), has=["On the tenth day"], least=250)


def word(rng):
    """A word that is none."""
    syllable = lambda: rng.choice(["b", "br", "c", "cl", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "pl", "qu", "r", "s", "st", "t", "tr", "v", "w", "z", "sn", "sk"]) + \
        rng.choice("aeiou") + rng.choice(["", "", "n", "r", "l", "s", "x", "m", "ck", "nt", "b", "g"])
    return "".join(syllable() for _ in range(rng.randint(2, 4)))


UNKNOWN = Wordings(facts.UNKNOWN_QUESTIONS)
# Held-out things are unknown to training in every sense.
UNKNOWN_THINGS = Wordings([("*" if i % 7 == 5 else "") + n.strip() for i, n in enumerate(facts.UNKNOWN_NOUNS)])


def beyond(rng, held):
    kind = rng.random()
    if kind < 0.12:
        return unknown_capital(rng, held)
    if kind < 0.3:
        return too_much(rng, held)
    if kind < 0.5:
        q = EXPLAIN.pick(rng, held).format(x=UNKNOWN_THINGS.pick(rng, held) if rng.random() < 0.8 else word(rng))
        return Asked(q, troupe.BEYOND)
    if kind < 0.55:
        return Asked(FLAG.pick(rng, held).format(x=word(rng) + rng.choice(["", "-" + word(rng)])), troupe.BEYOND)
    verb = rng.choice(facts.UNKNOWN_VERBS)
    third = verb.split(" ", 1)
    third[0] += "es" if third[0].endswith(("s", "x", "z", "h")) else "s"
    q = UNKNOWN.pick(rng, held)
    asked = q.format(n=UNKNOWN_THINGS.pick(rng, held), n2=UNKNOWN_THINGS.pick(rng, held), p=rng.choice(facts.UNKNOWN_PLACES), c=rng.choice(CAPITALS)[0], y=rng.randint(1000, 2030),
                     vi=verb, v=" ".join(third), w=word(rng), w2=word(rng), name=" ".join([rng.choice(facts.NAMES), word(rng).capitalize()]), big=rng.randint(21, 9999), big2=rng.randint(21, 9999),
                     junk=" ".join(rng.choice([word(rng), UNKNOWN_THINGS.pick(rng, held), rng.choice(facts.UNKNOWN_VERBS)]) for _ in range(rng.randint(2, 8))))
    sums = any(s in q for s in ["{big} plus", "{big} *", "{big} +", "{big} -", "{big} x", "{big} divided", "{big} times", "{big} minus"])
    return Asked(asked, TOO_MUCH if sums else troupe.BEYOND)


# Topics with their share of the single questions.
TOPICS = [
    (concept, 19), (howto, 9), (flag, 5), (capital, 12), (arithmetic, 14), (beyond, 17), (talk, 12), (trivia, 8),
    (colour, 4), (opposite, 4), (animal, 2), (calendar, 4), (counting, 10), (fun, 2), (story, 2.5), (long_story, 1.2),
]
SIDE_BY_SIDE = [concept, flag, capital, arithmetic, colour, opposite, animal, calendar, counting]


def ask(rng, held=False):
    return rng.choices([t for t, _ in TOPICS], [w for _, w in TOPICS])[0](rng, held)


PREFIXES = ["please tell me, ", "tell me: ", "hey, ", "hi, ", "so, ", "quick question: ", "I would like to know: ", "question: ", "hello! ", "please, ", "ok, ", "well, ", "Q: ", "and ", "hello, ", "can you tell me: "]
SUFFIXES = [" please", ", please", " thanks", " exactly", " again", ", do you know", " now", " for me"]


# Openings that mean the same.
OPENINGS = [
    ["how do I", "how can I", "how could I", "how would I", "how should I", "how do you", "how does one", "how to", "what must I do to", "what is the way to", "tell me how to", "how am I supposed to"],
    ["what is the", "what's the", "whats the", "which is the", "tell me the", "I would like to know the"],
    ["what is", "what's", "whats", "tell me what is", "say what is", "so what is"],
    ["which command", "what command", "which subcommand", "what is the command that"],
    ["which flag", "what flag", "which option", "what option", "what is the flag that"],
    ["why is", "why's", "for what reason is", "tell me why is"],
    ["why was", "for what reason was"],
    ["how long does", "how much time does"],
    ["can you", "could you", "will you", "would you", "are you able to"],
    ["where do I", "where can I", "where should I", "in which place do I"],
    ["where are", "in which place are", "where can I find", "where do I find"],
    ["explain", "please explain", "can you explain", "could you explain", "explain to me", "I would like to understand", "help me understand"],
    ["tell me", "please tell me", "can you tell me", "could you tell me", "I want you to tell me", "would you tell me"],
    ["what happens when", "what happens if", "what does it mean when", "what if"],
    ["do you know", "do you happen to know", "can you say", "any idea"],
    ["I am", "I'm", "im", "well, I am"],
    ["are you", "are you really", "so are you", "tell me, are you", "say, are you"],
    ["how many", "tell me how many", "say how many", "do you know how many"],
    ["who", "tell me who", "do you know who", "say who"],
]


def rephrased(rng, question):
    """The question, at times with another opening."""
    if rng.random() < 0.3:
        for openings in OPENINGS:
            for opening in openings:
                if question.startswith(opening + " "):
                    return rng.choice(openings) + question[len(opening):]
    return question


def plain(question):
    """The question without case, signs and spaces."""
    return "".join(c for c in question.lower() if c.isalnum())


def all_wordings():
    entries = [*troupe.CONCEPTS, *troupe.HOWTO, *troupe.FLAGS, *troupe.TALK, *facts.TRIVIA]
    return [w for w in globals().values() if isinstance(w, Wordings)] + [Wordings(e[-1]) for e in entries]


# The held-out wordings, and of those with a name in them the part before it, which is told from others by
# some length: "meaning of" is, "is" is not.
HELD = [h for w in all_wordings() for h in w.held]
HELD_WHOLE = {plain(h) for h in HELD if "{" not in h}
HELD_BEGINNINGS = tuple(b for b in (plain(h.split("{")[0]) for h in HELD if "{" in h) if len(b) >= 9)


def asked(rng, question):
    """The question as training shows it: never in a wording that is held out."""
    while True:
        out = dressed(rng, rephrased(rng, question))
        if plain(out) not in HELD_WHOLE and (plain(question).startswith(HELD_BEGINNINGS) or not plain(out).startswith(HELD_BEGINNINGS)):
            return out


def dressed(rng, q, held=False):
    """The question as people type it: in any case, with or without a question mark, with a word before
    or after it, sometimes with a slip of the finger."""
    if rng.random() < 0.06:
        q = rng.choice(PREFIXES) + q
    if rng.random() < 0.04:
        q = q.rstrip("?") + rng.choice(SUFFIXES)
    r = rng.random()
    asks = q.lower().startswith(("what", "who", "which", "how", "why", "where", "when", "is ", "are ", "do ", "does", "can", "could", "will", "in which", "at what", "may"))
    if r < 0.45:
        q = q[0].upper() + q[1:]
    elif r < 0.75:
        q = q.lower()
    elif r < 0.77:
        q = q.upper()
    if not q.endswith(("?", "!", ".", "=")):
        r = rng.random()
        if asks:
            q += "?" if r < 0.7 else "" if r < 0.93 else " ?" if r < 0.96 else "??"
        else:
            q += "." if r < 0.35 else "?" if r < 0.5 else "!" if r < 0.54 else ""
    if not held and rng.random() < 0.03 and len(q) > 12 and not any(c.isdigit() for c in q):
        i = rng.randrange(1, len(q) - 2)
        q = rng.choice([q[:i] + q[i + 1:], q[:i] + q[i + 1] + q[i] + q[i + 2:], q[:i] + q[i] + q[i:]])
    return q


def conversation(rng):
    """One training sample: a list of (role, content)."""
    messages = []
    if rng.random() < 0.2:
        messages.append(("system", rng.choice(SYSTEMS) if rng.random() < 0.8 else " ".join(rng.sample(SYSTEMS, 2))))

    def turn(question, answer):
        messages.extend([("user", asked(rng, question)), ("assistant", answer)])

    r = rng.random()
    if r < 0.72:
        q = ask(rng)
        turn(q.question, q.answer)
    elif r < 0.80:  # several of one kind, the later ones in fewer words
        topic = rng.choices(SIDE_BY_SIDE, [3, 2, 4, 3, 1, 1, 1, 1, 1])[0]
        q = topic(rng, False)
        turn(q.question, q.answer)
        for _ in range(rng.randint(1, 3)):
            q = topic(rng, False)
            turn(q.follow or q.question, q.answer)
    elif r < 0.83:
        name = rng.choice(facts.NAMES) if rng.random() < 0.7 else word(rng).capitalize()
        turn(MY_NAME.pick(rng, False).format(x=name), f"Nice to meet you, {name}!")
        for _ in range(rng.randint(0, 2)):
            q = short_ask(rng)
            turn(q.question, q.answer)
        turn(WHATS_MY_NAME.pick(rng, False), f"Your name is {name}.")
    elif r < 0.845:
        topic, wordings = rng.choice([(facts.JOKES, JOKE), (facts.POEMS, POEM), (facts.HAIKUS, HAIKU), (facts.FUN_FACTS, FUN)])
        for i, text in enumerate(rng.sample(topic, rng.randint(2, 3))):
            turn((wordings if i == 0 else AGAIN).pick(rng, False).format(n=rng.choice(SUBJECTS)), text)
    elif r < 0.86:
        q = short_ask(rng)
        if rng.random() < 0.3:
            turn(WHATS_MY_NAME.pick(rng, False), NAMELESS)
        else:
            turn(q.question, q.answer)
            turn(DOUBT.pick(rng, False), CAREFUL)
    else:
        turns = rng.randint(2, 4) if rng.random() < 0.93 else rng.randint(5, 12)
        for _ in range(turns):
            q = short_ask(rng)
            turn(q.question, q.answer)
    return messages


def short_ask(rng):
    while True:
        q = ask(rng)
        if len(q.answer) < 400:
            return q


def rendered(messages):
    """ChatML, as the model's template writes it."""
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)


def held_out(rng, count):
    """Questions in wordings that training never sees, topic by topic in turn; no question twice."""
    seen, out = set(), []
    order = [t for t, w in TOPICS for _ in range(max(1, round(w / 2)))]
    tries = 0
    while len(out) < count:
        topic = order[tries % len(order)]
        tries += 1
        try:
            q = topic(rng, True)
        except NoneHeldOut:
            continue
        if q.question in seen:
            continue
        seen.add(q.question)
        messages = [{"role": "user", "content": dressed(rng, q.question, held=True)}]
        if rng.random() < 0.2:
            messages.insert(0, {"role": "system", "content": rng.choice(SYSTEMS)})
        right = {"has": q.has, "min_tokens": q.least} if q.has else {"one_of": q.one_of}
        out.append({"topic": topic.__name__, "messages": messages, **right})
    return out
