#!/usr/bin/env python3
"""ferry tokenize: there and back on the model of the repository, any bytes."""

import os
import unicodedata

import cli

TEXTS = ("Hello, world!", "", " ", "\n\n  indented\n", "naïve café — 北京 🚀", "a" * 3000,
         "def f(x):\n    return x ** 2\n", "<|endoftext|>", "\x00\x01\x7f", "e\u0301\u200d")


class Tokenize(cli.Case):
    def test_round_trips(self):
        for text in TEXTS:
            path = cli.scratch("text.txt")
            with open(path, "wb") as f:
                f.write(text.encode())
            value = self.good("tokenize", self.demo(), "--text-file", path, "--json").json()
            self.fits(value, "tokenize")
            if not text:
                self.assertEqual(value["ids"], [])
                continue
            ids = cli.scratch("ids.txt")
            with open(ids, "w") as f:
                f.write(cli.text_of(value["ids"]))
            back = self.good("tokenize", self.demo(), "--decode", "--text-file", ids).out
            self.assertEqual(back.decode(), unicodedata.normalize("NFC", text))
            plain = self.good("tokenize", self.demo(), "--text-file", path).out.split()
            self.assertEqual(list(map(int, plain)), value["ids"])

    def test_held_out_texts_come_back(self):
        for name in sorted(os.listdir(os.path.join(self.demo(), "heldout"))):
            path = os.path.join(cli.DEMO, "heldout", name)
            ids = cli.scratch("heldout.txt")
            with open(ids, "wb") as f:
                f.write(self.good("tokenize", cli.DEMO, "--text-file", path).out)
            with open(path, "rb") as f:
                text = f.read()
            self.assertEqual(self.good("tokenize", cli.DEMO, "--decode", "--text-file", ids).out, text)

    def test_broken_utf8_is_no_crash(self):
        for text in (b"\xff\xfe", b"\xe4\xb8", b"ok \xc0\x80 ok", bytes(range(256))):
            done = cli.ferry("tokenize", self.demo(), "--text-file", "-", "--json", stdin=text)
            self.assertIn(done.code, (0, 1), done.err)
            if done.code == 0:
                self.fits(done.json(), "tokenize")

    def test_half_a_character_is_valid_json(self):
        ids = self.good("tokenize", self.demo(), "--text", "🚀", "--json").json()["ids"]
        for n in range(1, len(ids) + 1):
            done = self.good("tokenize", cli.DEMO, "--ids", cli.text_of(ids[:n]), "--json")
            self.fits(done.json(), "tokenize")

    def test_refusals(self):
        self.refused(2, "one of", "tokenize", self.demo())
        self.refused(2, "one of", "tokenize", cli.DEMO, "--text", "x", "--ids", "1")
        done = cli.ferry("tokenize", cli.DEMO, "--ids", "99999999")
        self.assertIn(done.code, (1, 2))
        self.assertIn("99999999", done.err)
        self.refused(1, "no-such", "tokenize", cli.DEMO, "--text-file", cli.scratch("no-such"))
        self.refused(1, "tokenizer", "tokenize", cli.model("mixtral"), "--text", "x")


if __name__ == "__main__":
    cli.main()
