"""The script ./run: serves a model, asks it through the API with curl, keeps serving until a signal, and
leaves no server behind. It takes the ferry under test from FERRY_PROGRAM, so nothing is built here.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import cli
import serve

READY = "Ctrl-C ends it"
PROMPT = 'def read_lines(path):\n    """Read the lines of a text file'
SETTINGS = {"max_tokens": 96, "temperature": 0.7, "top_p": 0.95, "seed": 1}


class Run:
    """A running ./run; signals go to the script and its commands, as those of a terminal do."""

    def __init__(self, *args, cwd=cli.ROOT, program=None, **env):
        self.path = cli.scratch(f"run-{time.monotonic_ns()}.log")
        with open(self.path, "wb") as out:
            self.process = subprocess.Popen(
                [os.path.abspath(os.path.join(cli.ROOT, "run")), *args], cwd=cwd, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True,
                env=cli.environment(FERRY_PROGRAM=program or cli.FERRY, **env))

    def text(self):
        with open(self.path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def until(self, word):
        """Waits until the output has the word; returns the output."""
        end = time.monotonic() + cli.TIMEOUT_S
        while word not in self.text():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.text()}"
            assert time.monotonic() < end, f"no '{word}': {self.text()}"
            time.sleep(0.02)
        return self.text()

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def end(self):
        """Waits; returns the exit code."""
        return self.process.wait(cli.TIMEOUT_S)

    @property
    def address(self):
        found = re.search(r"serving \S+ at http://([\d.]+):(\d+)/v1", self.text())
        return found[1], int(found[2])


def listens(address):
    with socket.socket() as s:
        return s.connect_ex(address) == 0


def ended(address):
    """Whether nobody listens there any more, now or soon."""
    end = time.monotonic() + 30
    while listens(address):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def client_of(run):
    """The requests of serve.Server, to the server that ./run started."""
    client = serve.Server.__new__(serve.Server)  # without a process of its own
    client.key, (client.host, client.port) = None, run.address
    return client


