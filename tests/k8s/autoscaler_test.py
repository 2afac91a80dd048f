#!/usr/bin/env python3
"""Checks the commands of docs/kubernetes.md that add an autoscaler to a running fleet, or remove it: the number of workers stays the
same. The commands run with a real kubectl; the API server is a stand-in (api_server.py)."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

import api_server  # noqa: E402
import manifests  # noqa: E402

KUBECTL = os.environ.get("MUSTER_KUBECTL", "kubectl")
HAS_KUBECTL = shutil.which(KUBECTL) is not None and "v5" in subprocess.run(
    [KUBECTL, "version", "--client"], capture_output=True, text=True, check=False).stdout
APPLY = "kubectl apply -k my-overlay"
# The name of the autoscaler and the rendered file that contains it, by component. The page uses the first name.
SCALERS = {"keda": ("scaledobject/muster-worker", "scaled"), "hpa": ("hpa/muster-worker", "scaled_hpa")}


def commands(heading):
    """Returns the commands of one section of the page."""
    with open(os.path.join(ROOT, "docs", "kubernetes.md"), encoding="utf-8") as file:
        section = re.search(rf"^### {heading}\n(.*?)(?=^#)", file.read(), re.M | re.S)[1]
    return re.findall(r"^    (kubectl .*)", section, re.M)


@unittest.skipUnless(HAS_KUBECTL, "no kubectl with kustomize 5")
class Autoscaler(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        shutil.copytree(os.path.join(ROOT, "k8s"), os.path.join(self.folder, "k8s"))
        os.mkdir(os.path.join(self.folder, "my-overlay"))

    def start(self, component):
        self.scaler, overlay = SCALERS[component]
        self.api = api_server.ApiServer(manifests.load(os.path.join(HERE, f"{overlay}.yaml")))
        self.addCleanup(self.api.close)
        kubectl = os.path.join(self.folder, "kubectl")
        with open(kubectl, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec {shutil.which(KUBECTL)} --kubeconfig=/dev/null --server={self.api.url} "$@"\n')
        os.chmod(kubectl, stat.S_IRWXU)

    def overlay(self, component=None, replicas=None):
        components = ["prometheus-operator"] + ([component] if component else [])
        with open(os.path.join(self.folder, "my-overlay", "kustomization.yaml"), "w", encoding="utf-8") as file:
            file.write("resources: [../k8s/overlays/gpu-tcp]\n"
                       f"components: [{', '.join(f'../k8s/components/{name}' for name in components)}]\n")
            if replicas is not None:
                file.write(f"replicas: [{{name: muster-worker, count: {replicas}}}]\n")

    def run_command(self, command):
        env = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "HOME": self.folder}
        ran = subprocess.run(["bash", "-o", "pipefail", "-c", command.replace(SCALERS["keda"][0], self.scaler)], cwd=self.folder, env=env,
                             capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, f"{command}\n{ran.stdout}{ran.stderr}")
        return ran.stdout

    def workers(self):
        return self.api.named("StatefulSet", "muster-worker")["spec"]["replicas"]

    def test_added_keeps_the_number_of_workers(self):
        prepare, apply = commands("Adding it to a fleet that runs")
        self.assertEqual(apply, APPLY)
        for component in SCALERS:
            with self.subTest(component=component):
                self.start(component)
                self.overlay(replicas=3)
                self.run_command(APPLY)
                self.overlay(component)
                self.run_command(prepare)
                self.run_command(apply)
                self.assertEqual(self.workers(), 3)
                self.api.named("StatefulSet", "muster-worker")["spec"]["replicas"] = 7  # as the autoscaler does
                self.run_command(APPLY)
                self.assertEqual(self.workers(), 7)

    def test_removed_keeps_the_number_of_workers(self):
        *prepare, apply = commands("Removing it")
        self.assertEqual(apply, APPLY)
        for component in SCALERS:
            with self.subTest(component=component):
                self.start(component)
                self.overlay(component)
                self.run_command(APPLY)
                self.api.named("StatefulSet", "muster-worker")["spec"]["replicas"] = 7  # as the autoscaler does
                told = [self.run_command(command) for command in prepare][-1]
                self.assertEqual(told, "7")
                self.overlay(replicas=told)
                self.run_command(apply)
                self.assertEqual(self.workers(), 7)
                kinds = {thing["kind"] for thing in self.api.stored.values()}
                self.assertFalse(kinds & {"ScaledObject", "HorizontalPodAutoscaler"})

    def test_an_apply_alone_changes_the_number_as_the_page_warns(self):
        self.start("hpa")
        self.overlay(replicas=3)
        self.run_command(APPLY)
        self.overlay("hpa")
        self.run_command(APPLY)
        self.assertEqual(self.workers(), 1)
        self.overlay()
        self.run_command(APPLY)
        self.assertEqual(self.workers(), 2)


if __name__ == "__main__":
    if not HAS_KUBECTL:
        print("tests/k8s/autoscaler_test.py:1: Skipped\nno autoscaler is added to a fleet: there is no kubectl with kustomize 5")
    unittest.main()
