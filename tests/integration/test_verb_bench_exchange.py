#!/usr/bin/env python3
"""ferry bench exchange as a command: flags, output, ranks that it starts or that join by hand."""

import os
import signal
import socket
import subprocess
import time

import cli

SMALL = ["--experts", "8", "--top-k", "2", "--hidden", "64", "--rounds", "3"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(*flags, env=None):
    return subprocess.Popen([cli.FERRY, "bench", "exchange", *map(str, flags)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=cli.environment(**(env or {})))


def finish(process):
    out, err = process.communicate(timeout=cli.TIMEOUT_S)
    return process.returncode, out, err


def children_of(pid):
    """Processes that were started with --with-parent PID."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
        except OSError:
            continue
        if b"--with-parent" in words and words[words.index(b"--with-parent") + 1] == b"%d" % pid:
            found.append(int(name))
    return found


class BenchExchange(cli.Case):
    def test_json(self):
        done = self.good("bench", "exchange", "--tokens", "1,0,5", "--json", *SMALL)
        lines = [cli.json.loads(line) for line in done.out.splitlines()]
        self.assertEqual([line["tokens"] for line in lines], [1, 0, 5])
        for line in lines:
            self.fits(line, "bench-exchange")
            self.assertEqual((line["ranks"], line["rounds"], line["hidden"]), (2, 3, 64))
            self.assertEqual((line["placement"], line["combine"], line["link"]),
                             ("contiguous", "f32", "shm"))
            self.assertLessEqual(line["us_p10"], line["us_p50"])
            self.assertLessEqual(line["us_p50"], line["us_p90"])
            self.assertLessEqual(line["us_p50_rank0"], line["us_p50"])

    def test_seconds_choose_the_rounds(self):
        done = self.good("bench", "exchange", "--tokens", "1", "--json", "--hidden", "64",
                         "--seconds", "0.001")
        self.assertGreaterEqual(cli.json.loads(done.out)["rounds"], 20)

    def test_for_people(self):
        done = self.good("bench", "exchange", "--tokens", "2", "--ranks", "3", *SMALL)
        self.assertIn(b"3 ranks by shm", done.out)
        self.assertIn(b"2 tokens", done.out)

    def test_wrong_flags(self):
        for flags in (["--ranks", "0"], ["--ranks", "65"], ["--tokens", "1,,2"], ["--tokens", ""],
                      ["--tokens", "1,"], ["--hidden", "33"], ["--experts", "4", "--top-k", "5"],
                      ["--placement", "near"], ["--placement", "random:x"], ["--combine", "f16"],
                      ["--holder", "none"], ["--seconds", "-1"], ["--rounds", "0"],
                      ["--threads", "0"], ["--replicas", "0"], ["model.gguf"]):
            done = cli.ferry("bench", "exchange", *flags)
            self.assertEqual(done.code, 2, (flags, done.err))
        self.assertIn(b"exchange", self.good("bench", "exchange", "--help").out)
        self.assertIn(b"bench exchange", self.good("bench", "--help").out)

    def test_join_by_hand(self):
        at = f"127.0.0.1:{free_port()}"
        founder = start("--listen", at, "--tokens", "3", "--json", *SMALL)
        joiner = start("--join", at, "--tokens", "3", *SMALL)
        code, out, err = finish(founder)
        self.assertEqual((code, len(out.splitlines())), (0, 1), err)
        self.fits(cli.json.loads(out), "bench-exchange")
        self.assertEqual(finish(joiner)[:2], (0, ""))

    def test_other_terms_are_refused(self):
        at = f"127.0.0.1:{free_port()}"
        founder = start("--listen", at, "--tokens", "3", *SMALL)
        try:
            code, out, err = finish(start("--join", at, "--tokens", "3", *SMALL, "--holder",
                                          "summed"))
            self.assertEqual((code, out), (1, ""))
            self.assertIn("summed", err)
            self.assertIn("scaled", err)
        finally:
            founder.kill()
            founder.communicate()

    def test_mpirun(self):
        # Rank and size come from the environment; rank 0 listens where the others join.
        at = f"127.0.0.1:{free_port()}"
        ranks = [start("--listen", at, "--tokens", "3", "--json", *SMALL,
                       env={"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "3"})
                 for r in range(3)]
        done = [finish(rank) for rank in ranks]
        self.assertEqual([code for code, _, _ in done], [0, 0, 0], done)
        self.assertEqual([len(out.splitlines()) for _, out, _ in done], [1, 0, 0])
        self.assertEqual(cli.json.loads(done[0][1])["ranks"], 3)
        self.refused(1, "--listen", "bench", "exchange", *SMALL,
                     env={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})

    def test_beyond_this_machine_needs_a_key(self):
        self.refused(1, "--group-key-file", "bench", "exchange", "--listen", "0.0.0.0:0", *SMALL)
        short = cli.scratch("short.key")
        with open(short, "w") as f:
            f.write("abc\n")
        self.refused(1, "short.key", "bench", "exchange", "--group-key-file", short, *SMALL)

    def test_no_rank_outlives_its_founder(self):
        founder = start("--tokens", "1", "--ranks", "3", "--rounds", "1000000", "--hidden", "64")
        try:
            end = time.monotonic() + 30
            while len(children_of(founder.pid)) < 2 and time.monotonic() < end:
                time.sleep(0.02)
            self.assertEqual(len(children_of(founder.pid)), 2)
        finally:
            founder.kill()
            founder.communicate()
        end = time.monotonic() + 10
        while children_of(founder.pid) and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(children_of(founder.pid), [])

    def test_a_lost_rank_ends_the_run(self):
        founder = start("--tokens", "1", "--ranks", "3", "--rounds", "1000000", "--hidden", "64")
        end = time.monotonic() + 30
        while len(children_of(founder.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.5)
        os.kill(children_of(founder.pid)[0], signal.SIGKILL)
        code, out, err = finish(founder)
        self.assertEqual((code, out.count("tokens ")), (1, 0), err)
        self.assertEqual(children_of(founder.pid), [])


if __name__ == "__main__":
    cli.main()
