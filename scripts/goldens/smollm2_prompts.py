"""The prompts of the SmolLM2 goldens: raw text and chats, English, code, other languages and numbers."""

Chat = tuple[tuple[str, str], ...]

RAW_PROMPTS: tuple[str, ...] = (
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time there was a fisherman who",
    "def fibonacci(n):\n    ",
    "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
    "1, 2, 4, 8, 16, 32,",
    "Les enfants jouent dans le jardin parce que",
    "El perro corre por la calle y",
    "Die Hauptstadt von Deutschland ist",
    "日本の首都は東京です。",
    '{"name": "Ada", "age": 36, "city": "London"}\n{"name": "Alan", "age":',
    "Q: What is 17 + 25?\nA:",
    (
        "Photosynthesis is the process by which plants turn light, water and carbon dioxide into sugar and oxygen. It "
        "happens in the chloroplasts, mostly in the leaves. Light is absorbed by chlorophyll, which looks green "
        "because it reflects the middle of the spectrum. The energy splits water into oxygen, protons and electrons; "
        "the oxygen leaves through small pores, and the rest drives the making of two carriers of energy. In the "
        "second part, which needs no light, an enzyme binds carbon dioxide to a five-carbon sugar. Most of the "
        "product goes back into the cycle and a small part leaves it as food for the plant. On a hot and dry day the "
        "pores close, so that oxygen builds up inside the leaf and the enzyme makes mistakes. Some plants have found "
        "ways around this problem. For example,"
    ),
)

CHATS: tuple[Chat, ...] = (
    (("user", "Hello! Who are you?"),),
    (("system", "You answer in one short sentence."), ("user", "Why is the sea salty?")),
    (("user", "Write a Python function that reverses a string."),),
    (
        ("user", "Name three fruits."),
        ("assistant", "Apple, banana and cherry."),
        ("user", "Now name three vegetables."),
    ),
    (("user", "Translate to Spanish: The book is on the table."),),
    (("user", "What is 12 * 12? Explain step by step."),),
    (
        (
            "system",
            "You are a careful editor. You correct spelling and grammar, keep the writer's own words where you can, "
            "and say nothing about the content.",
        ),
        (
            "user",
            "Please correct this text:\n\nYesterday me and my brother goed to the libary for to return the books what "
            "we has borrowed last month. The libarian were very kindly and she do not ask us for pay the fine, "
            "altough the books was three week to late. We was so gratefull that we has brung her a cake on the next "
            "day.",
        ),
    ),
)


def chatml(chat: Chat) -> str:
    """The chat in ChatML, open for the assistant's reply."""
    turns = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in chat)
    return f"{turns}<|im_start|>assistant\n"
