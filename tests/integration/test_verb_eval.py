#!/usr/bin/env python3
"""ferry eval: the perplexity of the repository's model is what transformers measured; law 2; usage."""

import json
import os
import unittest

import cli


class Eval(cli.Case):
    def heldout(self):
        return os.path.join(self.demo(), "heldout")

    @unittest.skipUnless(os.environ.get("FERRY_TEST_SLOW"), "all held-out text is the slow test's")
    def test_equals_the_reference(self):
        path = os.path.join(self.demo(), "reference_eval.json")
        if not os.path.exists(path):
            self.skipTest("models/demo/reference_eval.json is not in this checkout")
        with open(path) as f:
            reference = json.load(f)
        for name, want in reference["texts"].items():
            got = self.good("eval", cli.DEMO, "--text-file",
                            os.path.join(self.heldout(), name + ".txt"), "--window",
                            reference["window"], "--stride", reference["stride"], "--json",
                            timeout=600).json()
            self.assertEqual((got["n_tokens"], got["n_scored"]), (want["tokens"], want["scored"]))
            self.assertLess(abs(got["perplexity"] / want["perplexity"] - 1), 1e-3, name)
            self.assertLess(abs(got["bits_per_byte"] / want["bits_per_byte"] - 1), 1e-3, name)
            print(f"{name}: perplexity {got['perplexity']:.4f}, transformers {want['perplexity']:.4f}")

    def test_json_and_roads(self):
        path = os.path.join(self.heldout(), sorted(os.listdir(self.heldout()))[0])
        args = ("eval", cli.DEMO, "--text-file", path, "--max-tokens", "150", "--window", "64",
                "--stride", "32", "--json")
        one = self.good(*args).json()
        self.fits(one, "eval")
        self.assertEqual(one["n_scored"], 149)  # each token but the first, once
        for way in (["-t", "5"], ["--prefill-chunk", "7"], ["--cpu-level", "ref"]):
            other = self.good(*args, *way).json()
            self.assertEqual(other["nll_nats"], one["nll_nats"], way)
        self.assertNotEqual(self.good(*args, "--window", "80").json()["nll_nats"],
                            one["nll_nats"])

    def test_against_itself(self):
        path = os.path.join(self.heldout(), sorted(os.listdir(self.heldout()))[0])
        value = self.good("eval", cli.DEMO, "--text-file", path, "--max-tokens", "50", "--against",
                          cli.DEMO, "--json").json()
        self.fits(value, "eval")
        self.assertEqual([v for k, v in value.items() if k.startswith("kl")], [0])
        self.assertIn(1, [v for k, v in value.items() if "same" in k or "agree" in k])

    def test_usage(self):
        self.refused(2, "--text-file", "eval", self.demo())
        for flags in (["--window", "1"], ["--window", "4", "--stride", "5"]):
            self.refused(2, "window", "eval", cli.DEMO, "--text-file", "x", *flags)
        self.refused(1, "no-such", "eval", cli.DEMO, "--text-file", cli.scratch("no-such"))
        self.refused(1, "tokens", "eval", cli.DEMO, "--text-file", "/dev/null")
        self.refused(1, "tokenizer", "eval", cli.model("mixtral"), "--text-file", "/dev/null")


if __name__ == "__main__":
    cli.main()
