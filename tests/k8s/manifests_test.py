#!/usr/bin/env python3
"""Checks the rendered manifests against two versions of Kubernetes' schema, each other, the programs and the example job. Also
checks that rendering gives the committed bytes, and that the checks find each of many injected faults."""

import base64
import copy
import functools
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

import yaml  # noqa: E402

import manifests  # noqa: E402

RENDERED = sorted(glob.glob(os.path.join(ROOT, "k8s", "rendered", "*.yaml"))) + [
    os.path.join(HERE, f"{name}.yaml") for name in ("everything", "scaled", "scaled_hpa")]
VERSIONS = ["1.27", "1.37"]
PROGRAMS = {role: os.path.join(ROOT, "services", role, "main") for role in ("coordinator", "ps", "worker")}


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


VERSION = read("VERSION").strip()
PAGES = ("kubernetes.md", "kubernetes_settings.md")


def yaml_of_the_documents(first):
    """Returns the blocks of YAML of both pages whose beginning matches the regular expression `first`."""
    return [block for page in PAGES
            for block in re.findall(rf"^```yaml\n({first}.*?)^```", read("docs", page), re.MULTILINE | re.DOTALL)]


def overlays_of_the_documents():
    return yaml_of_the_documents("# my-[a-z]+/kustomization.yaml")


@functools.lru_cache(maxsize=None)
def program_flags():
    """Returns the flags by role. --help would omit the flags of libraries."""
    accepted = {}
    for role, program in PROGRAMS.items():
        told = subprocess.run([program, "--helpfull"], capture_output=True, text=True, check=False).stdout
        accepted[role] = set(re.findall(r"^ +--([a-z_]+) \(", told, re.MULTILINE))
        if "metrics" not in accepted[role]:
            raise AssertionError(f"{program} --helpfull names no --metrics:\n{told}")
    return accepted


@functools.lru_cache(maxsize=None)
def schemas():
    return [manifests.load_schema(os.path.join(HERE, f"schema-{version}.json")) for version in VERSIONS]


def faults_of(objects):
    faults = [fault for schema in schemas() for fault in manifests.schema_faults(objects, schema)]
    # The semantic checks assume that the schema is correct.
    return faults or manifests.Semantics(objects, VERSION, program_flags(), schemas()[0]).check()


