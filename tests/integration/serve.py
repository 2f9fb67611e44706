"""What the tests of `ferry serve` share: a server on a free port, plain HTTP, streams, raw sockets.

Why not http.client alone: these tests look at when bytes arrive, leave in the middle, read slowly
and send what no client would. Standard library only. The server's stderr and access log go to files
whose text a failing test shows.
"""

import atexit
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import cli

START_S = 120  # sanitizers load slowly
ANSWER_S = 120
SLOW = 6.0 if os.environ.get("FERRY_TEST_SANITIZE") else 1.0  # a sanitizer's price, roughly
_running = []
atexit.register(lambda: [s.kill() for s in list(_running)])


class Answer:
    """A complete answer: status, headers (names in lower case), body (bytes)."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The error object in OpenAI's shape; AssertionError when the body is anything else."""
        value = self.json()
        assert set(value) == {"error"}, self.body
        for name in ("message", "type", "code", "param"):
            assert name in value["error"], f"error without {name}: {self.body!r}"
        return value["error"]


def leave(sock, reset=False):
    """Closes a connection; with reset as a client that was killed does."""
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Stream:
    """An answer that is read as it comes: status, headers, then events() once.

    Attributes that fill while reading: comments (text of SSE comments), times (of each event),
    done (whether "[DONE]" came), ended (HTTP's own end mark came), cut (the connection closed
    without it).
    """

    def __init__(self, sock, sent_at):
        self.sock, self.sent_at = sock, sent_at
        self.rest = b""
        self.comments, self.comment_times, self.times, self.raw = [], [], [], b""
        self.done = self.ended = self.cut = False
        head = self._until(b"\r\n\r\n")
        self.head_at = time.monotonic()
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {k.strip().lower(): v.strip()
                        for k, v in (line.split(":", 1) for line in lines[1:] if line)}

    def _more(self):
        data = self.sock.recv(65536)
        if not data:
            raise EOFError("the server closed the connection")
        self.rest += data

    def _until(self, mark):
        while mark not in self.rest:
            self._more()
        found, self.rest = self.rest.split(mark, 1)
        return found

    def _chunks(self):
        if self.headers.get("transfer-encoding") != "chunked":
            size = int(self.headers.get("content-length", 0))
            while len(self.rest) < size:
                self._more()
            self.ended = True
            yield self.rest[:size]
            return
        while True:
            try:
                size = int(self._until(b"\r\n").split(b";")[0], 16)
                while len(self.rest) < size + 2:
                    self._more()
            except (EOFError, ConnectionError):
                self.cut = True
                return
            data, self.rest = self.rest[:size], self.rest[size + 2:]
            if size == 0:
                self.ended = True
                return
            yield data

    def body(self):
        """The whole body, for an answer that turned out to be no stream."""
        return b"".join(self._chunks())

    def frames(self):
        """Yields the text of each SSE event ("[DONE]" included); comments are kept aside."""
        text = b""
        for data in self._chunks():
            self.raw += data
            text += data
            while b"\n\n" in text:
                frame, text = text.split(b"\n\n", 1)
                now = time.monotonic()
                lines = []
                for line in frame.decode("utf-8").split("\n"):
                    if line.startswith(":"):
                        self.comments.append(line[1:].strip())
                        self.comment_times.append(now)
                    elif line.startswith("data:"):
                        lines.append(line[5:].removeprefix(" "))
                    else:
                        raise AssertionError(f"no SSE line: {line!r}")
                if lines:
                    self.times.append(now)
                    yield "\n".join(lines)
        assert not text.strip(), f"the stream ends in the middle of an event: {text!r}"

    def events(self):
        """Yields each event's JSON; sets done at [DONE], after which nothing may come."""
        for text in self.frames():
            assert not self.done, f"an event after [DONE]: {text!r}"
            if text == "[DONE]":
                self.done = True
            else:
                yield json.loads(text)

    def collect(self):
        """Reads to the end and puts the deltas together: see Collected."""
        with self:
            return Collected(list(self.events()), self)

    def close(self, reset=False):
        """Leaves; with reset the server hears of it at once."""
        leave(self.sock, reset)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Collected:
    """A read stream: text and finish_reason per choice, usage, the id, errors, the chunks."""

    def __init__(self, chunks, stream):
        self.chunks, self.stream = chunks, stream
        self.texts, self.finish, self.roles, self.logprobs, self.seeds = {}, {}, {}, {}, set()
        self.usage, self.errors = None, []
        for chunk in chunks:
            if "error" in chunk:
                self.errors.append(chunk["error"])
                continue
            self.seeds.add(chunk["seed"])
            if chunk.get("usage") is not None:
                self.usage = chunk["usage"]
            for choice in chunk["choices"]:
                self._take(choice)

    def _take(self, choice):
        at = choice["index"]
        delta = choice.get("delta", {})
        piece = delta.get("content") if "delta" in choice else choice["text"]
        self.texts[at] = self.texts.get(at, "") + (piece or "")
        if delta.get("role"):
            self.roles[at] = delta["role"]
        if choice.get("logprobs"):
            self.logprobs.setdefault(at, []).append(choice["logprobs"])
        if choice.get("finish_reason") is not None:
            assert at not in self.finish, f"two finish reasons for choice {at}"
            self.finish[at] = choice["finish_reason"]

    @property
    def text(self):
        return self.texts.get(0, "")


