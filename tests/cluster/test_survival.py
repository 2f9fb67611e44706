#!/usr/bin/env python3
"""Ranks die, stop, are cut off, leave and come while streams run: no request fails, no byte changes.

What: a group of four ranks under load, on this machine or on two hosts, is hurt at random moments;
      after each fault every answer is compared with that of one rank, and it is measured when the
      fault was noticed and how long the longest pause of any stream was.
Why here: this is the promise of the whole; units have tests of their own.
Must not know: how the group survives.

    test_survival.py FERRY [--faults N] [--seed N] [--hosts 1|2|any] [--kinds a,b] [--replicas 1,2]
                     [--chaos SECONDS] [--clients N] [--flags "..."] [--logs FOLDER] [--json F]

--hosts any: two where this machine can have them (root, namespaces), else one. One line per kind: raw
numbers, then the limits they were held against; these are multiplied by what other programs took of
the processors (printed). Exit 0: all held, 1: something did not, 2: wrong
usage, 77: cannot run here (the reason is printed).
"""

import argparse
import functools
import json
import os
import random
import shutil
import statistics
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hosts  # noqa: E402
import survival  # noqa: E402
from survival import Trouble  # noqa: E402

SLOW = 8.0 if os.environ.get("FERRY_TEST_SANITIZE") else 1.0
DETECT_S = 1.0
SERVICE_S = {1: 5.0, 2: 2.0}  # by replicas: experts are loaded again, or others hold them
STOP_S, CUT_S = 5.0, 3.0
KINDS = ("kill", "stop", "cut", "drain", "kill-drain", "kill-join", "stop-front", "front")
LOST = ("suspect", "dead")


class Fault:
    """One fault: seat, `at` (when), `detected` (seconds, None: nobody had to notice), `whole` (when
    all ranks were live again), `down` (from, to) while the front door was not there, `again_from`:
    service can only come back from then on."""

    def __init__(self, kind, seat, at):
        self.kind, self.seat, self.at = kind, seat, at
        self.detected, self.whole, self.down, self.again_from = None, None, None, at
        self.factor, self.pause, self.retries = 1.0, 0.0, 0


