"""Sentences and the record each one holds: (asked fields, sentence, values).

The fields become the keys of the JSON answer. Every value is found in the sentence as written.
"""

EXTRACTIONS = [
    (
        ("name", "age", "city"),
        "Priya is 34 years old and works as a nurse in Leeds.",
        ("Priya", 34, "Leeds"),
    ),
    (
        ("name", "age", "city"),
        "At 71, José still runs his bakery in Málaga every morning.",
        ("José", 71, "Málaga"),
    ),
    (
        ("name", "age", "city"),
        "Our new colleague Łukasz, aged 28, moved here from Kraków.",
        ("Łukasz", 28, "Kraków"),
    ),
    (
        ("name", "age", "city"),
        "Ingrid turned 19 last week and is about to study in Zürich.",
        ("Ingrid", 19, "Zürich"),
    ),
    (
        ("product", "quantity"),
        "Please send us 40 folding chairs by the end of the month.",
        ("folding chairs", 40),
    ),
    (
        ("product", "quantity"),
        "We are running low on printer paper, so order 12 boxes today.",
        ("printer paper", 12),
    ),
    (
        ("product", "quantity"),
        "The school asked for 250 pencils for the new term.",
        ("pencils", 250),
    ),
    (
        ("product", "quantity"),
        "Could you reserve 6 desk lamps for our office?",
        ("desk lamps", 6),
    ),
    (
        ("product", "price_eur"),
        "The blue umbrella in the window costs 18 euros.",
        ("blue umbrella", 18),
    ),
    (
        ("product", "price_eur"),
        "I paid 7 euros for a jar of honey at the market.",
        ("honey", 7),
    ),
    (
        ("product", "price_eur"),
        "They sell the wooden train set for 45 euros, batteries not needed.",
        ("wooden train set", 45),
    ),
    (
        ("from", "to", "time"),
        "The night train from Paris to Vienna leaves at 19:58.",
        ("Paris", "Vienna", "19:58"),
    ),
    (
        ("from", "to", "time"),
        "Our bus sets off at 07:15 from Porto and takes us to Lisbon.",
        ("Porto", "Lisbon", "07:15"),
    ),
    (
        ("from", "to", "time"),
        "A ferry from Malmö will depart for Świnoujście at 22:30.",
        ("Malmö", "Świnoujście", "22:30"),
    ),
    (
        ("event", "date", "place"),
        "The book fair takes place on 2031-05-14 in the town hall.",
        ("book fair", "2031-05-14", "town hall"),
    ),
    (
        ("event", "date", "place"),
        "Join us in Riverside Park for the spring concert on 2030-04-06.",
        ("spring concert", "2030-04-06", "Riverside Park"),
    ),
    (
        ("event", "date", "place"),
        "On 2029-11-23 the chess club holds its winter tournament in the library.",
        ("winter tournament", "2029-11-23", "library"),
    ),
    (
        ("sender", "subject"),
        "Amara wrote to me this morning about the broken heating.",
        ("Amara", "broken heating"),
    ),
    (
        ("sender", "subject"),
        "I had a message from Tomás on the subject of holiday plans.",
        ("Tomás", "holiday plans"),
    ),
    (
        ("animal", "count"),
        "We counted 17 herons along the river.",
        ("herons", 17),
    ),
    (
        ("animal", "count"),
        "The ranger saw 3 foxes near the old mill.",
        ("foxes", 3),
    ),
    (
        ("team", "points"),
        "With 58 points the Harbour Hawks finished the season on top.",
        ("Harbour Hawks", 58),
    ),
    (
        ("team", "points"),
        "The Hill Rovers were relegated after taking only 21 points.",
        ("Hill Rovers", 21),
    ),
    (
        ("dish", "minutes"),
        "The lentil soup needs to simmer for 25 minutes.",
        ("lentil soup", 25),
    ),
]
