#!/usr/bin/env python3
"""Measures `ferry serve` beside llama.cpp's server: concurrent streams over HTTP, interleaved.

What: tokens/s, time to the first token and between tokens of N streams at once, each request with a
      prompt of its own, on the same file with the same threads, slots and KV type.
Why here: what users of a server get differs from what the engine alone does (run.py): admission,
      prefill beside answers, text, HTTP.
Must not know: how either server works; it speaks the API that both have.

How: prompts are slices of the repository's held-out text, cut by the model's own tokenizer to
exactly -p ids and sent as ids, so that both servers read the same. Each repetition runs both
servers, one process each and one at a time, in an order that swaps; loading is not timed and each
server warms up with requests of its own. In a run every stream sends its next request as soon as
the last one ended. Greedy, end of text ignored, so that each answer has exactly -n tokens.

    bench/peers/serve.py [MODEL ...] [--ferry PATH] [--peer PATH] [--threads N] [--reps N]
                         [--streams 16] [--requests 32] [-p 128] [-n 128] [--json F] [--require]

MODEL as for run.py; default: olmoe-1b-7b-Q4_0 and olmoe-1b-7b-Q8_0. Exit 0 measured, 1 failed (or,
with --require, a target missed), 2 wrong usage.
"""

import argparse
import datetime
import json
import math
import os
import re
import resource
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import run  # a neighbour: model files, quiet pairs

DEFAULT_MODELS = ["olmoe-1b-7b-Q4_0", "olmoe-1b-7b-Q8_0"]
PEER_SERVER = os.path.join(run.CACHE, "peers-venv", "lib", "llama-server", "llama-server")
HELDOUT = os.path.join(run.ROOT, "models", "demo", "heldout")
START_S, ANSWER_S = 300, 1800
WANT_RATIO = 1.8
# name, unit, factor, whether more is better
FIGURES = [("out_tps", "answer tokens/s", 1, True), ("total_tps", "all tokens/s", 1, True),
           ("ttft_p50", "first token p50, ms", 1e3, False),
           ("ttft_p99", "first token p99, ms", 1e3, False),
           ("itl_p50", "between pieces p50, ms", 1e3, False),
           ("itl_p99", "between pieces p99, ms", 1e3, False)]


def fail(text):
    """Ends the run with one line."""
    raise SystemExit(f"bench/peers/serve.py: {text}")


# ---- servers ----