class Faults:
    """All kinds of faults on one group; each method hurts it and makes it whole again."""

    def __init__(self, group, rng):
        self.group, self.rng = group, rng

    def seat(self):
        """Any but the front door's."""
        return self.rng.randrange(1, self.group.n_ranks)

    def _detect(self, fault, words=LOST):
        words = [f"seat {fault.seat} is {word}" for word in words]
        fault.detected = self.group.await_line(0, words, fault.at, 30 * SLOW)[0] - fault.at

    def _start(self, fault, seat):
        """Starts a rank until it is live; one whose seat is still taken is started again."""
        while True:
            since = time.monotonic()
            rank = self.group.start_rank(seat, self._member(seat))
            try:
                self.group.await_live(seat, since, 60 * SLOW)
                return
            except Trouble:
                if rank.running() or "taken" not in rank.log() or fault.retries > 50:
                    raise
                fault.retries += 1

    def _member(self, seat):
        """Any other member, by whom a rank joins."""
        return self.rng.choice([s for s in range(self.group.n_ranks) if s != seat])

    def kill(self):
        """kill -9 of a rank, which is started again a moment later."""
        seat = self.seat()
        fault = Fault("kill", seat, time.monotonic())
        self.group.seats[seat].kill()
        self._detect(fault)
        time.sleep(self.rng.uniform(0, 0.5))
        self._start(fault, seat)
        return fault

    def stop(self, seconds=STOP_S):
        """A rank stands still, is given up, goes on and joins again."""
        seat = self.seat()
        rank = self.group.seats[seat]
        fault = Fault("stop", seat, time.monotonic())
        rank.stop()
        self._detect(fault)
        time.sleep(max(0, fault.at + seconds - time.monotonic()))
        since = time.monotonic()
        rank.cont()
        self.group.await_live(seat, since, 60 * SLOW)
        return fault

    def cut(self, seconds=CUT_S):
        """Silence between the two hosts. The side without the issuer stops and joins again; when
        that is the front door's, service waits for the end of the cut."""
        group = self.group
        seats = [s for s in range(group.n_ranks) if group.host(s) != group.host(0)]
        fault = Fault("cut", seats[0], time.monotonic())
        group.net.cut(group.host(0), group.host(seats[0]))
        self._detect(fault)
        time.sleep(max(0, fault.at + seconds - time.monotonic()))
        healed = time.monotonic()
        group.net.heal(group.host(0), group.host(seats[0]))

        def given_up(seat):
            return group.watch.find(group.seats[seat], [f"this rank (seat {seat}) was given up"],
                                    fault.at)
        survival.await_true("one side was given up", lambda: given_up(0) or given_up(seats[0]),
                            60 * SLOW)
        if given_up(0):
            seats = [s for s in range(group.n_ranks) if group.host(s) == group.host(0)]
            fault.again_from = healed
        for seat in seats:
            group.await_live(seat, fault.at, 60 * SLOW)
        return fault

    def stop_front(self):
        """The front door stands still: the others go on without it; afterwards it joins again, and
        its answers go on."""
        fault = Fault("stop-front", 0, time.monotonic())
        self.group.seats[0].stop()
        time.sleep(STOP_S)
        fault.again_from = time.monotonic()
        self.group.seats[0].cont()
        self.group.await_live(0, fault.again_from, 60 * SLOW)
        return fault

    def drain(self):
        """A rank is told to leave, leaves, and another takes its seat."""
        seat = self.seat()
        rank = self.group.seats[seat]
        fault = Fault("drain", seat, time.monotonic())
        rank.terminate()
        code = rank.wait(20 * SLOW)
        if code != 0:
            raise Trouble(f"seat {seat} ended with {code} when it was told to leave: {rank.log()}")
        self._start(fault, seat)
        return fault

    def kill_drain(self):
        """kill -9 while it leaves."""
        seat = self.seat()
        fault = Fault("kill-drain", seat, time.monotonic())
        self.group.seats[seat].terminate()
        time.sleep(self.rng.uniform(0, 0.3))
        self.group.seats[seat].kill()
        self._detect(fault, LOST + ("empty",))
        self._start(fault, seat)
        return fault

    def kill_join(self):
        """kill -9 of a rank that joins in place of a killed one."""
        seat = self.seat()
        fault = Fault("kill-join", seat, time.monotonic())
        self.group.seats[seat].kill()
        self._detect(fault)
        self.group.start_rank(seat, self._member(seat))
        time.sleep(self.rng.uniform(0, 0.6))
        self.group.seats[seat].kill()
        self._start(fault, seat)
        return fault

    def front(self):
        """kill -9 of the front door; the others stay, a new one joins them."""
        group = self.group
        others = group.seats[1:]
        fault = Fault("front", 0, time.monotonic())
        group.seats[0].kill()
        time.sleep(self.rng.uniform(0, 1.5))
        while True:
            since = time.monotonic()
            door = group.start_front(join=self._member(0))
            try:
                ready = group.await_line(0, ["serving "], since, 60 * SLOW)[0]
                break
            except Trouble:
                if door.running() or "taken" not in door.log() or fault.retries > 50:
                    raise
                fault.retries += 1
        fault.down, fault.again_from = (fault.at, ready), ready
        if group.seats[1:] != others or not all(rank.running() for rank in others):
            raise Trouble("a rank did not outlive the front door")
        return fault

    def any(self, kind):
        """A fault of a kind by its name."""
        return getattr(self, kind.replace("-", "_"))()