class Metrics(dict):
    """/metrics: {name or name{labels}: value}, and sums over labels."""

    def __init__(self, text):
        super().__init__()
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                assert name not in self, f"/metrics has {name} twice"
                self[name] = float(value)

    def total(self, name, **labels):
        """The sum over all series of a name whose labels are these."""
        want = [f'{k}="{v}"' for k, v in labels.items()]
        found = [v for k, v in self.items() if k.split("{")[0] == name
                 and all(w in k for w in want)]
        assert found, f"/metrics has no {name} {labels}"
        return sum(found)


class Server:
    """A `ferry serve` process. Use start(); stop() or the end of the program ends it."""

    def __init__(self, model, *flags, log=None, env=None, program=None):
        self.log_path = log or cli.scratch(f"serve-{os.getpid()}-{time.monotonic_ns()}.log")
        self.key = None
        command = [program or cli.FERRY, "serve", model, "--port", "0", *map(str, flags)]
        with open(self.log_path, "wb") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=out, env=cli.environment(**(env or {})))
        _running.append(self)
        self.pid = self.process.pid
        self.host, self.port = None, None

    def log(self):
        """What the server has printed so far."""
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait_ready(self, timeout=START_S):
        """Reads the URL from the ready line, then waits for /ready. Returns self."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            found = re.search(r"https?://(\[[^\]]+\]|[^\s:/]+):(\d+)", self.log())
            if found and int(found[2]) > 0:
                self.host, self.port = found[1].strip("[]"), int(found[2])
                try:
                    if self.get("/ready").status == 200:
                        return self
                except OSError:
                    pass
            if self.process.poll() is not None:
                raise AssertionError(f"serve ended with {self.process.returncode}: {self.log()}")
            time.sleep(0.02)
        raise AssertionError(f"serve is not ready after {timeout} s: {self.log()}")

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    # ---- requests ----

    def headers(self, key=None, extra=None):
        """What every request carries."""
        key = self.key if key is None else key
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        headers.update(extra or {})
        return headers

    def send(self, method, path, body=None, key=None, headers=None, timeout=ANSWER_S):
        """One request on its own connection; body: bytes, or anything that becomes JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        link = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            link.request(method, path, body, self.headers(key, headers))
            got = link.getresponse()
            return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())
        finally:
            link.close()

    def get(self, path, **how):
        return self.send("GET", path, **how)

    def post(self, path, body, **how):
        return self.send("POST", path, body, **how)

    def complete(self, prompt, path="/v1/completions", **params):
        """A completion that must succeed; returns its JSON."""
        key = params.pop("key", None)
        body = {"prompt": prompt, **params} if "chat" not in path else \
            {"messages": prompt if isinstance(prompt, list) else
             [{"role": "user", "content": prompt}], **params}
        got = self.post(path, body, key=key)
        assert got.status == 200, f"{got.status}: {got.body!r}"
        return got.json()

    def chat(self, messages, **params):
        return self.complete(messages, path="/v1/chat/completions", **params)

    def stream(self, path, body, key=None, headers=None, timeout=ANSWER_S, rcvbuf=None):
        """Sends a streaming request, returns a Stream whose headers have arrived."""
        body = {**body, "stream": True} if isinstance(body, dict) else body
        return Stream(self.ask(path, body, key, headers, timeout, rcvbuf), time.monotonic())

    def ask(self, path, body, key=None, headers=None, timeout=ANSWER_S, rcvbuf=None):
        """Sends a request and waits for nothing; returns the connection."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        sock = self.connect(timeout, rcvbuf)
        lines = [f"POST {path} HTTP/1.1", f"Host: {self.host}:{self.port}",
                 f"Content-Length: {len(data)}"]
        lines += [f"{k}: {v}" for k, v in self.headers(key, headers).items()]
        sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        return sock

    def connect(self, timeout=ANSWER_S, rcvbuf=None):
        """A bare connection."""
        sock = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET,
                             socket.SOCK_STREAM)
        sock.settimeout(timeout)
        if rcvbuf:  # before connecting: it bounds the window
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        sock.connect((self.host, self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def raw(self, data, timeout=ANSWER_S, half_close=False):
        """Sends bytes as they are, returns everything that comes back until the end."""
        with self.connect(timeout) as sock:
            got = b""
            try:
                sock.sendall(data)
                if half_close:
                    sock.shutdown(socket.SHUT_WR)
                while piece := sock.recv(65536):
                    got += piece
            except ConnectionError:
                pass
            return got

    # ---- state ----

    def metrics(self, key=None):
        got = self.get("/metrics", key=key)
        assert got.status == 200, got.body
        return Metrics(got.body.decode())

    def load(self):
        """(running, waiting) by /metrics."""
        metrics = self.metrics()
        return (metrics.total("ferry_requests_running"), metrics.total("ferry_requests_waiting"))

    def begun(self):
        """Answers that run or stand still."""
        metrics = self.metrics()
        return metrics.total("ferry_requests_running") + metrics.total("ferry_requests_held")

    def wait_for(self, test, timeout=30.0, what="it"):
        """Waits until test(metrics) holds; returns the seconds that it took."""
        start = time.monotonic()
        while not test(self.metrics()):
            if time.monotonic() - start > timeout * SLOW:
                kept = {k: v for k, v in dict(self.metrics()).items()
                        if v != 0 and "_bucket{" not in k and not k.startswith("vllm:")}
                raise AssertionError(f"waited {timeout} s for {what}: {kept}")
            time.sleep(0.01)
        return time.monotonic() - start

    def wait_idle(self, timeout=30.0):
        """Nothing runs, waits or stands still; returns the seconds until then."""
        return self.wait_for(lambda m: sum(m.total(f"ferry_requests_{state}") for state in
                                           ("running", "waiting", "held")) == 0, timeout, "idleness")

    def memory_bytes(self):
        """RssAnon + VmSwap: what grows when something leaks."""
        with open(f"/proc/{self.pid}/status", encoding="ascii") as f:
            kb = {k: int(v.split()[0]) for k, v in (line.split(":", 1) for line in f)
                  if k in ("RssAnon", "VmSwap")}
        return 1024 * (kb["RssAnon"] + kb.get("VmSwap", 0))

    def alive(self):
        return self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self, timeout=60):
        """SIGTERM, waits, returns the exit code; a server that does not end is an error."""
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"serve did not end on SIGTERM: {self.log()}") from None
        if self in _running:
            _running.remove(self)
        return code

    def kill(self):
        """For what has failed already."""
        if self in _running:
            _running.remove(self)
        if self.alive():
            self.process.kill()
        self.process.wait()


def start(model, *flags, **how):
    """A server that is ready."""
    server = Server(model, *flags, **how)
    try:
        return server.wait_ready()
    except BaseException:
        server.kill()
        raise


PROBE = """
import http.client, sys, time
host, port = sys.argv[1], int(sys.argv[2])
link = http.client.HTTPConnection(host, port, timeout=30)
print("ready", flush=True)
while True:
    start = time.monotonic()
    try:
        link.request("GET", "/health")
        got = link.getresponse()
        got.read()
        status = got.status
    except OSError as exc:
        status = 0
        link.close()
    print(status, time.monotonic() - start, flush=True)
    time.sleep(0.02)
