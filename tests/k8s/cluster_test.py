#!/usr/bin/env python3
"""Runs the rendered overlay dev-cpu as a cluster of processes (cluster.py). While a job trains, the test deletes pods, scales the
workers and rolls out an update. The model must be the same to the bit. The overlays cpu-tls and gpu-tcp, with certificates, train
a job each.

Needs root, unshare, iproute2 and nftables; without them the test is skipped and says so. Takes a minute.

The rolling update installs the same programs with another version number. With MUSTER_UPDATE_TO=DIR it installs those of another
commit, whose bazel-bin/services is DIR (or a copy of its */main). With MUSTER_UPDATE_FROM=DIR it updates from those to the present ones.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

import cluster  # noqa: E402
import manifests  # noqa: E402

TOOLS = ("unshare", "nsenter", "ip", "nft")
ENTERED = "MUSTER_TEST_IS_THE_NODE"
PATIENCE_S = 60
LOG_LINES = 40  # of each pod, if a test fails
JOB = os.path.join(ROOT, "k8s", "jobs", "char_gpt.yaml")
# With these settings a step computes the same values whatever the job's number of steps is, and the number of workers is fixed.
FIXED = ["resources.workers={min: 2, max: 2}", "training.schedule={warmup_steps: 50}"]
ENDLESS = "training.steps=1000000"
PROGRAMS = os.path.join(ROOT, "services")
ROLES = ("coordinator", "ps", "worker")
# Matches the labels of muster_build_info in any order.
BUILD_INFO = re.compile(r'^muster_build_info\{(?=.*commit="([^"]*)")(?=.*version="([^"]*)")', re.MULTILINE)


def why_not():
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "nft", "list", "ruleset"],
                           capture_output=True, text=True, check=False)
    return tried.stderr.strip().splitlines()[-1] if tried.returncode else None


def build_of(program):
    """Returns the (version, commit) that the program reports."""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return re.match(r"muster (\S+)\ncommit (\S+)\n", told).groups()


def renumber(program):
    """Changes only the version number in the program, to another one of the same length."""
    version = build_of(program)[0].split("+")[0]
    other = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), version)
    with open(program, "rb") as file:
        code = file.read()
    code = re.sub(rb"(?<![\d.])" + re.escape(version.encode()) + rb"(?=\0)", other.encode(), code)
    with open(program, "wb") as file:
        file.write(code)
    assert build_of(program)[0].split("+")[0] == other, f"{program} is still {build_of(program)}"


class ClusterCase(unittest.TestCase):
    """All tests of a class share a cluster. They run in the order of their names."""

    @classmethod
    def make_folder(cls):
        cls.begin = time.monotonic()
        cls.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        os.chmod(cls.folder, 0o755)

    @classmethod
    def make_images(cls, name, programs=PROGRAMS):
        """Makes an image from `programs`/ROLE/main for each role. Returns the folders by image name."""
        images = {f"muster-{role}": os.path.join(cls.folder, name, role) for role in ROLES}
        for role in ROLES:
            subprocess.run([os.path.join(ROOT, "tools", "image_root.sh"), images[f"muster-{role}"],
                            f"muster-{role}={programs}/{role}/main"], check=True)
        cls.say(f"images '{name}' are made")
        return images

    @staticmethod
    def program_of(images, name):
        return os.path.join(images[name], "usr", "bin", name)

    @classmethod
    def load(cls, overlay):
        return manifests.load(os.path.join(ROOT, "k8s", "rendered", overlay + ".yaml"))

    @classmethod
    def say(cls, text):
        print(f"{time.monotonic() - cls.begin:5.1f} s  {text}", flush=True)

    def run(self, result=None):
        before = len(result.failures) + len(result.errors)
        super().run(result)
        if len(result.failures) + len(result.errors) > before:
            logs = os.path.join(self.cluster.folder, "logs")
            for name in sorted(os.listdir(logs)):
                with open(os.path.join(logs, name), encoding="utf-8", errors="replace") as file:
                    print(f"== {name}\n{''.join(file.readlines()[-LOG_LINES:])}")

    def check_ends(self):
        self.cluster.shut_down()
        for ended in self.cluster.ended:
            self.assertEqual((ended.exit_code, ended.killed, ended.restarts), (0, False, 0), ended)


class Fleet(ClusterCase):
    """The overlay dev-cpu without changes."""

    @classmethod
    def setUpClass(cls):
        cls.make_folder()
        before, after = os.environ.get("MUSTER_UPDATE_FROM"), os.environ.get("MUSTER_UPDATE_TO")
        cls.now = cls.make_images("now", before or PROGRAMS)
        if before or after:
            cls.next = cls.make_images("next", after or PROGRAMS)
        else:
            cls.next = {name: shutil.copytree(image, os.path.join(cls.folder, "next", name), symlinks=True)
                        for name, image in cls.now.items()}
            for name in cls.next:
                renumber(cls.program_of(cls.next, name))
        for name in cls.now:
            builds = [build_of(cls.program_of(images, name)) for images in (cls.now, cls.next)]
            assert builds[0] != builds[1], f"{name}: the update is from and to {builds[0]}"
            cls.say(f"{name} goes from {builds[0]} to {builds[1]}")
        cls.cluster = cluster.Cluster(os.path.join(cls.folder, "node"), cls.load("dev-cpu"), cls.now, cls.say)
        cls.cluster.apply()
        cls.cluster.await_ready(PATIENCE_S)
        cls.say("all pods are ready")

    def muster(self, *arguments, code=0):
        address = self.cluster.service_addresses["muster-coordinator"]
        told = subprocess.run([os.path.join(ROOT, "cli", "muster"), f"--server={address}:7070", *arguments],
                              capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S)
        self.assertEqual(told.returncode, code, f"muster {' '.join(arguments)}: {told.stdout}{told.stderr}")
        return told.stdout

    def submit(self, *settings):
        sets = [word for setting in settings for word in ("--set", setting)]
        return self.muster("-o", "name", "submit", JOB, *sets).strip().rsplit("/", 1)[-1]

    def job(self, job):
        return json.loads(self.muster("-o", "json", "get", job))

    def await_job(self, job, what, holds):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            now = self.job(job)
            if holds(now):
                return now
            self.assertNotIn(now["state"], ("FAILED", "CANCELLED"), now)
            self.assertLess(time.monotonic(), deadline, f"{what}: {json.dumps(now)}")
            time.sleep(0.1)

    def model(self, checkpoint):
        """Returns the SHA-256 of a checkpoint's .safetensors files, by name. The same training writes the same bytes."""
        folder = os.path.join(self.folder, checkpoint)
        self.muster("checkpoint", "get", checkpoint, folder)
        sums = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                with open(os.path.join(folder, name), "rb") as file:
                    sums[name] = hashlib.sha256(file.read()).hexdigest()
        self.assertIn("model-00001-of-00001.safetensors", sums)
        return sums

    def step(self, job):
        return int(self.job(job).get("progress", {}).get("step", 0))

    def workers_of(self, job):
        members = json.loads(self.muster("-o", "json", "members"))["members"]
        return sum(member["role"] == "WORKER" and job in member.get("jobs", []) for member in members)

    def check_builds(self, images):
        """Checks that every pod runs the program of its image, by its own metrics and by the coordinator's list of members."""
        versions = {}
        for name, pod in self.cluster.pods.items():
            if pod.container is None:
                continue
            program = "muster-" + name.split("-")[1]
            path = self.program_of(images, program)
            self.assertTrue(os.path.samefile(f"/proc/{pod.container.pid}/root/usr/bin/{program}", path), name)
            version, commit = build_of(path)
            versions[name] = version
            page = self.cluster.read_page(name, manifests.port_number("metrics", pod.workload), "/metrics")
            self.assertEqual(BUILD_INFO.findall(page), [(commit, version)], name)
        del versions["muster-coordinator-0"]
        members = json.loads(self.muster("-o", "json", "members"))["members"]
        self.assertEqual({member["name"]: member["version"] for member in members}, versions)

    def await_steps(self, job, what):
        """Waits until the job has made a new step."""
        begin = self.step(job)
        self.await_job(job, what, lambda now: now["state"] in ("RUNNING", "SUCCEEDED") and
                       int(now["progress"].get("step", 0)) > begin)

    def test_1_policies_keep_strangers_out(self):
        fleet = self.cluster
        service = fleet.service_addresses["muster-coordinator"]
        fleet.stranger("stranger", {"app.kubernetes.io/name": "stranger"})
        fleet.stranger("client", {"muster.io/client": "true"})
        ps, worker = fleet.pods["muster-ps-0"].address, fleet.pods["muster-worker-0"].address
        for source, address, port, may in [
                ("client", service, 7070, True), ("muster-worker-0", ps, 9500, True), ("muster-ps-1", ps, 9500, True),
                ("muster-worker-0", fleet.pods["muster-worker-1"].address, 9402, False), ("stranger", service, 7070, False),
                ("stranger", ps, 9500, False), ("stranger", ps, 9410, False), ("stranger", worker, 9402, False),
                ("client", ps, 9500, False), ("muster-ps-0", cluster.GATEWAY, 22, False)]:
            with self.subTest(source=source, address=address, port=port):
                self.assertEqual(fleet.can_connect(source, address, port), may)

    def test_2_pods_may_do_nothing_else(self):
        for name, pod in self.cluster.pods.items():
            if pod.container is None:
                continue
            with open(f"/proc/{pod.container.pid}/status", encoding="utf-8") as file:
                status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            self.assertEqual(status["Uid"].split(), ["65532"] * 4, name)
            self.assertEqual([int(status[field], 16) for field in ("CapEff", "CapPrm", "CapBnd")], [0, 0, 0], name)
            self.assertEqual(status["NoNewPrivs"].strip(), "1", name)
            self.assertEqual(status["NSpid"].split()[-1], "1", name)
            self.assertFalse(os.access(f"/proc/{pod.container.pid}/root/bin/sh", os.F_OK), name)

    def test_3_the_example_job_succeeds_as_given(self):
        told = self.muster("submit", "--wait", JOB)
        self.assertIn("char-gpt-1", told)
        self.say("the example job is trained")

    def test_4_a_job_survives_every_pod_and_a_new_version(self):
        fleet = self.cluster
        disturbed = self.submit(ENDLESS, *FIXED)
        self.await_steps(disturbed, "the first steps")
        for name in sorted(fleet.pods):
            if fleet.pods[name].container is None:
                continue
            fleet.replace(name)
            fleet.await_ready(PATIENCE_S)
            self.await_steps(disturbed, f"a step after {name} was deleted")
            self.say(f"step {self.step(disturbed)}: continues without the old {name}")
        self.check_builds(self.now)
        fleet.roll_out(self.next, 2 * PATIENCE_S)
        self.await_steps(disturbed, "a step after the rolling update")
        self.check_builds(self.next)
        self.say(f"step {self.step(disturbed)}: all pods are of the new version")

        saved = json.loads(self.muster("-o", "json", "checkpoint", "save", disturbed))
        step = int(saved["name"].rsplit("/", 1)[1])
        self.muster("cancel", disturbed)
        undisturbed = self.submit(f"training.steps={step}", *FIXED)
        self.muster("wait", undisturbed, "--timeout", f"{2 * PATIENCE_S}s")
        self.say(f"step {step}: trained undisturbed as well")
        self.assertEqual(self.model(f"{undisturbed}@{step}"), self.model(f"{disturbed}@{step}"))

    def test_5_a_job_follows_the_number_of_workers(self):
        fleet = self.cluster
        job = self.submit(ENDLESS)
        self.await_job(job, "two workers", lambda now: now["state"] == "RUNNING" and self.workers_of(job) == 2)
        # Three would not make a job with `logical: 4` faster than two.
        fleet.scale("muster-worker", 4)
        fleet.await_ready(PATIENCE_S)
        self.await_job(job, "four workers", lambda now: now["state"] == "RUNNING" and self.workers_of(job) == 4)
        self.await_steps(job, "a step of four workers")
        self.say(f"step {self.step(job)}: four workers")
        fleet.scale("muster-worker", 1)
        self.await_job(job, "one worker", lambda now: now["state"] == "RUNNING" and self.workers_of(job) == 1)
        self.await_steps(job, "a step of one worker")
        self.say(f"step {self.step(job)}: one worker")
        self.muster("cancel", job)

    def test_6_everything_ends_in_its_grace_period(self):
        self.check_ends()


