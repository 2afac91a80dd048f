#!/usr/bin/env python3
"""Checks the output of `muster render`. Pods are valid in two versions of Kubernetes, are confined as those of k8s/base, and use flags
that the programs have. The Slurm script trains a job, with stubs of srun and scontrol that start real processes."""

import glob
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

import yaml  # noqa: E402

import manifests  # noqa: E402

MUSTER = os.path.join(ROOT, "cli", "muster")
JOB = os.path.join(ROOT, "k8s", "jobs", "char_gpt.yaml")
LINEAR = os.path.join(ROOT, "examples", "linear.yaml")
SCHEMAS = [manifests.load_schema(os.path.join(HERE, f"schema-{version}.json")) for version in ("1.27", "1.37")]
PATIENCE_S = 60


def render(target, *arguments, job=JOB):
    told = subprocess.run([MUSTER, "render", "--target", target, job, *arguments], capture_output=True, text=True, check=False)
    if told.returncode != 0:
        raise AssertionError(told.stderr)
    return told.stdout


def pods_of(thing):
    """Yields (role, count, pod template) for each part of a JobSet or of a Volcano Job."""
    if thing["kind"] == "JobSet":
        for job in thing["spec"]["replicatedJobs"]:
            yield job["name"], job["template"]["spec"]["completions"], job["template"]["spec"]["template"]
    else:
        for task in thing["spec"]["tasks"]:
            yield task["name"], task["replicas"], task["template"]


class Kubernetes(unittest.TestCase):
    TARGETS = [("jobset", ["--insecure"]), ("jobset", []), ("kueue", ["--queue=night", "--state-claim=checkpoints"]),
               ("volcano", ["--insecure", "--data-claim=data"]),
               ("jobset", ["--devices=cuda:all", "--gpus=8", "--workers=2", "--image-prefix=registry.example.com/team/"])]

    def test_knows_every_field_of_what_is_its_own(self):
        for target, arguments in self.TARGETS:
            with self.subTest(target=target, arguments=arguments):
                objects = list(yaml.safe_load_all(render(target, *arguments)))
                group = objects[-1]
                for schema in SCHEMAS:
                    self.assertEqual(manifests.schema_faults(objects[:-1], schema), [])
                    for role, _, template in pods_of(group):
                        self.assertEqual(manifests.type_faults(template, "core.v1.PodTemplateSpec", role, schema), [])
                    for job in group["spec"].get("replicatedJobs", []):
                        self.assertEqual(manifests.type_faults(job["template"]["spec"], "batch.v1.JobSpec", job["name"], schema), [])
                        self.assertEqual(set(job), {"name", "replicas", "template"})

    def test_pods_are_confined_and_start_programs_with_flags_that_they_have(self):
        for target, arguments in self.TARGETS:
            group = list(yaml.safe_load_all(render(target, *arguments)))[-1]
            for role, _, template in pods_of(group):
                with self.subTest(target=target, arguments=arguments, role=role):
                    self.check_pod(role, template["spec"], "--insecure" in arguments)

    def check_pod(self, role, pod, insecure):
        container = pod["containers"][0]
        checker = manifests.Semantics([], "")
        checker.where = role
        checker.check_security({"spec": {"template": {"spec": pod}}})
        checker.check_grace_of_probes(container)
        self.assertEqual(checker.faults, [])
        self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, {volume["name"] for volume in pod["volumes"]})
        variables = {variable["name"] for variable in container.get("env", [])} | {"VC_TASK_INDEX"}
        self.assertLessEqual(set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))), variables)
        flags = {re.sub("=.*", "", word).lstrip("-") for word in container["args"] if word.startswith("--")}
        if role == "submit":
            self.assertEqual(flags - {"tls"}, {"server", "wait", "request-id", "wait-for-coordinator"})
            return
        self.assertEqual("--insecure" in container["args"], insecure)
        program = os.path.join(ROOT, "services", role, "main")
        told = subprocess.run([program, "--helpfull"], capture_output=True, text=True, check=False).stdout
        self.assertLessEqual(flags, set(re.findall(r"^ +--([a-z_]+) \(", told, re.MULTILINE)))

    def test_the_job_that_is_submitted_is_the_one_that_was_given(self):
        objects = list(yaml.safe_load_all(render("jobset", "--insecure", "--set", "training.steps=777")))
        job = yaml.safe_load(objects[0]["data"]["job.yaml"])
        self.assertEqual((job["name"], job["training"]["steps"], job["data"]["text"]["path"]),
                         ("char-gpt", 777, "/data/text.txt"))
        counts = {role: count for role, count, _ in pods_of(objects[-1])}
        self.assertEqual(counts, {"coordinator": 1, "ps": 2, "worker": 4, "submit": 1})

    def test_its_pods_speak_to_one_another_and_to_nobody_else(self):
        objects = list(yaml.safe_load_all(render("jobset", "--insecure")))
        policies = manifests.Policies(objects)
        labels = {role: template["metadata"]["labels"] for role, _, template in pods_of(objects[-1])}
        for source in labels.values():
            self.assertTrue(policies.allows(source, labels["coordinator"], 7070))
            self.assertTrue(policies.allows(source, {"namespace": "kube-system", "k8s-app": "kube-dns"}, 53, "UDP"))
            self.assertFalse(policies.allows({}, source, 7070))
            self.assertFalse(policies.allows(source, {"namespace": "default"}, 443))

    def test_kueue_admits_it_from_its_queue(self):
        group = list(yaml.safe_load_all(render("kueue", "--queue=night")))[-1]
        self.assertTrue(group["spec"]["suspend"])
        self.assertEqual(group["metadata"]["labels"], {"kueue.x-k8s.io/queue-name": "night"})

    def test_volcano_starts_all_or_none(self):
        group = list(yaml.safe_load_all(render("volcano", "--insecure", "--queue=night")))[-1]
        self.assertEqual((group["spec"]["minAvailable"], group["spec"]["queue"]), (8, "night"))


