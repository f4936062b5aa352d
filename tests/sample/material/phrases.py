"""Phrases with their translation: (instruction, input, output)."""

# The Chinese full-width punctuation is meant.
# ruff: noqa: RUF001

PHRASES = [
    ("Translate into English.", "Wo ist der nächste Bahnhof?", "Where is the nearest station?"),
    ("Translate into German.", "I would like a cup of tea.", "Ich hätte gern eine Tasse Tee."),
    (
        "What does this German saying mean?",
        "Übung macht den Meister.",
        "Literally 'practice makes the master'. The English saying is 'practice makes perfect'.",
    ),
    ("Translate into English.", "Où sont les clés ?", "Where are the keys?"),
    ("Translate into French.", "See you tomorrow!", "À demain !"),
    ("Translate into English.", "¿Cuánto cuesta este libro?", "How much does this book cost?"),
    ("Translate into Spanish.", "The baby is sleeping.", "El bebé está durmiendo."),
    ("Translate into English.", "你叫什么名字？", "What is your name?"),
    ("Translate into Chinese.", "I like to drink tea.", "我喜欢喝茶。"),
    (
        "Translate into English and give the pronunciation in pinyin.",
        "谢谢，再见！",
        "Thank you, goodbye! (Xièxie, zàijiàn!)",
    ),
]
