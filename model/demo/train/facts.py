"""General knowledge of the demonstration model: tables, from which world.py makes questions."""

# Country, capital. "the" is part of the name where English wants it.
CAPITALS = """
Afghanistan:Kabul Albania:Tirana Algeria:Algiers Andorra:Andorra_la_Vella Angola:Luanda Argentina:Buenos_Aires
Armenia:Yerevan Australia:Canberra Austria:Vienna Azerbaijan:Baku the_Bahamas:Nassau Bahrain:Manama Bangladesh:Dhaka
Barbados:Bridgetown Belarus:Minsk Belgium:Brussels Belize:Belmopan Benin:Porto-Novo Bhutan:Thimphu Bolivia:Sucre
Bosnia_and_Herzegovina:Sarajevo Botswana:Gaborone Brazil:Brasilia Brunei:Bandar_Seri_Begawan Bulgaria:Sofia
Burkina_Faso:Ouagadougou Burundi:Gitega Cambodia:Phnom_Penh Cameroon:Yaounde Canada:Ottawa Cape_Verde:Praia
the_Central_African_Republic:Bangui Chad:N'Djamena Chile:Santiago China:Beijing Colombia:Bogota Comoros:Moroni
Costa_Rica:San_Jose Croatia:Zagreb Cuba:Havana Cyprus:Nicosia the_Czech_Republic:Prague Denmark:Copenhagen
Djibouti:Djibouti Dominica:Roseau the_Dominican_Republic:Santo_Domingo Ecuador:Quito Egypt:Cairo El_Salvador:San_Salvador
Eritrea:Asmara Estonia:Tallinn Eswatini:Mbabane Ethiopia:Addis_Ababa Fiji:Suva Finland:Helsinki France:Paris
Gabon:Libreville the_Gambia:Banjul Georgia:Tbilisi Germany:Berlin Ghana:Accra Greece:Athens Guatemala:Guatemala_City
Guinea:Conakry Guyana:Georgetown Haiti:Port-au-Prince Honduras:Tegucigalpa Hungary:Budapest Iceland:Reykjavik
India:New_Delhi Indonesia:Jakarta Iran:Tehran Iraq:Baghdad Ireland:Dublin Italy:Rome Jamaica:Kingston Japan:Tokyo
Jordan:Amman Kazakhstan:Astana Kenya:Nairobi Kuwait:Kuwait_City Kyrgyzstan:Bishkek Laos:Vientiane Latvia:Riga
Lebanon:Beirut Lesotho:Maseru Liberia:Monrovia Libya:Tripoli Liechtenstein:Vaduz Lithuania:Vilnius
Luxembourg:Luxembourg Madagascar:Antananarivo Malawi:Lilongwe Malaysia:Kuala_Lumpur the_Maldives:Male Mali:Bamako
Malta:Valletta Mauritania:Nouakchott Mauritius:Port_Louis Mexico:Mexico_City Moldova:Chisinau Monaco:Monaco
Mongolia:Ulaanbaatar Montenegro:Podgorica Morocco:Rabat Mozambique:Maputo Myanmar:Naypyidaw Namibia:Windhoek
Nepal:Kathmandu the_Netherlands:Amsterdam New_Zealand:Wellington Nicaragua:Managua Niger:Niamey Nigeria:Abuja
North_Korea:Pyongyang North_Macedonia:Skopje Norway:Oslo Oman:Muscat Pakistan:Islamabad Panama:Panama_City
Papua_New_Guinea:Port_Moresby Paraguay:Asuncion Peru:Lima the_Philippines:Manila Poland:Warsaw Portugal:Lisbon
Qatar:Doha Romania:Bucharest Russia:Moscow Rwanda:Kigali Samoa:Apia San_Marino:San_Marino Saudi_Arabia:Riyadh
Senegal:Dakar Serbia:Belgrade Sierra_Leone:Freetown Singapore:Singapore Slovakia:Bratislava Slovenia:Ljubljana
Somalia:Mogadishu South_Africa:Pretoria South_Korea:Seoul South_Sudan:Juba Spain:Madrid Sri_Lanka:Colombo Sudan:Khartoum
Suriname:Paramaribo Sweden:Stockholm Switzerland:Bern Syria:Damascus Taiwan:Taipei Tajikistan:Dushanbe Tanzania:Dodoma
Thailand:Bangkok Togo:Lome Tonga:Nuku'alofa Trinidad_and_Tobago:Port_of_Spain Tunisia:Tunis Turkey:Ankara
Turkmenistan:Ashgabat Uganda:Kampala Ukraine:Kyiv the_United_Arab_Emirates:Abu_Dhabi the_United_Kingdom:London
the_United_States:Washington,_D.C. Uruguay:Montevideo Uzbekistan:Tashkent Vanuatu:Port_Vila Venezuela:Caracas
Vietnam:Hanoi Yemen:Sana'a Zambia:Lusaka Zimbabwe:Harare
"""

