#!/usr/bin/env python3
"""Tests hosts.sh, linkemu and hosts.py: are the hosts apart, the links what they say, the end sure?

Exit 0 passed, 1 failed, 77 cannot run here (the reason is printed). Needs root.
"""

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import hosts  # noqa: E402

PYTHON = sys.executable
ME = os.path.abspath(__file__)
PORT = 7000


# ---- what runs in the hosts: python3 test_hosts.py ROLE ... ----

def role_echo():
    """Sends everything back, one connection after the other."""
    server = socket.create_server(("0.0.0.0", PORT))
    print("ready", flush=True)
    while True:
        conn, _ = server.accept()
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := conn.recv(65536):
            conn.sendall(data)


def role_sink():
    """Reads one connection to its end; prints bytes and seconds from the first to the last."""
    server = socket.create_server(("0.0.0.0", PORT))
    print("ready", flush=True)
    conn, _ = server.accept()
    total, first = -len(conn.recv(1 << 20)), time.monotonic()
    total = 0
    while data := conn.recv(1 << 20):
        total += len(data)
    print(f"sink {total} {time.monotonic() - first}", flush=True)


def role_source(address, n_bytes):
    """Sends n_bytes."""
    conn = socket.create_connection((address, PORT), timeout=10)
    conn.settimeout(60)
    conn.sendall(bytes(int(n_bytes)))


def role_ping(address, count):
    """Prints the median round trip of small messages, in seconds."""
    conn = socket.create_connection((address, PORT), timeout=10)
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    took = []
    for _ in range(int(count)):
        begin = time.monotonic()
        conn.sendall(b"x" * 64)
        conn.recv(64)
        took.append(time.monotonic() - begin)
    print(f"ping {statistics.median(took)}")


def role_tick(address):
    """Sends a line whenever one came back; says so; tells every error of the socket."""
    conn = socket.create_connection((address, PORT), timeout=10)
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    conn.settimeout(30)
    n = 0
    while True:
        try:
            conn.sendall(b"t")
            if not conn.recv(1):
                raise OSError("closed")
        except OSError as error:
            print(f"error {error}", flush=True)
            return
        n += 1
        print(f"tick {n}", flush=True)
        time.sleep(0.02)


def role_hold(ready):
    """Makes two hosts with a process in each that would live long, then waits to be killed."""
    net = hosts.Hosts(2)
    sleepers = [net.start(name, ["sleep", "1000"]) for name in net.names]
    sleepers[0].stop()
    with open(ready + ".part", "w", encoding="ascii") as f:
        f.write(f"{net.run_id} {net._guard.pid} {' '.join(str(p.pid) for p in sleepers)}")
    os.rename(ready + ".part", ready)
    time.sleep(1000)


# ---- the tests ----

def me(*args):
    """The command line of a role."""
    return [PYTHON, ME, *map(str, args)]


def alive(pid):
    """Whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_true(what, condition, timeout_s):
    """Polls; the test fails when it does not come true."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.01)


