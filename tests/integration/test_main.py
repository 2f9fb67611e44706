#!/usr/bin/env python3
"""The command itself: help, usage errors, exit codes, output that does not arrive."""

import subprocess

import cli

VERBS = ("run", "logits", "tokenize", "eval", "inspect", "bench", "doctor")


class Main(cli.Case):
    def test_help_lists_the_verbs(self):
        for flag in ("--help", "-h", "help"):
            text = self.good(flag).out.decode()
            for verb in VERBS:
                self.assertIn(f"\n  {verb} ", text)
            self.assertIn("Exit codes", text)
        self.assertRegex(self.good("--version").out.decode(), r"^ferry \d+\.\d+\.\d+")

    def test_every_verb_has_help(self):
        for verb in VERBS:
            text = self.good(verb, "--help").out.decode()
            self.assertIn(f"sage: ferry {verb}", text)

    def test_wrong_usage_is_2(self):
        done = cli.ferry()
        self.assertEqual((done.code, done.out), (2, b""))
        self.assertIn("usage: ferry VERB", done.err)
        self.refused(2, "'fly'", "fly")
        for verb in VERBS:
            done = cli.ferry(verb, "--no-such-flag")
            self.assertEqual(done.code, 2, verb)
            self.assertIn("--no-such-flag", done.err)
        for verb in ("run", "inspect", "bench"):
            self.refused(2, "MODEL is missing", verb)
        done = cli.ferry("inspect", "a", "b")
        self.assertEqual(done.code, 2)

    def test_full_disk_is_an_error(self):
        model = cli.model("qwen3_moe")
        commands = (
            ["--help"], ["--version"], ["inspect", model], ["inspect", model, "--json"],
            ["run", model, "--ids", "1,2", "-n", "4", "--greedy"],
            ["run", model, "--ids", "1,2", "-n", "4", "--greedy", "--json"], ["doctor"],
        )
        for command in commands:
            with open("/dev/full", "wb") as full:
                done = cli.ferry(*command, stdout=full)
            self.assertEqual(done.code, 1, command)
            self.assertRegex(done.err, "cannot write|No space left")

    def test_closed_pipe_is_no_crash(self):
        process = subprocess.Popen([cli.FERRY, "inspect", cli.model("qwen3_moe"), "--tensors"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.close()
        err = process.stderr.read().decode()
        process.stderr.close()
        self.assertEqual(process.wait(), 1, err)
        self.assertIn("cannot write", err)


if __name__ == "__main__":
    cli.main()
