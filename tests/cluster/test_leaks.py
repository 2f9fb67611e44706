#!/usr/bin/env python3
"""What a group leaves behind: memory and descriptors after exchanges and changes of membership, and
shared memory after kill -9 of everything.

What: RssAnon + RssShmem + VmSwap and /proc/PID/fd of the ranks that live through all of it, after
      warming up and after many exchanges (6 layers a token), and again after many changes (a rank
      that leaves and comes is 4: dead or empty, joining, warm, live).
Why here: growth per exchange or per change shows only after thousands; test_survival.py has few.
Must not know: what holds the memory.

    test_leaks.py FERRY [--exchanges 10000] [--changes 100] [--logs FOLDER]

Exit 0: nothing grew, 1: something did, 77: cannot run here. Under a sanitizer sizes are printed and
not judged.
"""

import argparse
import os
import random
import shutil
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import survival  # noqa: E402
from survival import Trouble  # noqa: E402

SANITIZED = bool(os.environ.get("FERRY_TEST_SANITIZE"))
LAYERS = 6  # of models/demo; one exchange each and step
WARM_UP = 5000  # exchanges
KV_TOKENS = 2048  # so that every page of the KV cache was written by then
GROWTH_BYTES = 256 << 10  # 25 bytes for each of 10,000
ROUNDS = 4  # what leaks grows in every one; a huge page that comes late, an arena, in one or two
SHARED = ("/dev/shm", "/proc/sysvipc/shm")


def bytes_of(pid):
    """Memory that is a process' own or shared, and not a file's."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        kb = {k: int(v.split()[0]) for k, v in (line.split(":", 1) for line in f)
              if k in ("RssAnon", "RssShmem", "VmSwap")}
    return 1024 * sum(kb.values())


def look(group, seats):
    """[(bytes, descriptors)] of the ranks on these seats."""
    pids = [group.seats[s].pid for s in seats]
    return [(bytes_of(pid), len(os.listdir(f"/proc/{pid}/fd"))) for pid in pids]


def watch(what, group, seats, work, wrong):
    """Does the work until nothing grows, ROUNDS times at most; prints, and adds to `wrong` what grew
    each time."""
    before = settle(group, seats)
    for i in range(ROUNDS):
        work()
        after = settle(group, seats)
        grew = []
        for seat, (b, n), (b2, n2) in zip(seats, before, after):
            print(f"leaks: {what}, {i + 1}: seat {seat}: {b / 1e6:.2f} -> {b2 / 1e6:.2f} MB, {n} -> "
                  f"{n2} descriptors", flush=True)
            if n2 > n or (b2 > b + GROWTH_BYTES and not SANITIZED):
                grew.append(f"{what}: seat {seat} has {(b2 - b) / 1e6:.2f} MB and {n2 - n} descriptors "
                            f"more, after {i} rounds in which something grew, too")
        if not grew:
            return
        before = after
    wrong += grew


def exchange(group, n):
    """At least n exchanges, by tokens of four streams; every one of them must come."""
    n_tokens = 400
    bodies = [{"prompt": "a" * (i + 1), "max_tokens": n_tokens, "ignore_eos": True, "seed": i}
              for i in range(4)]
    done = 0
    while done < n:
        errors = []

        def one(body):
            try:
                survival.ask("127.0.0.1", group.port, body)
            except survival.Broken as broken:
                errors.append(broken)
        threads = [threading.Thread(target=one, args=(body,)) for body in bodies]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if errors:
            raise Trouble(str(errors[0]))
        done += n_tokens * LAYERS  # the four share their steps at best


def change(group, n, rng):
    """n changes of membership by the last seat, which is killed or told to leave in turn."""
    seat = group.n_ranks - 1
    for i in range(0, n, 4):
        since = time.monotonic()
        if i % 8 == 0:
            group.seats[seat].kill()
            group.await_line(0, [f"seat {seat} is dead"], since, 30)
        else:
            group.seats[seat].terminate()
            group.seats[seat].wait(30)
        since = time.monotonic()
        group.start_rank(seat, rng.randrange(seat))
        group.await_live(seat, since)


def shared():
    """Names of what lies in shared memory."""
    with open(SHARED[1], encoding="ascii") as f:
        return set(os.listdir(SHARED[0])), f.read()


def settle(group, seats):
    """The sizes once they stand still: replies and quarantines end a moment later."""
    seen, end = look(group, seats), time.monotonic() + 10
    while time.monotonic() < end:
        time.sleep(0.5)
        now = look(group, seats)
        if now == seen:
            break
        seen = now
    return seen


def main():
    """Runs all; returns the exit code."""
    parser = argparse.ArgumentParser(description="Memory and descriptors of a group.")
    parser.add_argument("ferry")
    parser.add_argument("--exchanges", type=int, default=10000)
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--logs")
    args = parser.parse_args()
    if not os.path.exists(os.path.join(survival.DEMO, "model.safetensors")):
        print("leaks: skipped: models/demo is not in this checkout")
        return 77
    logs, wrong = args.logs or survival.scratch_folder(), []
    os.makedirs(logs, exist_ok=True)
    rng, before_all = random.Random(1), shared()
    with survival.Here(logs) as here:
        group = survival.Group(os.path.abspath(args.ferry), here, logs, 3,
                               front_flags=("--kv-tokens", KV_TOKENS)).start()
        try:
            exchange(group, WARM_UP)
            watch(f"{args.exchanges} exchanges", group, [0, 1, 2],
                  lambda: exchange(group, args.exchanges), wrong)
            change(group, 24, rng)
            watch(f"{args.changes} changes", group, [0, 1],
                  lambda: change(group, args.changes, rng), wrong)
            exchange(group, 1)  # and it still works
        except Trouble as trouble:
            wrong.append(str(trouble))
        group.close()  # kill -9 of all
    after_all = shared()
    if after_all[0] - before_all[0] or after_all[1] != before_all[1]:
        wrong.append(f"kill -9 of all left shared memory: {sorted(after_all[0] - before_all[0])}")
    for line in wrong:
        print(f"leaks: WRONG: {line}")
    if not args.logs and not wrong:
        shutil.rmtree(logs, ignore_errors=True)
    print(f"leaks: {'nothing grew, nothing is left' if not wrong else f'logs in {logs}'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