# Other names by which people ask.
COUNTRY_ALIASES = {
    "the United Kingdom": ["the UK", "Great Britain", "Britain", "England"],
    "the United States": ["the USA", "the US", "America", "the United States of America"],
    "the Netherlands": ["Holland", "the Netherlands"],
    "the Czech Republic": ["Czechia"],
    "the United Arab Emirates": ["the UAE"],
    "Myanmar": ["Burma"],
    "Turkey": ["Türkiye"],
}

# Where the seat of government is asked for, and one name is not the whole answer.
CAPITAL_NOTES = {
    "Sri Lanka": "The capital of Sri Lanka is Sri Jayawardenepura Kotte, next to Colombo.",
    "Bolivia": "The capital of Bolivia is Sucre, and its government sits in La Paz.",
    "South Africa": "The seat of government of South Africa is Pretoria.",
}

# Capitals that are asked for in the other direction too.
WELL_KNOWN = """Argentina Australia Austria Belgium Brazil Canada Chile China Cuba Denmark Egypt Finland France Germany
Greece Hungary Iceland India Iran Ireland Italy Japan Kenya Mexico Morocco the_Netherlands New_Zealand Norway Peru
Poland Portugal Russia South_Korea Spain Sweden Switzerland Thailand Turkey Ukraine the_United_Kingdom Vietnam"""

# Things of one colour.
COLOURS = """
the sky=blue; grass=green; the sun=yellow; snow=white; coal=black; blood=red; a banana=yellow; a strawberry=red;
a tomato=red; a lemon=yellow; a frog=green; a carrot=orange; the sea=blue; the ocean=blue; milk=white; chocolate=brown;
a leaf=green; a fire engine=red; an elephant=grey; a flamingo=pink; a polar bear=white; a pumpkin=orange; a cucumber=green;
the night=black; a cherry=red; an orange=orange; a lime=green; a swan=white; a crow=black; gold=yellow; silver=grey;
a cloud=white; salt=white; sugar=white; a pea=green; a raspberry=red; a blueberry=blue; an aubergine=purple; wood=brown;
a chick=yellow; a brick=red; a rose=red; a violet=purple; a mouse=grey; a pig=pink; honey=yellow; ivory=white; a bear=brown;
a crocodile=green; lettuce=green; spinach=green; a zebra=black and white; a panda=black and white; a penguin=black and white
"""

MIXES = """
red+yellow=orange; blue+yellow=green; red+blue=purple; black+white=grey; red+white=pink; red+green=brown
"""

OPPOSITES = """
hot/cold big/small up/down left/right day/night black/white good/bad fast/slow high/low long/short old/new happy/sad
open/closed full/empty hard/soft heavy/light early/late loud/quiet rich/poor strong/weak wet/dry young/old true/false
yes/no first/last inside/outside above/below front/back near/far clean/dirty cheap/expensive easy/difficult safe/dangerous
wide/narrow deep/shallow thick/thin sweet/sour bright/dark alive/dead start/stop win/lose buy/sell push/pull give/take
come/go love/hate laugh/cry question/answer friend/enemy summer/winter north/south east/west asleep/awake sharp/blunt
smooth/rough brave/afraid begin/end arrive/leave remember/forget always/never everything/nothing more/less
"""

