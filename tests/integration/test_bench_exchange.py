#!/usr/bin/env python3
"""What ferry bench exchange measures: sums of every shape are right, and bytes are those that travel."""

import cli

HEADER, PAIR, LINE = 64, 12, 64



def row_bytes(hidden):
    blocks = (hidden + 31) // 32
    return (blocks * 40 + LINE - 1) // LINE * LINE


class Rounds(cli.Case):
    def rounds(self, *flags):
        done = self.good("bench", "exchange", "--json", "--rounds", "4", *flags)
        return [cli.json.loads(line) for line in done.out.splitlines()]

    def test_every_shape(self):
        shapes = [
            ["--ranks", "1", "--tokens", "3", "--hidden", "64"],
            ["--ranks", "2", "--tokens", "0,1,9,70", "--hidden", "96"],
            ["--ranks", "3", "--tokens", "5", "--experts", "13", "--top-k", "5", "--hidden", "2080"],
            ["--ranks", "2", "--tokens", "7", "--experts", "1", "--top-k", "1", "--hidden", "64"],
            ["--ranks", "4", "--tokens", "6", "--experts", "6", "--top-k", "6", "--hidden", "64"],
            ["--ranks", "2", "--tokens", "20", "--placement", "random:5", "--hidden", "320"],
            ["--ranks", "3", "--tokens", "20", "--placement", "random", "--replicas", "2",
             "--hidden", "64"],
        ]
        for holder in ("scaled", "summed"):
            for combine in ("f32", "bf16"):
                for shape in shapes:
                    for line in self.rounds("--holder", holder, "--combine", combine, *shape):
                        limit = 2 ** -6 if combine == "bf16" else 1e-5
                        self.assertLessEqual(line["max_error"], limit, (holder, combine, line))
                        self.assertGreater(line["us_p50"], 0)

    def test_threads(self):
        for holder in ("scaled", "summed"):
            line, = self.rounds("--threads", "2", "--tokens", "40", "--hidden", "320", "--holder",
                                holder)
            self.assertLessEqual(line["max_error"], 1e-5)

    def test_bytes(self):
        # Two experts, top-2: each token's row goes to the other rank with one pair, and one sum
        # comes back. A group's sum of two pairs is one row, too.
        for experts, k in ((2, 2), (4, 4)):
            for tokens in (1, 6):
                line, = self.rounds("--tokens", tokens, "--experts", experts, "--top-k", k,
                                    "--hidden", "64")
                out = HEADER + tokens * (row_bytes(64) + k // 2 * PAIR)
                back = HEADER + tokens * 64 * 4
                self.assertEqual(line["bytes_out_per_rank"], out + back, (experts, tokens))
        line, = self.rounds("--tokens", "6", "--experts", "2", "--top-k", "2", "--hidden", "64",
                            "--combine", "bf16")
        self.assertEqual(line["bytes_out_per_rank"],
                         2 * HEADER + 6 * (row_bytes(64) + PAIR + 64 * 2))
        line, = self.rounds("--tokens", "6", "--ranks", "1", "--hidden", "64")
        self.assertEqual(line["bytes_out_per_rank"], 0)


if __name__ == "__main__":
    cli.main()
