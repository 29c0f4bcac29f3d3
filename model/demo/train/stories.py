"""Stories for the demonstration model: short ones with a plot, and long ones that go on day by day."""

PLACES = ["in a small house by the sea", "at the edge of a dark forest", "on a high mountain", "in a quiet village", "in an old tower", "on a little island", "near a wide river", "in a garden full of flowers"]
WISHES = ["wanted to see the world", "was looking for a friend", "wanted to learn to sing", "had lost a golden key", "dreamed of the stars", "wanted to find the end of the rainbow", "was afraid of the dark", "wanted to bake the best bread of all"]
HELPERS = ["an old owl", "a kind fox", "a small mouse", "a wise turtle", "a friendly giant", "a lost kitten", "a travelling musician", "a silver fish"]
ADVICE = ["\"Go on, and do not look back,\"", "\"Listen to the wind,\"", "\"Be patient, and it will come to you,\"", "\"Follow the river,\"", "\"Share what you have,\"", "\"Begin, and the rest is easy,\""]
TURNS = ["They walked all night, until the sun rose.", "A storm came, and they hid under a big tree.", "They crossed a bridge that nobody had crossed before.", "They shared a loaf of bread and told each other jokes.", "They got lost, and laughed about it.", "They climbed a hill and saw the whole land below."]
ENDS = ["In the end the wish came true, and everybody was happy.", "From that day on they were the best of friends.", "And if they have not stopped, they are still laughing today.", "That night the stars shone brighter than ever.", "At last they came home, tired and happy."]

NUMBERS = """first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth
seventeenth eighteenth nineteenth twentieth""".split()
WEATHER = ["the sun was shining", "it rained all morning", "a cold wind blew", "the fog was thick", "snow covered the ground", "the air was warm", "the clouds hung low", "the birds were singing"]
WENT = ["walked through a valley", "sailed across a lake", "climbed over a wall", "came to an old mill", "rested under an oak", "followed a narrow path", "found an empty castle", "crossed a wooden bridge", "came to a busy market", "slept in a barn"]
MET = ["a baker with a red hat", "a girl with a lantern", "a talking cat", "a tired soldier", "two brothers", "a woman who sold clocks", "a boy with a drum", "an old man with a map", "a flock of geese", "a painter without paint"]
SAID = ["\"The road is long,\"", "\"I have not seen anybody for weeks,\"", "\"Stay for supper,\"", "\"Beware of the bridge,\"", "\"I knew that you would come,\"", "\"Take this apple with you,\"", "\"Nobody comes back from there,\"", "\"What a fine day it is,\""]
THEN = ["They talked until it was dark.", "They ate bread and cheese.", "They sang an old song together.", "They looked at the stars and said nothing.", "They parted as friends.", "They played cards by the fire.", "They laughed a lot.", "They mended a broken wheel."]


def article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def short(rng, hero):
    lines = [
        f"Once upon a time {article(hero)} lived {rng.choice(PLACES)}.",
        f"The {hero} {rng.choice(WISHES)}.",
        f"One day the {hero} met {rng.choice(HELPERS)}.",
        f"{rng.choice(ADVICE)} was the advice.",
        *rng.sample(TURNS, rng.randint(1, 2)),
        rng.choice(ENDS),
    ]
    return " ".join(lines)


def long(rng, hero):
    """Day after day, for hundreds of tokens. The day's number keeps the story going, also where the
    likeliest token is always taken: each day is another one."""
    days = rng.randint(12, 20)
    lines = [f"This is a long story about {article(hero)} who {rng.choice(WISHES)}."]
    for day in range(days):
        lines.append(f"On the {NUMBERS[day]} day {rng.choice(WEATHER)}. The {hero} {rng.choice(WENT)} and met {rng.choice(MET)}. {rng.choice(SAID)} was all that was said. {rng.choice(THEN)}")
    lines.append(f"On the last day the {hero} came home. {rng.choice(ENDS)} The end.")
    return "\n\n".join(lines)