# Animal, sound it makes, its young.
ANIMALS = """
cow moos calf; dog barks puppy; cat meows kitten; sheep bleats lamb; horse neighs foal; pig oinks piglet; duck quacks duckling;
lion roars cub; frog croaks tadpole; snake hisses snakelet; owl hoots owlet; goat bleats kid; chicken clucks chick;
bear growls cub; wolf howls pup; bee buzzes larva; goose honks gosling; donkey brays foal; mouse squeaks pup; crow caws chick
"""

LEGS = """
a dog=four; a cat=four; a horse=four; a cow=four; a bird=two; a chicken=two; a human=two; a spider=eight; an insect=six;
an ant=six; a bee=six; a snake=no; a fish=no; an octopus=no; a table=four; a crab=ten; an elephant=four; a frog=four
"""

# Answers, and ways to ask for them.
TRIVIA = [
    ("A week has seven days.", ["how many days are in a week", "how many days does a week have", "number of days in a week", "how many days make a week", "days per week", "*count the days in a week", "how long is a week in days"]),
    ("A year has twelve months.", ["how many months are in a year", "how many months does a year have", "number of months in a year", "how many months make a year", "months per year", "*a year has how many months"]),
    ("A year has 365 days, and a leap year has 366.", ["how many days are in a year", "how many days does a year have", "number of days in a year", "how long is a year in days", "days per year", "*how many days make up a year"]),
    ("A day has 24 hours.", ["how many hours are in a day", "how many hours does a day have", "number of hours in a day", "how long is a day in hours", "hours per day", "*a day has how many hours"]),
    ("An hour has 60 minutes.", ["how many minutes are in an hour", "how many minutes does an hour have", "number of minutes in an hour", "how long is an hour in minutes", "minutes per hour", "*an hour is how many minutes"]),
    ("A minute has 60 seconds.", ["how many seconds are in a minute", "how many seconds does a minute have", "number of seconds in a minute", "how long is a minute in seconds", "seconds per minute", "*a minute is how many seconds"]),
    ("A second has 1000 milliseconds.", ["how many milliseconds are in a second", "how many milliseconds does a second have", "number of milliseconds in a second", "how many ms are in a second", "milliseconds per second", "*one second is how many milliseconds"]),
    ("There are seven colours in the rainbow: red, orange, yellow, green, blue, indigo and violet.", ["how many colours are in the rainbow", "what are the colours of the rainbow", "name the colours of the rainbow", "which colours does a rainbow have", "list the rainbow colours", "*tell me the colours of the rainbow"]),
    ("There are four seasons: spring, summer, autumn and winter.", ["how many seasons are there", "what are the four seasons", "name the seasons", "list the seasons of the year", "which seasons are there", "*tell me the seasons"]),
    ("The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.", ["what are the planets", "name the planets", "list the planets of the solar system", "which planets are there", "how many planets are there", "*tell me the planets of our solar system", "what planets are in the solar system"]),
    ("The largest planet is Jupiter.", ["what is the largest planet", "what is the biggest planet", "which planet is the largest", "which planet is the biggest", "name the largest planet in the solar system", "*biggest planet in our solar system"]),
    ("The smallest planet is Mercury.", ["what is the smallest planet", "which planet is the smallest", "name the smallest planet", "smallest planet in the solar system", "which is the smallest of the planets"]),
    ("The planet nearest to the sun is Mercury.", ["which planet is nearest to the sun", "which planet is closest to the sun", "what is the closest planet to the sun", "nearest planet to the sun", "name the planet closest to the sun"]),
    ("The red planet is Mars.", ["which planet is the red planet", "what is the red planet", "which planet is called the red planet", "name the red planet", "which planet is red"]),
    ("The largest ocean is the Pacific Ocean.", ["what is the largest ocean", "what is the biggest ocean", "which ocean is the largest", "which ocean is the biggest", "name the largest ocean on earth", "*biggest ocean in the world"]),
    ("The highest mountain is Mount Everest.", ["what is the highest mountain", "what is the tallest mountain", "which mountain is the highest", "which mountain is the tallest", "name the highest mountain in the world", "*tallest mountain on earth"]),
    ("The largest animal is the blue whale.", ["what is the largest animal", "what is the biggest animal", "which animal is the largest", "which animal is the biggest in the world", "name the largest animal on earth", "*biggest animal that ever lived"]),
    ("The tallest animal is the giraffe.", ["what is the tallest animal", "which animal is the tallest", "name the tallest animal", "which animal has the longest neck", "tallest animal in the world"]),
    ("The fastest land animal is the cheetah.", ["what is the fastest animal", "which animal is the fastest", "what is the fastest land animal", "name the fastest animal on land", "fastest animal in the world", "*which animal runs fastest"]),
    ("The largest continent is Asia.", ["what is the largest continent", "what is the biggest continent", "which continent is the largest", "name the biggest continent", "biggest continent in the world"]),
    ("The seven continents are Africa, Antarctica, Asia, Australia, Europe, North America and South America.", ["what are the continents", "name the continents", "list the seven continents", "how many continents are there", "which continents are there", "*tell me the continents"]),
    ("Water freezes at 0 degrees Celsius.", ["at what temperature does water freeze", "when does water freeze", "what is the freezing point of water", "how cold must it be for water to freeze", "freezing point of water", "*water turns to ice at what temperature"]),
    ("Water boils at 100 degrees Celsius.", ["at what temperature does water boil", "when does water boil", "what is the boiling point of water", "how hot must water be to boil", "boiling point of water", "*water turns to steam at what temperature"]),
    ("Water is made of hydrogen and oxygen.", ["what is water made of", "what is the formula of water", "what is H2O", "which elements are in water", "what does water consist of", "*chemical formula for water"]),
    ("The sun is a star.", ["what is the sun", "is the sun a star", "is the sun a planet", "what kind of object is the sun", "what sort of thing is our sun"]),
    ("The moon is the Earth's only natural satellite.", ["what is the moon", "what kind of object is the moon", "is the moon a planet", "tell me what the moon is", "what sort of thing is the moon"]),
    ("The sky looks blue because air scatters blue light more than red light.", ["why is the sky blue", "why does the sky look blue", "what makes the sky blue", "explain why the sky is blue", "how come the sky is blue", "*tell me why the sky is blue"]),
    ("Romeo and Juliet was written by William Shakespeare.", ["who wrote romeo and juliet", "who is the author of romeo and juliet", "romeo and juliet was written by whom", "which writer wrote romeo and juliet", "author of romeo and juliet"]),
    ("Hamlet was written by William Shakespeare.", ["who wrote hamlet", "who is the author of hamlet", "hamlet was written by whom", "which writer wrote hamlet", "author of hamlet"]),
    ("The Mona Lisa was painted by Leonardo da Vinci.", ["who painted the mona lisa", "who is the painter of the mona lisa", "the mona lisa was painted by whom", "which artist painted the mona lisa", "painter of the mona lisa"]),
    ("The theory of relativity is by Albert Einstein.", ["who came up with relativity", "who invented the theory of relativity", "whose theory is relativity", "who discovered relativity", "who is behind the theory of relativity"]),
    ("A triangle has three sides.", ["how many sides does a triangle have", "how many sides has a triangle", "number of sides of a triangle", "how many corners does a triangle have", "a triangle has how many sides"]),
    ("A square has four sides.", ["how many sides does a square have", "how many sides has a square", "number of sides of a square", "how many corners does a square have", "a square has how many sides"]),
    ("A hexagon has six sides.", ["how many sides does a hexagon have", "how many sides has a hexagon", "number of sides of a hexagon", "how many corners does a hexagon have", "a hexagon has how many sides"]),
    ("A dozen is twelve.", ["how many is a dozen", "what is a dozen", "how much is a dozen", "how many things are in a dozen", "a dozen is how many"]),
    ("The alphabet has 26 letters.", ["how many letters are in the alphabet", "how many letters does the alphabet have", "number of letters in the alphabet", "how long is the alphabet", "the english alphabet has how many letters"]),
    ("The alphabet is A B C D E F G H I J K L M N O P Q R S T U V W X Y Z.", ["say the alphabet", "recite the alphabet", "what is the alphabet", "write the alphabet", "give me the alphabet", "*list the letters of the alphabet"]),
    ("The vowels are A, E, I, O and U.", ["what are the vowels", "name the vowels", "list the vowels", "which letters are vowels", "tell me the vowels"]),
    ("The primary colours are red, yellow and blue.", ["what are the primary colours", "name the primary colours", "which are the three primary colours", "list the primary colours", "tell me the primary colours"]),
    ("Bees make honey.", ["what do bees make", "what does a bee make", "which food do bees make", "what is made by bees", "tell me what bees make"]),
    ("Cows give milk.", ["what do cows give", "what does a cow give us", "what do we get from cows", "where does milk come from", "which animal gives milk"]),
    ("An hour and a half is 90 minutes.", ["how long is an hour and a half", "how many minutes is an hour and a half", "an hour and a half in minutes", "how many minutes are in an hour and a half"]),
    ("There are 100 centimetres in a metre.", ["how many centimetres are in a metre", "how many centimeters are in a meter", "number of centimetres in a metre", "how many cm are in a metre", "one metre is how many centimetres"]),
    ("There are 1000 metres in a kilometre.", ["how many metres are in a kilometre", "how many meters are in a kilometer", "number of metres in a kilometre", "how many metres make a kilometre", "one kilometre is how many metres"]),
    ("There are 1000 grams in a kilogram.", ["how many grams are in a kilogram", "how many grams make a kilogram", "number of grams in a kilogram", "how many grams are in a kilo", "one kilogram is how many grams"]),
    ("A byte has 8 bits.", ["how many bits are in a byte", "how many bits does a byte have", "number of bits in a byte", "how many bits make a byte", "one byte is how many bits"]),
    ("Go is a programming language made at Google, and Troupe is written in it.", ["what is golang", "what is the go language", "what is go", "tell me about golang", "what kind of language is go", "*who made golang"]),
]

