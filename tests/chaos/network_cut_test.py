#!/usr/bin/env python3
r"""Cuts links during a job and checks that nothing is lost and that the model is the same to the bit.

The coordinator and every member have a network namespace of their own behind one switch, and use TCP. nftables drops packets of
one host: incoming ones, outgoing ones, both, or only those from and to the coordinator. A cut lasts longer or shorter than the
lease. No side gets a reset, and TCP resends the dropped packets after the cut.

    CUTS=300 LONGEST_CUT_S=10 bazel test //tests/chaos:network_cut_test --test_env=CUTS --test_env=LONGEST_CUT_S \
        --test_timeout=7200

CUTS (10), SEED (1), LONGEST_CUT_S (3). Needs root, unshare, iproute2 and nftables; without them the test is skipped.
"""

import collections
import glob
import hashlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOLS = ("unshare", "ip", "nft")
ENTERED = "MUSTER_TEST_IS_THE_SWITCH"
CUTS = int(os.environ.get("CUTS", 10))
SEED = int(os.environ.get("SEED", 1))
SHORTEST_S, LONGEST_S = 0.5, float(os.environ.get("LONGEST_CUT_S", 3))
LEASE_S = 2
PATIENCE_S = 60
LOG_LINES = 60  # printed for each process after a failure
NETWORK = "10.78.0."
COORDINATOR = "coordinator"
MEMBERS = ("ps-0", "ps-1", "ps-2", "worker-0", "worker-1")
HOSTS = (COORDINATOR, *MEMBERS)
# Two ps, and a third ps for replicas. Checkpoints cover the case that both holders of a shard are cut off in turn.
JOB = """
name: cut
model: {{zoo: {{name: gpt, args: {{layers: 2, heads: 2, channels: 64, context: 32, dropout: 0.1}}}}}}
data: {{text: {{path: examples/data/licences, holdout: 0.05}}, batch_size: 8, seed: 1}}
training: {{steps: {steps}, optimizer: {{adamw: {{learning_rate: 1e-3}}}}, schedule: {{constant: {{}}}}, seed: 9}}
resources: {{workers: {{min: 2, max: 2}}, ps: 2, ps_replication: 2}}
checkpoint: {{every_steps: 200, keep_last: 2}}
restart: {{max_restarts: 1000, backoff: 100ms}}
"""
# Kind of cut: its rules for the two chains.
CUT_RULES = {
    "in": ["iifname eth0 drop", None],
    "out": [None, "oifname eth0 drop"],
    "both ways": ["iifname eth0 drop", "oifname eth0 drop"],
    "coordinator": [f"ip saddr {NETWORK}1 drop", f"ip daddr {NETWORK}1 drop"],
}


def why_not():
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "nft", "list", "ruleset"],
                           capture_output=True, text=True, check=False)
    return tried.stderr.strip().splitlines()[-1] if tried.returncode else None


def run(*command, **options):
    told = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if told.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {told.stderr.strip()}")
    return told.stdout


class Network:
    """A switch in this process's own network namespace, and a namespace for each host."""

    def __init__(self):
        # The names of namespaces are files. This mount keeps them in our mount namespace, which ends with us.
        os.makedirs("/run/netns", exist_ok=True)
        run("mount", "-t", "tmpfs", "namespaces", "/run/netns")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "switch", "type", "bridge")
        run("ip", "addr", "add", f"{NETWORK}254/24", "dev", "switch")
        run("ip", "link", "set", "switch", "up")
        for name in HOSTS:
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"to-{name}", "master", "switch", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")

    @staticmethod
    def address(name):
        return f"{NETWORK}{HOSTS.index(name) + 1}"

    @staticmethod
    def cut(name, kind):
        rules = ["add table inet cut"]
        for hook, rule in zip(("input", "output"), CUT_RULES[kind]):
            if rule is not None:
                rules += [f"add chain inet cut {hook} {{ type filter hook {hook} priority 0; }}", f"add rule inet cut {hook} {rule}"]
        run("ip", "netns", "exec", name, "nft", "-f", "-", input="\n".join(rules))

    @staticmethod
    def mend(name):
        run("ip", "netns", "exec", name, "nft", "delete", "table", "inet", "cut")


