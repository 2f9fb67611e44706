#!/usr/bin/env python3
"""ferry bench: figures that fit the schema and each other; speed itself is bench/'s business."""

import cli


class Bench(cli.Case):
    def test_json(self):
        value = self.good("bench", cli.model("mixtral"), "-p", "16", "-n", "4", "--batch", "1,3",
                          "--json").json()
        self.fits(value, "bench")
        self.assertEqual((value["n_prompt"], value["n_generate"], value["batch"]), (16, 4, [1, 3]))
        self.assertEqual(value["allocations"], 0)  # none between decode steps
        self.assertTrue(1 <= value["experts_per_step"][0] <= 2.0001)
        self.assertGreaterEqual(value["experts_per_step"][1], value["experts_per_step"][0])

    def test_wrong_numbers(self):
        for flags in (["-p", "x"], ["-n", "-1"], ["--batch", "0"], ["--batch", "1,,2"],
                      ["--batch", "1,"], ["--batch", ""]):
            done = cli.ferry("bench", cli.model("mixtral"), *flags)
            self.assertEqual(done.code, 2, (flags, done.err))


if __name__ == "__main__":
    cli.main()