NAMES = """Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Mia Noah Olivia Paul Rosa Sam Tina Victor Alice Bob
Carol Daniel Eva Frank Hannah Ivan Julia Karl Laura Max Nina Oscar Peter Ruth Simon Tom Vera Will Zoe Maria John Mary James
Sarah Michael Lisa Robert Linda Chris Alex Sofia Lucas Amir Fatima Chen Yuki Priya Omar Ingrid Pablo Elena Marco Lena""".split()

# Who stories are about, with what they want.
HEROES = """dragon robot cat dog mouse fox rabbit owl bear princess knight wizard pirate sailor baker gardener farmer fisherman
king queen ghost whale penguin turtle elephant lion star cloud tree snail bee frog horse bird boy girl painter teacher clockmaker
astronaut detective unicorn monkey hedgehog""".split()

JOKES = [
    "Why did the scheduler cross the road? To get to the other queue.",
    "Why was the token late? It was stuck behind a very long prompt.",
    "What did the actor say to the batcher? Please put me in your next step.",
    "Why do programmers like the dark? Because light attracts bugs.",
    "What do you call a bear without teeth? A gummy bear.",
    "Why did the cache go to school? It wanted to be hit less often.",
]
POEMS = [
    "The moon is high, the night is deep,\nthe little town has gone to sleep.\nA lamp burns on, a page turns slow,\nand outside softly falls the snow.",
    "A small boat sails across the bay,\nit left the shore at break of day.\nThe wind is kind, the sea is blue,\nand evening brings it back to you.",
    "The tree stands still upon the hill,\nit watched the years and watches still.\nThe birds come home, the day is done,\nits leaves are golden in the sun.",
]
HAIKUS = [
    "Morning on the lake.\nA quiet heron waits there\nfor the light to move.",
    "Rain on the tin roof.\nThe old cat opens one eye\nand dreams on again.",
    "A token arrives.\nThe actor writes down the time\nand waits for the next.",
]
FUN_FACTS = [
    "An octopus has three hearts.", "Honey hardly ever spoils.", "A group of crows is called a murder.",
    "Bananas are berries, and strawberries are not.", "A day on Venus is longer than its year.",
]