class Chaos:
    """All kinds mixed, several at a time, until an hour of the clock: every seat, the front door and
    the link have a thread that hurts them. As many faults at once as the group must bear: on one
    host two (who is killed is proven gone), on two hosts one."""

    def __init__(self, group, seed, seconds):
        self.group, self.seed, self.seconds = group, seed, seconds
        self.until = time.monotonic() + seconds
        self.n_at_once = 2 if len(group.net.names) == 1 else 1
        self.budget = threading.Semaphore(self.n_at_once)
        self.faults, self.troubles, self.lock = [], [], threading.Lock()
        self.front_lock = threading.Lock()

    def _note(self, kind, seat):
        fault = Fault(kind, seat, time.monotonic())
        with self.lock:
            self.faults.append(fault)
        return fault

    def _start(self, seat, rng, seconds=90):
        """A rank that finds nobody who can take it in is started again, as any supervisor would."""
        end = time.monotonic() + seconds * SLOW
        while True:
            since = time.monotonic()
            members = [s for s in range(self.group.n_ranks) if s != seat]
            rank = self.group.start_rank(seat, rng.choice(members))
            try:
                self.group.await_live(seat, since, seconds * SLOW)
                return
            except Trouble as trouble:
                if rank.running() or time.monotonic() > end:
                    raise Trouble(f"chaos: seat {seat} did not come back: {trouble}") from None
                time.sleep(0.2)

    def _hurt_rank(self, seat, rng):
        group, rank = self.group, self.group.seats[seat]
        kind = rng.choice(("kill", "kill", "pause", "stop", "drain", "kill-drain", "kill-join"))
        fault = self._note(kind, seat)
        if kind in ("pause", "stop"):
            rank.stop()
            time.sleep(rng.uniform(0.01, 0.6) if kind == "pause" else rng.uniform(0.6, 5))
            rank.cont()
            time.sleep(1.5)
            if group.watch.find(rank, ["given up"], fault.at):
                group.await_live(seat, fault.at, 60 * SLOW)
        elif kind == "drain":
            rank.terminate()
            rank.wait(30 * SLOW)
            self._start(seat, rng)
        else:
            if kind == "kill-drain":
                rank.terminate()
                time.sleep(rng.uniform(0, 0.3))
            rank.kill()
            if kind == "kill-join":
                group.start_rank(seat, rng.randrange(group.n_ranks))
                time.sleep(rng.uniform(0, 0.6))
                group.seats[seat].kill()
            time.sleep(rng.uniform(0, 0.5))
            self._start(seat, rng)
        fault.whole = time.monotonic()

    def _hurt_front(self, rng):
        group = self.group
        fault = self._note("front", 0)
        fault.down = (fault.at, float("inf"))
        group.seats[0].kill()
        end = time.monotonic() + 90 * SLOW
        while True:
            time.sleep(rng.uniform(0, 1))
            since = time.monotonic()
            door = group.start_front(join=rng.randrange(1, group.n_ranks))
            try:
                ready = group.await_line(0, ["serving "], since, 90 * SLOW)[0]
                break
            except Trouble as trouble:
                if door.running() or time.monotonic() > end:
                    raise Trouble(f"chaos: no new front door: {trouble}") from None
        fault.down, fault.whole = (fault.at, ready), ready

    def _hurt_link(self, rng):
        names = self.group.net.names
        fault = self._note("cut", -1)
        self.group.net.cut(*names)
        time.sleep(rng.uniform(0.1, 4))
        self.group.net.heal(*names)
        time.sleep(3)
        fault.whole = time.monotonic()

    def _actor(self, name, hurt, n_takes, lowest, highest):
        rng = random.Random(f"{self.seed}:{name}")
        while time.monotonic() < self.until and not self.troubles:
            time.sleep(min(rng.uniform(lowest, highest), self.seconds * rng.uniform(0.1, 0.3)))
            with self.front_lock:  # or two that want both would wait for each other
                for _ in range(n_takes):
                    self.budget.acquire()
            try:
                if time.monotonic() < self.until:
                    hurt(rng)
            except (Trouble, hosts.HostsError) as trouble:
                with self.lock:
                    self.troubles.append(str(trouble))
            finally:
                self.budget.release(n_takes)

    def run(self):
        """Returns when time is over and everything is whole again, or with a trouble."""
        jobs = [(f"seat {s}", functools.partial(self._hurt_rank, s), 1, 0.3, 3)
                for s in range(1, self.group.n_ranks)]
        jobs.append(("front", self._hurt_front, self.n_at_once, 20, 40))
        if len(self.group.net.names) > 1:
            jobs.append(("link", self._hurt_link, self.n_at_once, 5, 15))
        threads = [threading.Thread(target=self._actor, args=job) for job in jobs]
        for t in threads:
            t.start()
        for t in threads:
            t.join()


def longest_pause(results, fault):
    """Of any stream, the part of the longest pause that lies behind the fault (or behind the moment
    from which service was possible again) and began before all was whole again."""
    return max((end - max(begin, fault.again_from) for r in results for begin, end in r["pauses"]
                if end > fault.again_from and begin < fault.whole), default=0.0)


def judge_answers(results, faults):
    """(number of good answers, [why not]). While there was no front door nobody can be answered."""
    wrong = []
    for r in results:
        if r["good"]:
            continue
        lost = any(f.down and r["sent"] < f.down[1] and r["end"] > f.down[0] for f in faults)
        if lost and any(w in r["why"] for w in ("IncompleteRead", "Connection", "Disconnected",
                                                "not_ready")):  # the new one starts
            continue
        near = [f"{f.kind} of seat {f.seat} at {f.at:.2f}" for f in faults if f.at - 1 < r["end"]]
        wrong.append(f"request {r['request']} ({r['sent']:.2f} to {r['end']:.2f}): {r['why']}; the last "
                     f"fault: {near[-1] if near else 'none'}")
    return sum(r["good"] for r in results), wrong


def spread(values):
    """Median and largest, for a line of print."""
    return f"{statistics.median(values):.2f}/{max(values):.2f}" if values else "-"


