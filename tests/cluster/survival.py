"""What the survival tests share: a group of ranks that can be hurt, load on its front door, and what was seen.

What: Group starts a front door and ranks by hand (`ferry rank --join`), on this machine or over the
      hosts of hosts.py, and waits by what they print; Load keeps streams running from a process of
      its own and writes down every answer and every pause; Watch knows when a line was printed.
Why here: test_survival.py is about faults and limits, test_leaks.py about what is left behind.
Must not know: which fault comes when.

    python3 survival.py load|once HOST PORT PLAN OUT CLIENTS SEED   (what Load runs, where the front door is)
"""

import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
DEMO = os.path.join(ROOT, "models", "demo")
sys.path.insert(0, HERE)
import hosts  # noqa: E402

ME = os.path.abspath(__file__)
PAUSE_S = 0.05  # shorter ones are not written down
ANSWER_S = 90  # a stream that says nothing for so long has failed


# ---- requests ----

def heldout(rng, size):
    """Real text of about `size` characters."""
    folder = os.path.join(DEMO, "heldout")
    with open(os.path.join(folder, rng.choice(sorted(os.listdir(folder)))), encoding="utf-8",
              errors="ignore") as f:
        text = f.read()
    at = rng.randrange(max(1, len(text) - size))
    return text[at:at + size]


def make_requests(seed, n=24):
    """Bodies of /v1/completions: greedy and sampled, one token to 300, short and long prompts, some
    with log-probabilities: then not only the choice of tokens is compared."""
    rng = random.Random(seed)
    bodies = []
    for i in range(n):
        body = {"prompt": heldout(rng, rng.choice((4, 40, 300, 1200))),
                "max_tokens": (1, 8, 30, 60, 120, 200, 300)[i % 7], "ignore_eos": True,
                "stream_options": {"include_usage": True}, "seed": rng.randrange(1 << 40),
                "temperature": 0 if i % 2 == 0 else rng.choice((0.7, 1.0, 1.3))}
        if i % 3 == 0:
            body["logprobs"] = 2
        if i % 5 == 0:
            body["n"] = 2
        bodies.append(body)
    return bodies


class Broken(Exception):
    """A request that did not come to its end; what is known of it."""