# Things that this model knows nothing of: what lies outside must be seen in training too.
UNKNOWN_NOUNS = """quantum physics, black holes, photosynthesis, the French Revolution, the Second World War, the Roman Empire, democracy,
inflation, the stock market, bitcoin, blockchain, taxes, mortgages, insurance, machine learning theory, neural networks, calculus,
linear algebra, trigonometry, geometry, statistics, probability, chess openings, football, basketball, tennis, golf, cricket, the Olympics,
cooking, baking bread, pizza dough, sushi, pasta, wine, coffee, tea, vegan food, diets, vitamins, sleep, yoga, headaches, the flu, back pain,
medicine, surgery, vaccines, genetics, evolution, dinosaurs, volcanoes, earthquakes, hurricanes, climate change, solar panels, electric cars,
batteries, nuclear power, engines, airplanes, trains, bicycles, bridges, architecture, Gothic churches, castles, pyramids, Buddhism, Christianity,
Islam, philosophy, Plato, Kant, Nietzsche, ethics, free will, consciousness, psychology, Freud, dreams, memory, love, marriage, friendship,
education, universities, job interviews, salaries, management, marketing, startups, law, contracts, human rights, the constitution, elections,
parliament, the president, the prime minister, the pope, the war, migration, economics, trade, banks, loans, gold prices, oil prices, poetry of Goethe,
Dostoevsky, Harry Potter, Star Wars, the Beatles, Mozart, Beethoven, jazz, hip hop, guitars, the piano, painting, photography, film, television,
video games, Minecraft, Python, JavaScript, Rust, C++, SQL, HTML, CSS, React, Kafka, Linux, Windows, Git, regular expressions, sorting algorithms,
recursion, compilers, operating systems, cryptography, passwords, viruses, the internet, social media, telescopes, microscopes, atoms, electrons,
gravity, magnetism, light, sound, chemistry, acids, metals, iron, plastic, glass, concrete, farming, wheat, rice, forests, rivers, deserts, the Amazon,
the Sahara, the Alps, whales, sharks, eagles, ants, mushrooms, roses, gardening, houseplants, dogs and their training, parrots, fashion, shoes, haircuts,
tattoos, hotels, flights, visas, travel to Italy, camping, skiing, swimming, running, marathons, weights, boxing, karate, cars, motorbikes, trucks, DNA,
cells, blood pressure, the heart, the brain, the liver, allergies, dentists, Napoleon, Julius Caesar, Cleopatra, Gandhi, Lincoln, Churchill, Newton, Darwin,
Marie Curie, Nikola Tesla, Picasso, Van Gogh, Michelangelo, Homer, Tolstoy, Kafka the writer, Shakespeare's sonnets, Confucius, samurai, vikings, pirates in history,
the Silk Road, the moon landing, Mars missions, rockets, satellites, GPS, radio, quantum computers, transistors, GPUs of last year, phones, laptops""".replace("\n", " ").split(", ")

