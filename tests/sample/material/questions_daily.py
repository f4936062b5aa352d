"""Questions about daily life, with short, true answers: (question, answer)."""

QUESTIONS = [
    (
        "How do I keep a cast-iron pan from rusting?",
        "Dry it completely after washing, warm it on the stove, and rub in a very thin layer of "
        "cooking oil. Do not leave it soaking in water. If rust appears, scrub it off and repeat "
        "the oiling.",
    ),
    (
        "What is the capital of Australia?",
        "The capital of Australia is Canberra. It is often mistaken for Sydney, which is the "
        "largest city. Canberra was planned as the capital in the early twentieth century.",
    ),
    (
        "How long should I boil an egg?",
        "Once the water boils, about 6 to 7 minutes gives a soft yolk and about 10 to 12 minutes "
        "a firm one. Cool the egg in cold water to stop it cooking.",
    ),
    (
        "How can I remember names better?",
        "Repeat the name aloud when you hear it and use it again soon in the conversation. "
        "Linking it to a picture or to someone you know also helps.",
    ),
    (
        "Why do onions make people cry?",
        "Cutting an onion breaks its cells and releases a gas that irritates the eyes. Chilling "
        "the onion first and using a sharp knife reduces it.",
    ),
    (
        "What is inflation?",
        "Inflation is a general rise in prices over time. When it is high, the same amount of "
        "money buys less than before. Central banks often raise interest rates to slow it down.",
    ),
    (
        "Why should I back up my files?",
        "Disks fail, laptops get lost and files are deleted by mistake. A second copy kept "
        "somewhere else lets you recover from all three. Try now and then whether the copy can "
        "really be read.",
    ),
    (
        "What makes a password strong?",
        "Length and unpredictability matter most. Use a long passphrase or a random password from "
        "a password manager, and a different one for each account. Turn on two-step login where "
        "it is offered.",
    ),
    (
        "How often should I water a cactus?",
        "Water it well only when the soil has dried out completely. In winter most cacti need "
        "very little, often once a month or less. Make sure the pot has a hole so that extra "
        "water can run out.",
    ),
    (
        "What is a haiku?",
        "A haiku is a short poem from Japan. In English it is usually written in three lines of "
        "five, seven and five syllables. Many haiku describe a moment in nature.",
    ),
    (
        "How do I get candle wax out of a tablecloth?",
        "Let the wax harden and scrape off what you can. Then lay paper towels over the stain and "
        "press with a warm iron, so that the paper soaks up the rest.",
    ),
    (
        "Who painted the Mona Lisa?",
        "Leonardo da Vinci painted it in the early sixteenth century. It hangs in the Louvre in "
        "Paris. It is painted in oil on a poplar panel.",
    ),
    (
        "How can I fall asleep more easily?",
        "Go to bed at the same time each night and keep the room dark and cool. Avoid coffee late "
        "in the day and bright screens in the last hour. If sleep problems last for weeks, talk "
        "to a doctor.",
    ),
    (
        "What is recycling good for?",
        "It saves raw materials and usually energy. Making aluminium from scrap, for example, "
        "takes only about 5% of the energy of making it from ore.",
    ),
    (
        "What language is spoken in Brazil?",
        "The official language of Brazil is Portuguese. Nearly the whole population speaks it. "
        "Brazil has more speakers of Portuguese than Portugal has.",
    ),
    (
        "What should I do if I burn my hand on a pan?",
        "Hold it under cool running water for about 20 minutes and take off rings. Do not use ice "
        "or butter, and see a doctor if the burn is large, deep or blistered.",
    ),
    (
        "How do I write a good email subject?",
        "Say in a few words what the message is about and what you need. 'Invoice for May: please "
        "approve by Friday' works better than 'Question'.",
    ),
    (
        "Can I keep tomatoes in the fridge?",
        "Unripe tomatoes are better left at room temperature, because cold dulls their flavour. "
        "Ripe ones that you cannot eat soon keep longer in the fridge.",
    ),
    (
        "How many strings does a violin have?",
        "A violin has four strings, usually tuned to G, D, A and E. They are played with a bow or "
        "plucked with a finger.",
    ),
    (
        "Why do my ears pop in an aeroplane?",
        "The cabin pressure changes while the plane climbs or descends. Your ears pop when air "
        "passes through the narrow tubes to the middle ear and evens out the pressure. Swallowing "
        "or yawning helps.",
    ),
]
