#!/usr/bin/env python3
"""A server over several ranks: answers are spread over them and have the bytes of one rank's, also when a rank
that computes some of them is killed or stopped in the middle; and what is said when an expert is nowhere."""

import json
import os
import shutil
import signal
import threading
import time
import urllib.request

import cli
import serve
from test_group import ranks_of


def body_of(i):
    """Greedy and sampled, with log-probabilities, several choices, penalties, stops."""
    body = {"prompt": f"def f{i}(x):\n    return", "max_tokens": 200 + i * 37 % 200,
            "temperature": 0.9 if i % 2 else 0, "seed": i}
    if i % 3 == 0:
        body["logprobs"] = 3
    if i % 5 == 0:
        body["n"] = 2
    if i % 4 == 1:
        body["frequency_penalty"] = 0.4
        body["logit_bias"] = {str(40 + i): 3, "7": -100}
    if i % 7 == 3:
        body["stop"] = ["\n\n", "return"]
    return body


class Served(cli.Case):
    N = 12

    def answers(self, server, during=None):
        """Texts, log-probabilities and finish reasons of N answers asked for at once."""
        got = {}

        def ask(i):
            request = urllib.request.Request(
                server.url + "/v1/completions", json.dumps(body_of(i)).encode(),
                {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    got[i] = json.dumps(json.loads(answer.read())["choices"])
            except OSError as e:
                got[i] = repr(e)
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(self.N)]
        for t in threads:
            t.start()
        if during:
            during()
        for t in threads:
            t.join()
        for i, text in got.items():
            self.assertTrue(text.startswith("["), f"answer {i}: {text}")
        return got

    def start(self, *args, model=cli.DEMO):
        server = serve.Server(model, "--threads", "1", *args).wait_ready()
        self.addCleanup(server.stop)
        return server

    def wait_away(self, server, n=1):
        server.wait_for(lambda m: m.total("ferry_answers_sent_away_total") >= n, 30,
                        "answers to be sent away")

    def test_spread_and_equal(self):
        want = self.answers(self.start())
        for flags in (("--ranks", "3"), ("--ranks", "2", "--placement", "random:2")):
            server = self.start(*flags)
            got = self.answers(server, during=lambda: self.wait_away(server))
            self.assertEqual(got, want, flags)
            server.wait_for(lambda m: m.total("ferry_requests_away") == 0, 10, "all to be back")
            server.stop()

    def test_every_start_spreads(self):
        """What a rank says while another has loaded but does not serve yet is heard."""
        for _ in range(8):
            server = self.start("--ranks", "3")
            until = time.monotonic() + 10
            while server.metrics().total("ferry_answers_sent_away_total") < 1:
                self.assertLess(time.monotonic(), until, "nothing was ever sent away")
                self.answers(server)
            server.stop()

    def check_fault(self, fault, *flags):
        want = self.answers(self.start())
        server = self.start("--ranks", "3", *flags)
        pids = ranks_of(server.pid)
        self.assertEqual(len(pids), 2)

        def during():
            self.wait_away(server)
            fault(pids)
        self.assertEqual(self.answers(server, during), want)
        # And what is asked afterwards.
        self.assertEqual(self.answers(server), want)

    def test_a_killed_rank(self):
        self.check_fault(lambda pids: os.kill(pids[0], signal.SIGKILL))

    def test_both_killed(self):
        def fault(pids):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)
        self.check_fault(fault, "--replicas", "2")

    def test_a_stopped_rank(self):
        def fault(pids):
            os.kill(pids[1], signal.SIGSTOP)
            time.sleep(1.5)
            os.kill(pids[1], signal.SIGCONT)
        self.check_fault(fault)

    def test_an_expert_that_nobody_has(self):
        """The file is damaged and the rank that had its experts is killed: answers wait, /ready says so for as
        long as one does, and when the file is whole again they come, with the bytes of one rank."""
        model = cli.scratch("damaged")
        shutil.copytree(cli.DEMO, model)
        self.good("inspect", model, "--write-manifest")
        want = self.answers(self.start())
        path = os.path.join(model, "model.safetensors")
        with open(path, "rb") as f:
            whole = f.read()
        first = 8 + int.from_bytes(whole[:8], "little")
        names = json.loads(whole[8:first])
        bad = bytearray(whole)
        for name, tensor in names.items():
            if ".experts." in name:
                bad[first + tensor["data_offsets"][0]] ^= 1

        def write(data):  # in place: the ranks have this very file
            with open(path, "r+b") as f:
                f.write(data)
        server = self.start("--ranks", "2", model=model)
        write(bad)
        os.kill(ranks_of(server.pid)[0], signal.SIGKILL)
        with server.ask("/v1/completions", body_of(1)):
            self.until_ready(server, 503)
            self.assertIn(b"waiting for other ranks", server.get("/ready").body)
        self.until_ready(server, 200)  # who waited has left
        got = self.answers(server, during=lambda: (self.until_ready(server, 503), write(whole)))
        self.assertEqual(got, want)
        self.until_ready(server, 200)

    def until_ready(self, server, status):
        until = time.monotonic() + 15
        while server.get("/ready").status != status:
            self.assertLess(time.monotonic(), until, f"/ready is not {status}")
            time.sleep(0.05)


if __name__ == "__main__":
    cli.main()
