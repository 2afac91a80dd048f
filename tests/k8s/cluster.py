"""A cluster of one node that runs rendered manifests without Kubernetes.

- Every pod has its own network. Every container is a process that runs as its manifest says (container.py).
- Probes, restarts, deletions, scaling and rolling updates work as in a kubelet and the StatefulSet controller.
- A DNS server resolves names. nftables provides the Service's address and enforces the NetworkPolicies.

Differences from a kubelet: no cgroups (requests and limits are not enforced), no seccomp, no images (a root folder with the
same program takes their place). A container that ends repeatedly always restarts after half a second, without back-off.

The process that creates a Cluster is the node: it must be root and have its own network namespace.
"""

import dataclasses
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import grpc_health
import manifests

HERE = os.path.dirname(os.path.abspath(__file__))
POD_NETWORK, GATEWAY, DNS_ADDRESS, SERVICE_NETWORK = "10.244.0.", "169.254.1.1", "10.96.0.10", "10.96.1."
NODE_ADDRESS = "192.168.77.1/24"
DOMAIN = "svc.cluster.local"
RESTART_AFTER_S = 0.5
LOOK_S = 0.05


def run(*command, **options):
    told = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if told.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {told.stderr.strip()}")
    return told.stdout


class Container:
    """The process of a pod's only container, with its probes and restarts. A thread runs it."""

    def __init__(self, pod, folder, image):
        self.pod, self.folder, self.image = pod, folder, image
        self.spec = manifests.containers(pod.workload)[0]
        self.ready_since = None
        self.restarts = 0
        self.exit_codes = []
        self.pid = None
        self.killed = False  # by SIGKILL, after the grace period
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.live, daemon=True)

    def probe(self, name):
        probe = self.spec[name]
        return grpc_health.check(self.pod.address, probe["grpc"]["port"], probe["grpc"].get("service", ""),
                                 probe.get("timeoutSeconds", 1))

    def live(self):
        while True:
            process = self.start()
            self.watch(process)
            self.ready_since = None
            self.exit_codes.append(process.wait())
            self.pid = None
            if self.stopping.is_set():
                return
            self.restarts += 1
            time.sleep(RESTART_AFTER_S)

    def watch(self, process):
        """Probes the process until it has ended: by itself, because a probe failed, or because the pod is deleted."""
        started = False
        failures = dict.fromkeys(("startupProbe", "livenessProbe", "readinessProbe"), 0)
        due = dict.fromkeys(failures, 0.0)
        deadline = None  # of the grace period
        while process.poll() is None:
            now = time.monotonic()
            if self.stopping.is_set() and deadline is None:
                deadline = now + self.pod.grace_s
                os.kill(self.pid, signal.SIGTERM)
            if deadline is not None and now > deadline:
                self.killed = True
                os.kill(self.pid, signal.SIGKILL)
                process.wait()
                return
            probes = ("livenessProbe", "readinessProbe") if started else ("startupProbe",)
            for name in ("readinessProbe",) if deadline is not None else probes:
                if now < due[name]:
                    continue
                due[name] = now + self.spec[name].get("periodSeconds", 10)
                failures[name] = 0 if self.probe(name) else failures[name] + 1
                failed = failures[name] >= self.spec[name].get("failureThreshold", 3)
                if name == "readinessProbe":
                    if failures[name] == 0 and self.ready_since is None:
                        self.ready_since = time.monotonic()
                        self.pod.cluster.route()
                    elif failed and self.ready_since is not None:
                        self.ready_since = None
                        self.pod.cluster.route()
                elif failed and deadline is None:
                    # The kubelet uses the grace period of the probe here, not that of the pod.
                    deadline = now + self.spec[name].get("terminationGracePeriodSeconds", self.pod.grace_s)
                    os.kill(self.pid, signal.SIGTERM)
                elif name == "startupProbe" and failures[name] == 0:
                    started = True
            time.sleep(LOOK_S)

    def start(self):
        pod, spec = self.pod, self.pod.workload["spec"]["template"]["spec"]
        context = {**spec.get("securityContext", {}), **self.spec.get("securityContext", {})}
        env = {"PATH": "/usr/bin"}
        for variable in self.spec.get("env", []):
            env[variable["name"]] = variable.get("value") or pod.field(variable["valueFrom"]["fieldRef"]["fieldPath"])
        entry = self.spec.get("command") or [pod.cluster.entrypoint(self.image)]
        argv = [re.sub(r"\$\(([A-Z_]+)\)", lambda match: env[match[1]], word) for word in entry + self.spec.get("args", [])]
        root, pid_file = os.path.join(self.folder, "root"), os.path.join(self.folder, "pid")
        os.makedirs(root, exist_ok=True)
        mounts = [{"source": pod.volume(mount["name"]), "target": mount["mountPath"], "read_only": mount.get("readOnly", False)}
                  for mount in self.spec.get("volumeMounts", [])]
        mounts += [{"source": os.path.join(pod.folder, name), "target": f"/etc/{name}", "read_only": False}
                   for name in ("resolv.conf", "hosts")]
        # A container runtime creates the mount points of volumes.
        for mount in mounts:
            pod.cluster.mount_point(self.image, mount["target"], os.path.isdir(mount["source"]))
        if os.path.exists(pid_file):
            os.remove(pid_file)
        path = os.path.join(self.folder, "spec.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({
                "pod_pid": pod.pause.pid, "image": self.image, "root": root, "mounts": mounts, "argv": argv, "env": env,
                "pid_file": pid_file, "uid": context.get("runAsUser", 0), "gid": context.get("runAsGroup", 0),
                "groups": [context["fsGroup"]] if "fsGroup" in context else [],
                "read_only_root": context.get("readOnlyRootFilesystem", False),
                "drop_capabilities": "ALL" in context.get("capabilities", {}).get("drop", []),
                "no_new_privileges": context.get("allowPrivilegeEscalation") is False,
            }, file)
        with open(os.path.join(pod.cluster.folder, "logs", pod.name + ".log"), "ab") as log:
            process = subprocess.Popen([sys.executable, os.path.join(HERE, "container.py"), path], stdout=log, stderr=log,
                                       stdin=subprocess.DEVNULL)
        while not os.path.exists(pid_file) and process.poll() is None:
            time.sleep(0.01)
        with open(pid_file, encoding="utf-8") as file:
            self.pid = int(file.read())
        return process