class Run:
    """One group with its load, hurt by several kinds one after the other."""

    def __init__(self, args, net, plan, replicas, logs):
        self.args, self.net, self.plan, self.replicas, self.logs = args, net, plan, replicas, logs
        self.rows, self.wrong = [], []

    def _one_kind(self, group, kind, count, rng):
        load = survival.Load(group, self.plan, self.logs, self.args.clients, rng.random())
        hurt, faults, wrong = Faults(group, rng), [], []
        processor = survival.Processor()
        try:
            for i in range(count):
                load.await_answer(survival.ANSWER_S * SLOW)
                time.sleep(rng.uniform(0, 1.5))
                fault = hurt.any(kind)
                fault.whole = time.monotonic()
                fault.factor = processor.factor()
                faults.append(fault)
                if not group.seats[0].running():
                    raise Trouble(f"the front door ended: {group.seats[0].log()[-3000:]}")
                if self.args.verbose:
                    print(f"    {kind} {i}: seat {fault.seat}, noticed {fault.detected}, whole "
                          f"{fault.whole - fault.at:.2f}", flush=True)
        except (Trouble, hosts.HostsError) as trouble:
            wrong.append(f"after {len(faults)} faults: {trouble}")
        try:
            results = load.stop()
        except (Trouble, hosts.HostsError) as trouble:
            wrong.append(str(trouble))
            results = load.results()
        if kind == "front" and not wrong:  # each of them was perhaps cut; asked again it is the same
            once = survival.Load(group, self.plan, self.logs, self.args.clients, 0, "once").end()
            wrong += [f"asked again: request {r['request']}: {r['why']}" for r in once
                      if not r["good"]]
        if count > 0 and load.away == 0:
            wrong.append("no answer was ever computed by another rank: none could be lost")
        self._judge(kind, faults, results, wrong)
        return not wrong

    def _judge(self, kind, faults, results, wrong):
        n_good, bad = judge_answers(results, faults)
        wrong += bad[:20]
        if n_good == 0:
            wrong.append("no request was answered: nothing was tested")
        for fault in faults:
            fault.pause = longest_pause(results, fault)
            scale = fault.factor * SLOW
            if fault.detected is not None and fault.detected > DETECT_S * scale:
                wrong.append(f"seat {fault.seat} was noticed after {fault.detected:.2f} s; limit "
                             f"{DETECT_S:.0f} s x {scale:.1f}")
            if fault.pause > SERVICE_S[min(self.replicas, 2)] * scale:
                wrong.append(f"a stream paused {fault.pause:.2f} s; limit "
                             f"{SERVICE_S[min(self.replicas, 2)]:.0f} s x {scale:.1f}")
        row = {"kind": kind, "replicas": self.replicas, "hosts": len(self.net.names),
               "faults": len(faults), "answers": n_good, "failed": len(bad),
               "changed": sum("other bytes" in b for b in bad),
               "detect_s": [round(f.detected, 3) for f in faults if f.detected is not None],
               "pause_s": [round(f.pause, 3) for f in faults],
               "whole_s": [round(f.whole - f.at, 3) for f in faults],
               "retries": sum(f.retries for f in faults),
               "others": round(max((f.factor for f in faults), default=1), 2), "wrong": wrong}
        self.rows.append(row)
        self.wrong += wrong
        print(f"{kind:10} hosts {row['hosts']} replicas {self.replicas}: {row['faults']} faults, "
              f"{n_good} answers, {row['failed']} failed, {row['changed']} changed; median/max s: "
              f"noticed {spread(row['detect_s'])}, pause {spread(row['pause_s'])}, whole "
              f"{spread(row['whole_s'])}; limits x {row['others']}{'' if not wrong else ' WRONG'}",
              flush=True)
        for line in wrong:
            print(f"    {line}", flush=True)

    def chaos(self, seconds, seed):
        """Mixed faults for a while; then one kill of every rank as by the book, to see that the group
        is what it was."""
        group = survival.Group(self.args.ferry, self.net, self.logs, 4, self.replicas,
                               self.args.flags.split())
        wrong, faults = [], []
        try:
            group.start()
            load = survival.Load(group, self.plan, self.logs, self.args.clients, seed)
            chaos = Chaos(group, seed, seconds)
            chaos.run()
            wrong, faults = chaos.troubles, chaos.faults
            hurt = Faults(group, random.Random(seed))
            for _ in range(0 if wrong else 3):
                faults.append(hurt.kill())
            results = load.stop()
        except (Trouble, hosts.HostsError) as trouble:
            wrong.append(f"chaos: {trouble}")
            results = []
        group.close()
        n_good, bad = judge_answers(results, faults)
        wrong += bad[:20]
        if n_good == 0:
            wrong.append("no request was answered: nothing was tested")
        if not wrong and (len(faults) < 3 + seconds / 6 or all(f.kind != "front" for f in faults)):
            wrong.append(f"only {len(faults)} faults in {seconds:.0f} s, or no loss of the front door")
        by_kind = {k: sum(f.kind == k for f in faults) for k in sorted({f.kind for f in faults})}
        longest = max((end - begin for r in results for begin, end in r["pauses"]), default=0)
        self.rows.append({"kind": "chaos", "replicas": self.replicas, "hosts": len(self.net.names),
                          "faults": len(faults), "kinds": by_kind, "answers": n_good,
                          "failed": len(bad), "changed": sum("other bytes" in b for b in bad),
                          "longest_pause_s": round(longest, 2), "wrong": wrong})
        self.wrong += wrong
        print(f"chaos      hosts {len(self.net.names)} replicas {self.replicas}: {seconds:.0f} s, "
              f"{by_kind}, {n_good} answers, {len(bad)} failed, "
              f"{sum('other bytes' in b for b in bad)} changed; longest pause {longest:.2f} s"
              f"{' WRONG' if wrong else ''}", flush=True)
        for line in wrong:
            print(f"    {line}", flush=True)

    def run(self, kinds, count, seed):
        """Every kind on a group of its own when the one before broke it, else on the same."""
        group = None
        try:
            for kind in kinds:
                if group is None:
                    group = survival.Group(self.args.ferry, self.net, self.logs, 4, self.replicas,
                                           self.args.flags.split()).start()
                if not self._one_kind(group, kind, count,
                                      random.Random(f"{seed}:{kind}:{self.replicas}")):
                    group.close()
                    group = None
        except (Trouble, hosts.HostsError) as trouble:
            print(f"    no group: {trouble}", flush=True)
            self.wrong.append(str(trouble))
        finally:
            if group is not None:
                group.close()


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description="Faults of every kind under load.")
    parser.add_argument("ferry")
    parser.add_argument("--faults", type=int, default=5, help="of each kind; 0: none")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--hosts", default="1", choices=("1", "2", "any"))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--replicas", default="1,2")
    parser.add_argument("--chaos", type=float, default=0, help="seconds of mixed faults")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--flags", default="", help="more flags for every rank")
    parser.add_argument("--logs", help="a folder for what the processes print; stays")
    parser.add_argument("--json", help="a file for all numbers")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    args.ferry = os.path.abspath(args.ferry)
    args.kinds = [k for k in args.kinds.split(",") if k]
    if unknown := [k for k in args.kinds if k not in KINDS]:
        parser.error(f"kinds {unknown}; there are {', '.join(KINDS)}")
    return args