class Server:
    """A started server process: its port, its CPU time, its end."""

    def __init__(self, name, command, port):
        self.name, self.port = name, port
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log,
                                            stderr=self.log)
        except OSError as exc:
            fail(f"{name}: {exc}")

    def words(self):
        """The last lines that it printed."""
        self.log.seek(0)
        return "; ".join(self.log.read().strip().splitlines()[-3:])

    def wait_ready(self):
        """Waits until it can answer."""
        until = time.monotonic() + START_S
        path = "/ready" if self.name == "ferry" else "/health"
        while time.monotonic() < until:
            if self.process.poll() is not None:
                fail(f"{self.name} ended with {self.process.returncode}: {self.words()}")
            try:
                with socket.create_connection(("127.0.0.1", self.port), 5) as sock:
                    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                                 "Connection: close\r\n\r\n".encode())
                    if sock.recv(64).split(b" ")[1:2] == [b"200"]:
                        return self
            except OSError:
                pass
            time.sleep(0.2)
        return fail(f"{self.name} is not ready after {START_S} s: {self.words()}")

    def cpu_seconds(self):
        """CPU time of all its threads so far."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii", errors="replace") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self):
        """The most memory it had."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii", errors="replace") as f:
            found = re.search(r"VmHWM:\s+(\d+) kB", f.read())
        return 1024 * int(found[1]) if found else 0

    def stop(self):
        """Ends it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.log.close()


def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def server_command(name, program, model, port, args):
    """The same settings in both servers' words. The peer's host-memory cache of old prompts, which
    can only cost time here, is off."""
    room = -(-(args.p + args.n + 1) // 256) * 256
    if name == "ferry":
        return [program, "serve", model, "--port", str(port), "--parallel", str(args.streams),
                "--context", str(room), "--threads", str(args.threads)]
    return [program, "-m", model, "--host", "127.0.0.1", "--port", str(port),
            "-np", str(args.streams), "-c", str(room * args.streams), "-t", str(args.threads),
            "-tb", str(args.threads), "-ctk", "f16", "-ctv", "f16", "--cache-ram", "0", "--no-webui"]


class OtherLoad(run.OtherLoad):
    """CPU use of everything but this program and one server that still runs."""

    def __init__(self, server):
        super().__init__()
        self.server = server

    def _ours(self):
        use = resource.getrusage(resource.RUSAGE_SELF)
        return use.ru_utime + use.ru_stime + self.server.cpu_seconds()


# ---- the client: one thread, one selector ----


class Request:
    """One streamed completion: its connection, when its pieces came, what it used."""

    def __init__(self, port, ids, n):
        body = json.dumps({"prompt": ids, "max_tokens": n, "temperature": 0, "ignore_eos": True,
                           "cache_prompt": False, "stream": True,
                           "stream_options": {"include_usage": True}}).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: "
                f"application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode()
        self.sock = socket.create_connection(("127.0.0.1", port), 30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.n, self.rest, self.times, self.usage, self.done = n, b"", [], None, False
        self.start = time.monotonic()
        self.sock.sendall(head + body)
        self.sock.setblocking(False)

    def read(self):
        """Takes what has arrived; returns whether the answer is complete. Lines of chunked
        transfer between the events are passed over: none of them begins with "data:"."""
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return False
        now = time.monotonic()
        self.rest += data
        *lines, self.rest = self.rest.split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                self._event(line[6:].strip(), now)
            elif line.startswith(b"HTTP/1.1 ") and line.split()[1] != b"200":
                fail(f"a request was refused: {line.decode()} {lines[-1][:300]!r} {self.rest[:300]!r}")
        if self.done:
            self.sock.close()
        elif not data:
            fail(f"a stream ended early after {len(self.times)} pieces: {self.rest[:300]!r}")
        return self.done

    def _event(self, text, now):
        if text == b"[DONE]":
            self.done = True
            return
        event = json.loads(text)
        if "error" in event:
            fail(f"a stream ended with an error: {event['error']}")
        self.usage = event.get("usage") or self.usage
        if any(c.get("text") for c in event.get("choices", ())):
            self.times.append(now)


def drive(port, prompts, n, streams):
    """Keeps `streams` requests in flight until each prompt was answered; returns (requests, s)."""
    waiting = list(reversed(prompts))
    chosen, finished = selectors.DefaultSelector(), []
    start = time.monotonic()

    def begin():
        if waiting:
            request = Request(port, waiting.pop(), n)
            chosen.register(request.sock, selectors.EVENT_READ, request)

    for _ in range(streams):
        begin()
    while len(finished) < len(prompts):
        ready = chosen.select(ANSWER_S)
        if not ready:
            fail(f"nothing came for {ANSWER_S} s")
        for key, _ in ready:
            request = key.data
            chosen.unregister(request.sock)
            if request.read():
                finished.append(request)
                begin()
            else:
                chosen.register(request.sock, selectors.EVENT_READ, request)
    return finished, time.monotonic() - start


def percentile(values, share):
    """The value that `share` of all do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def figures_of(requests, seconds, args):
    """One run's figures; checks that every answer has the asked length."""
    for r in requests:
        got = (r.usage or {}).get("prompt_tokens"), (r.usage or {}).get("completion_tokens")
        if got != (args.p, args.n):
            fail(f"a request of {args.p} + {args.n} tokens was counted as {got}")
        if len(r.times) < 2:
            fail(f"an answer of {args.n} tokens came in {len(r.times)} piece(s)")
    first = [r.times[0] - r.start for r in requests]
    gaps = [b - a for r in requests for a, b in zip(r.times, r.times[1:])]
    return {"out_tps": len(requests) * args.n / seconds,
            "total_tps": len(requests) * (args.n + args.p) / seconds,
            "ttft_p50": percentile(first, 0.5), "ttft_p99": percentile(first, 0.99),
            "itl_p50": percentile(gaps, 0.5), "itl_p99": percentile(gaps, 0.99),
            "seconds": seconds, "pieces": len(gaps) + len(first)}


# ---- runs ----


def prompts_of(ferry, model, args):
    """Distinct slices of real text as lists of exactly args.p ids, all domains mixed."""
    slices = []
    for name in sorted(os.listdir(HELDOUT)):
        done = run.run_json([ferry, "tokenize", model, "--text-file", os.path.join(HELDOUT, name),
                             "--json"], f"ferry tokenize {name}")
        ids = done["ids"]
        slices.append([ids[i : i + args.p] for i in range(0, len(ids) - args.p + 1, args.p)])
    mixed = [s for row in zip(*slices) for s in row]
    distinct = list({tuple(s): s for s in mixed}.values())
    need = args.requests + args.streams
    if len(distinct) < need:
        fail(f"{need} prompts of {args.p} tokens are needed, the held-out text gives {len(distinct)}")
    return distinct