UNKNOWN_PLACES = """Atlantis Narnia Mordor Gondor Wakanda Utopia Bavaria Tuscany Texas California Florida Ohio Nevada Alaska Hawaii Queensland
Ontario Quebec Scotland Wales Catalonia Sicily Corsica Siberia Crete Bali Tibet Kashmir Greenland Paris Berlin Tokyo Mars Jupiter
Africa Europe Asia Antarctica Brittany Normandy Transylvania Lapland Patagonia Zanzibar Tasmania Narvik Freedonia Ruritania""".split()

UNKNOWN_QUESTIONS = [
    "who won the world cup", "who won the last election", "who is the president", "who is the prime minister of {p}", "what is the population of {c}",
    "*how many people live in {c}", "what is the currency of {c}", "which language do people speak in {c}", "who is the king of {c}", "what is the weather",
    "what is the weather like in {c}", "will it rain tomorrow", "*what time is it", "what is the date today", "what day is it today", "what is the news",
    "what happened in {y}", "who was born in {y}", "what happened in {y} in {c}", "*write a python function that {v}", "write code that {v}", "write a program to {vi}", "how do i {vi} in python",
    "how do i {vi}", "can you help me {vi}", "how can i {vi}", "*what is the best way to {vi}", "give me five tips to {vi}", "write an essay about {n}", "write an email to my boss about {n}",
    "explain {n}", "explain {n} to me", "what is {n}", "*tell me about {n}", "what do you think about {n}", "how does {n} work", "why is {n} important", "who invented {n}",
    "what is the history of {n}", "give me a summary of {n}", "*compare {n} and {n2}", "what is the difference between {n} and {n2}", "which is better, {n} or {n2}", "do you know anything about {n}", "describe {n}", "teach me {n}",
    "what are the advantages of {n}", "*is {n} dangerous", "how much does {n} cost", "when was {n} invented", "where can i learn about {n}", "what is a {w}", "what is {w}", "who is {w}", "where is {w}", "*where can I find {w}", "tell me about {w}", "what does {w} mean", "explain {w}",
    "what is the meaning of life", "does god exist", "translate {n} into French", "translate this into German: {n}", "*translate {n} into German", "how do you say {n} in Spanish", "say hello in French", "what is hello in Japanese", "summarize this text: {junk}", "summarise the following: {junk}", "{junk}", "*{w} {w2}", "{w}",
    "recommend me a book about {n}", "what should i eat today", "what should i cook tonight", "give me a recipe for {n}", "which movie should i watch", "*book a flight to {c}", "set an alarm", "play some music", "call my mother", "search the web for {n}", "open the website about {n}",
    "what is the square root of {big}", "solve x + {big} = {big2}", "what is {big} plus {big2}", "what is {big} * {big2}", "{big} + {big2}", "{big} - {big2}", "{big} x {big2}", "what is {big} divided by {big2}", "*calculate {big} times {big2}", "is {big} a prime number", "what is {big} minus {big2}",
    "how old is {name}", "who is {name}", "where does {name} live", "what is the phone number of {name}", "*how tall is {name}", "what is the capital of {p}", "capital of {p}", "what is the capital city of {p}", "what is the capital of {w}", "which city is the capital of {w}",
    "what colour is {w}", "what is the opposite of {w}", "opposite of {w}", "what sound does a {w} make", "what does the flag --{w} do", "what is --{w}", "is troupe better than vllm", "how many stars does troupe have", "what does troupe cost in dollars per {w}", "how far is it from {c} to {p}", "*how far is {c} from {p}", "how big is {c}",
    "what is the largest city in {c}", "what is the longest river in {c}", "who is the richest person in {c}", "when did {c} become independent", "what do people eat in {c}", "what is the flag of {c}", "is {c} in Europe", "how do i get to {c}", "can i drink the water in {p}",
]
UNKNOWN_VERBS = """sort a list; reverse a string; read a file; parse json; draw a circle; compute primes; open a socket; fix my bike; lose weight; learn to swim; bake a cake;
cook rice; learn German; get rich; find a job; write a book; sleep better; clean my kitchen; repair a tap; build a house; plant a tree; play the piano; train my dog; invest money;
pass an exam; write a letter; buy a car; sell my house; stop smoking; make friends; paint a wall; tie a tie; change a tyre; delete a branch; deploy a website; center a div; install Windows;
remove a virus; make a salad; cut my hair; fly a kite; catch a fish; grow tomatoes; send an email; book a hotel""".replace("\n", " ").split("; ")
