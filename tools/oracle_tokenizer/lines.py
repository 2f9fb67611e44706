"""Test lines for tokenizers: the same for the same seed, over everything that is known to differ.

Kinds: code, prose, CJK, other scripts, emoji with joiners, combining marks, runs of white space,
digits, look-alikes of control tokens, random characters, invalid UTF-8, repeated characters.
"""

import pathlib
import random
import sysconfig

WHITE = [" ", "  ", "    ", "\t", "\n", "\r\n", "\r", "\n\n", "\u00a0", "\u3000", "\u2009", "\u200b", "\u2028",
         "\u180e", "\u0085", "\v", "\f", "\u202f", "\u205f", "\u1680", "\ufeff"]
SCRIPTS = [(0x0370, 0x03FF), (0x0400, 0x04FF), (0x0530, 0x058F), (0x0590, 0x05FF), (0x0600, 0x06FF), (0x0900, 0x097F),
           (0x0980, 0x09FF), (0x0B80, 0x0BFF), (0x0E00, 0x0E7F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F),
           (0x1780, 0x17FF), (0x1E00, 0x1FFF), (0xAC00, 0xD7A3), (0x10400, 0x1044F), (0x1D400, 0x1D7FF)]
CJK = [(0x4E00, 0x9FA5), (0x4E00, 0x9FA5), (0x3040, 0x30FF), (0x3400, 0x4DBF), (0x9FA6, 0x9FFF), (0xFF00, 0xFFEF),
       (0x3000, 0x303F), (0x20000, 0x2A6DF)]
EMOJI = ["\U0001F600", "\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466", "\u2764\uFE0F", "\U0001F1E9\U0001F1EA",
         "\U0001F44D\U0001F3FD", "\U0001F3F3\uFE0F\u200D\U0001F308", "1\uFE0F\u20E3", "\u2603", "\U0001FAE0", "\U0001F9D1\U0001F3FB\u200D\U0001F4BB"]
MARKS = [chr(c) for c in list(range(0x300, 0x340)) + [0x327, 0x328, 0x345, 0x0591, 0x05B4, 0x093C, 0x094D, 0x0E49, 0x3099, 0x309A, 0x20D0, 0x1DC0]]
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_end|", "<|im_end|>>", "<s>", "</s>", "<unk>", "<0x41>", "<0xZZ>",
           "<|begin_of_text|>", "<|eot_id|>", "<think>", "</think>", "[INST]", "[/INST]", "<mask>", "<rs>", "whole", "wholesale",
           "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cUser\uff5c>", "<\uff5ctool\u2581calls\u2581begin\uff5c>", "\u2581", "\u2581\u2581", "|||EMAIL|||",
           "<|IM_END|>", "< |im_end|>", "<|im_\u200bend|>", "<|im_start|>user\n", "\u0120", "\u010a"]
CONTRACTIONS = ["'s", "'S", "'ll", "'LL", "'Re", "'ve", "'\u017f", "'T", "\u2019s", "don't", "I'M", "it's", "'", "''s", "'dd", "we'VEx"]
NUMBERS = ["0", "12", "123", "1234", "1234567890", "3.14", "1,000,000", "\u0661\u0662\u0663\u0664", "\u00bd", "\u2163", "\u00b2\u00b3", "\uff11\uff12\uff13\uff14", "1e-9", "0x7F", "2024-01-31", "\U0001D7D8\U0001D7D9"]
PUNCTUATION = ["!", "...", "()", "{}", "[];", "//", "/*", "*/", "==", "!=", "->", "\u3002", "\uff0c", "\u201c", "\u201d", "\u2014", "\u00ab", "$", "\u20ac", "%", "#", "@", "\\", "`", "~", "^", "_", "__", "|", "+=", "\u00a9", "\u2122", "\u221e", "/\n", "?\r\n"]


def library_lines():
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    lines = []
    for path in sorted(library.glob("*.py"))[:120]:
        lines += path.read_text("utf-8", "replace").splitlines(keepends=True)
    return lines


