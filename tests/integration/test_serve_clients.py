#!/usr/bin/env python3
"""ferry serve and clients that others wrote: curl, the openai package, aiperf with cancellation.

tools/clients/setup.sh installs the two Python packages; each test is skipped with its reason where
its client is not there.
"""

import glob
import json
import os
import shutil
import subprocess

import cli
import serve

CACHE = os.environ.get("FERRY_CACHE") or os.path.expanduser("~/.cache/ferry")
OPENAI = os.path.join(CACHE, "clients-venv", "bin", "python")
AIPERF = os.path.join(CACHE, "aiperf-venv", "bin", "aiperf")
KEY = "key-for-other-peoples-clients"


class Clients(serve.Case):
    @classmethod
    def setUpClass(cls):
        keys = cli.scratch("client-keys")
        with open(keys, "w", encoding="utf-8") as f:
            f.write(KEY + "\n")
        os.chmod(keys, 0o600)
        cls.flags = ("--parallel", 4, "--threads", 2, "--max-waiting", 4, "--served-model-name",
                     "demo", "--api-key-file", keys)
        super().setUpClass()
        cls.server.key = KEY

    def tearDown(self):
        super().tearDown()
        self.server.wait_idle()

    def test_openai(self):
        if not os.path.exists(OPENAI):
            self.skipTest("no openai package: tools/clients/setup.sh installs it")
        done = subprocess.run([OPENAI, os.path.join(cli.HERE, "client_openai.py"), self.server.url,
                               KEY], capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "ok"), done.stderr[-3000:])

    def curl(self, *args):
        if shutil.which("curl") is None:
            self.skipTest("no curl")
        done = subprocess.run(["curl", "-sS", "--max-time", "60", "-H", f"Authorization: Bearer {KEY}",
                               *args], capture_output=True, timeout=90, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode()

    def test_curl(self):
        body = '{"prompt": "def f(", "max_tokens": 8, "temperature": 0, "stream": %s}'
        url = self.server.url + "/v1/completions"
        whole = json.loads(self.curl(url, "-d", body % "false"))["choices"][0]["text"]
        text = self.curl("-N", url, "-d", body % "true")
        self.assertTrue(text.endswith("data: [DONE]\n\n"), text[-200:])
        pieces = [json.loads(line[6:])["choices"][0]["text"] for line in text.split("\n\n")[:-2]]
        self.assertEqual("".join(pieces), whole)
        # A body of more than 1 MB asks with Expect: 100-continue first.
        long = cli.scratch("long.json")
        with open(long, "w", encoding="utf-8") as f:
            json.dump({"prompt": "a " * (1 << 20)}, f)
        answer = self.curl(url, "-d", "@" + long, "-H", "Expect: 100-continue")
        self.assertEqual(json.loads(answer)["error"]["code"], "context_length_exceeded")
        # A chunked body, two requests over one connection.
        twice = self.curl(url, url, "-d", body % "false", "-H", "Transfer-Encoding: chunked")
        self.assertEqual(twice.count(json.dumps(whole)), 2, twice)
        code = self.curl("-o", cli.scratch("x"), "-w", "%{http_code}", "-I", self.server.url + "/health")
        self.assertEqual(code, "200")


class Aiperf(serve.Case):
    flags = ("--parallel", 8, "--threads", 2, "--served-model-name", "demo")

    def test_aiperf_with_cancellation(self):
        if not os.path.exists(AIPERF):
            self.skipTest("no aiperf: tools/clients/setup.sh --load installs it")
        out = cli.scratch("aiperf")
        before = self.server.metrics()
        done = subprocess.run(
            [AIPERF, "profile", "-m", "demo", "--url", self.server.url, "--endpoint-type", "chat",
             "--streaming", "--tokenizer", os.path.realpath(cli.DEMO), "--concurrency", "8", "--request-count", "60",
             "--isl", "100", "--isl-stddev", "30", "--osl", "64", "--extra-inputs", "ignore_eos:true",
             "--request-cancellation-rate", "30", "--request-cancellation-delay", "0.3",
             "--random-seed", "1", "--ui-type", "none", "--no-gpu-telemetry", "--workers-max", "1",
             "--output-artifact-dir", out], capture_output=True, text=True, timeout=420, check=False,
            env=cli.environment())
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-3000:])
        self.server.wait_idle()
        after = self.server.metrics()
        found = glob.glob(os.path.join(out, "**", "profile_export_aiperf.json"), recursive=True)
        self.assertEqual(len(found), 1, os.listdir(out))
        with open(found[0], encoding="utf-8") as f:
            report = json.load(f)
        good = report["request_count"]["avg"]
        left = after.total("ferry_clients_left_total") - before.total("ferry_clients_left_total")
        self.assertGreater(good, 20, report.keys())
        self.assertGreater(left, 0, "aiperf cancelled nothing")
        self.assertEqual(after.total("ferry_answers_finished_total", reason="error"), 0)
        self.assertEqual(self.server.complete("a", max_tokens=1)["usage"]["completion_tokens"], 1)


if __name__ == "__main__":
    cli.main()