class Manifests(unittest.TestCase):
    def test_have_no_faults(self):
        self.assertGreaterEqual(len(RENDERED), 4)
        for path in RENDERED:
            with self.subTest(path=os.path.basename(path)):
                self.assertEqual(faults_of(manifests.load(path)), [])

    def test_are_what_kustomize_makes_of_the_overlays(self):
        with tempfile.TemporaryDirectory() as folder:
            told = subprocess.run([os.path.join(ROOT, "k8s", "render.sh"), folder], capture_output=True, text=True, check=False)
            if told.returncode == 69:
                # The format of gtest, for the summary of tools/test.sh.
                print(f"tests/k8s/manifests_test.py:1: Skipped\nmanifests are not rendered again: {told.stderr.strip()}")
                self.skipTest(told.stderr.strip())
            self.assertEqual(told.returncode, 0, told.stderr)
            made = sorted(glob.glob(os.path.join(folder, "**", "*.yaml"), recursive=True))
            self.assertEqual([os.path.basename(path) for path in made],
                             [os.path.basename(path) for path in RENDERED])
            for path in made:
                with open(path, encoding="utf-8") as file:
                    self.assertEqual(file.read(), read(os.path.relpath(path, folder)),
                                     f"{os.path.basename(path)} is not up to date: run k8s/render.sh")

    def render_overlay(self, folder, text):
        """Renders an overlay beside `folder`/k8s, checks it, and returns its objects."""
        kubectl = os.environ.get("MUSTER_KUBECTL", "kubectl")
        overlay = os.path.join(folder, "my-overlay")
        os.makedirs(overlay, exist_ok=True)
        with open(os.path.join(overlay, "kustomization.yaml"), "w", encoding="utf-8") as file:
            file.write(text)
        rendered = os.path.join(folder, "rendered.yaml")
        with open(rendered, "w", encoding="utf-8") as file:
            subprocess.run([kubectl, "kustomize", overlay], check=True, stdout=file)
        objects = manifests.load(rendered)
        if any(thing["kind"] == "StatefulSet" for thing in objects):
            self.assertEqual(faults_of(objects), [], text)
        return objects

    def require_kubectl(self):
        kubectl = os.environ.get("MUSTER_KUBECTL", "kubectl")
        if shutil.which(kubectl) is None or "v5" not in subprocess.run([kubectl, "version", "--client"], capture_output=True, text=True,
                                                                        check=False).stdout:
            print("tests/k8s/manifests_test.py:3: Skipped\noverlays of the documents are not rendered: there is no kubectl with kustomize 5")
            self.skipTest("no kubectl with kustomize 5")

    def test_overlays_of_the_documents_have_no_faults(self):
        self.require_kubectl()
        overlays = overlays_of_the_documents()
        self.assertGreaterEqual(len(overlays), 5)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(os.path.join(ROOT, "k8s"), os.path.join(folder, "k8s"))
            for overlay in overlays:
                if "tls-static" not in overlay:  # it needs files that make.sh writes
                    with self.subTest(overlay=overlay):
                        self.render_overlay(folder, overlay)

    def test_the_complete_overlay_has_the_sizes_of_the_example(self):
        self.require_kubectl()
        # The last column but one of docs/sizing.md, by row: the first number of the cell.
        rows = {cells[0].strip(): cells[-2].strip() for cells in
                (line.strip("|").split("|") for line in read("docs", "sizing.md").splitlines() if line.startswith("|")) if len(cells) == 4}
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(os.path.join(ROOT, "k8s"), os.path.join(folder, "k8s"))
            overlay = next(overlay for overlay in overlays_of_the_documents() if overlay.startswith("# my-overlay/"))
            objects = self.render_overlay(folder, overlay)
        sets = {thing["metadata"]["name"].removeprefix("muster-"): thing["spec"] for thing in objects if thing["kind"] == "StatefulSet"}
        ps, worker = (sets[role]["template"]["spec"]["containers"][0] for role in ("ps", "worker"))
        self.assertEqual(f"{sets['ps']['replicas']} with 22.3 GB each", rows["ps"])
        self.assertIn(f"--memory_bytes={float(rows['`--memory_bytes` of a ps']):.0f}", ps["args"])
        self.assertEqual(ps["resources"]["limits"]["memory"], rows["memory limit of a ps"])
        self.assertEqual(sets["worker"]["replicas"], 8)
        self.assertIn(f"seconds a step on {worker['resources']['limits']['cpu']} cores a worker", rows)
        self.assertGreater(manifests.quantity(worker["resources"]["limits"]["memory"]),
                           1.1 * manifests.quantity(rows["a worker on CPUs"].replace(" GiB", "Gi")))
        state = sets["coordinator"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
        self.assertGreater(manifests.quantity(state), 1.5 * manifests.quantity(rows["disk of a job, `keep_last: 3`"].replace(" GB", "G")))

    def test_documents_name_files_that_exist(self):
        for block in re.findall(r"^ {4,}.*$", "\n".join(read("docs", page) for page in PAGES), re.MULTILINE):
            for path in re.findall(r"(?<=-k )k8s/[\w/-]+|\bk8s/[\w/-]+\.(?:yaml|sh)\b", block):
                self.assertTrue(os.path.exists(os.path.join(ROOT, path)), block)

    def test_take_certificates_from_files(self):
        """Renders the overlay of the documents with the component tls-static."""
        self.require_kubectl()
        muster = os.path.join(ROOT, "cli", "muster")
        with tempfile.TemporaryDirectory() as folder:
            k8s = os.path.join(folder, "k8s")
            shutil.copytree(os.path.join(ROOT, "k8s"), k8s)
            component = os.path.join(k8s, "components", "tls-static")
            for _ in range(2):  # the second run renews them
                subprocess.run([os.path.join(component, "make.sh"), "--lifetime", "30d"], check=True, env={**os.environ, "MUSTER": muster})
            objects = self.render_overlay(folder, next(overlay for overlay in overlays_of_the_documents() if "tls-static" in overlay))
            for role in ("coordinator", "ps", "worker"):
                secret = next(thing for thing in objects if thing["kind"] == "Secret" and thing["metadata"]["name"] == f"muster-{role}-tls")
                certificate = os.path.join(folder, role + ".crt")
                with open(certificate, "wb") as file:
                    file.write(base64.b64decode(secret["data"]["tls.crt"]))
                shown = subprocess.run([muster, "certs", "show", certificate], capture_output=True, text=True, check=True).stdout
                self.assertRegex(shown, rf"Identity: +{role}\n")
            shown = subprocess.run([muster, "certs", "show", os.path.join(component, "coordinator")], capture_output=True, text=True,
                                   check=True).stdout
            for name in ("muster-coordinator,", "localhost,", "muster-coordinator-2.muster-coordinator-pods"):
                self.assertIn(name, shown)

    def test_the_scrape_configuration_of_the_document_is_valid(self):
        blocks = yaml_of_the_documents("rule_files:")
        self.assertEqual(len(blocks), 1)
        configuration = yaml.safe_load(blocks[0])
        job = configuration["scrape_configs"][0]
        monitor = next(thing for thing in manifests.load(os.path.join(HERE, "everything.yaml")) if thing["kind"] == "PodMonitor")
        endpoint = monitor["spec"]["podMetricsEndpoints"][0]
        self.assertEqual(job["honor_labels"], endpoint["honorLabels"])
        self.assertEqual(job["scrape_interval"], endpoint["interval"])
        self.assertEqual(job["relabel_configs"][0]["regex"], endpoint["port"])
        relabelling = endpoint["relabelings"][0]
        self.assertIn({"source_labels": relabelling["sourceLabels"], "target_label": relabelling["targetLabel"]}, job["relabel_configs"])
        promtool = shutil.which("promtool")
        if promtool is None:
            print("tests/k8s/manifests_test.py:4: Skipped\nthe scrape configuration is not checked: there is no promtool")
            self.skipTest("there is no promtool")
        self.assertEqual(job.pop("kubernetes_sd_configs"), [{"role": "pod", "namespaces": {"names": ["muster"]}}])  # Debian's promtool lacks it
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.path.join(ROOT, "k8s", "alerts", "muster.rules.yaml"), folder)
            path = os.path.join(folder, "prometheus.yaml")
            with open(path, "w", encoding="utf-8") as file:
                yaml.safe_dump({**configuration, "scrape_configs": [job]}, file)
            told = subprocess.run([promtool, "check", "config", path], text=True, capture_output=True, check=False)
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)

    def test_have_alerts_that_prometheus_understands(self):
        rules = next(thing for thing in manifests.load(os.path.join(HERE, "everything.yaml")) if thing["kind"] == "PrometheusRule")
        promtool = shutil.which("promtool")
        if promtool is None:
            print("tests/k8s/manifests_test.py:2: Skipped\nalerts are not checked: there is no promtool")
            self.skipTest("there is no promtool")
        told = subprocess.run([promtool, "check", "rules", "/dev/stdin"], input=yaml.safe_dump(rules["spec"]), text=True,
                              capture_output=True, check=False)
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
        self.assertIn(f"{read('k8s', 'alerts', 'muster.rules.yaml').count('- alert:')} rules found", told.stdout)

    def test_a_first_look_fits_what_the_document_asks_for(self):
        text = read("docs", "kubernetes.md")
        self.assertIn("statefulset/muster-worker --replicas=4", text)
        self.assertIn("four processors and 6 GiB free", text)
        for overlay in (DEV, CPU):
            needs = {"cpu": 0, "memory": 0}
            for thing in manifests.load(os.path.join(ROOT, "k8s", "rendered", f"{overlay}.yaml")):
                if thing["kind"] == "StatefulSet":
                    # The document scales to this number of workers.
                    replicas = 4 if thing["metadata"]["name"] == "muster-worker" else thing["spec"]["replicas"]
                    for container in manifests.containers(thing):
                        for resource in needs:
                            needs[resource] += replicas * manifests.quantity(container["resources"]["requests"][resource])
            self.assertLessEqual(needs["cpu"], 4, overlay)
            self.assertLessEqual(needs["memory"], 6 << 30, overlay)

    def test_the_overlay_with_certificates_for_processors_is_whole(self):
        objects = manifests.load(os.path.join(ROOT, "k8s", "rendered", f"{CPU}.yaml"))
        kinds = {thing["kind"] for thing in objects}
        self.assertLessEqual({"Certificate", "PodMonitor", "PrometheusRule"}, kinds)
        dashboards = next(thing for thing in objects if thing["metadata"]["name"] == "muster-dashboards")
        self.assertEqual(dashboards["metadata"]["labels"]["grafana_dashboard"], "1")
        files = glob.glob(os.path.join(ROOT, "k8s", "dashboards", "*.json"))
        self.assertEqual(sorted(map(os.path.basename, files)), sorted(dashboards["data"]))
        for path in files:
            self.assertEqual(dashboards["data"][os.path.basename(path)], read("k8s", "dashboards", os.path.basename(path)),
                             "run k8s/render.sh")
        # `kubectl apply` keeps the whole object in an annotation, and annotations have at most 256 KiB.
        self.assertLess(len(yaml.safe_dump(dashboards)), 200 << 10)
        images = {container["image"] for thing in objects if thing["kind"] == "StatefulSet" for container in manifests.containers(thing)}
        self.assertEqual(images, {f"muster-{role}:{VERSION}" for role in PROGRAMS})
        built = re.search(r"targets=\((\w.*)\)", read("tools", "images.sh"))[1].split()  # without arguments, for processors
        self.assertLessEqual({image.removeprefix("muster-").partition(":")[0] for image in images}, set(built))
        settings = next(thing["data"] for thing in objects if thing["metadata"]["name"].startswith("muster-settings"))
        self.assertIn("--devices=cpu\n", settings["worker.flags"])
        self.assertIn("--tls=", settings["security.flags"])
        self.assertIn("--data_security=encrypt", settings["links.flags"])

    def test_pods_of_the_document_are_of_this_kubernetes_and_these_claims(self):
        pods = [thing for block in yaml_of_the_documents("apiVersion:") for thing in yaml.safe_load_all(block)]
        self.assertEqual([pod["metadata"]["name"] for pod in pods], ["restore", "fill"])
        objects = manifests.load(os.path.join(HERE, "everything.yaml"))
        claims = {thing["metadata"]["name"] for thing in objects if thing["kind"] == "PersistentVolumeClaim"} | {
            f"{claim['metadata']['name']}-{thing['metadata']['name']}-0" for thing in objects if thing["kind"] == "StatefulSet"
            for claim in thing["spec"].get("volumeClaimTemplates", [])}
        restore = pods[0]["metadata"]["labels"]
        ha = manifests.load(os.path.join(ROOT, "k8s", "rendered", "ha.yaml"))
        policies = manifests.Policies(ha)
        self.assertTrue(policies.allows(restore, {"namespace": "etcd"}, 2379))
        self.assertTrue(policies.allows(restore, {"namespace": "kube-system", "k8s-app": "kube-dns"}, 53, "UDP"))
        for thing in ha + objects:  # no selector takes it for a coordinator
            if thing["kind"] in ("Service", "StatefulSet", "PodDisruptionBudget", "PodMonitor"):
                selector = thing["spec"]["selector"]
                self.assertFalse(manifests.selects({"matchLabels": selector} if thing["kind"] == "Service" else selector, restore),
                                 manifests.name_of(thing))
        for pod in pods:
            for schema in schemas():
                self.assertEqual(manifests.schema_faults([pod], schema), [])
            checker = manifests.Semantics([], VERSION)
            checker.where = pod["metadata"]["name"]
            checker.check_security({"spec": {"template": pod}})
            self.assertEqual(checker.faults, [])
            for volume in pod["spec"]["volumes"]:
                if "persistentVolumeClaim" in volume:
                    self.assertIn(volume["persistentVolumeClaim"]["claimName"], claims)
            for container in pod["spec"]["containers"]:
                role = container["image"].rpartition("/")[2].removeprefix("muster-").removesuffix(":" + VERSION)
                flags = {word.partition("=")[0].lstrip("-") for word in container.get("args", [])}
                self.assertLessEqual(flags, program_flags().get(role, set()), container["image"])

    def test_backup_runs_a_command_that_exists_and_keeps_new_files(self):
        cron = next(thing for thing in manifests.load(os.path.join(HERE, "everything.yaml")) if thing["kind"] == "CronJob")
        pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        told = subprocess.run([os.path.join(ROOT, "cli", "muster"), *pod["initContainers"][0]["args"], "--help"], capture_output=True,
                              text=True, check=True).stdout
        self.assertIn("Usage: muster admin backup", told)
        with tempfile.TemporaryDirectory() as folder:
            for name in ("new.muster", "2020-01-01.muster", "2020-01-02.muster"):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(name)
            os.utime(os.path.join(folder, "2020-01-01.muster"), (0, 0))
            subprocess.run([word.replace("/backup", folder) for word in pod["containers"][0]["command"]], check=True)
            kept = sorted(os.listdir(folder))
            self.assertEqual(kept[0], "2020-01-02.muster")
            self.assertRegex(kept[1], r"^20\d\d-\d\d-\d\d\.muster$")
            self.assertEqual(len(kept), 2)
            with open(os.path.join(folder, kept[1]), encoding="utf-8") as file:
                self.assertEqual(file.read(), "new.muster")

    def test_programs_have_an_image_that_fits_their_pods(self):
        objects = manifests.load(os.path.join(HERE, "everything.yaml"))
        sets = {thing["metadata"]["name"]: thing["spec"] for thing in objects if thing["kind"] == "StatefulSet"}
        worker = sets["muster-worker"]["template"]["spec"]["containers"][0]
        self.assertEqual(worker["image"], f"muster-worker-program:{VERSION}")
        flags = next(thing["data"]["worker.flags"] for thing in objects if thing["metadata"]["name"].startswith("muster-settings"))
        self.assertIn("\n--allow_programs\n", flags)
        self.assertIn("\n--devices=cpu\n", flags, "the worker of the wheel has no CUDA")
        for flag in read("k8s", "base", "settings", "worker.flags").splitlines():
            self.assertIn(flag, flags.splitlines())
        image = dict(re.findall(r"^(USER|WORKDIR|EXPOSE|ENTRYPOINT) (.*)$", read("Dockerfile.program"), re.MULTILINE))
        user = next(thing["spec"]["template"]["spec"]["securityContext"] for thing in manifests.load(RENDERED[0])
                    if thing["kind"] == "StatefulSet")
        self.assertEqual(image["USER"], f"{user['runAsUser']}:{user['runAsGroup']}")
        self.assertEqual(sorted(map(int, image["EXPOSE"].split())), sorted(port["containerPort"] for port in worker["ports"]))
        wheel = read("python", "build_wheel.py")
        self.assertIn(f"\n{json.loads(image['ENTRYPOINT'])[0]} = muster._programs:", wheel)
        distribution = re.search(r'^DISTRIBUTION = "(\w+)"', wheel, re.MULTILINE)[1]
        self.assertIn(f"pip install --no-cache-dir {image['WORKDIR']}/{distribution}-*.whl", read("Dockerfile.program"))
        job = yaml.safe_load(read("examples", "python", "program_job.yaml"))
        self.assertNotIn("directory", job["program"], "the command starts in the WORKDIR of the image")
        self.assertIn(os.path.dirname(job["model"]["external"]["path"]), [mount["mountPath"] for mount in worker["volumeMounts"]])
        self.assertLessEqual(job["resources"]["ps"], sets["muster-ps"]["replicas"])

    def test_give_the_example_job_what_it_asks_for(self):
        for overlay in (DEV, CPU):
            self.check_the_example_job(manifests.load(os.path.join(ROOT, "k8s", "rendered", f"{overlay}.yaml")))

    def check_the_example_job(self, objects):
        job_path = os.path.join(ROOT, "k8s", "jobs", "char_gpt.yaml")
        text = os.path.join(ROOT, "k8s", "components", "example-text", "text.txt")  # the workers' path does not exist here
        told = subprocess.run([os.path.join(ROOT, "cli", "muster"), "validate", job_path, "--set", f"data.text.path={text}"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
        job = yaml.safe_load(read("k8s", "jobs", "char_gpt.yaml"))
        workloads = {thing["metadata"]["name"]: thing for thing in objects if thing["kind"] == "StatefulSet"}
        self.assertLessEqual(job["resources"]["ps"], workloads["muster-ps"]["spec"]["replicas"])
        self.assertLessEqual(job["resources"]["workers"]["min"], workloads["muster-worker"]["spec"]["replicas"])
        worker = workloads["muster-worker"]["spec"]["template"]["spec"]
        folder, name = os.path.split(job["data"]["text"]["path"])
        mounts = [mount["name"] for mount in worker["containers"][0]["volumeMounts"] if mount["mountPath"] == folder]
        self.assertEqual(len(mounts), 1, f"nothing is mounted at {folder}")
        config = next(volume["configMap"]["name"] for volume in worker["volumes"] if volume["name"] == mounts[0])
        data = next(thing["data"] for thing in objects if thing["kind"] == "ConfigMap" and thing["metadata"]["name"] == config)
        self.assertIn(name, data)


# Faults. Each is (part of the message, overlay, kind, name, change of the object).


def workload(change):
    """Returns a change of a StatefulSet that applies `change` to its pod spec."""
    return lambda thing: change(thing["spec"]["template"]["spec"])


def job(change):
    """Returns a change of a CronJob that applies `change` to its pod spec."""
    return lambda thing: change(thing["spec"]["jobTemplate"]["spec"]["template"]["spec"])


def container(change):
    return workload(lambda pod: change(pod["containers"][0]))


def delete(*path):
    def change(thing):
        for key in path[:-1]:
            thing = thing[key]
        del thing[path[-1]]
    return change


def put(value, *path):
    def change(thing):
        for key in path[:-1]:
            thing = thing[key]
        thing[path[-1]] = value
    return change


def settings(file, old, new):
    def change(thing):
        if old not in thing["data"][file]:
            raise AssertionError(f"there is no {old} in {file}")
        thing["data"][file] = thing["data"][file].replace(old, new)
    return change


DEV, CPU, TCP, HA, ALL, KEDA, HPA = "dev-cpu", "cpu-tls", "gpu-tcp", "ha", "everything", "scaled", "scaled_hpa"
SET, MAP, NET, SCALED = "StatefulSet", "ConfigMap", "NetworkPolicy", "ScaledObject"
FAULTS = [
    ("replica: no such field", DEV, SET, "muster-ps", put(3, "spec", "replica")),
    ("must be of type integer, is '2'", DEV, SET, "muster-ps", put("2", "spec", "replicas")),
    ("template: is missing", DEV, SET, "muster-ps", delete("spec", "template")),
    ("no such kind", DEV, SET, "muster-ps", put("apps/v1beta1", "apiVersion")),
    ("livenessprobe: no such field", DEV, SET, "muster-worker",
     container(lambda it: it.update(livenessprobe=it.pop("livenessProbe")))),
    ("must be a list", DEV, SET, "muster-worker", container(put("--name=x", "args"))),
    ("does not select its own pods", DEV, SET, "muster-ps",
     put("muster-pss", "spec", "selector", "matchLabels", "app.kubernetes.io/name")),
    ("a version in a field that cannot change", DEV, SET, "muster-coordinator",
     put({"app.kubernetes.io/version": "0.3.0"}, "spec", "volumeClaimTemplates", 0, "metadata", "labels")),
    ("is no headless Service", DEV, SET, "muster-worker", put("muster-workers", "spec", "serviceName")),
    ("would never all start", DEV, SET, "muster-worker", put("OrderedReady", "spec", "podManagementPolicy")),
    ("two coordinators", DEV, SET, "muster-coordinator", put(2, "spec", "replicas")),
    ("several coordinators need etcd", HA, SET, "muster-coordinator", container(lambda it: it["args"].pop(1))),
    ("need a shared state folder", HA, "PersistentVolumeClaim", "muster-state", put(["ReadWriteOnce"], "spec", "accessModes")),
    ("there is no such pod", HA, SET, "muster-coordinator", put(2, "spec", "replicas")),
    ("must ask port 9410 for ''", HA, SET, "muster-coordinator",
     container(put("coordinator", "readinessProbe", "grpc", "service"))),
    ("cannot reach etcd", HA, NET, "muster-coordinator-etcd", put(2380, "spec", "egress", 0, "ports", 0, "port")),
    ("dnsNames", HA, "Certificate", "muster-coordinator", lambda thing: thing["spec"]["dnsNames"].pop()),
    ("--store_tls=/etc/muster/etcd2: no Secret", HA, SET, "muster-coordinator",
     container(lambda it: it["args"].__setitem__(2, "--store_tls=/etc/muster/etcd2"))),
    ("no ServiceAccount", DEV, SET, "muster-ps", workload(put("default", "serviceAccountName"))),
    ("no PriorityClass", DEV, SET, "muster-ps", workload(put("muster-pss", "priorityClassName"))),
    ("no ConfigMap", DEV, SET, "muster-ps", workload(lambda pod: pod["volumes"][0].update(configMap={"name": "muster-settings"}))),
    ("no object makes the Secret", TCP, SET, "muster-ps",
     workload(lambda pod: pod["volumes"][1]["secret"].update(secretName="muster-tls"))),
    ("no PersistentVolumeClaim", TCP, "PersistentVolumeClaim", "muster-data", put("data", "metadata", "name")),
    ("no volume tmp2 to mount", DEV, SET, "muster-ps", container(lambda it: it["volumeMounts"][-1].update(name="tmp2"))),
    ("would count as an empty one", TCP, SET, "muster-ps", workload(delete("topologySpreadConstraints", 0, "nodeTaintsPolicy"))),
    ("a token of the Kubernetes API", DEV, SET, "muster-ps", workload(delete("automountServiceAccountToken"))),
    ("hostNetwork", DEV, SET, "muster-worker", workload(put(True, "hostNetwork"))),
    ("is a hostPath", DEV, SET, "muster-worker",
     workload(lambda pod: pod["volumes"].append({"name": "tmp", "hostPath": {"path": "/tmp"}}))),
    ("allowPrivilegeEscalation", DEV, SET, "muster-ps", container(delete("securityContext", "allowPrivilegeEscalation"))),
    ("readOnlyRootFilesystem", DEV, SET, "muster-ps", container(put(False, "securityContext", "readOnlyRootFilesystem"))),
    ("seccompProfile", DEV, SET, "muster-ps", workload(delete("securityContext", "seccompProfile"))),
    ("ALL must be dropped", DEV, SET, "muster-ps", container(delete("securityContext", "capabilities"))),
    ("none may be added", DEV, SET, "muster-ps", container(put(["IPC_LOCK"], "securityContext", "capabilities", "add"))),
    ("runAsNonRoot", DEV, SET, "muster-ps", workload(put(0, "securityContext", "runAsUser"))),
    ("is not of version", DEV, SET, "muster-ps", container(put("muster-ps:latest", "image"))),
    ("no request or no limit of memory", DEV, SET, "muster-coordinator", container(delete("resources", "limits", "memory"))),
    ("requests and limits differ", TCP, SET, "muster-worker", container(put("17", "resources", "limits", "cpu"))),
    ("more memory is requested", DEV, SET, "muster-coordinator", container(put("1Gi", "resources", "limits", "memory"))),
    ("the program has no such flag", DEV, MAP, "muster-settings", settings("ps.flags", "--metrics", "--metric")),
    ("is no flag", DEV, MAP, "muster-settings", settings("ps.flags", "--metrics", "metrics")),
    ("is in no ConfigMap", DEV, SET, "muster-ps", container(put("--flagfile=/etc/muster/settings/pss.flags", "args", 0))),
    ("the port data is 9501", DEV, SET, "muster-ps", container(put(9501, "ports", 0, "containerPort"))),
    ("not reachable from outside of the pod", DEV, MAP, "muster-settings", settings("coordinator.flags", "0.0.0.0:7070", "127.0.0.1:7070")),
    ("there is no variable POD_NAME", DEV, SET, "muster-worker", container(delete("env"))),
    ("there is no such Service", DEV, MAP, "muster-settings", settings("members.flags", "muster-coordinator", "coordinator")),
    ("does not fit the grace period", DEV, MAP, "muster-settings", settings("ps.flags", "280s", "5m")),
    ("is on no volume", DEV, MAP, "muster-settings", settings("coordinator.flags", "/var/lib/muster", "/tmp2")),
    ("jobs could read", DEV, MAP, "muster-settings", settings("worker.flags", "--data_roots=/data", "")),
    ("--tls or --insecure", DEV, MAP, "muster-settings", settings("security.flags", "--insecure", "# nothing")),
    ("no Secret is mounted there as a whole", TCP, SET, "muster-ps",
     container(lambda it: it["volumeMounts"][1].update(subPath="tls.crt"))),
    ("every process that reaches the port", DEV, MAP, "muster-settings", settings("links.flags", "auth", "none")),
    ("readinessProbe must ask", DEV, SET, "muster-ps", container(put("worker", "readinessProbe", "grpc", "service"))),
    ("livenessProbe must ask", DEV, SET, "muster-ps", container(put(9401, "livenessProbe", "grpc", "port"))),
    *((f"{probe}: terminationGracePeriodSeconds", DEV, SET, f"muster-{role}", container(delete(probe, "terminationGracePeriodSeconds")))
      for role in PROGRAMS for probe in ("startupProbe", "livenessProbe")),
    ("livenessProbe: terminationGracePeriodSeconds", DEV, SET, "muster-ps",
     container(put(300, "livenessProbe", "terminationGracePeriodSeconds"))),
    ("would kill a busy process", DEV, SET, "muster-ps", container(put(1, "livenessProbe", "failureThreshold"))),
    ("selects the pods of 0 workloads", DEV, "Service", "muster-ps", put({"app": "ps"}, "spec", "selector")),
    ("the pods have no port", DEV, "Service", "muster-ps", put("grpc", "spec", "ports", 0, "targetPort")),
    ("would have no name", DEV, "Service", "muster-worker", delete("spec", "publishNotReadyAddresses")),
    ("would block every node drain", DEV, "PodDisruptionBudget", "muster-ps", put(0, "spec", "maxUnavailable")),
    ("selects no pods", DEV, NET, "muster-ps", put({"matchLabels": {"app": "ps"}}, "spec", "podSelector")),
    ("but its policyTypes do not", DEV, NET, "muster-ps", put(["Ingress"], "spec", "policyTypes")),
    ("allows every peer", DEV, NET, "muster-coordinator", delete("spec", "ingress", 0, "from")),
    ("worker cannot reach port 7070", DEV, NET, "muster-members", put(7071, "spec", "egress", 0, "ports", 0, "port")),
    ("a client cannot reach", DEV, NET, "muster-client", delete("spec", "egress")),
    ("cannot look up", DEV, NET, "muster-dns", put([], "spec", "egress")),
    ("a pod that no rule names can be reached", DEV, NET, "muster-default-deny", put(["Egress"], "spec", "policyTypes")),
    ("coordinator reaches other namespaces", DEV, NET, "muster-default-deny", put(["Ingress"], "spec", "policyTypes")),
    ("a stranger reaches port 7070", DEV, NET, "muster-coordinator",
     put({"matchLabels": {"app.kubernetes.io/name": "stranger"}}, "spec", "ingress", 0, "from", 1, "podSelector")),
    ("namespace that the manifests do not create", DEV, MAP, "muster-settings", put("default", "metadata", "namespace")),
    ("uris: must be", TCP, "Certificate", "muster-ps", put(["spiffe://muster/worker"], "spec", "uris")),
    ("another role would have its key", TCP, "Certificate", "muster-ps", put("muster-worker-tls", "spec", "secretName")),
    ("usages", TCP, "Certificate", "muster-ps", put(["server auth"], "spec", "usages")),
    ("dnsNames", TCP, "Certificate", "muster-coordinator", put(["muster"], "spec", "dnsNames")),
    ("there is no issuer", TCP, "Certificate", "muster-ps", put("ca", "spec", "issuerRef", "name")),
    ("no such field", HPA, "HorizontalPodAutoscaler", "muster-worker", put(8, "spec", "maxReplicaCount")),
    ("no such workload", HPA, "HorizontalPodAutoscaler", "muster-worker", put("Deployment", "spec", "scaleTargetRef", "kind")),
    ("each apply would reset them", HPA, SET, "muster-worker", put(2, "spec", "replicas")),
    ("must be muster_workers_wanted of one bound", HPA, "HorizontalPodAutoscaler", "muster-worker",
     delete("spec", "metrics", 0, "external", "metric", "selector")),
    ("one worker for each", HPA, "HorizontalPodAutoscaler", "muster-worker",
     put({"type": "Value", "value": "1"}, "spec", "metrics", 0, "external", "target")),
    ("between two jobs", HPA, "HorizontalPodAutoscaler", "muster-worker",
     put(0, "spec", "behavior", "scaleDown", "stabilizationWindowSeconds")),
    ("no such workload", KEDA, SCALED, "muster-worker", put("muster-workers", "spec", "scaleTargetRef", "name")),
    ("scales the ps", KEDA, SCALED, "muster-worker", put("muster-ps", "spec", "scaleTargetRef", "name")),
    ("each apply would reset them", KEDA, SET, "muster-worker", put(2, "spec", "replicas")),
    ("belongs to Kueue", KEDA, SET, "muster-worker", put("muster", "metadata", "labels", "kueue.x-k8s.io/queue-name")),
    ("at least one", KEDA, SCALED, "muster-worker", put(0, "spec", "minReplicaCount")),
    ("KEDA has no such field", KEDA, SCALED, "muster-worker", put(8, "spec", "maxReplicas")),
    ("KEDA has no such field", KEDA, SCALED, "muster-worker", put("x", "spec", "triggers", 0, "metadata", "metricName")),
    ("KEDA has no such version", KEDA, SCALED, "muster-worker", put("keda.sh/v1", "apiVersion")),
    ("policy: no such field", KEDA, SCALED, "muster-worker",
     put([], "spec", "advanced", "horizontalPodAutoscalerConfig", "behavior", "scaleUp", "policy")),
    ("must be a string", KEDA, SCALED, "muster-worker", put(1, "spec", "triggers", 0, "metadata", "threshold")),
    ("one worker for each", KEDA, SCALED, "muster-worker", put("5", "spec", "triggers", 0, "metadata", "threshold")),
    ("no URL of a Prometheus", KEDA, SCALED, "muster-worker", put("prometheus", "spec", "triggers", 0, "metadata", "serverAddress")),
    ("must be the largest", KEDA, SCALED, "muster-worker",
     put("sum(muster_workers_wanted)", "spec", "triggers", 0, "metadata", "query")),
    ("must be muster_workers_wanted", KEDA, SCALED, "muster-worker",
     put('max(muster_jobs{state="queued"})', "spec", "triggers", 0, "metadata", "query")),
    ("jobs of the namespace other", KEDA, SCALED, "muster-worker",
     put('max(muster_workers_wanted{namespace="other", bound="max"})', "spec", "triggers", 0, "metadata", "query")),
    ("would remove all workers", KEDA, SCALED, "muster-worker",
     delete("spec", "triggers", 0, "metadata", "ignoreNullValues")),
    ("no PodMonitor scrapes", KEDA, "PodMonitor", "muster", put("ServiceMonitor", "kind")),
    ("does not select all members", CPU, "PodMonitor", "muster",
     put("other", "spec", "selector", "matchLabels", "app.kubernetes.io/instance")),
    ("another role would have its key", CPU, "Certificate", "muster-worker", put("muster-ps-tls", "spec", "secretName")),
    ("no object makes the Secret", ALL, "CronJob", "muster-backup",
     job(lambda pod: pod["volumes"][1]["secret"].update(secretName="muster-operator-tls"))),
    ("no PersistentVolumeClaim", ALL, "PersistentVolumeClaim", "muster-backups", put("backups", "metadata", "name")),
    ("cannot reach port 7070", ALL, "CronJob", "muster-backup",
     lambda thing: thing["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"].pop("muster.io/client")),
    ("is not of version", ALL, "CronJob", "muster-backup", job(lambda pod: pod["initContainers"][0].update(image="muster-cli:latest"))),
    ("readOnlyRootFilesystem", ALL, "CronJob", "muster-backup",
     job(lambda pod: pod["containers"][0]["securityContext"].pop("readOnlyRootFilesystem"))),
    ("not all pods have a port", ALL, "PodMonitor", "muster", put("grpc", "spec", "podMetricsEndpoints", 0, "port")),
]


class InjectedFaults(unittest.TestCase):
    def test_are_all_caught(self):
        self.assertGreaterEqual(len(FAULTS), 30)
        whole = {os.path.basename(path).removesuffix(".yaml"): manifests.load(path) for path in RENDERED}
        for message, overlay, kind, name, change in FAULTS:
            with self.subTest(fault=message, kind=kind, name=name):
                objects = copy.deepcopy(whole[overlay])
                # Generated names end with a hash.
                thing = next(it for it in objects if it["kind"] == kind and
                             re.fullmatch(re.escape(name) + "(-[a-z0-9]{10})?", it["metadata"]["name"]))
                change(thing)
                faults = faults_of(objects)
                self.assertTrue(any(message in fault for fault in faults), faults)


if __name__ == "__main__":
    unittest.main()
