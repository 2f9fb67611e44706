#!/usr/bin/env python3
"""Shared flags and FERRY_* variables: refusals that name them, and flag before variable."""

import cli

WRONG = (
    ("threads", "FERRY_THREADS", ("0", "-1", "x", "2000", "1.5", "")),
    ("context", "FERRY_CONTEXT", ("0", "99999999999", "many")),
    ("prefill-chunk", "FERRY_PREFILL_CHUNK", ("0", "some", "-7")),
    ("cpu-level", "FERRY_CPU_LEVEL", ("avx9000", "AVX2")),
    ("kv", "FERRY_KV", ("q4_0", "f8", "int8")),
    ("ranks", "FERRY_RANKS", ("65", "0", "two")),
    ("replicas", "FERRY_REPLICAS", ("65", "0")),
    ("combine", "FERRY_COMBINE", ("f16", "BF16")),
)


class Options(cli.Case):
    def test_wrong_flags_are_2(self):
        for flag, _, values in WRONG:
            for value in values:
                self.refused(2, f"--{flag}", "inspect", cli.model("qwen3_moe"), f"--{flag}={value}")

    def test_wrong_variables_are_2(self):
        for _, variable, values in WRONG:
            for value in values:
                if value:  # an empty variable is no setting
                    self.refused(2, variable, "inspect", cli.model("qwen3_moe"),
                                 env={variable: value})

    def test_flag_wins_over_variable(self):
        model = cli.model("qwen3_moe")
        plain = self.good("inspect", model).out
        bf16 = self.good("inspect", model, env={"FERRY_KV": "bf16"}).out
        self.assertNotEqual(plain, bf16)
        self.assertEqual(self.good("inspect", model, "--kv", "f16", env={"FERRY_KV": "bf16"}).out,
                         plain)
        self.assertEqual(self.good("inspect", model, "--kv", "bf16").out, bf16)
        self.assertEqual(self.good("inspect", model, env={"FERRY_KV": ""}).out, plain)

    def test_variables_are_followed(self):
        model = cli.model("qwen3_moe")
        repacked = self.good("inspect", model, "--json").json()["memory"]
        mapped = self.good("inspect", model, "--json", env={"FERRY_NO_REPACK": "1"}).json()["memory"]
        again = self.good("inspect", model, "--json", env={"FERRY_NO_REPACK": "0"}).json()["memory"]
        self.assertNotEqual(repacked["weights_bytes"], mapped["weights_bytes"])
        self.assertEqual(repacked, again)
        short = self.good("inspect", model, "--json", env={"FERRY_CONTEXT": "128"}).json()["memory"]
        self.assertEqual(short["context"], 128)
        chunk = self.good("inspect", model, "--json", env={"FERRY_PREFILL_CHUNK": "16"}).json()
        self.assertLess(chunk["memory"]["step_bytes"], repacked["step_bytes"])

    def test_numbers_of_verbs(self):
        model = cli.model("qwen3_moe")
        for flag, value in (("-n", "0"), ("-n", "x"), ("--temperature", "warm"), ("--top-p", "nan"),
                            ("--seed", "-1"), ("--top-k", "1e3"), ("--min-p", "")):
            done = cli.ferry("run", model, "--ids", "1", flag, value)
            self.assertEqual(done.code, 2, (flag, value, done.err))

    def test_lists_of_ids(self):
        model = cli.model("qwen3_moe")
        out = cli.scratch("ids.safetensors")
        for text, what in (("1,x", "byte 2"), ("-1", "byte 0"), ("1;2", "'1;2'"),
                           ("99999999999", "2147483647"), ("1.5", "byte 0")):
            done = cli.ferry("logits", model, "--ids", text, "--out", out)
            self.assertIn(done.code, (1, 2))
            self.assertIn(what, done.err)
        same = []
        for text in ("1,2,3", " 1 2\t3\n", "1,,2,3,"):
            self.good("logits", model, "--ids", text, "--out", out)
            with open(out, "rb") as f:
                same.append(f.read())
        self.assertEqual(same[0], same[1])
        self.assertEqual(same[0], same[2])


if __name__ == "__main__":
    cli.main()