def wrapper(name, flags):
    """A program that is ferry, but serves with more flags."""
    path = cli.scratch(name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(f'#!/bin/sh\nverb=$1\nshift\n[ "$verb" != serve ] || set -- "$@" {flags}\n'
                f'exec "{cli.FERRY}" "$verb" "$@"\n')
    os.chmod(path, 0o755)
    return path


class ServeRun(cli.Case):
    def setUp(self):
        self.demo()
        for program in ("bash", "curl", "setsid", "setpriv"):
            if shutil.which(program) is None:
                self.skipTest(f"there is no {program}")

    def started(self, *args, **how):
        run = Run(*args, **how)

        def clean():
            if run.process.poll() is None:
                run.signal(signal.SIGKILL)
                run.end()

        self.addCleanup(clean)
        return run

    def test_once_prints_the_answer_of_the_api(self):
        run = self.started("--once")
        self.assertEqual(run.end(), 0, run.text())
        self.assertTrue(ended(run.address))
        with_server = serve.start(cli.DEMO)
        self.addCleanup(with_server.stop)
        answer = with_server.complete(PROMPT, **SETTINGS)
        text, n = answer["choices"][0]["text"], answer["usage"]["completion_tokens"]
        self.assertGreater(len(text), 50)
        self.assertIn(f"'\n{PROMPT}{text}\n[{n} tokens in ", run.text())
        self.assertNotIn(READY, run.text())

    def test_readme_shows_what_is_printed(self):
        """Each line of README's transcript, whatever its numbers are, in its order."""
        run = self.started()
        printed = run.until(READY)
        with open(os.path.join(cli.ROOT, "README.md"), encoding="utf-8") as f:
            block = re.search(r"```text\n(.*?)```", f.read(), re.S)[1]
        lines = [line for line in block.splitlines() if line not in ("", "...")]
        self.assertGreater(len(lines), 8)
        at = 0
        for line in lines:
            pattern = re.sub(r"\d[\d.]*\d|\d", r"[\\d.]+", re.escape(line).replace(r"\.", "."))
            found = re.search(pattern, printed[at:])
            self.assertTrue(found, f"README shows '{line}', ./run prints: {printed}")
            at += found.end()

    def test_a_busy_port_is_told_and_the_next_one_taken(self):
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind(("127.0.0.1", 8080))
                taken.listen()
            except OSError:
                pass  # somebody else has it: as good
            run = self.started("--once")
            self.assertEqual(run.end(), 0, run.text())
            self.assertIn("port 8080 is taken, trying the next one", run.text())
            self.assertGreater(run.address[1], 8080)

    def test_serves_until_a_signal_and_finishes_answers(self):
        """The printed commands work; Ctrl-C in the middle of a stream lets it end."""
        run = self.started()
        text = run.until(READY)
        commands = re.findall(r"^  (curl .*)$", text, re.M)
        self.assertEqual(len(commands), 2)
        for command in commands:
            done = subprocess.run(["bash", "-c", f"{command} -sS --noproxy '*'"], capture_output=True,
                                  timeout=cli.TIMEOUT_S, check=True)
            self.assertIn(json.loads(done.stdout)["object"], ("text_completion", "list"))
        client = client_of(run)
        self.assertIn(f"{client.url}/metrics", text)
        self.assertGreater(client.metrics().total("ferry_generation_tokens_total"), 96)
        stream = client.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 700, "ignore_eos": True})
        events = stream.events()
        next(events)
        run.signal(signal.SIGINT)
        n = 1 + sum(1 for _ in events)
        self.assertTrue(stream.done)
        self.assertGreater(n, 200)
        stream.close()
        self.assertEqual(run.end(), 0, run.text())
        self.assertFalse(listens(run.address))

    def test_the_second_signal_breaks_off(self):
        run = self.started(program=wrapper("slow", "--threads 1"))
        run.until(READY)
        client = client_of(run)
        with client.stream("/v1/completions", {"prompt": [5] * 8, "n": 8, "max_tokens": 2000,
                                               "ignore_eos": True}) as stream:
            events = stream.events()
            next(events)
            run.signal(signal.SIGINT)
            while client.get("/ready").status == 200:  # two at once would be one
                time.sleep(0.01)
            run.signal(signal.SIGINT)
            rest = list(events)
            self.assertFalse(stream.done)
            self.assertIn("shutting down", rest[-1]["error"]["message"])
        self.assertEqual(run.end(), 0, run.text())

    def test_other_ends_leave_no_server(self):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
            with self.subTest(number):
                run = self.started()
                run.until(READY)
                run.process.send_signal(number)  # to the script alone
                self.assertEqual(run.end(), -signal.SIGKILL if number == signal.SIGKILL else 0, run.text())
                self.assertTrue(ended(run.address))

    def test_another_model(self):
        """A path relative to where one is; the chat example is there and works."""
        run = self.started("--model", os.path.basename(cli.DEMO), cwd=os.path.dirname(cli.DEMO))
        text = run.until(READY)
        command = re.search(r"^  (curl \S* \S*/v1/chat/completions .*)$", text, re.M)[1]
        done = subprocess.run(["bash", "-c", f"{command} -sS --noproxy '*'"], capture_output=True,
                              timeout=cli.TIMEOUT_S, check=True)
        self.assertIn(b"chat.completion.chunk", done.stdout)
        self.assertTrue(done.stdout.endswith(b"data: [DONE]\n\n"))
        run.signal(signal.SIGINT)
        self.assertEqual(run.end(), 0)

    def test_failures_have_a_code(self):
        run = self.started("--once", program=wrapper("broken", "--parallel none"))
        self.assertEqual(run.end(), 1)
        self.assertIn("'none' is not a whole number", run.text())
        run = self.started("--once", FERRY_CONTEXT="8")  # too short for the question
        self.assertEqual(run.end(), 1)
        self.assertIn("context_length_exceeded", run.text())
        self.assertIn("the answer is not complete", run.text())
        self.assertTrue(ended(run.address))
        run = self.started("--model", cli.scratch("missing"))
        self.assertEqual(run.end(), 1)
        self.assertIn("missing", run.text())
        for args in (["--twice"], ["--model"]):
            self.assertEqual(self.started(*args).end(), 2)


if __name__ == "__main__":
    cli.main()