def rate_mbit(net):
    """Payload rate of one TCP stream from A to B; the best of three, as others use the machine."""
    best = 0.0
    for _ in range(3):
        sink = net.start("B", me("sink"))
        sink.await_log("ready", 20)
        done = net.call("A", me("source", net.address("B"), net.rate_mbit * 125000 // 2))
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        n_bytes, seconds = sink.await_log("sink", 30).split("sink ")[1].split()
        sink.wait(10)
        best = max(best, 8e-6 * int(n_bytes) / float(seconds))
        if best > 0.93 * net.rate_mbit:
            break
    return best


def ping_s(net, count=50):
    """Median round trip between A and B."""
    echo = net.start("B", me("echo"))
    echo.await_log("ready", 20)
    done = net.call("A", me("ping", net.address("B"), count))
    echo.kill()
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return float(done.stdout.split()[1])


class Links(unittest.TestCase):
    """Rates, delays, cuts."""

    def check_rate(self, net):
        rate = rate_mbit(net)
        # 1448 of 1514 (tbf) or 1538 (a real wire) bytes are payload.
        self.assertGreater(rate, 0.9 * 1448 / 1538 * net.rate_mbit)
        self.assertLess(rate, 1.05 * net.rate_mbit)

    def test_tbf(self):
        with hosts.Hosts(2, "tbf", 200) as net:
            self.check_rate(net)
            self.assertLess(ping_s(net), 0.002)

    def test_tbf_is_slow_for_short_messages_too(self):
        with hosts.Hosts(2, "tbf", 10) as net: # 1 MiB of bucket would let all of it pass at once
            self.check_rate(net)

    def test_tap(self):
        with hosts.Hosts(2, "tap", 200, 2000) as net:
            self.check_rate(net)
            trip = ping_s(net)
            self.assertGreater(trip, 0.004)
            self.assertLess(trip, 0.006)

    def test_bytes_are_counted(self):
        with hosts.Hosts(2, "tbf", 200) as net:
            before = net.bytes("A")[1], net.bytes("B")[0]
            rate_mbit(net)
            sent, received = net.bytes("A")[1] - before[0], net.bytes("B")[0] - before[1]
            self.assertGreater(sent, 200 * 125000 // 2)
            self.assertLess(abs(sent - received), 0.02 * sent + 10000)

    def check_cut(self, kind, *delay):
        with hosts.Hosts(3, kind, 100, *delay) as net:
            for name in "BC":
                net.start(name, me("echo"), name=f"echo{name}").await_log("ready", 20)
            to_b = net.start("A", me("tick", net.address("B")), name="to-b")
            to_c = net.start("A", me("tick", net.address("C")), name="to-c")
            to_b.await_log("tick 3", 20)
            to_c.await_log("tick 3", 20)
            net.cut("A", "B")
            net.cut("B", "A") # twice is once
            time.sleep(0.1) # what was on its way arrives
            count_b, count_c = to_b.log().count("tick"), to_c.log().count("tick")
            time.sleep(0.7)
            self.assertEqual(to_b.log().count("tick"), count_b, "something passed a cut link")
            self.assertNotIn("error", to_b.log(), "a cut link must be silent")
            self.assertGreater(to_c.log().count("tick"), count_c + 5, "the other link is cut, too")
            net.heal("A", "B")
            net.heal("A", "B")
            to_b.await_log(f"tick {count_b + 10}", 20)
            self.assertNotIn("error", to_b.log())

    def test_cut_tbf(self):
        self.check_cut("tbf")

    def test_cut_tap(self):
        self.check_cut("tap", 500)


class Apart(unittest.TestCase):
    """What hosts share and what they do not."""

    @classmethod
    def setUpClass(cls):
        cls.net = hosts.Hosts(2)

    @classmethod
    def tearDownClass(cls):
        cls.net.close()

    def out(self, host, *argv):
        done = self.net.call(host, argv)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_names(self):
        self.assertEqual(self.out("A", "hostname"), "hostA")
        self.assertEqual(self.out("B", "hostname"), "hostB")
        self.assertIn(self.net.address("B"), self.out("A", "getent", "hosts", "hostB"))

    def test_working_folder_and_exit_code(self):
        self.assertEqual(self.out("A", "pwd"), os.getcwd())
        self.assertEqual(self.net.call("A", ["sh", "-c", "exit 42"]).returncode, 42)

    def test_posix_shared_memory(self):
        self.out("A", "sh", "-c", "echo here >/dev/shm/segment")
        self.assertEqual(self.out("A", "cat", "/dev/shm/segment"), "here")
        self.assertEqual(self.out("B", "ls", "/dev/shm"), "")
        self.assertFalse(os.path.exists("/dev/shm/segment"))

    def test_system_v_shared_memory(self):
        def segments(host):
            return self.out(host, "cat", "/proc/sysvipc/shm").count("\n")

        before = segments("B")
        self.out("A", "ipcmk", "-M", "4096")
        self.assertEqual(segments("A"), before + 1)
        self.assertEqual(segments("B"), before)

    def test_identities_differ(self):
        for kind in ("net", "uts", "ipc", "mnt"):
            seen = {self.out(h, "readlink", f"/proc/self/ns/{kind}") for h in "AB"}
            self.assertEqual(len(seen | {os.readlink(f"/proc/self/ns/{kind}")}), 3, kind)

    def test_from_host_to_host(self):
        self.assertEqual(self.out("A", hosts.SCRIPT, "exec", "B", "hostname"), "hostB")
        self.assertEqual(self.out("B", hosts.SCRIPT, "exec", "A", "hostname"), "hostA")

    def test_interfaces(self):
        self.assertEqual(sorted(self.out("A", "ls", "/sys/class/net").split()), ["eth0", "lo"])

    def test_processes(self):
        one = self.net.start("A", ["sleep", "1000"])
        self.assertEqual(self.out("B", "cat", f"/proc/{one.pid}/comm"), "sleep")
        one.stop()
        one.cont()
        self.assertTrue(one.running())
        one.kill()
        self.assertFalse(alive(one.pid))
        two = self.net.start("A", ["sh", "-c", "echo last; exit 3"])
        self.assertEqual(two.wait(10), 3)
        self.assertEqual(two.last_words(), "last")
        with self.assertRaisesRegex(hosts.HostsError, "ended without saying 'more'.*last"):
            two.await_log("more", 5)

    def test_errors_are_one_line(self):
        for args, text in ((["exec", "Z", "true"], "no host 'Z'; it has A B"),
                           (["cut", "A", "Q"], "no host 'Q'"), (["up", "3", "tbf", "5"], "is up as")):
            with self.assertRaisesRegex(hosts.HostsError, text):
                self.net.script(*args)
        for args in (["up", "1", "tbf", "5"], ["up", "2", "tbf"], ["up", "2", "wifi", "5"],
                     ["up", "2", "tbf", "x"], ["cut", "A", "A"], ["nonsense"], []):
            done = subprocess.run([hosts.SCRIPT, *args], capture_output=True, check=False)
            self.assertEqual(done.returncode, 2, args)


class Ends(unittest.TestCase):
    """Everything goes, whoever dies."""

    def listed(self, run_id):
        listed = subprocess.run([hosts.SCRIPT, "list"], capture_output=True, text=True, check=True)
        spaces = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
        return f"{run_id}:" in listed.stdout or any(f".{run_id}." in s for s in spaces)

    def test_close_kills_everything(self):
        net = hosts.Hosts(2, "tap", 100, 100)
        stopped = net.start("A", ["sleep", "1000"])
        stopped.stop()
        daemon = net.start("B", ["sh", "-c", "setsid sleep 1000 & echo pid $!"])
        pid = int(daemon.await_log("pid", 10).split()[1])
        daemon.wait(10)
        self.assertTrue(alive(pid))
        net.close()
        self.assertFalse(alive(stopped.pid) or alive(pid))
        self.assertFalse(self.listed(net.run_id))
        net.close()

    def held(self):
        """A run of another process: (that process, run id, guard, pids)."""
        ready = os.path.join(self.logs, "ready")
        if os.path.exists(ready):
            os.remove(ready)
        holder = subprocess.Popen(me("hold", ready))
        await_true("the run is up", lambda: os.path.exists(ready), 60)
        with open(ready, encoding="ascii") as f:
            run_id, guard, *pids = f.read().split()
        return holder, run_id, int(guard), [int(p) for p in pids]

    def setUp(self):
        import tempfile
        folder = tempfile.TemporaryDirectory(prefix="ferry-test-hosts-")
        self.addCleanup(folder.cleanup)
        self.logs = folder.name

    def test_kill_9_of_the_owner(self):
        holder, run_id, _, pids = self.held()
        self.assertTrue(all(map(alive, pids)))
        holder.kill()
        holder.wait()
        await_true("the guard cleans up", lambda: not self.listed(run_id), 30)
        self.assertFalse(any(map(alive, pids)))

    def test_kill_9_of_owner_and_guard(self):
        holder, run_id, guard, pids = self.held()
        os.kill(guard, signal.SIGKILL)
        holder.kill()
        holder.wait()
        self.assertTrue(self.listed(run_id))
        with hosts.Hosts(2) as other: # the next run cleans up
            self.assertFalse(self.listed(run_id))
            self.assertFalse(any(map(alive, pids)))
            self.assertTrue(self.listed(other.run_id))

    def test_up_and_down_again(self):
        with hosts.Hosts(2) as net, hosts.Hosts(2) as other:
            sleeper = net.start("A", ["sleep", "1000"])
            net.script("up", "2", "tbf", "1000")
            self.assertTrue(sleeper.running(), "up of what is up must change nothing")
            os.kill(int(net.call("A", ["cat", f"/run/ferry-hosts/{net.run_id}/pid.B"]).stdout.split()[0]),
                    signal.SIGKILL)
            net.script("up", "2", "tbf", "1000") # half of it was dead: all is new
            self.assertIsNotNone(sleeper.wait(10))
            self.assertEqual(net.call("B", ["hostname"]).stdout.strip(), "hostB")
            net.script("down")
            net.script("down")
            self.assertEqual(other.call("B", ["hostname"]).stdout.strip(), "hostB")
            with self.assertRaisesRegex(hosts.HostsError, "is not up"):
                net.script("exec", "A", "true")


if __name__ == "__main__":
    roles = {name[5:]: role for name, role in globals().items() if name.startswith("role_")}
    if len(sys.argv) > 1 and sys.argv[1] in roles:
        sys.exit(roles[sys.argv[1]](*sys.argv[2:]))
    why = hosts.reason()
    if why:
        print(f"skipped: no hosts here: {why}")
        sys.exit(77)
    unittest.main()