"""


class Probe:
    """Measures /health from a process of its own, whose interpreter nobody else uses."""

    def __init__(self, server):
        self.path = cli.scratch("probe.txt")
        with open(self.path, "w", encoding="ascii") as out:
            self.process = subprocess.Popen([sys.executable, "-c", PROBE, server.host,
                                             str(server.port)], stdout=out)

    def stop(self):
        """[(status, seconds)] of all probes so far."""
        self.process.kill()
        self.process.wait()
        with open(self.path, encoding="ascii") as f:
            lines = [line.split() for line in f if line.endswith("\n")]
        return [(int(s[0]), float(s[1])) for s in lines if len(s) == 2]


def together(jobs):
    """Runs functions at the same time, one thread each; returns their results in order. The first
    exception is raised after all have ended."""
    results, errors = [None] * len(jobs), []
    gate = threading.Barrier(len(jobs))

    def run(i):
        try:
            gate.wait()
            results[i] = jobs[i]()
        except BaseException as exc:  # handed to the caller below
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


def heldout(domain, skip=0, size=400):
    """Real text: `size` characters of models/demo/heldout/DOMAIN.txt."""
    with open(os.path.join(cli.DEMO, "heldout", f"{domain}.txt"), encoding="utf-8") as f:
        return f.read()[skip : skip + size]


class Case(cli.Case):
    """Tests against one server of the demo model, started with `flags` at the first test."""

    flags = ("--parallel", 16, "--threads", 2)
    server = None

    @classmethod
    def setUpClass(cls):
        if not os.path.exists(os.path.join(cli.DEMO, "model.safetensors")):
            raise cli.unittest.SkipTest("models/demo is not in this checkout")
        cls.server = start(cli.DEMO, *cls.flags)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        log = cls.server.log()
        assert code == 0, f"serve ended with {code}: {log}"
        assert "ERROR: " not in log and "WARNING: ThreadSanitizer" not in log, log

    def tearDown(self):
        self.assertTrue(self.server.alive(), f"the server died: {self.server.log()}")

    def refuse(self, status, path, body, word=None, code=None, param=None, **how):
        """The request is answered with this error; word stands in its message."""
        got = self.server.post(path, body, **how)
        self.assertEqual(got.status, status, f"{body!r:.200}: {got.body!r}")
        error = got.error
        if word is not None:
            self.assertIn(word, error["message"])
        if code is not None:
            self.assertEqual(error["code"], code)
        if param is not None:
            self.assertEqual(error["param"], param)
        return got
