#!/usr/bin/env python3
"""ferry rank: joining a group by hand, with and without a key; what is refused, and how both sides say it."""

import os
import select
import signal
import socket
import subprocess
import time

import cli


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Rank(cli.Case):
    def start(self, *args):
        process = subprocess.Popen([cli.FERRY, *map(str, args)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=cli.environment())
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            stream.close()

    def found(self, model, out, *flags, ranks=2):
        address = f"127.0.0.1:{free_port()}"
        founder = self.start("logits", model, "--ids", cli.text_of(cli.ids(40)), "--out", out,
                             "--threads", 1, "--ranks", ranks, "--listen", address, *flags)
        return founder, address

    def join(self, model, address, *flags):
        """Joins, and again while nobody listens there yet."""
        until = time.time() + 20
        while True:
            process = self.start("rank", model, "--join", address, "--threads", 1, *flags)
            time.sleep(0.3)
            if process.poll() is None or time.time() > until:
                return process
            err = process.stderr.read().decode()
            if "refused" not in err.lower() and "reach" not in err.lower() and \
                    "connect" not in err.lower():
                process.last_words = err
                return process

    def test_joining_by_hand(self):
        model = cli.model("olmoe")
        one, two = cli.scratch("one.st"), cli.scratch("two.st")
        self.good("logits", model, "--ids", cli.text_of(cli.ids(40)), "--out", one)
        key = cli.scratch("key")
        with open(key, "w") as f:
            f.write("0123456789abcdef0123456789abcdef\n")
        for flags in ((), ("--group-key-file", key)):
            founder, address = self.found(model, two, *flags, ranks=3)
            ranks = [self.join(model, address, "--seat", s, *flags) for s in (2, 1)]
            self.assertEqual(founder.wait(timeout=60), 0, founder.stderr.read())
            for rank in ranks:
                rank.send_signal(signal.SIGTERM)
                self.assertEqual(rank.wait(timeout=20), 0)
            with open(one, "rb") as a, open(two, "rb") as b:
                self.assertEqual(a.read(), b.read())

    def test_other_settings_are_refused(self):
        model, other = cli.model("olmoe"), cli.model("qwen3_moe")
        founder, address = self.found(model, cli.scratch("x.st"))
        for wrong, word in ((("rank", other), "numerics"),
                            (("rank", model, "--kv", "f32"), "numerics"),
                            (("rank", model, "--prefill-chunk", "9"), "step"),
                            (("rank", model, "--replicas", "2"), "placement")):
            until = time.time() + 20
            while True:
                done = cli.ferry(*wrong, "--join", address, "--threads", 1, timeout=60)
                if word in done.err or time.time() > until:
                    break
                time.sleep(0.2)
            self.assertEqual(done.code, 1, done.err)
            self.assertIn(word, done.err)
        self.assertIsNone(founder.poll())
        rank = self.join(model, address)  # who was refused has left no trace
        self.assertEqual(founder.wait(timeout=60), 0)
        rank.send_signal(signal.SIGTERM)

    def test_a_wrong_key(self):
        model = cli.model("olmoe")
        keys = []
        for i in range(2):
            keys.append(cli.scratch(f"key{i}"))
            with open(keys[i], "w") as f:
                f.write(str(i) * 32)
        founder, address = self.found(model, cli.scratch("x.st"), "--group-key-file", keys[0])
        time.sleep(0.5)
        for flags in (("--group-key-file", keys[1]), ()):
            done = cli.ferry("rank", model, "--join", address, "--threads", 1, *flags, timeout=60)
            self.assertEqual(done.code, 1)
            self.assertIn("key", done.err)
        self.assertIsNone(founder.poll())

    def test_nobody_there(self):
        start = time.time()
        done = cli.ferry("rank", cli.model("olmoe"), "--join", f"127.0.0.1:{free_port()}")
        self.assertEqual(done.code, 1)
        self.assertLess(time.time() - start, 60)
        self.assertRegex(done.err, r"127\.0\.0\.1:\d+")

    def said(self, process, words, timeout=60):
        """Waits until a process has printed all words in one line on stderr."""
        until, rest = time.time() + timeout, getattr(process, "rest", b"")
        while time.time() < until:
            while b"\n" in rest:
                line, rest = rest.split(b"\n", 1)
                process.rest = rest
                if all(w in line.decode(errors="replace") for w in words):
                    return
            if select.select([process.stderr], [], [], 0.2)[0]:
                data = os.read(process.stderr.fileno(), 65536)  # readline would hide lines from select
                if not data:
                    break
                rest += data
        raise AssertionError(f"it did not say {words}; what is left: {rest!r}")

    def test_leaving_and_coming_back(self):
        """A rank that was stopped for long is given up and becomes live again; one that is told to
        leave ends when the others have taken over, and its place and address can be had again."""
        model = self.demo()
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        self.start("serve", model, "--port", 0, "--threads", 1, "--ranks", 3, "--listen",
                   addresses[0])

        def join(seat):
            rank = self.join(model, addresses[0], "--seat", seat, "--listen", addresses[seat])
            self.said(rank, [f"seat {seat} of 3 is live at {addresses[seat]}"])
            return rank
        one, two = join(1), join(2)
        one.send_signal(signal.SIGSTOP)
        self.said(two, ["seat 1 is dead", "takes its place"])
        one.send_signal(signal.SIGCONT)
        self.said(one, ["given up and joins again"])
        self.said(one, ["is live again"])
        one.send_signal(signal.SIGTERM)
        self.assertEqual(one.wait(timeout=20), 0)
        self.said(two, ["seat 1 is empty, was draining"])
        one = join(1)
        one.kill()
        one.wait()
        self.said(two, ["seat 1 is dead"])
        join(1)  # at the address that a killed rank had a moment ago

    def test_usage(self):
        done = cli.ferry("rank", cli.model("olmoe"))
        self.assertEqual(done.code, 2)
        self.assertIn("--join", done.err)


if __name__ == "__main__":
    cli.main()
