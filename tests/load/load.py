#!/usr/bin/env python3
"""Thousands of mixed requests against `ferry serve`: nothing crashes, hangs, leaks or answers wrong.

What: many clients at once send what users, bad networks and attackers send: prompts of one token to
      the whole context, streams that are left at random moments, readers that hardly read, bodies
      that are no JSON, sockets closed by half, garbage. In the meantime a second process measures
      /health, and the server's own memory is watched.
Why here: the integration tests ask one question each; this asks whether anything is left behind.
Must not know: the server's insides; it sees HTTP, /metrics and /proc.

    tests/load/load.py FERRY [--requests 500] [--scale X] [--seed N] [--clients 24] [--context N]
                       [--model PATH] [--flags "..."] [--json F]

Each request follows from the printed seed and its number; the interleaving does not. --scale
multiplies the number of requests, for slow builds of the server. Under a sanitizer
(FERRY_TEST_SANITIZE, or --sanitized) sizes and times are reported and not judged. Exit 0: all
held, 1: something did not, 2: wrong usage, 77: no model.
"""

import argparse
import collections
import json
import os
import random
import socket
import struct
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))
import cli  # noqa: E402  (a neighbour folder, found only after the line above)
import serve  # noqa: E402

HEALTH_P99_S = 0.050
SLOPE_BYTES = 1 << 20  # per 1,000 requests
JUDGE_SLOPE_FROM = 2000  # requests; below, one malloc arena more or less is the whole slope
GROWTH_BYTES = 8 << 20  # what a short run may grow in all
RECHECKED = 40  # answers that are asked for again, alone
PATIENCE_S = 180
# kind, weight. Cancelled ones are 20 %.
MIX = [("whole", 28), ("stream", 30), ("cancel", 20), ("slow", 3), ("malformed", 7), ("garbage", 4),
       ("half_closed", 3), ("too_long", 1), ("small", 3), ("idle", 1)]

MALFORMED = [
    b"", b"{", b"[]", b"null", b"nan", b'{"prompt": "a", "max_tokens": 1e400}', b'{"prompt": 7}',
    b'{"prompt": "a", "max_tokens": -1}', b'{"prompt": "a", "temperature": "hot"}',
    b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "top_p": 7}',
    b'{"prompt": "a", "n": 1000000}', b'{"prompt": "a", "stop": [["x"]]}', b'{"prompt": [99999999]}',
    b'{"prompt": [-1]}', b'{"prompt": "a", "logit_bias": {"x": 1}}', b'{"prompt": "a"} trailing',
    b'{"prompt": "\xc4\xe3\xba\xc3"}', b'{"prompt": "a\xff"}', b'{"prompt": "\\ud800"}',
    b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"a":' * 3000 + b"1" + b"}" * 3000,
    b'{"prompt": "a", "model": "no-such-model"}', b'{"prompt": "a", "seed": 1e99}',
    b'{"prompt": "a", "prompt": "b"', b"\x00" * 1000, b'{"prompt": "' + b"a" * (1 << 20),
]


