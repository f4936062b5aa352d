"""Questions about nature and science, with short, true answers: (question, answer)."""

QUESTIONS = [
    (
        "Why is the sky blue?",
        "Air scatters short wavelengths of sunlight more strongly than long ones. The scattered "
        "blue light reaches us from every direction, so the whole sky looks blue. At sunset the "
        "light's path through the air is longer, and more red is left.",
    ),
    (
        "Why do leaves turn yellow in autumn?",
        "As days grow shorter, trees break down the green chlorophyll in their leaves. Yellow "
        "pigments that were there all along then become visible. Later the tree sheds the leaves "
        "to save water in winter.",
    ),
    (
        "How many days are there in a leap year?",
        "A leap year has 366 days. The extra day is 29 February. Most years divisible by four are "
        "leap years; 1900 was not one, but 2000 was.",
    ),
    (
        "What causes the tides?",
        "Tides are caused mainly by the pull of the Moon's gravity on the oceans. The Sun adds a "
        "smaller pull, which makes the tides strongest around new and full moon.",
    ),
    (
        "Why does ice float on water?",
        "Water expands when it freezes, so ice is less dense than liquid water. A less dense "
        "solid floats. This is why lakes freeze from the top, and fish survive below.",
    ),
    (
        "What is the difference between weather and climate?",
        "Weather is what the air is doing at one place over hours or days. Climate is the pattern "
        "of weather there over decades. One cold day is weather; long, cold winters every year "
        "are climate.",
    ),
    (
        "Why do we have seasons?",
        "The Earth's axis is tilted by about 23.4°. For part of the year each hemisphere leans "
        "towards the Sun, which gives it longer days and stronger sunlight.",
    ),
    (
        "What does a compass needle point to?",
        "It lines up with the Earth's magnetic field and points to magnetic north. That differs a "
        "little from true north in most places. Keep it away from magnets and iron, which disturb "
        "it.",
    ),
    (
        "What is yeast?",
        "Yeast is a single-celled fungus. In dough it feeds on sugars and gives off carbon "
        "dioxide, which makes bread rise. Bakers use it for dough and brewers for beer.",
    ),
    (
        "Which planet is the largest in the solar system?",
        "Jupiter is the largest. It has more than twice the mass of all the other planets "
        "together. It consists mostly of hydrogen and helium.",
    ),
    (
        "What is the boiling point of water at sea level?",
        "At sea level water boils at about 100 °C, which is 212 °F. Higher up the pressure is "
        "lower and water boils at a lower temperature.",
    ),
    (
        "How do bees make honey?",
        "Bees collect nectar and add enzymes that change its sugars. They store it in the comb "
        "and fan it with their wings until enough water has evaporated. Then they seal the cell "
        "with wax.",
    ),
    (
        "How do vaccines work?",
        "A vaccine shows the immune system a harmless part or form of a germ. The body then "
        "recognises the real germ faster if it meets it later. Some need a second dose or a later "
        "booster to keep the protection up.",
    ),
    (
        "What is the tallest mountain above sea level?",
        "Mount Everest, on the border of Nepal and China, is the highest above sea level at about "
        "8,849 metres. Measured from its base on the sea floor, Mauna Kea in Hawaii is taller.",
    ),
    (
        "How far away is the Moon?",
        "On average the Moon is about 384,400 km from the Earth. The distance changes because the "
        "orbit is not a perfect circle. Light needs about 1.3 seconds for that distance.",
    ),
    (
        "What is the smallest prime number?",
        "The smallest prime number is 2. It is also the only even prime. The number 1 is not "
        "prime, because it has only one divisor.",
    ),
    (
        "Why do cats purr?",
        "Cats often purr when they are relaxed, but also when they are hurt or anxious. The sound "
        "comes from vibrations in the voice box as they breathe in and out.",
    ),
    (
        "What is the longest bone in the human body?",
        "It is the femur, or thigh bone, which runs from the hip to the knee. In an adult it is "
        "roughly a quarter of the body's height.",
    ),
    (
        "Why does bread go stale?",
        "The starch in bread slowly forms crystals again after baking, which makes the crumb "
        "firm. This happens faster in the fridge than at room temperature. Warming the loaf "
        "briefly makes it soft again for a while.",
    ),
    (
        "What is the difference between a fruit and a vegetable?",
        "For a botanist a fruit grows from a flower and holds seeds, so a tomato is a fruit. In "
        "the kitchen the words follow taste and use, so a tomato counts as a vegetable.",
    ),
    (
        "Why do we see lightning before we hear thunder?",
        "Light reaches us almost at once, but sound travels only about 340 metres per second in "
        "air. Three seconds of delay mean a distance of about one kilometre.",
    ),
    (
        "How many bits are in a byte?",
        "Today a byte is eight bits, so it can hold 256 different values. One byte is enough for "
        "a plain English letter, while a letter such as é takes two in UTF-8.",
    ),
    (
        "How does a microwave oven heat food?",
        "It fills the oven with microwaves, which make the water molecules in the food turn back "
        "and forth. That motion becomes heat. Stirring helps, because the waves do not heat every "
        "spot equally.",
    ),
    (
        "What is the freezing point of water in Fahrenheit?",
        "Water freezes at 32 °F, which is 0 °C. The two scales give the same number only at -40 "
        "degrees.",
    ),
    (
        "Why is salt put on icy roads?",
        "Salt dissolves in the thin film of water on ice and lowers its freezing point. The ice "
        "then melts even a few degrees below 0 °C. In very hard frost plain salt no longer helps "
        "much.",
    ),
    (
        "What is an eclipse of the Moon?",
        "It happens when the Earth passes between the Sun and the Moon and its shadow falls on "
        "the Moon. It can only happen at full moon. It is safe to watch with the naked eye.",
    ),
    (
        "What is the difference between a virus and a bacterium?",
        "A bacterium is a living cell that can multiply on its own. A virus is much smaller and "
        "must enter a cell to multiply, which is why antibiotics do not work against it.",
    ),
]
