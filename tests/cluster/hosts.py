"""Hosts for tests on one machine, from Python: hosts.sh with processes, logs and a sure end.

What: Hosts makes N hosts joined by a shaped link and is a context manager; start() runs a command in
      a host with its output in a file; processes can be killed, stopped, continued, one by one.
Why here: the cluster tests and bench/exchange both need hosts, and both may die in the middle.
Must not know: what is started.

A run has a name of its own, so that two tests never meet. When this process goes, however it goes,
a guard (a shell that waits for the end of a pipe) takes the hosts down, and all that runs in them.

    with hosts.Hosts(2, "tap", 1000, 200) as net:
        server = net.start("A", ["ferry", "serve", ...])
        net.cut("A", "B")
        server.kill()
        print(server.log())
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "hosts.sh")
SETUP_TIMEOUT_S = 120


class HostsError(Exception):
    """hosts.sh refused, or a process did not do what was waited for; one line."""


def reason(kind="tap"):
    """Why this machine cannot have hosts, as one line; None when it can."""
    done = subprocess.run([SCRIPT, "check", kind], capture_output=True, text=True,
                          timeout=SETUP_TIMEOUT_S, check=False)
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip()


class Process:
    """A command that runs in a host. Its pid is the command's own, seen from everywhere."""

    def __init__(self, net, host, name, popen, log_path):
        self.net, self.host, self.name, self.popen, self.log_path = net, host, name, popen, log_path
        self.pid = popen.pid

    def await_arrival(self, timeout_s=20):
        """Waits until hosts.sh has become the command inside the host: signals sent earlier would
        meet a shell outside of it."""
        end = time.monotonic() + timeout_s
        while self.running():
            try:
                program = os.path.basename(os.readlink(f"/proc/{self.pid}/exe"))
                here = os.readlink(f"/proc/{self.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
            except OSError:
                return  # it is over already
            if not here and program != "nsenter":
                return
            if time.monotonic() > end:
                raise HostsError(f"{self.name} did not start on host {self.host} within "
                                 f"{timeout_s} s; its last words: {self.last_words()}")
            time.sleep(0.001)

    def running(self):
        """Whether it has not ended yet."""
        return self.popen.poll() is None

    def signal(self, number):
        """Sends a signal to this process alone."""
        if self.running():
            os.kill(self.pid, number)

    def kill(self):
        """kill -9, and reaped: its parent does not leave a zombie."""
        self.signal(signal.SIGKILL)
        self.popen.wait()

    def kill_all(self):
        """kill -9 for the process and all that it has started and that stayed in its group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.popen.wait()

    def stop(self):
        """SIGSTOP; returns when it stands still."""
        self.signal(signal.SIGSTOP)
        self._await_state("T", "stand still")

    def cont(self):
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def terminate(self):
        """SIGTERM."""
        self.signal(signal.SIGTERM)

    def _await_state(self, wanted, what, timeout_s=5):
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            try:
                with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as f:
                    state = f.read().rpartition(")")[2].split()[0]
            except FileNotFoundError:
                state = "gone"
            if state in (wanted, "gone", "Z"):
                return
            time.sleep(0.001)
        raise HostsError(f"{self.name} on host {self.host} does not {what}: state {state}")

    def wait(self, timeout_s):
        """Its exit code (negative: the signal). HostsError when it takes longer."""
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise HostsError(f"{self.name} on host {self.host} still runs after {timeout_s} s; "
                             f"its last words: {self.last_words()}") from None

    def log(self):
        """All that it has written, stdout and stderr together."""
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def last_words(self):
        """The last line of the log."""
        lines = self.log().strip().splitlines()
        return lines[-1] if lines else "nothing"

    def await_log(self, text, timeout_s):
        """Waits until `text` is in the log and returns the log; HostsError when it ends before, or
        time does."""
        end = time.monotonic() + timeout_s
        while True:
            ended = not self.running()
            log = self.log()
            if text in log:
                return log
            if ended or time.monotonic() > end:
                raise HostsError(f"{self.name} on host {self.host} "
                                 f"{'ended' if ended else f'ran {timeout_s} s'} without saying "
                                 f"'{text}'; its last words: {self.last_words()}")
            time.sleep(0.01)


class Hosts:
    """N hosts A, B, ... in namespaces, up from __init__ until close()."""

    _count = 0

    def __init__(self, n, kind="tbf", rate_mbit=1000, delay_us=0, logs=None):
        """kind: "tbf" (rate only) or "tap" (rate and delay, one way). logs: a folder that stays;
        default: one that is removed with the hosts."""
        Hosts._count += 1
        self.n, self.kind, self.rate_mbit, self.delay_us = n, kind, rate_mbit, delay_us
        self.names = [chr(ord("A") + i) for i in range(n)]
        self.run_id = f"{os.getpid()}-{Hosts._count}-{time.monotonic_ns() % 1000000}"
        self.environment = {**os.environ, "FERRY_HOSTS_RUN": self.run_id,
                            "FERRY_HOSTS_OWNER": str(os.getpid())}
        self.processes = []
        self._keep_logs = logs is not None
        self.logs = logs or tempfile.mkdtemp(prefix="ferry-hosts-")
        os.makedirs(self.logs, exist_ok=True)
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read x; exec "$0" down', SCRIPT], stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.environment, cwd="/",
            start_new_session=True)
        try:
            link = [kind, str(rate_mbit)] + ([str(delay_us)] if kind == "tap" else [])
            self.script("up", str(n), *link)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def script(self, *args):
        """Runs hosts.sh for this run and returns what it printed."""
        done = subprocess.run([SCRIPT, *args], capture_output=True, text=True, check=False,
                              env=self.environment, timeout=SETUP_TIMEOUT_S)
        if done.returncode != 0:
            words = (done.stderr.strip() or "no message").splitlines()[-1]
            raise HostsError(f"hosts.sh {' '.join(args)}: {words}")
        return done.stdout

    def command(self, host, argv):
        """The command line that runs argv in a host; run it with self.environment."""
        return [SCRIPT, "exec", host, *map(str, argv)]

    def start(self, host, argv, name=None, env=None, stdin=subprocess.DEVNULL):
        """Starts a command in a host; it leads a process group of its own."""
        name = name or os.path.basename(str(argv[0]))
        path = os.path.join(self.logs, f"{len(self.processes):03d}-{host}-{name}.log")
        with open(path, "wb") as log:
            popen = subprocess.Popen(self.command(host, argv), stdin=stdin, stdout=log,
                                     stderr=subprocess.STDOUT, start_new_session=True,
                                     env={**self.environment, **(env or {})})
        process = Process(self, host, name, popen, path)
        self.processes.append(process)
        process.await_arrival()
        return process

    def call(self, host, argv, timeout_s=60, env=None):
        """Runs a command in a host to its end; subprocess.CompletedProcess with text."""
        return subprocess.run(self.command(host, argv), capture_output=True, text=True, check=False,
                              env={**self.environment, **(env or {})}, timeout=timeout_s)

    def address(self, host):
        """The host's IP address on the link."""
        return f"10.77.0.{self.names.index(host) + 1}"

    def bytes(self, host):
        """(received, sent) by the host's interface since it is up, headers included."""
        received, sent = self.script("bytes", host).split()
        return int(received), int(sent)

    def link_cpu_s(self):
        """Processor seconds that the emulated link has used by itself (0 for tbf: the kernel's)."""
        pids = subprocess.run(["ip", "netns", "pids", f"fh.{self.run_id}.switch"], check=False,
                              capture_output=True, text=True, timeout=SETUP_TIMEOUT_S).stdout
        total = 0
        for pid in pids.split():
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
                total += sum(int(x) for x in f.read().rpartition(")")[2].split()[11:13])
        return total / os.sysconf("SC_CLK_TCK")

    def cut(self, a, b):
        """From now on nothing passes between two hosts; nobody is told."""
        self.script("cut", a, b)

    def heal(self, a, b):
        """Ends a cut."""
        self.script("heal", a, b)

    def close(self):
        """Kills what still runs, removes the hosts; may be called again."""
        try:
            self.script("down")
        finally:
            for process in self.processes:
                process.kill_all()  # what never arrived in its host
            if self._guard.poll() is None:
                self._guard.kill()  # only now: until here it would have done the work
            self._guard.stdin.close()
            self._guard.wait()
            if not self._keep_logs:
                shutil.rmtree(self.logs, ignore_errors=True)