def lines_of(got):
    """Lines of an answer as they come. An end without HTTP's own mark is an IncompleteRead, which
    iterating over the answer would hide."""
    rest = b""
    while data := got.read1(65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def ask(host, port, body, on_event=lambda now: None, timeout=ANSWER_S):
    """Streams one request; returns what must not change (text, log-probabilities, end and usage of
    every choice) as one string. on_event: called at each event."""
    link = http.client.HTTPConnection(host, port, timeout=timeout)
    choices, usage, done = {}, None, False
    try:
        link.request("POST", "/v1/completions", json.dumps({**body, "stream": True}),
                     {"Content-Type": "application/json"})
        got = link.getresponse()
        if got.status != 200:
            raise Broken(f"status {got.status}: {got.read(300)!r}")
        for line in lines_of(got):
            if not line.startswith(b"data:"):
                continue
            on_event(time.monotonic())
            data = line[5:].strip()
            if data == b"[DONE]":
                done = True
                continue
            event = json.loads(data)
            if "error" in event:
                raise Broken(f"error in the stream: {event['error']}")
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                kept = choices.setdefault(choice["index"], {"text": "", "logprobs": [], "end": None})
                kept["text"] += choice.get("text") or ""
                kept["end"] = choice.get("finish_reason") or kept["end"]
                if choice.get("logprobs"):
                    kept["logprobs"].append(choice["logprobs"])
    except (OSError, http.client.HTTPException) as error:
        raise Broken(f"{type(error).__name__}: {error}") from None
    finally:
        link.close()
    if not done:
        raise Broken("the stream ended without [DONE]")
    usage = {k: (usage or {}).get(k) for k in ("prompt_tokens", "completion_tokens")}
    for kept in choices.values():  # how tokens are put into events is timing, what is in them is not
        merged = {}
        for part in kept["logprobs"]:
            for name, values in part.items():
                merged.setdefault(name, []).extend(values or [])
        kept["logprobs"] = merged
    return json.dumps([usage, sorted(choices.items())], sort_keys=True)


def load_main(mode, host, port, plan_path, out_path, n_clients, seed):
    """Streams until it is told to end (SIGTERM) and lets the running ones finish; or `once`: every
    request of the plan. One JSON line per request."""
    with open(plan_path, encoding="utf-8") as f:
        plan = json.load(f)
    ends, lock = threading.Event(), threading.Lock()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    out = open(out_path, "w", encoding="utf-8", buffering=1)

    def numbers(client_number):
        rng = random.Random(f"{seed}:{client_number}")
        if mode == "once":
            yield from range(client_number, len(plan), int(n_clients))
        while mode != "once" and not ends.is_set():
            yield rng.randrange(len(plan))

    def client(client_number):
        for i in numbers(client_number):
            sent = last = time.monotonic()
            pauses, n_events = [], 0

            def on_event(now):
                nonlocal last, n_events
                if now - last > PAUSE_S:
                    pauses.append((last, now))
                last = now
                n_events += 1
            try:
                good, why = ask(host, port, plan[i]["body"], on_event) == plan[i]["want"], ""
                why = "" if good else "other bytes"
            except Broken as broken:
                good, why = False, str(broken)
            now = time.monotonic()
            with lock:
                out.write(json.dumps({"request": i, "sent": sent, "end": now, "good": good, "why": why,
                                      "events": n_events, "pauses": pauses}) + "\n")
            if not good:
                time.sleep(0.1)

    def look():
        """Writes down how many answers other ranks compute: were they ever there to be lost?"""
        while not ends.wait(0.3):
            try:
                link = http.client.HTTPConnection(host, port, timeout=5)
                link.request("GET", "/metrics")
                text = link.getresponse().read().decode()
                link.close()
            except (OSError, http.client.HTTPException):
                continue
            found = re.search(r"^ferry_requests_away ([0-9.]+)", text, re.M)
            with lock:
                out.write(json.dumps({"away": float(found[1]) if found else 0}) + "\n")

    looker = threading.Thread(target=look)
    looker.start()
    threads = [threading.Thread(target=client, args=(n,)) for n in range(int(n_clients))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    ends.set()
    looker.join()
    out.close()


# ---- where processes run ----

class Here:
    """This machine without namespaces, with the calls of hosts.Hosts that are used here."""

    names = ["A"]

    # Kills what carries the mark when the pipe ends, so when this process does, however it does.
    GUARD = """read x
    for p in /proc/[0-9]*; do grep -qas "SURVIVAL_MARK=$0" $p/environ && kill -9 ${p#/proc/}; done"""

    def __init__(self, logs):
        self.logs, self.processes = logs, []
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self._guard = subprocess.Popen(["sh", "-c", self.GUARD, self.mark], stdin=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, start_new_session=True)

    def start(self, host, argv, name=None, env=None):
        """A process with its output in a file."""
        path = os.path.join(self.logs, f"{len(self.processes):03d}-{name}.log")
        with open(path, "wb") as log:
            popen = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=log,
                                     stderr=subprocess.STDOUT, start_new_session=True,
                                     env={**os.environ, "SURVIVAL_MARK": self.mark, **(env or {})})
        process = hosts.Process(self, host, name, popen, path)
        self.processes.append(process)
        return process

    @staticmethod
    def address(_):
        return "127.0.0.1"

    def close(self):
        """kill -9 for all that runs."""
        for process in self.processes:
            process.kill_all()
        self._guard.kill()
        self._guard.stdin.close()
        self._guard.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def free_port():
    """A port that nobody uses now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Watch:
    """Reads the logs of processes as they grow; every line gets the time at which it was seen."""

    def __init__(self):
        self.lines, self._files, self._lock, self._ends = [], [], threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, process):
        """Watches a process' log from its beginning."""
        with self._lock:
            self._files.append([process, open(process.log_path, "rb"), b""])

    def _look(self):
        with self._lock:
            for entry in self._files:
                data = entry[1].read()
                if not data:
                    continue
                *lines, entry[2] = (entry[2] + data).split(b"\n")
                now = time.monotonic()
                self.lines += [(now, entry[0], line.decode(errors="replace")) for line in lines]

    def _run(self):
        while not self._ends.is_set():
            self._look()
            time.sleep(0.004)

    def find(self, process, words, since):
        """(time, line) of the first line of a process with one of the words; None."""
        with self._lock:
            for when, who, line in self.lines:
                if who is process and when >= since and any(w in line for w in words):
                    return when, line
        return None

    def close(self):
        """Stops reading."""
        self._ends.set()
        self._thread.join()
        for entry in self._files:
            entry[1].close()


class Trouble(Exception):
    """The group did not do what it must."""


def await_true(what, condition, timeout_s):
    """Polls; returns what the condition gave. Trouble when it does not come true."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > end:
            raise Trouble(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.01)
    return found


class Group:
    """A front door on seat 0 and ranks on the other seats, each a process that can be hurt.

    seats[s] is the process of a seat. The ranks are spread over the hosts of `net` in blocks, the
    front door on the first.
    """

    def __init__(self, ferry, net, logs, n_ranks=4, replicas=1, flags=(), front_flags=()):
        self.ferry, self.net, self.n_ranks = ferry, net, n_ranks
        self.watch = Watch()
        self.seats = [None] * n_ranks
        self.key = os.path.join(logs, "key")
        with open(self.key, "w", encoding="ascii") as f:
            f.write("%064x\n" % random.getrandbits(256))
        os.chmod(self.key, 0o600)
        self.port = free_port()
        ports = [free_port() for _ in range(n_ranks)]
        self.addresses = [f"{net.address(self.host(s))}:{ports[s]}" for s in range(n_ranks)]
        self.front_flags = ["--parallel", 8, *front_flags]
        self.common = ["--threads", 1, "--group-key-file", self.key, "--replicas", replicas,
                       "--bundle-bytes", 1, *flags]

    def host(self, seat):
        """The host that a seat is on."""
        return self.net.names[seat * len(self.net.names) // self.n_ranks]

    def start_front(self, join=None):
        """Founds the group, or joins it again on seat 0 by another seat's address."""
        how = ["--ranks", self.n_ranks] if join is None else ["--join", self.addresses[join],
                                                              "--seat", 0]
        self.seats[0] = self.net.start(
            self.host(0), [self.ferry, "serve", DEMO, "--port", self.port, *self.front_flags,
                           "--listen", self.addresses[0], *how, *self.common],
            name="front")
        self.watch.add(self.seats[0])
        return self.seats[0]

    def start_rank(self, seat, join=0):
        """Starts the rank of a seat; returns at once."""
        rank = self.net.start(
            self.host(seat), [self.ferry, "rank", DEMO, "--join", self.addresses[join], "--listen",
                              self.addresses[seat], "--seat", seat, *self.common],
            name=f"rank{seat}")
        self.seats[seat] = rank
        self.watch.add(rank)
        return rank

    def await_line(self, seat, words, since, timeout_s):
        """When the process of a seat printed one of the words after `since`."""
        process = self.seats[seat]

        def look():
            found = self.watch.find(process, words, since)
            if found is None and not process.running():
                time.sleep(0.05)  # its last lines
                found = self.watch.find(process, words, since)
                if found is None:
                    raise Trouble(f"seat {seat} ended with {process.popen.returncode} and did not say "
                                  f"{words}; its last words: {process.last_words()}")
            return found
        return await_true(f"seat {seat} says {words}; its last words: {process.last_words()}", look,
                          timeout_s)

    def await_live(self, seat, since, timeout_s=60):
        """Waits until the rank that was started on a seat is live."""
        return self.await_line(seat, [f"seat {seat} of ", "is live again"], since, timeout_s)[0]

    def start(self, timeout_s=120):
        """All ranks, ready to serve."""
        since = time.monotonic()
        self.start_front()
        for s in range(1, self.n_ranks):
            self.await_listening(0, timeout_s)
            self.start_rank(s)
            self.await_live(s, since, timeout_s)
        self.await_line(0, ["serving "], since, timeout_s)
        return self

    def await_listening(self, seat, timeout_s):
        """Joining takes somebody who listens: by the connection, from outside of any namespace by
        trying."""
        if self.net.names == ["A"]:
            host, port = self.addresses[seat].split(":")

            def open_door():
                try:
                    socket.create_connection((host, int(port)), timeout=1).close()
                except OSError:
                    return False
                return True
            await_true(f"seat {seat} listens", open_door, timeout_s)

    def close(self):
        """kill -9 for every rank, then reads no more logs."""
        for process in self.seats:
            if process is not None:
                process.kill()
        self.watch.close()


class Load:
    """Streams on the front door of a group, with the answers that must come."""

    def __init__(self, group, plan, logs, clients, seed, mode="load"):
        self.plan_path = os.path.join(logs, "plan.json")
        self.out_path = os.path.join(logs, f"load-{time.monotonic_ns()}.jsonl")
        with open(self.plan_path, "w", encoding="utf-8") as f:
            json.dump(plan, f)
        self.process = group.net.start(
            group.host(0), [sys.executable, ME, mode, "127.0.0.1", group.port, self.plan_path,
                            self.out_path, clients, seed], name="load")

    def results(self):
        """All answers so far; self.away: the most that other ranks computed at once."""
        try:
            with open(self.out_path, encoding="utf-8") as f:
                lines = [json.loads(line) for line in f if line.endswith("\n")]
        except FileNotFoundError:
            lines = []
        self.away = max((line["away"] for line in lines if "away" in line), default=0)
        return [line for line in lines if "request" in line]

    def await_answer(self, timeout_s):
        """Waits until another request was answered as it must be."""
        def count():
            return sum(r["good"] for r in self.results())
        before = count()
        await_true("another good answer", lambda: count() > before, timeout_s)

    def stop(self, timeout_s=ANSWER_S + 30):
        """Ends it when the running streams are over; all answers."""
        self.process.terminate()
        return self.end(timeout_s)

    def end(self, timeout_s=ANSWER_S + 30):
        """Waits for its end; all answers."""
        if self.process.wait(timeout_s) != 0:
            raise Trouble(f"the load itself failed: {self.process.log()[-2000:]}")
        return self.results()


def reference(ferry, bodies, logs):
    """[{body, want}]: the answers of one rank."""
    port = free_port()
    with Here(logs) as here:
        server = here.start("A", [ferry, "serve", DEMO, "--port", port, "--threads", 1, "--parallel", 4],
                            name="reference")
        server.await_log("serving ", 120)
        return [{"body": body, "want": ask("127.0.0.1", port, body)} for body in bodies]


class Processor:
    """Which part of the processors others left, since the last look: limits of time are divided by
    it, and it is printed beside them."""

    def __init__(self):
        self.last = self._read()

    @staticmethod
    def _read():
        with open("/proc/stat", encoding="ascii") as f:
            words = [int(w) for w in f.readline().split()[1:9]]
        me, parents, times = os.getpid(), {}, {}
        for entry in os.listdir("/proc"):
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as f:
                    fields = f.read().rpartition(")")[2].split()
            except (OSError, ValueError):
                continue
            if entry.isdigit():
                parents[int(entry)] = int(fields[1])
                times[int(entry)] = int(fields[11]) + int(fields[12])
        own = {}
        for pid, ticks in times.items():
            at = pid
            while at not in (0, 1, me):
                at = parents.get(at, 0)
            if at == me:
                own[pid] = ticks
        return sum(words), sum(words[:3]) + sum(words[5:]), own

    def factor(self):
        """1 on an idle machine, 2 when others use a half of it; at most 8. What own processes used
        that have ended since counts as others'."""
        now = self._read()
        total, busy = now[0] - self.last[0], now[1] - self.last[1]
        own = sum(ticks - self.last[2].get(pid, 0) for pid, ticks in now[2].items())
        self.last = now
        return min(8.0, max(1.0, total / max(1, total - max(0, busy - own))))


def scratch_folder():
    """A folder for keys, plans and logs."""
    return tempfile.mkdtemp(prefix="ferry-survival-")


if __name__ == "__main__":
    if len(sys.argv) != 8 or sys.argv[1] not in ("load", "once"):
        sys.exit("usage: survival.py load|once HOST PORT PLAN OUT CLIENTS SEED")
    load_main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