class NetworkCutTest(unittest.TestCase):
    def setUp(self):
        self.begin = time.monotonic()
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.network = Network()
        self.processes = {}
        self.start(COORDINATOR, "coordinator", f"--listen={NETWORK}1:7070", f"--state_dir={self.folder}/state", f"--lease={LEASE_S}s",
                   "--http=", f"--metrics={NETWORK}1:9400")
        for name in MEMBERS:
            self.start(name, name.split("-")[0], f"--coordinator={NETWORK}1:7070", f"--name={name}", "--transport=tcp")
        self.await_("all are attached", lambda: len(self.members()) == len(MEMBERS))

    def tearDown(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def run(self, result=None):
        super().run(result)
        if not result.wasSuccessful():
            print(f"SEED={SEED} CUTS={CUTS} makes the same cuts")
            for path in sorted(glob.glob(f"{self.folder}/*.log")):
                with open(path, encoding="utf-8", errors="replace") as file:
                    print(f"== {os.path.basename(path)}\n{''.join(file.readlines()[-LOG_LINES:])}")

    def start(self, name, role, *flags):
        # Each process also gets its own host name.
        command = ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c",
                   'echo "$0" > /proc/sys/kernel/hostname && exec "$@"', name, f"{ROOT}/services/{role}/main", "--insecure", *flags]
        with open(f"{self.folder}/{name}.log", "w", encoding="utf-8") as log:
            self.processes[name] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def say(self, text):
        print(f"{time.monotonic() - self.begin:6.1f} s  {text}", flush=True)

    def muster(self, *arguments):
        return run(f"{ROOT}/cli/muster", f"--server={NETWORK}1:7070", *arguments, timeout=PATIENCE_S, cwd=ROOT)

    def members(self):
        try:
            return json.loads(self.muster("members", "-o", "json")).get("members", [])
        except RuntimeError:
            return []  # it is still starting

    def job(self, name):
        return json.loads(self.muster("get", name, "-o", "json"))

    @staticmethod
    def step(job):
        return int(job.get("progress", {}).get("step", 0))

    def submit(self, steps):
        path = f"{self.folder}/job.yaml"
        with open(path, "w", encoding="utf-8") as file:
            file.write(JOB.format(steps=steps))
        return self.muster("submit", "-o", "name", path).strip().rsplit("/", 1)[-1]

    def await_(self, what, condition, patience=PATIENCE_S):
        deadline = time.monotonic() + patience
        while True:
            found = condition()
            if found:
                return found
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            self.assertEqual(ended, [], f"ended while '{what}' was awaited")
            self.assertLess(time.monotonic(), deadline, f"not in {patience} s: {what}")
            time.sleep(0.02)

    # Returns the job at the first poll that shows a step after `step`.
    def await_step_after(self, name, step):
        def further():
            job = self.job(name)
            if "generation" in job:  # a job without a plan is queued
                self.assertIn(job["state"], ("RUNNING", "RECOVERING", "PREPARING"), job)
            return job if job["state"] == "RUNNING" and self.step(job) > step else None
        return self.await_(f"a step after {step}", further)

    def generations(self, name):
        """Returns for each generation its first step, whether shards have no replica, and the ps lost before it."""
        found, lost, number = {}, set(), None
        for event in self.events(name):
            if event["reason"] == "MEMBER_LOST" and event["message"].startswith("ps-"):
                lost.add(event["message"].split()[0])
            elif event["reason"] == "SCHEDULED":
                number, first = map(int, re.fullmatch(r"generation (\d+) on .* from step (\d+)", event["message"]).groups())
                found[number] = {"first": first, "bare": False, "lost": lost}
                lost = set()
            elif event["reason"] == "NO_BACKUP":
                found[number]["bare"] = True
        return found

    # Waits for the second step of a generation, which proves that all replicas are filled.
    def await_replicas(self, name):
        job = self.await_step_after(name, 0)
        while True:
            first = self.generations(name)[int(job["generation"])]["first"]
            seen = self.await_step_after(name, first + 1)
            if seen["generation"] == job["generation"]:
                return seen
            job = seen

    def goes_on(self, name, before):
        """Checks that the generation after `before` starts at most one step back. Returns False if there is not exactly one, or if replicas may have been missing."""
        generations = self.generations(name)
        began = [generation for number, generation in generations.items() if number > int(before["generation"])]
        if len(began) != 1 or len(began[0]["lost"]) > 1 or generations[int(before["generation"])]["bare"]:
            return False
        self.assertGreaterEqual(began[0]["first"], self.step(before) - 1, f"steps were thrown away: {generations}")
        return True

    def hashes(self, name, step):
        [folder] = glob.glob(f"{self.folder}/state/jobs/{name}/checkpoints/step-*{step}")
        found = {}
        for path in sorted(glob.glob(f"{folder}/*.safetensors")):
            with open(path, "rb") as file:
                found[os.path.basename(path)] = hashlib.sha256(file.read()).hexdigest()
        self.assertTrue(found, folder)
        return found

    def cuts(self, name):
        """Yields host, kind and seconds of each cut. Every kind comes once before any comes again. Only hosts that the job needs are cut."""
        rng = random.Random(SEED)
        kinds = []
        for _ in range(CUTS):
            if not kinds:
                kinds = rng.sample(sorted(CUT_RULES), len(CUT_RULES))
            kind = kinds.pop()
            job = self.job(name)
            needed = sorted(job["ps"] + job["workers"])
            yield rng.choice(needed if kind == "coordinator" else [COORDINATOR, *needed]), kind, rng.uniform(SHORTEST_S, LONGEST_S)

    def test_whoever_is_cut_off_the_model_is_the_same(self):
        name = self.submit(1_000_000_000)
        before = self.await_replicas(name)
        after_mending, of_kind, gone_on = [], collections.Counter(), 0
        for host, kind, seconds in self.cuts(name):
            self.network.cut(host, kind)
            time.sleep(seconds)
            self.network.mend(host)
            mended = time.monotonic()
            furthest = max(self.step(before), self.step(self.job(name)))
            job = self.await_step_after(name, furthest)
            after_mending.append(time.monotonic() - mended)
            of_kind[kind] += 1
            gone_on += self.goes_on(name, before)
            self.say(f"{host}, {kind}, {seconds:.1f} s: a new step {after_mending[-1]:.1f} s after it was mended; "
                     f"step {self.step(job)}, generation {job['generation']}")
            before = self.await_replicas(name)
        for event in self.events(name):
            if event["state"] == "RECOVERING" and event["reason"] == "MEMBER_LOST":
                self.assertTrue(any(member in event["message"] for member in MEMBERS), event)
        self.assertGreater(job.get("recovery", {}).get("count", 0), 0, "no cut was longer than the lease")
        self.assertGreater(gone_on, 0, "no recovery is known to have had all replicas")

        self.muster("suspend", name)
        job = self.await_("suspended", lambda: (lambda seen: seen if seen["state"] == "SUSPENDED" else None)(self.job(name)))
        last = self.step(job)
        undisturbed = self.submit(last)
        self.await_("the undisturbed job is done", lambda: self.job(undisturbed)["state"] == "SUCCEEDED",
                    PATIENCE_S + CUTS * LONGEST_S)
        self.assertNotIn("recovery", self.job(undisturbed))
        self.assertEqual(self.hashes(name, last), self.hashes(undisturbed, last))
        after_mending.sort()
        self.say(f"{CUTS} cuts ({', '.join(f'{kind} {count}' for kind, count in sorted(of_kind.items()))}), "
                 f"{job['recovery']['count']} recoveries ({gone_on} of which had all replicas), {last} steps, "
                 f"{job['recovery'].get('steps_again', 0)} of them made again; from the mending to a new step: "
                 f"median {statistics.median(after_mending):.1f} s, 99 % within {after_mending[int(0.99 * (len(after_mending) - 1))]:.1f} s, longest {after_mending[-1]:.1f} s")

    def events(self, name):
        told = json.loads(self.muster("events", name, "--limit", "100000", "-o", "json"))
        return told if isinstance(told, list) else told["events"]


def main():
    reason = why_not()
    if reason:
        # The same format as gtest, for the summary of tools/test.sh.
        print(f"tests/chaos/network_cut_test.py:1: Skipped\nno link is cut: {reason}")
        return
    if ENTERED in os.environ:
        unittest.main()
    # All processes of the process namespace end with it.
    ended = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
                            sys.executable, os.path.abspath(__file__), "-v"], env={**os.environ, ENTERED: "1"}, check=False)
    sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
