"""Text that models are asked about: prose, code, figures and characters of many kinds; and chance in random text."""

from __future__ import annotations

SURE_BITS = 44.0
"""Bits by which random tokens may be predicted better than chance: that happens once in 1e13 verdicts."""

SAMPLE = """The harbour was quiet when the first boats came in. Nobody had expected them before noon, and the scales on
the quay were still covered. "How many?" asked the clerk. "Eleven," said the boy, "and one that leaks." They counted the
baskets twice: 48 of herring, 7 of crab, 1,250 mussels. By 11:45 the price had fallen from 3.20 to 2.95 a pound.

def area(width, height=2.5):
    # The product, rounded to two digits.
    return round(width * height, 2)

| day | sold | left |
|-----|------|------|
| Mon | 412  | 18   |

In the evening the lights went on along the shore, one after another, as they had for a hundred years. The keeper
wrote in his book: wind north-west, sea calm, three ships. He wrote the same words on most days, and the book was the
nineteenth of its kind. Below the tower the children threw stones into the water and counted the rings until dark.
"""
TEXTS = {
    "prose": SAMPLE,
    "every byte that is a character of its own": "".join(map(chr, range(1, 128))),
    "accents, also as combining marks": "Ça va déjà où naïve Ångström. e\u0301 a\u030a n\u0303 \u1e9b\u0323 fi ﬁ ½ ²",
    "emoji": "\U0001F600\U0001F469\u200D\U0001F469\u200D\U0001F467 \u2764\uFE0F \U0001F1E9\U0001F1EA ok",
    "ends of lines and spaces": "a\r\nb\rc\nd\t e  f\u00a0g\u2028h   \n\n i ",
    "digits": "0 1 12 123 1234567890 3.14159 1,000,000 007 1e-5 \u0661\u0662 Ⅷ",
    "upper and lower case": "The THE the tHE ß ẞ SS İ i I ı Σ σ ς",
    "other scripts": "Привет, мир. 你好世界。 こんにちは אבג नमस्ते ไทย 한국어",
    "a text that ends a document": "one<|endoftext|>two</s>three<s>four[UNK]five\u0000six"}
"""Texts that tokenizers lose something of, by what they have."""