class Lines:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.code = library_lines()
        self.words = sorted({w for line in self.code for w in line.split() if w.isalpha()})

    def pick(self, table):
        return table[self.random.randrange(len(table))]

    def char(self, ranges):
        low, high = self.pick(ranges)
        return chr(self.random.randint(low, high))

    def any_char(self):
        while True:
            high = self.pick([0x7F, 0x250, 0x2FFF, 0xFFFF, 0x1FFFF, 0x3FFFF, 0x10FFFF])
            code = self.random.randint(1, high)
            if not 0xD800 <= code <= 0xDFFF:
                return chr(code)

    def run(self, make, low=1, high=12):
        return "".join(make() for _ in range(self.random.randint(low, high)))

    def prose(self):
        words = [self.pick(self.words) for _ in range(self.random.randint(1, 14))]
        words = [w if self.random.random() < 0.8 else w.capitalize() if self.random.random() < 0.7 else w.upper() for w in words]
        return " ".join(words) + self.pick([".", "", "!", "?\n", ":", "\u2026"])

    def code_line(self):
        start = self.random.randrange(len(self.code))
        return "".join(self.code[start : start + self.random.randint(1, 4)])

    def mixed(self):
        makers = [
            lambda: self.pick(self.words), lambda: self.pick(WHITE), lambda: self.char(CJK), lambda: self.char(SCRIPTS),
            lambda: self.pick(EMOJI), lambda: self.pick(MARKS), lambda: self.pick(CONTROL), lambda: self.pick(CONTRACTIONS),
            lambda: self.pick(NUMBERS), lambda: self.pick(PUNCTUATION), self.any_char,
        ]
        return self.run(lambda: self.pick(makers)(), 1, 24)

    def combining(self):
        return self.run(lambda: self.pick("aeiouAEIOUcnyz\u1EA1\u03B1\u0915\u304B\u1100\u1161") + self.run(lambda: self.pick(MARKS), 0, 4), 1, 8)

    def repeated(self):
        unit = self.pick([" ", "a", "\n", "\t", "=", "-", "0", "\u4e00", "ab", " \n", "\u0301", "\u2581", "A", "x ", "\U0001F600"])
        return unit * self.random.randint(1, 300)

    def broken(self):
        raw = bytearray(self.mixed().encode())
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randrange(len(raw) + 1)
            what = self.random.randrange(3)
            if what == 0:
                raw[at:at] = bytes([self.random.choice([0x80, 0xBF, 0xC0, 0xC1, 0xE2, 0xED, 0xF0, 0xF5, 0xFF, 0xE0, 0xF4])])
            elif what == 1:
                del raw[at : at + self.random.randint(1, 2)]
            else:
                raw[at:at] = self.random.choice([b"\xED\xA0\x80", b"\xF0\x9F\x98", b"\xC0\xAF", b"\xE2\x82", b"\xF4\x90\x80\x80"])
        return bytes(raw)

    def line(self):
        """Bytes of one line."""
        makers = [
            self.code_line, self.prose, self.mixed, self.mixed, self.mixed, self.combining, self.repeated, self.broken,
            lambda: self.run(lambda: self.char(CJK), 1, 30), lambda: self.run(lambda: self.char(SCRIPTS), 1, 30),
            lambda: self.run(lambda: self.pick(EMOJI)), lambda: self.run(lambda: self.pick(WHITE), 1, 10) + self.pick(self.words),
            lambda: self.run(lambda: self.pick(NUMBERS + PUNCTUATION + [" "])), lambda: self.run(self.any_char, 1, 30),
            lambda: self.prose() + self.pick(CONTROL) + self.pick(WHITE) + self.pick(CONTROL) + self.prose(),
            lambda: self.run(lambda: self.pick(self.words) + self.pick(CONTRACTIONS) + self.pick([" ", ""])),
        ]
        made = self.pick(makers)()
        return made if isinstance(made, bytes) else made.encode("utf-8", "replace")


def make(count, seed):
    source = Lines(seed)
    fixed = [b"", b" ", b"\n", b"  \n ", b"a", b"\xff", "\u2581".encode(), b"\x00", b"<s>"]
    return fixed + [source.line() for _ in range(count - len(fixed))]
