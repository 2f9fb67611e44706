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
            ["--help"], ["--version"], ["run", "--help"], ["tokenize", "--usage"],
            ["inspect", model], ["inspect", model, "--json"],
            ["run", model, "--ids", "1,2", "-n", "4", "--greedy"],
            ["run", model, "--ids", "1,2", "-n", "4", "--greedy", "--json"], ["doctor"],
        )
        for command in commands:
            with open("/dev/full", "wb") as full:
                done = cli.ferry(*command, stdout=full)
            self.assertEqual(done.code, 1, command)
            self.assertRegex(done.err, "cannot write|No space left")

    def test_closed_standard_streams(self):
        """A file that is opened later must not become standard input or output."""
        model = cli.model("qwen3_moe")
        for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
            for command in ("run MODEL", "run MODEL --ids 1,2 -n 2", "inspect MODEL"):
                line = f"exec {cli.FERRY} {command.replace('MODEL', model)} {closed}"
                done = subprocess.run(["sh", "-c", line], stdin=subprocess.DEVNULL,
                                      capture_output=True, timeout=cli.TIMEOUT_S, check=False)
                self.assertIn(done.returncode, (0, 1), line)
                if command == "run MODEL":  # this one has no tokenizer: it says so, or cannot
                    self.assertEqual((done.returncode, done.stdout), (1, b""), line)
        done = subprocess.run(["sh", "-c", f"exec {cli.FERRY} run {cli.DEMO} -n 2 <&-"],
                              capture_output=True, timeout=cli.TIMEOUT_S, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, b""))

    def test_standard_input_that_cannot_be_read(self):
        done = subprocess.run(["sh", "-c", f"exec {cli.FERRY} run {cli.DEMO} -n 2 < ."],
                              capture_output=True, timeout=cli.TIMEOUT_S, check=False)
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertIn(b"cannot read standard input", done.stderr)

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