# Behaves as the real srun: starts its tasks, forwards signals, and ends after its tasks. All nodes are this machine.
SRUN = """#!/usr/bin/env python3
import os, re, signal, subprocess, sys
options = [word for word in sys.argv[1:] if word.startswith("--")]
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
known = ("overlap", "nodes", "ntasks", "ntasks-per-node", "nodelist", "output", "distribution")
given = {}
for word in sys.argv[1:len(sys.argv) - len(words)]:
    name, _, value = word[2:].partition("=")
    assert name in known, word
    given[name] = value
tasks = []
signal.signal(signal.SIGTERM, lambda *_: [task.terminate() for task in tasks])
for number in range(int(given["ntasks"])):
    with open(given["output"].replace("%t", str(number)), "wb") as log:
        tasks.append(subprocess.Popen(words, stdout=log, stderr=log))
    with open(os.environ["STUB_PIDS"], "a") as file:
        file.write(f"{tasks[-1].pid}\\n")
sys.exit(max(abs(task.wait()) for task in tasks))
"""
SCONTROL = """#!/bin/sh
[ "$1 $2 $3" = "show hostnames node[1-2]" ] && printf 'localhost\\nlocalhost\\n'
"""


class Slurm(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        programs = os.path.join(self.folder, "programs")
        os.mkdir(programs)
        for role in ("coordinator", "ps", "worker"):
            os.symlink(os.path.join(ROOT, "services", role, "main"), os.path.join(programs, role))
        os.symlink(MUSTER, os.path.join(programs, "muster"))
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            path = os.path.join(self.folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, stat.S_IRWXU)
        self.state = os.path.join(self.folder, "state")
        self.pids = os.path.join(self.folder, "pids")
        self.env = {**os.environ, "PATH": f"{self.folder}:/usr/bin:/bin", "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "node[1-2]",
                    "MUSTER_PROGRAMS": programs, "MUSTER_STATE": self.state, "STUB_PIDS": self.pids}

    def start(self, *arguments, job=LINEAR):
        script = os.path.join(self.folder, "job.sh")
        with open(script, "w", encoding="utf-8") as file:
            file.write(render("slurm", "--insecure", *arguments, job=job))
        return subprocess.Popen(["bash", script], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def assert_all_ended(self):
        with open(self.pids, encoding="utf-8") as file:
            pids = file.read().split()
        self.assertGreaterEqual(len(pids), 4)
        for pid in pids:
            self.assertFalse(os.path.exists(f"/proc/{pid}"), pid)

    def test_trains_the_job_and_ends_everything(self):
        script = self.start()
        told = script.communicate(timeout=PATIENCE_S)[0]
        self.assertEqual(script.returncode, 0, told)
        self.assertIn("SUCCEEDED", told)
        self.assertEqual(len(glob.glob(f"{self.state}/coordinator/jobs/linear-1/checkpoints/step-*")), 1)
        self.assertEqual(sorted(os.listdir(f"{self.state}/logs")),
                         ["coordinator.log", "ps-0.log", "worker-0.log", "worker-1.log"])
        self.assert_all_ended()

    def test_a_job_that_fails_fails_the_script(self):
        # The text of this job is not on this machine.
        script = self.start("--set", "resources.workers.max=2", job=JOB)
        told = script.communicate(timeout=PATIENCE_S)[0]
        self.assertEqual(script.returncode, 1, told)
        self.assertIn("DATA_NOT_FOUND", told)
        self.assert_all_ended()

    def test_when_the_time_is_over_the_job_is_in_a_checkpoint(self):
        script = self.start("--set", "training.steps=100000000")
        server = os.path.join(self.state, "address")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(script.poll())
            if os.path.exists(server):
                with open(server, encoding="utf-8") as file:
                    told = subprocess.run([MUSTER, f"--server={file.read().strip()}", "-o", "json", "get", "linear-1"],
                                          capture_output=True, text=True, check=False)
                if told.returncode == 0 and json.loads(told.stdout)["state"] == "RUNNING":
                    break
            time.sleep(0.1)
        script.send_signal(signal.SIGTERM)
        told = script.communicate(timeout=PATIENCE_S)[0]
        self.assertIn("stopped on request: checkpoints are in", told)
        self.assertEqual(len(glob.glob(f"{self.state}/coordinator/jobs/linear-1/checkpoints/step-*")), 1, told)
        self.assert_all_ended()


if __name__ == "__main__":
    unittest.main()