class SecureFleet(ClusterCase):
    """The overlay cpu-tls without changes, with the certificates that its Certificates request."""

    JOB = JOB

    @classmethod
    def objects(cls):
        return cls.load("cpu-tls")

    @classmethod
    def setUpClass(cls):
        cls.make_folder()
        cls.now = cls.make_images("now")
        objects = cls.objects()
        cls.cluster = cluster.Cluster(os.path.join(cls.folder, "node"), objects, cls.now, cls.say)
        # Issues the certificates, as cert-manager would.
        authority = os.path.join(cls.folder, "authority")
        cls.certs("init", "--dir", authority)
        for certificate in objects:
            if certificate["kind"] == "Certificate" and not certificate["spec"].get("isCA"):
                cls.issue(authority, certificate["spec"])
        cls.cluster.apply()
        cls.cluster.await_ready(PATIENCE_S)
        cls.say("all pods are ready")

    @classmethod
    def certs(cls, *arguments):
        subprocess.run([os.path.join(ROOT, "cli", "muster"), "certs", *arguments], check=True, capture_output=True)

    @classmethod
    def issue(cls, authority, spec):
        role = spec["uris"][0].removeprefix("spiffe://muster/")
        folder = os.path.join(cls.folder, spec["secretName"])
        hosts = [word for host in spec.get("dnsNames", []) + spec.get("ipAddresses", []) for word in ("--host", host)]
        person = ["ann"] if role == "admin" else []
        cls.certs("issue", role, *person, "--ca", authority, "--out", folder, *hosts)
        files = cls.cluster.secrets[spec["secretName"]] = {}
        for name in ("tls.crt", "tls.key", "ca.crt"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                files[name] = file.read()

    def muster(self, *arguments):
        """Runs `muster` in the network of the coordinator's pod, where connections of a port-forward arrive."""
        return subprocess.run([*self.cluster.in_pod("muster-coordinator-0"), os.path.join(ROOT, "cli", "muster"),
                               "--server=localhost:7070", *arguments], capture_output=True, text=True, check=False,
                              timeout=2 * PATIENCE_S)

    def test_1_who_shows_the_administrators_certificate_trains_a_job(self):
        admin = "--tls=" + os.path.join(self.folder, "muster-admin-tls")
        told = self.muster(admin, "submit", "--wait", self.JOB)
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
        self.say("a job is trained")

    def test_2_nobody_else_does(self):
        self.assertNotEqual(self.muster("list").returncode, 0)
        worker = "--tls=" + os.path.join(self.folder, "muster-worker-tls")
        told = self.muster(worker, "list")
        self.assertEqual(told.returncode, 5, told.stdout + told.stderr)  # forbidden

    def test_3_everything_ends_in_its_grace_period(self):
        self.check_ends()


class GpuFleet(SecureFleet):
    """The overlay gpu-tcp without GPUs."""

    JOB = os.path.join(ROOT, "examples", "linear.yaml")

    @classmethod
    def objects(cls):
        objects = cls.load("gpu-tcp")
        settings = next(thing for thing in objects if thing["kind"] == "ConfigMap")["data"]
        settings["worker.flags"] = settings["worker.flags"].replace("--devices=cuda:all", "--devices=cpu")
        cls.now["muster-worker-cuda"] = cls.now["muster-worker"]
        return objects


def main():
    reason = why_not()
    if reason:
        # The format of gtest, for the summary of tools/test.sh.
        print(f"tests/k8s/cluster_test.py:1: Skipped\nmanifests are not run: {reason}")
        return
    if ENTERED in os.environ:
        unittest.main()
    # Each class gets its own node. The processes in its process namespace end with it.
    for case in sys.argv[1:] or ["Fleet", "SecureFleet", "GpuFleet"]:
        ended = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation",
                                "private", sys.executable, os.path.abspath(__file__), "-v", case],
                               env={**os.environ, ENTERED: "1"}, check=False)
        if ended.returncode != 0:
            sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