def main():
    """Runs what was asked for; returns the exit code."""
    args = parse()
    if not os.path.exists(os.path.join(survival.DEMO, "model.safetensors")):
        print("survival: skipped: models/demo is not in this checkout")
        return 77
    why = hosts.reason("tbf") if args.hosts != "1" else None
    if args.hosts == "2" and why is not None:
        print(f"survival: skipped: {why}")
        return 77
    two = args.hosts != "1" and why is None
    if not two:
        args.kinds = [k for k in args.kinds if k != "cut"]
    logs = args.logs or survival.scratch_folder()
    os.makedirs(logs, exist_ok=True)
    print(f"survival: seed {args.seed}, {args.faults} faults of each kind, {args.chaos:.0f} s of chaos"
          f"{f'; on one host: {why}' if why else ''}", flush=True)
    rows, wrong = [], []
    plan = survival.reference(args.ferry, survival.make_requests(args.seed), logs)
    for replicas in map(int, args.replicas.split(",")):
        net = hosts.Hosts(2, "tbf", 1000, logs=logs) if two else survival.Here(logs)
        with net:
            run = Run(args, net, plan, replicas, logs)
            if args.faults > 0:
                run.run(args.kinds, args.faults, args.seed)
            if args.chaos > 0:
                run.chaos(args.chaos, args.seed)
        rows += run.rows
        wrong += run.wrong
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"seed": args.seed, "rows": rows}, f, indent=1)
    if wrong:
        print(f"survival: {len(wrong)} things did not hold (seed {args.seed}); logs in {logs}")
        return 1
    if not args.logs:
        shutil.rmtree(logs, ignore_errors=True)
    print(f"survival: all held in {sum(r['faults'] for r in rows)} faults, "
          f"{sum(r['answers'] for r in rows)} answers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