class Plan:
    """What request number `number` does; a function of seed and number alone."""

    def __init__(self, seed, number, ids, context):
        rng = self.rng = random.Random(f"{seed}:{number}")
        self.number = number
        self.kind = rng.choices([k for k, _ in MIX], [w for _, w in MIX])[0]
        out = rng.choice((1, 2, 8, 16, 32, 64))
        size = int(round(2 ** rng.uniform(0, 11.99)))  # log-uniform, 1 to 4k
        size = max(1, min(size, context - out))
        if self.kind == "too_long":
            size = context + rng.randrange(1, 1000)
        at = rng.randrange(max(1, len(ids) - size))
        self.body = {"prompt": (ids + ids)[at : at + size], "max_tokens": out}
        self.path = "/v1/completions"
        if rng.random() < 0.3 and self.kind != "too_long":
            self.path = "/v1/chat/completions"
            words = serve.heldout(rng.choice(("english", "code")), rng.randrange(30000),
                                  min(size, context // 2))
            self.body = {"messages": [{"role": "user", "content": f"{number} {words}"}],
                         "max_tokens": out}
        if rng.random() < 0.5:
            self.body["temperature"] = 0
        else:
            self.body.update(temperature=rng.uniform(0.2, 1.5), seed=rng.randrange(2**40),
                             top_p=rng.choice((1, 0.9)), top_k=rng.choice((0, 40)))
        if rng.random() < 0.1:
            self.body["n"] = rng.choice((2, 3))
        if rng.random() < 0.2:
            self.body["stop"] = rng.choice(("\n", ["the", ", ", "\n\n"], "qqqq"))
        if rng.random() < 0.1:
            if "prompt" in self.body:
                self.body["logprobs"] = rng.randrange(6)
            else:
                self.body.update(logprobs=True, top_logprobs=rng.randrange(20))
        if rng.random() < 0.2:
            self.body["ignore_eos"] = True

    def stream_body(self):
        """With usage, so that the end can be checked."""
        return dict(self.body, stream_options={"include_usage": True})


class Wrong(Exception):
    """The server did what it must not."""


class Tally:
    """What happened, for all threads."""

    def __init__(self, rng):
        self.lock, self.rng = threading.Lock(), rng
        self.counts, self.wrong, self.kept = collections.Counter(), [], []
        self.n_done = self.n_kept = self.tokens = 0
        self.slowest = (0.0, 0, "")

    def add(self, plan, error, seconds):
        """One request is over."""
        with self.lock:
            self.n_done += 1
            if seconds > self.slowest[0]:
                self.slowest = (round(seconds, 2), plan.number, plan.kind)
            self.counts[plan.kind] += 1
            if error is not None:
                self.wrong.append(f"request {plan.number} ({plan.kind}): {error}")

    def keep(self, plan, answers, usage):
        """A complete answer; a random few are kept to be asked for again."""
        with self.lock:
            self.tokens += usage["completion_tokens"]
            self.n_kept += 1
            if len(self.kept) < RECHECKED:
                self.kept.append((plan, answers))
            elif self.rng.randrange(self.n_kept) < RECHECKED:
                self.kept[self.rng.randrange(RECHECKED)] = (plan, answers)


def need(condition, text):
    """Ends the request as wrong."""
    if not condition:
        raise Wrong(text)


def answers_of(value):
    """[(text, finish reason)] of a whole answer."""
    return [((c["message"]["content"] if "message" in c else c["text"]), c["finish_reason"])
            for c in sorted(value["choices"], key=lambda c: c["index"])]


def do_whole(server, plan, tally):
    """A plain answer."""
    got = server.post(plan.path, plan.body, timeout=PATIENCE_S)
    need(got.status == 200, f"{got.status} {got.body[:200]!r}")
    value = got.json()
    need(len(value["choices"]) == plan.body.get("n", 1), "wrong number of choices")
    need(value["usage"]["completion_tokens"] <= plan.body["max_tokens"] * plan.body.get("n", 1),
         "more tokens than asked for")
    tally.keep(plan, answers_of(value), value["usage"])


def do_stream(server, plan, tally):
    """A stream read to its end."""
    stream = server.stream(plan.path, plan.stream_body(), timeout=PATIENCE_S)
    with stream:
        need(stream.status == 200, f"{stream.status} {stream.body()[:200]!r}"
             if stream.status != 200 else "")
        got = stream.collect()
    need(stream.done and stream.ended, f"no end: {got.errors}")
    need(sorted(got.finish) == list(range(plan.body.get("n", 1))), "choices without an end")
    tally.keep(plan, [(got.texts[i], got.finish[i]) for i in sorted(got.texts)], got.usage)


def leave(sock, rng):
    """The ways in which clients go."""
    way = rng.randrange(3)
    if way == 0:  # reset
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif way == 1:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    sock.close()


def request_bytes(server, plan, body):
    """A request as it goes over the wire."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (f"POST {plan.path} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\n"
            f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(data)}"
            "\r\n\r\n").encode() + data


def do_cancel(server, plan, _tally):
    """Leaves at a random moment: in the request, in the queue, in prefill, in the answer."""
    rng = plan.rng
    data = request_bytes(server, plan, dict(plan.body, stream=rng.random() < 0.6))
    sock = server.connect(PATIENCE_S)
    try:
        if rng.random() < 0.15:
            sock.sendall(data[: rng.randrange(1, len(data))])
            time.sleep(rng.uniform(0, 0.05))
            return
        sock.sendall(data)
        if rng.random() < 0.5:
            time.sleep(2 ** rng.uniform(-10, 1))  # 1 ms to 2 s
        else:
            for _ in range(rng.randrange(1, 12)):
                if not sock.recv(512):
                    break
    except ConnectionError:
        pass
    finally:
        leave(sock, rng)


def do_slow(server, plan, tally):
    """Reads a little at a time; half of them give up."""
    rng = plan.rng
    body = dict(plan.body, n=1, max_tokens=64, ignore_eos=True)
    body.pop("stop", None)
    if "prompt" in body:
        body.update(prompt=body["prompt"][: 1500], logprobs=5)
    else:
        body.update(logprobs=True, top_logprobs=10)
    gives_up = rng.random() < 0.5
    with server.stream(plan.path, body, rcvbuf=4096, timeout=PATIENCE_S) as stream:
        need(stream.status == 200, f"{stream.status}")
        n = 0
        for _ in stream.events():
            n += 1
            time.sleep(0.02)
            if gives_up and n == 5:
                return
        need(stream.done and stream.ended, "a slow reader's stream did not end")


def do_malformed(server, plan, _tally):
    """A body that is refused with a reason."""
    rng = plan.rng
    body = rng.choice(MALFORMED)
    if rng.random() < 0.2:  # a good body with a few bytes of damage may still be one
        data = bytearray(json.dumps(dict(plan.body, max_tokens=1)).encode())
        for _ in range(3):
            data[rng.randrange(len(data))] = rng.randrange(256)
        body = bytes(data)
        got = server.post(plan.path, body)
        need(got.status in (200, 400, 404), f"{got.status} for a damaged body")
        return
    got = server.post("/v1/completions", body)
    need(got.status in (400, 404), f"{got.status} for {body[:60]!r}")
    need("error" in got.json(), "no error object")


def do_garbage(server, plan, _tally):
    """What is no HTTP, or not quite."""
    rng = plan.rng
    data = rng.choice([
        rng.randbytes(rng.randrange(1, 5000)), b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 500,
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Content-Length: 6\r\n\r\nhello!", b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 3000 + b"\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"ffffffffffffffff\r\n", b"GET " + b"/a" * 20000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{\"prompt\"",
        bytes([22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]) + rng.randbytes(200)])
    with server.connect(PATIENCE_S) as sock:
        try:
            sock.sendall(data)
            sock.settimeout(rng.uniform(0.01, 0.3))
            while sock.recv(4096):
                pass
        except (ConnectionError, TimeoutError):
            pass


def do_half_closed(server, plan, _tally):
    """Sends all and closes its own half: it is answered or, as here, taken for gone; never silence."""
    data = request_bytes(server, plan, dict(plan.body, stream=plan.rng.random() < 0.5))
    server.raw(data, timeout=PATIENCE_S, half_close=True)


def do_too_long(server, plan, _tally):
    """More than the context."""
    got = server.post(plan.path, plan.body)
    need(got.status == 400 and got.error["code"] == "context_length_exceeded", f"{got.body[:200]!r}")


def do_small(server, plan, _tally):
    """The other routes."""
    for path, body in (("/tokenize", {"prompt": "a text"}), ("/detokenize", {"tokens": [65, 66]}),
                       ("/v1/models", None), ("/metrics", None), ("/nowhere", None)):
        got = server.post(path, body) if body else server.get(path)
        need(got.status == (404 if path == "/nowhere" else 200), f"{path}: {got.status}")


def do_idle(server, plan, _tally):
    """Connects and says nothing."""
    with server.connect():
        time.sleep(plan.rng.uniform(0, 0.5))


DO = {"whole": do_whole, "stream": do_stream, "cancel": do_cancel, "slow": do_slow,
      "malformed": do_malformed, "garbage": do_garbage, "half_closed": do_half_closed,
      "too_long": do_too_long, "small": do_small, "idle": do_idle}


def client(server, plans, tally):
    """One thread's life: takes plans until there are none."""
    for plan in plans:
        error, start = None, time.monotonic()
        try:
            DO[plan.kind](server, plan, tally)
        except Wrong as exc:
            error = str(exc)
        except Exception as exc:  # a timeout, a broken answer: all of it is the server's fault here
            error = f"{type(exc).__name__}: {exc}"
        tally.add(plan, error, time.monotonic() - start)
        if not server.alive():
            return


class Shared:
    """An iterator that threads share."""

    def __init__(self, values):
        self.values, self.lock = iter(values), threading.Lock()

    def __iter__(self):
        return self

    def __next__(self):
        with self.lock:
            return next(self.values)


def run_clients(server, plans, n_clients, tally, watch=None):
    """Lets the clients run to the end of the plans; watch() is called a few times a second."""
    shared = Shared(plans)
    threads = [threading.Thread(target=client, args=(server, shared, tally), daemon=True)
               for _ in range(n_clients)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        threads[0].join(0.2)
        time.sleep(0.05)
        if watch is not None and server.alive():
            watch()


def slope(points):
    """Least squares: change of y per unit of x."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def fill(server, ids, context):
    """Touches what is filled only once: every KV page, the prefix cache, buffers of long answers."""
    pages = int(server.metrics().total("ferry_kv_pages"))
    wanted = pages * 128 // context + 16
    size = context - 8

    def ask(i):
        prompt = [ids[i % len(ids)]] + (ids + ids)[i * 37 % len(ids) :][: size - 1]
        got = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "logprobs": 5,
                                              "ignore_eos": True}, timeout=PATIENCE_S)
        need(got.status == 200, f"warm-up: {got.status} {got.body[:200]!r}")

    for at in range(0, wanted, 16):
        serve.together([lambda i=i: ask(i) for i in range(at, at + 16)])


def recheck(server, kept, wrong):
    """The kept answers, asked for again alone, must come out the same: all are greedy or have a seed."""
    for plan, answers in kept:
        got = server.post(plan.path, plan.body)
        if got.status != 200 or answers_of(got.json()) != answers:
            wrong.append(f"request {plan.number}: alone it answers {got.body[:300]!r}, under load "
                         f"{answers!r:.300}")


def arguments():
    """Parses the command line; see the file's head."""
    parser = argparse.ArgumentParser(prog="load.py", description=__doc__.splitlines()[0])
    parser.add_argument("ferry")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--model", default=cli.DEMO)
    parser.add_argument("--flags", default="", help="more flags of ferry serve")
    parser.add_argument("--sanitized", action="store_true",
                        default=bool(os.environ.get("FERRY_TEST_SANITIZE")))
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    args.requests = max(20, int(args.requests * args.scale))
    return args


def judge(args, server, probes, memory, tally, before):
    """Puts the figures together; adds to tally.wrong what does not hold."""
    wrong = tally.wrong
    times = sorted(t for _, t in probes)
    p99 = times[min(len(times) - 1, int(len(times) * 0.99))] if times else float("inf")
    if any(s != 200 for s, _ in probes):
        wrong.append(f"/health answered {[s for s, _ in probes if s != 200][:5]}")
    per_thousand = 1000 * slope(memory) if len(memory) > 2 else 0.0
    growth = memory[-1][1] - memory[0][1] if memory else 0
    if not args.sanitized:
        if p99 > HEALTH_P99_S:
            wrong.append(f"/health took {1e3 * p99:.0f} ms (p99), {1e3 * HEALTH_P99_S:.0f} allowed")
        if args.requests >= JUDGE_SLOPE_FROM and per_thousand > SLOPE_BYTES:
            wrong.append(f"memory grows by {per_thousand / 2**20:.2f} MB per 1,000 requests")
        if args.requests < JUDGE_SLOPE_FROM and growth > GROWTH_BYTES:
            wrong.append(f"memory grew by {growth / 2**20:.1f} MB in {args.requests} requests")
    metrics = server.metrics()
    fds = metrics.total("process_open_fds")
    if fds > before.total("process_open_fds") + 2:
        wrong.append(f"{fds:.0f} open files, {before.total('process_open_fds'):.0f} before")
    return {"health_p50_ms": 1e3 * times[len(times) // 2] if times else None,
            "health_p99_ms": 1e3 * p99, "health_max_ms": 1e3 * times[-1] if times else None,
            "health_samples": len(times), "memory_bytes": memory[-1][1] if memory else None,
            "memory_slope_bytes_per_1000": per_thousand, "memory_growth_bytes": growth,
            "cancelled": metrics.total("ferry_answers_finished_total", reason="cancelled"),
            "answered": metrics.total("ferry_answers_finished_total", reason="length")
            + metrics.total("ferry_answers_finished_total", reason="stop"),
            "failed": metrics.total("ferry_answers_finished_total", reason="error"),
            "preemptions": metrics.total("ferry_preemptions_total"),
            "prefix_hit_tokens": metrics.total("ferry_prefix_cache_hit_tokens_total")}


def load(args, server):
    """The whole run; returns (figures, what was wrong)."""
    tally = Tally(random.Random(args.seed))
    text = "".join(serve.heldout(d, 0, 40000) for d in ("english", "code", "math", "chinese"))
    ids = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    context = min(args.context, server.post("/tokenize", {"prompt": "a"}).json()["max_model_len"])
    start = time.monotonic()
    if not args.sanitized:  # only memory needs it, and it is slow there
        fill(server, ids, context)
    # A quarter more as warm-up (numbers below 0), until allocators have seen the largest of all: in
    # nobody's figures, but checked all the same.
    extra = max(20, args.requests // 4)
    run_clients(server, (Plan(args.seed, -i, ids, context) for i in range(1, extra + 1)),
                args.clients, tally)
    server.wait_idle(60)
    before, warm = server.metrics(), tally.n_done
    print(f"load: warmed up in {time.monotonic() - start:.0f} s, "
          f"{server.memory_bytes() / 2**20:.1f} MB", flush=True)
    memory, shown = [], [0]

    def watch():
        done = tally.n_done - warm
        if not memory or done > memory[-1][0]:
            memory.append((done, server.memory_bytes()))
        if done * 10 // args.requests > shown[0]:
            shown[0] = done * 10 // args.requests
            print(f"load: {done} requests, {time.monotonic() - start:.0f} s, "
                  f"{memory[-1][1] / 2**20:.1f} MB, {len(tally.wrong)} wrong", flush=True)

    probe, start = serve.Probe(server), time.monotonic()
    run_clients(server, (Plan(args.seed, i, ids, context) for i in range(args.requests)),
                args.clients, tally, watch)
    seconds, probes = time.monotonic() - start, probe.stop()
    if not server.alive():
        return {}, tally.wrong + [f"the server died with {server.process.returncode}"]
    try:
        idle = server.wait_idle(60)
    except AssertionError as exc:
        return {}, tally.wrong + [f"slots are wedged: {exc}"]
    memory.append((tally.n_done - warm, server.memory_bytes()))
    time.sleep(0.3)  # connections that were left are found closed
    figures = judge(args, server, probes, memory, tally, before)
    recheck(server, tally.kept, tally.wrong)
    if server.complete("A fresh request", max_tokens=2)["usage"]["completion_tokens"] < 1:
        tally.wrong.append("a fresh request gets no answer")
    figures.update(seconds=seconds, idle_after_seconds=idle, kinds=dict(tally.counts),
                   rechecked=len(tally.kept), slowest=tally.slowest,
                   answer_tokens=tally.tokens)
    return figures, tally.wrong


def main():
    """Starts the server, loads it, judges."""
    args = arguments()
    cli.FERRY = os.path.abspath(args.ferry)
    if not os.path.exists(args.model) or not os.path.exists(os.path.join(cli.DEMO, "heldout")):
        print(f"load: skipped: no {args.model}")
        return 77
    print(f"load: seed {args.seed}, {args.requests} requests, {args.clients} clients", flush=True)
    server = serve.start(args.model, "--parallel", args.parallel, "--context", args.context,
                         "--threads", 2, *args.flags.split())
    figures, wrong = load(args, server)
    if server.alive():
        code = server.stop()
        if code != 0:
            wrong.append(f"serve ended with {code} on SIGTERM")
    for mark in ("ERROR: ", "WARNING: ThreadSanitizer", "runtime error:", "warning"):
        if mark in server.log():
            wrong.append(f"the server's log has '{mark}': ...{server.log()[-2000:]}")
            break
    for key, value in figures.items():
        print(f"load: {key:28s} {value:.3f}" if isinstance(value, float) else
              f"load: {key:28s} {value}")
    for text in wrong[:20]:
        print(f"load: WRONG: {text}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"seed": args.seed, "requests": args.requests, "wrong": wrong, **figures}, f,
                      indent=1)
    print(f"load: {len(wrong)} things were wrong" if wrong else "load: all held")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