class Pod:
    """A pod of a StatefulSet. Without a container it has only labels and an address."""

    def __init__(self, cluster, name, labels, workload=None):
        self.cluster, self.name, self.labels, self.workload = cluster, name, labels, workload
        self.number = cluster.next_number()
        self.address = f"{POD_NETWORK}{self.number}"
        self.folder = os.path.join(cluster.folder, "pods", f"{name}.{self.number}")
        os.makedirs(self.folder)
        self.pause = subprocess.Popen(["unshare", "--net", "--uts", "--ipc", "sh", "-c",
                                       f"echo {name} > /proc/sys/kernel/hostname && echo ready && exec sleep infinity"],
                                      stdout=subprocess.PIPE)
        self.pause.stdout.readline()
        self.connect()
        self.container = None
        if workload is not None:
            service = workload["spec"]["serviceName"]
            self.write("hosts", f"127.0.0.1 localhost\n{self.address} {name}.{service}.{cluster.namespace}.{DOMAIN} {name}\n")
            self.write("resolv.conf", f"nameserver {DNS_ADDRESS}\nsearch {cluster.namespace}.{DOMAIN} {DOMAIN} cluster.local\n"
                                      "options ndots:5\n")
            image = cluster.image(manifests.containers(workload)[0]["image"])
            self.container = Container(self, self.folder, image)
            self.grace_s = workload["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30)

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def connect(self):
        """Connects the pod to the node by a veth pair. The node routes, so no pod sees another pod's frames."""
        wire = f"pod{self.number}"
        inside = ["nsenter", f"--net=/proc/{self.pause.pid}/ns/net", "ip"]
        run("ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", str(self.pause.pid))
        run("ip", "addr", "add", f"{GATEWAY}/32", "dev", wire)
        run("ip", "link", "set", wire, "up")
        run("ip", "route", "add", f"{self.address}/32", "dev", wire)
        run(*inside, "-batch", "-", input=f"link set lo up\naddr add {self.address}/32 dev eth0\nlink set eth0 up\n"
                                          f"route add {GATEWAY} dev eth0\nroute add default via {GATEWAY} dev eth0\n")

    def field(self, path):
        return {"metadata.name": self.name, "metadata.namespace": self.cluster.namespace, "status.podIP": self.address}[path]

    def volume(self, name):
        """Returns the folder on the node that holds the volume."""
        spec = self.workload["spec"]["template"]["spec"]
        group = spec.get("securityContext", {}).get("fsGroup", 0)
        volume = next((volume for volume in spec.get("volumes", []) if volume["name"] == name), None)
        if volume is None:  # a claim: the next pod of this name gets it, too
            folder = os.path.join(self.cluster.folder, "claims", f"{name}-{self.name}")
        else:
            folder = os.path.join(self.folder, "volumes", name)
        if os.path.isdir(folder):
            return folder
        os.makedirs(folder)
        if volume is not None and "configMap" in volume:
            self.project(folder, self.cluster.named("ConfigMap", volume["configMap"]["name"])["data"], 0o644, 0)
        elif volume is not None and "secret" in volume:
            secret = volume["secret"]
            self.project(folder, self.cluster.secrets[secret["secretName"]], secret.get("defaultMode", 0o644), group)
        elif volume is not None and "persistentVolumeClaim" in volume:
            pass  # an empty folder
        elif volume is None or "emptyDir" in volume:
            os.chown(folder, 0, group)
            os.chmod(folder, 0o2775 if volume is None else 0o2777)
        else:
            raise RuntimeError(f"{self.name}: this cluster has no volumes of this kind: {volume}")
        return folder

    @staticmethod
    def project(folder, data, mode, group):
        """Writes files as the kubelet does: names are links into a folder that is replaced as a whole."""
        os.makedirs(os.path.join(folder, "..1"))
        os.symlink("..1", os.path.join(folder, "..data"))
        for key, text in data.items():
            path = os.path.join(folder, "..1", key)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chown(path, 0, group)
            os.chmod(path, mode)
            os.symlink(f"..data/{key}", os.path.join(folder, key))

    @property
    def ready(self):
        return self.container is not None and self.container.ready_since is not None

    def ready_for(self, seconds):
        since = self.container.ready_since
        return since is not None and time.monotonic() - since >= seconds

    def remove(self):
        self.pause.kill()
        self.pause.wait()
        subprocess.run(["ip", "link", "del", f"pod{self.number}"], capture_output=True, check=False)


@dataclasses.dataclass
class Ended:
    """How a deleted pod ended."""
    name: str
    exit_code: int
    seconds: float
    killed: bool
    restarts: int


class Cluster:
    """The node, with the work of a control plane. One thread calls the methods; threads of containers call only route()."""

    def __init__(self, folder, objects, images, log=print):
        """`images`: folder by image name without tag. An update uses other folders."""
        self.folder, self.objects, self.images, self.log = folder, objects, dict(images), log
        self.namespace = next(thing["metadata"]["name"] for thing in objects if thing["kind"] == "Namespace")
        self.sets = {thing["metadata"]["name"]: thing for thing in objects if thing["kind"] == "StatefulSet"}
        self.secrets = {}  # by name: file name -> text
        self.policies = manifests.Policies(objects)
        self.pods = {}
        self.numbers = 0
        self.ended = []
        self.routing = threading.Lock()
        for name in ("pods", "claims", "logs", "images"):
            os.makedirs(os.path.join(folder, name))
        services = [thing for thing in objects if thing["kind"] == "Service" and thing["spec"].get("clusterIP") != "None"]
        self.service_addresses = {thing["metadata"]["name"]: f"{SERVICE_NETWORK}{number}"
                                  for number, thing in enumerate(services, 1)}
        run("ip", "link", "set", "lo", "up")
        run("ip", "addr", "add", f"{DNS_ADDRESS}/32", "dev", "lo")
        # The node's default route leads nowhere. Without one, no process on the node could dial a Service.
        run("ip", "link", "add", "out", "type", "veth", "peer", "name", "nowhere")
        run("ip", "addr", "add", NODE_ADDRESS, "dev", "out")
        run("ip", "link", "set", "out", "up")
        run("ip", "link", "set", "nowhere", "up")
        run("ip", "route", "replace", "default", "dev", "out")
        with open("/proc/sys/net/ipv4/ip_forward", "w", encoding="utf-8") as file:
            file.write("1")
        self.dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.dns.bind((DNS_ADDRESS, 53))
        threading.Thread(target=self.answer_names, daemon=True).start()

    def named(self, kind, name):
        return next(thing for thing in self.objects if thing["kind"] == kind and thing["metadata"]["name"] == name)

    def next_number(self):
        self.numbers += 1
        return self.numbers

    def image(self, reference):
        return self.images[reference.rsplit(":", 1)[0]]

    @staticmethod
    def entrypoint(image):
        programs = os.listdir(os.path.join(image, "usr", "bin"))
        assert len(programs) == 1, programs
        return f"/usr/bin/{programs[0]}"

    @staticmethod
    def mount_point(image, target, is_folder):
        for path in ("/proc", "/dev", target):
            if not os.path.lexists(image + path):
                if is_folder or path != target:
                    os.makedirs(image + path)
                else:
                    os.makedirs(os.path.dirname(image + path), exist_ok=True)
                    with open(image + path, "w", encoding="utf-8"):
                        pass

    # Pods

    def start(self, name):
        """Starts a pod of a StatefulSet."""
        workload = self.sets[name.rsplit("-", 1)[0]]
        pod = Pod(self, name, manifests.labels_of(workload), workload)
        self.pods[name] = pod
        self.route()
        pod.container.thread.start()
        return pod

    def stranger(self, name, labels):
        """Adds a pod that runs nothing."""
        self.pods[name] = Pod(self, name, labels)
        self.route()
        return self.pods[name]

    def apply(self):
        """Starts all replicas at once (podManagementPolicy: Parallel)."""
        for name, workload in self.sets.items():
            for ordinal in range(workload["spec"]["replicas"]):
                if f"{name}-{ordinal}" not in self.pods:
                    self.start(f"{name}-{ordinal}")

    def delete(self, *names):
        """Ends all these pods at the same time, within their grace periods, and removes them."""
        begin = time.monotonic()
        for name in names:
            self.pods[name].container.stopping.set()
        for name in names:
            pod = self.pods[name]
            pod.container.thread.join(pod.grace_s + 30)
            self.take_away(name, begin)
        self.route()

    def take_away(self, name, begin):
        """Removes a pod that has ended after a stop request at `begin`."""
        pod = self.pods.pop(name)
        self.ended.append(Ended(name, pod.container.exit_codes[-1], time.monotonic() - begin, pod.container.killed, pod.container.restarts))
        self.log(f"{name} ended with {self.ended[-1].exit_code} after {self.ended[-1].seconds:.1f} s")
        pod.remove()

    def replace(self, name):
        """kubectl delete pod: another pod of the same name starts, at another address."""
        self.delete(name)
        self.start(name)

    def scale(self, name, replicas):
        running = sorted(int(pod.rsplit("-", 1)[1]) for pod in self.pods if pod.rsplit("-", 1)[0] == name)
        self.delete(*[f"{name}-{ordinal}" for ordinal in running if ordinal >= replicas])
        for ordinal in range(replicas):
            if ordinal not in running:
                self.start(f"{name}-{ordinal}")

    def roll_out(self, images, patience_s):
        """Updates all sets to other images (RollingUpdate), from the last pod to the first. The next pod is replaced after the
        previous one has been ready for minReadySeconds. The sets update concurrently: a pod that ends slowly delays no other set."""
        self.images.update(images)
        waiting = {name: [f"{name}-{ordinal}" for ordinal in range(workload["spec"]["replicas"])]
                   for name, workload in self.sets.items()}
        ending, last = {}, {}  # by set: (pod, time of the stop request), pod
        deadline = time.monotonic() + patience_s
        while True:
            last = {name: pod for name, pod in last.items()
                    if not self.pods[pod].ready_for(self.sets[name]["spec"].get("minReadySeconds", 0))}
            for name, pods in waiting.items():
                if pods and name not in last and name not in ending:
                    ending[name] = (pods.pop(), time.monotonic())
                    self.pods[ending[name][0]].container.stopping.set()
            for name, (pod, begin) in list(ending.items()):
                if self.pods[pod].container.thread.is_alive():
                    continue
                del ending[name]
                self.take_away(pod, begin)
                self.start(pod)
                last[name] = pod
            if not ending and not last and not any(waiting.values()):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the rolling update waits for {sorted([*last.values(), *(pod for pod, _ in ending.values())])}")
            time.sleep(LOOK_S)

    def await_ready(self, patience_s):
        deadline = time.monotonic() + patience_s
        while True:
            missing = [name for name, pod in self.pods.items() if pod.container is not None and not pod.ready]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready after {patience_s} s: {', '.join(missing)}")
            time.sleep(LOOK_S)

    def shut_down(self):
        """Ends all pods that have a container at the same time."""
        running = [name for name, pod in self.pods.items() if pod.container is not None]
        self.delete(*sorted(running))

    def in_pod(self, name):
        """Returns the prefix of a command that runs in the pod's network, as connections by kubectl port-forward do."""
        return ["nsenter", f"--net=/proc/{self.pods[name].pause.pid}/ns/net"]

    # Network

    def route(self):
        """Sets the rules of Services and policies for the present pods."""
        with self.routing:
            pods = list(self.pods.values())
            rules = ["flush ruleset", "table ip node {"]
            translations = []
            for name, address in self.service_addresses.items():
                service = self.named("Service", name)
                selector = {"matchLabels": service["spec"]["selector"]}
                ready = [pod for pod in pods if pod.ready and manifests.selects(selector, pod.labels)]
                for port in service["spec"]["ports"] if ready else []:
                    number = manifests.port_number(port["targetPort"], ready[0].workload)
                    translations.append(f"ip daddr {address} tcp dport {port['port']} dnat to {ready[0].address}:{number}")
            for hook in ("prerouting", "output"):
                rules += [f"chain {hook} {{ type nat hook {hook} priority -100;", *translations, "}"]
            # A Service without endpoints refuses connections.
            refused = f"ip daddr {SERVICE_NETWORK}0/24 reject"
            rules.append(f"chain to_services {{ type filter hook output priority 0; {refused}; }}")
            rules += ["chain forward { type filter hook forward priority 0; policy drop; ct state established,related accept",
                      refused]
            for source in pods:
                for target in pods:
                    if source is target:
                        continue
                    ports = [port for port in (7070, 9400, 9401, 9402, 9410, 9500) if
                             self.policies.allows(source.labels, target.labels, port)]
                    if ports:
                        rules.append(f"ip saddr {source.address} ip daddr {target.address} tcp dport "
                                     f"{{ {', '.join(map(str, ports))} }} accept")
            rules += ["}", "chain input { type filter hook input priority 0; policy drop; ct state established,related accept",
                      'iifname "lo" accept']
            server = {"namespace": "kube-system", "k8s-app": "kube-dns"}
            for pod in pods:
                if self.policies.allows(pod.labels, server, 53, "UDP"):
                    rules.append(f"ip saddr {pod.address} ip daddr {DNS_ADDRESS} udp dport 53 accept")
            rules += ["}", "}"]
            run("nft", "-f", "-", input="\n".join(rules) + "\n")

    def addresses_of(self, name):
        """Returns the answer of the cluster DNS; None if the name is unknown."""
        suffix = f".{self.namespace}.{DOMAIN}"
        if not name.endswith(suffix):
            return None
        labels = name[:-len(suffix)].split(".")
        service = next((thing for thing in self.objects if thing["kind"] == "Service" and
                        thing["metadata"]["name"] == labels[-1]), None)
        if service is None or len(labels) > 2:
            return None
        if labels[-1] in self.service_addresses:
            return [self.service_addresses[labels[-1]]] if len(labels) == 1 else None
        pods = [pod for pod in list(self.pods.values()) if pod.workload is not None and
                manifests.selects({"matchLabels": service["spec"]["selector"]}, pod.labels) and
                (pod.ready or service["spec"].get("publishNotReadyAddresses"))]
        if len(labels) == 2:
            pods = [pod for pod in pods if pod.name == labels[0] and pod.workload["spec"]["serviceName"] == labels[1]]
        return [pod.address for pod in pods] or None

    def answer_names(self):
        while True:
            question, client = self.dns.recvfrom(512)
            labels, at = [], 12
            while question[at]:
                labels.append(question[at + 1:at + 1 + question[at]].decode().lower())
                at += 1 + question[at]
            kind = struct.unpack(">H", question[at + 1:at + 3])[0]
            addresses = self.addresses_of(".".join(labels))
            answers = [b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 5, 4) + socket.inet_aton(address)
                       for address in addresses or [] if kind == 1]
            flags = 0x8400 | (0 if addresses is not None else 3)
            self.dns.sendto(question[:2] + struct.pack(">HHHHH", flags, 1, len(answers), 0, 0) + question[12:at + 5] +
                            b"".join(answers), client)

    def read_page(self, name, port, path):
        """Returns a page of the pod, requested by HTTP from inside the pod."""
        url = f"http://{self.pods[name].address}:{port}{path}"
        return run(*self.in_pod(name), sys.executable, "-c",
                   f"import urllib.request; print(urllib.request.urlopen('{url}', timeout=5).read().decode())")

    def can_connect(self, source, address, port, patience_s=0.5):
        """Returns whether a process in this pod can connect."""
        return subprocess.run(
            [*self.in_pod(source), sys.executable, "-c",
             f"import socket; socket.create_connection(('{address}', {port}), timeout={patience_s})"],
            capture_output=True, check=False).returncode == 0