def prompts_for(pool, rep, args):
    """(warm-up prompts, prompts) of one repetition; both servers get the same."""
    need = args.streams + args.requests
    at = rep * need % len(pool)
    mine = (pool + pool)[at : at + need]
    return mine[: args.streams], mine[args.streams :]


def one_run(name, program, model, pool, rep, args):
    """Starts a server, warms it up, measures, ends it. Returns (figures, others' CPUs)."""
    port = free_port()
    server = Server(name, server_command(name, program, model, port, args), port)
    try:
        server.wait_ready()
        warm, prompts = prompts_for(pool, rep, args)
        drive(port, [p[: max(2, args.p // 4)] for p in warm], 4, args.streams)
        others, mine = OtherLoad(server), resource.getrusage(resource.RUSAGE_SELF)
        others.start()
        requests, seconds = drive(port, prompts, args.n, args.streams)
        load = others.stop()
        now = resource.getrusage(resource.RUSAGE_SELF)
        figures = figures_of(requests, seconds, args)
        figures["client_cpus"] = (now.ru_utime + now.ru_stime - mine.ru_utime
                                  - mine.ru_stime) / seconds
        figures["peak_bytes"] = server.peak_bytes()
        return figures, load
    finally:
        server.stop()


def measure(path, programs, pool, args):
    """Pairs of runs as run.measure makes them; see there for what is kept."""
    pairs = []
    while len(pairs) < 2 * args.reps and sum(p["quiet"] for p in pairs) < args.reps:
        names = list(programs) if len(pairs) % 2 == 0 else list(reversed(list(programs)))
        pair = {"samples": {}, "loads": {}}
        for name in names:
            got, load = one_run(name, programs[name], path, pool, len(pairs), args)
            pair["samples"][name], pair["loads"][name] = got, load
            print(f"  {len(pairs) + 1:2d} {name:9s} {got['out_tps']:7.1f} answer tokens/s   first "
                  f"{got['ttft_p50']:.2f} / {got['ttft_p99']:.2f} s   between "
                  f"{1e3 * got['itl_p50']:.0f} / {1e3 * got['itl_p99']:.0f} ms   (others used "
                  f"{load:.2f} CPUs, the client {got['client_cpus']:.2f})", flush=True)
        pair["quiet"] = max(pair["loads"].values()) <= run.QUIET_CPUS
        pairs.append(pair)
    quiet = [p for p in pairs if p["quiet"]]
    kept = quiet if len(quiet) >= args.reps else pairs
    samples = {name: [p["samples"][name] for p in kept] for name in programs}
    return samples, [p["loads"] for p in kept], kept is quiet


def targets(figures):
    """The serving targets of the project, as [(text, met)]."""
    if len(figures) < 2:
        return []
    ferry, peer = figures["ferry"], figures["llama.cpp"]
    ratio = ferry["total_tps"]["median"] / peer["total_tps"]["median"]
    mine, theirs = ferry["ttft_p99"]["median"], peer["ttft_p99"]["median"]
    return [(f"total tokens/s at least {WANT_RATIO}x llama.cpp's server: {ratio:.2f}x",
             ratio >= WANT_RATIO),
            (f"first token p99 no later than llama.cpp's {theirs:.2f} s: {mine:.2f} s",
             mine <= theirs)]


def print_table(result, args):
    """Prints one model's figures for people."""
    figures = result["figures"]
    print(f"\n{result['model']}: {args.streams} streams, {args.requests} requests of {args.p} + "
          f"{args.n} tokens, {args.threads} threads")
    print(f"  {'':23s}" + "".join(f" | {n:>9s} {'min..max':>17s}" for n in figures)
          + (" | ratio  pairs min..max" if len(figures) == 2 else ""))
    for key, text, factor, _ in FIGURES:
        row = f"  {text:23s}"
        for f in figures.values():
            v = {k: factor * x for k, x in f[key].items()}
            row += f" | {v['median']:9.1f} {v['min']:8.1f}..{v['max']:<7.1f}"
        if key in result["ratio"]:
            r = result["ratio"][key]
            row += f" | {r['of_medians']:5.2f}  {r['min']:.2f}..{r['max']:.2f}"
        print(row)
    print("  peak memory            " + "".join(
        f" | {max(s['peak_bytes'] for s in result['samples'][n]) / 1e9:9.2f} GB {'':14s}"
        for n in figures))
    if not result["quiet"]:
        print("  NOT QUIET: other programs used the CPUs; do not quote these figures")
    for text, met in result["targets"]:
        print(f"  {'met   ' if met else 'MISSED'} {text}")


def bench_model(name, programs, args):
    """Measures one model with both servers; returns its result for the JSON file."""
    path = run.model_file(name)
    pool = prompts_of(args.ferry, path, args)
    print(f"\n{os.path.basename(path)}: {len(pool)} distinct prompts of {args.p} tokens; reading "
          "pages", flush=True)
    run.warm_pages(path)
    samples, loads, quiet = measure(path, programs, pool, args)
    figures = {e: {k: run.spread([s[k] for s in rows]) for k in rows[0]}
               for e, rows in samples.items()}
    ratio = {}
    if len(programs) == 2:
        for key, *_ in FIGURES:
            pairs = [a[key] / b[key] for a, b in zip(samples["ferry"], samples["llama.cpp"])]
            ratio[key] = {"of_medians": figures["ferry"][key]["median"]
                          / figures["llama.cpp"][key]["median"],
                          "min": min(pairs), "max": max(pairs)}
    result = {"model": os.path.basename(path), "figures": figures, "ratio": ratio,
              "samples": samples, "other_load_cpus": loads, "quiet": quiet,
              "targets": targets(figures)}
    print_table(result, args)
    return result


def set_up_peer(path):
    """Returns llama.cpp's server: the given one, or the one that tools/peers builds."""
    if path:
        if not os.access(path, os.X_OK):
            fail(f"--peer {path}: no such program")
        return path
    if not os.access(PEER_SERVER, os.X_OK):
        print("bench/peers: llama.cpp's server is not built yet; tools/peers/setup_server.sh takes "
              "10-30 minutes", flush=True)
        script = os.path.join(run.ROOT, "tools/peers/setup_server.sh")
        if subprocess.run([script], check=False).returncode:
            fail("tools/peers/setup_server.sh failed")
    return PEER_SERVER


def parse_arguments():
    """Parses and checks the command line."""
    parser = argparse.ArgumentParser(prog="bench/peers/serve.py",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=DEFAULT_MODELS, metavar="MODEL")
    parser.add_argument("--ferry", help="the ferry program; default: the newest in build/")
    parser.add_argument("--peer", help="llama.cpp's server; default: tools/peers/setup_server.sh's")
    parser.add_argument("--only", choices=["ferry", "llama.cpp"], help="measure one of them alone")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--reps", type=int, default=3, help="pairs of runs")
    parser.add_argument("--streams", type=int, default=16, help="requests in flight")
    parser.add_argument("--requests", type=int, default=32, help="requests of one run")
    parser.add_argument("-p", type=int, default=128, help="prompt tokens of a request")
    parser.add_argument("-n", type=int, default=128, help="answer tokens of a request")
    parser.add_argument("--json", help="also write everything measured to this file")
    parser.add_argument("--require", action="store_true", help="exit 1 when a target is missed")
    args = parser.parse_args()
    if min(args.reps, args.threads, args.streams, args.requests) < 1 or min(args.p, args.n) < 2:
        parser.error("counts must be at least 1, -p and -n at least 2")
    if args.reps < 3:
        print(f"bench/peers: note: {args.reps} pair(s); figures to quote need at least 3")
    args.ferry = run.find_ferry(args.ferry)
    if args.ferry is None:
        parser.error("there is no ferry program (it also cuts the prompts): build it or pass --ferry")
    return args


def main():
    """Runs every model; see the file's head."""
    args = parse_arguments()
    programs = {}
    if args.only != "ferry":
        programs["llama.cpp"] = set_up_peer(args.peer)
        done = subprocess.run([programs["llama.cpp"], "--version"], capture_output=True, text=True,
                              check=False)
        print(f"peer: {' '.join((done.stderr + done.stdout).split())}")
    if args.only != "llama.cpp":
        programs["ferry"] = args.ferry
        print(f"ferry: {args.ferry}")
    report = {"date": datetime.date.today().isoformat(), "threads": args.threads,
              "reps": args.reps, "streams": args.streams, "requests": args.requests, "p": args.p,
              "n": args.n, "models": []}
    for name in args.models:
        report["models"].append(bench_model(name, programs, args))
        if args.json:
            with open(args.json, "w", encoding="utf-8") as f:
                json.dump(report, f, indent=1)
    missed = [t for m in report["models"] for t, met in m["targets"] if not met]
    return 1 if args.require and missed else 0


if __name__ == "__main__":
    sys.exit(main())
