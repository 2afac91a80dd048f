"""Finds faults in a set of Kubernetes objects: fields that the API server does not know, and faults that no schema finds, such as
a selector that selects no pods, or a flag that the program does not have. Every check returns faults as sentences."""

import json
import math
import re

import yaml

# Labels of pods outside of Muster: clients that a policy lets in, and the DNS server.
STRANGERS = ("muster.io/client", "k8s-app")
# Secrets that a site makes, as docs/kubernetes.md describes.
SITE_SECRETS = ("muster-etcd-tls",)
HEADROOM_S = 10  # of a pod's grace period, after the drain
HUNG_GRACE_MAX_S = 10  # a process that hangs does not answer SIGTERM
PRIMITIVES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "scalar": (str, int, float)}


def load(path):
    with open(path, encoding="utf-8") as file:
        return [document for document in yaml.load_all(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if document]


def name_of(thing):
    return f"{thing['kind']}/{thing['metadata']['name']}"


# Schema


def type_faults(value, wanted, path, schema):
    """Returns the faults of a value that should have this type of the schema: unknown fields, missing fields, wrong types."""
    faults = []

    def check(value, wanted, path):
        if wanted == "any" or value is None:
            return
        if isinstance(wanted, list):
            container, inner = wanted
            if not isinstance(value, list if container == "list" else dict):
                faults.append(f"{path}: must be a {container}")
                return
            for key, item in enumerate(value) if container == "list" else value.items():
                check(item, inner, f"{path}[{key}]")
        elif wanted in PRIMITIVES:
            if not isinstance(value, PRIMITIVES[wanted]) or (isinstance(value, bool) and wanted != "boolean"):
                faults.append(f"{path}: must be of type {wanted}, is {value!r}")
        elif not isinstance(value, dict):
            faults.append(f"{path}: must have fields")
        else:
            known = schema["types"][wanted]
            faults.extend(f"{path}.{field}: is missing" for field in known["required"] if field not in value)
            for field, item in value.items():
                if field in known["fields"]:
                    check(item, known["fields"][field], f"{path}.{field}")
                else:
                    faults.append(f"{path}.{field}: no such field")

    check(value, wanted, path)
    return faults


def schema_faults(objects, schema):
    """Returns the faults of whole objects. Skips kinds of other projects (cert-manager, ...)."""
    faults = []
    for thing in objects:
        kind = f"{thing.get('apiVersion')}/{thing.get('kind')}"
        if kind in schema["kinds"]:
            faults += type_faults(thing, schema["kinds"][kind], name_of(thing), schema)
        elif thing.get("apiVersion", "").split("/")[0] not in OTHERS_GROUPS:
            faults.append(f"{name_of(thing)}: no such kind: {kind}")
    return faults


OTHERS_GROUPS = ("cert-manager.io", "monitoring.coreos.com", "keda.sh")


def load_schema(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


# Selectors and policies


def selects(selector, labels):
    selector = selector or {}
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for expression in selector.get("matchExpressions", []):
        present = labels.get(expression["key"])
        wanted = {"In": present in expression.get("values", []), "NotIn": present not in expression.get("values", []),
                  "Exists": present is not None, "DoesNotExist": present is None}
        if not wanted[expression["operator"]]:
            return False
    return True


def port_number(port, workload):
    """Returns the number of a port that a policy or a Service names; None if the workload has no port of that name."""
    if isinstance(port, int):
        return port
    for container in containers(workload):
        for declared in container.get("ports", []):
            if declared.get("name") == port:
                return declared["containerPort"]
    return None


class Policies:
    """The connections that the NetworkPolicies of one namespace allow."""

    def __init__(self, objects):
        self.policies = [thing for thing in objects if thing["kind"] == "NetworkPolicy"]

    def allows(self, source, target, port, protocol="TCP"):
        """Returns whether pods with these labels may connect. An end in another namespace has its name in `namespace`. `port` is
        a number."""
        return (self.side_allows("Egress", "egress", "to", source, target, port, protocol) and
                self.side_allows("Ingress", "ingress", "from", target, source, port, protocol))

    def side_allows(self, kind, rules, ends, here, there, port, protocol):
        if "namespace" in here:
            return True  # the policies of another namespace are unknown
        ours = [policy["spec"] for policy in self.policies
                if kind in policy["spec"].get("policyTypes", ["Ingress"]) and selects(policy["spec"]["podSelector"], here)]
        return not ours or any(self.rule_allows(rule, ends, there, port, protocol)
                               for policy in ours for rule in policy.get(rules) or [])

    @staticmethod
    def rule_allows(rule, ends, there, port, protocol):
        ports = rule.get("ports")
        if ports and not any(item.get("protocol", "TCP") == protocol and item.get("port") in (None, port) for item in ports):
            return False
        if not rule.get(ends):
            return True
        for peer in rule[ends]:
            namespace = {"kubernetes.io/metadata.name": there["namespace"]} if "namespace" in there else None
            if "namespaceSelector" in peer:
                if namespace is None or not selects(peer["namespaceSelector"], namespace):
                    continue
            elif namespace is not None:
                continue
            if "podSelector" not in peer or selects(peer["podSelector"], there):
                return True
        return False


# Objects


def containers(workload):
    spec = workload["spec"]["template"]["spec"]
    return spec.get("containers", []) + spec.get("initContainers", [])


def labels_of(workload):
    return workload["spec"]["template"]["metadata"].get("labels", {})


def quantity(text):
    """Converts a Kubernetes quantity: 500m, 2, 1536Mi."""
    match = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", str(text))
    scale = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
             "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    return float(match[1]) * scale[match[2]]


def seconds(text):
    return sum(float(number) * {"ms": 1e-3, "s": 1, "m": 60, "h": 3600}[unit]
               for number, unit in re.findall(r"([0-9.]+)(ms|s|m|h)", text))


def flags_of(container, spec, objects):
    """Returns (flags by name, faults) of a container's arguments, including its flag files."""
    flags, faults = {}, []
    maps = {thing["metadata"]["name"]: thing for thing in objects if thing["kind"] == "ConfigMap"}
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}

    def read(path):
        for mount in container.get("volumeMounts", []):
            folder = mount["mountPath"].rstrip("/") + "/"
            source = volumes.get(mount["name"], {}).get("configMap")
            if path.startswith(folder) and source:
                return maps.get(source["name"], {}).get("data", {}).get(path[len(folder):])
        return None

    lines = []
    for argument in container.get("args", []):
        if argument.startswith("--flagfile="):
            for path in argument[len("--flagfile="):].split(","):
                text = read(path)
                if text is None:
                    faults.append(f"the flag file {path} is in no ConfigMap that is mounted")
                lines += [line for line in (text or "").splitlines() if line and not line.startswith("#")]
        else:
            lines.append(argument)
    for line in lines:
        match = re.fullmatch(r"--([a-z_]+)(?:=(.*))?", line)
        if match is None:
            faults.append(f"'{line}' is no flag")
        elif match[1] in flags:
            faults.append(f"--{match[1]} is set twice")
        else:
            flags[match[1]] = match[2]
    return flags, faults


def role_reads(role):
    """Returns whether programs of this role open files that jobs name."""
    return role in ("coordinator", "worker")


# Faults that no schema finds


class Semantics:
    """`flags`: the flags that the program of each role accepts; None without programs. `version`: the tag of images. `schema`: for
    parts of other projects' kinds that have types of Kubernetes; may be None."""

    def __init__(self, objects, version, flags=None, schema=None):
        self.objects = objects
        self.version = version
        self.schema = schema
        self.program_flags = flags
        self.faults = []
        self.workloads = [thing for thing in objects if thing["kind"] == "StatefulSet"]

    def check(self):
        self.check_names()
        for workload in self.workloads:
            self.where = name_of(workload)
            self.check_workload(workload)
            self.check_references(workload)
            self.check_security(workload)
            for container in containers(workload):
                self.check_container(workload, container)
        for thing in self.objects:
            self.where = name_of(thing)
            check = getattr(self, f"check_{thing['kind'].lower()}", None)
            if check:
                check(thing)
        self.check_paths()
        return self.faults

    def fault(self, text):
        self.faults.append(f"{self.where}: {text}")

    def named(self, kind, name):
        return next((thing for thing in self.objects
                     if thing["kind"] == kind and thing["metadata"]["name"] == name), None)

    def check_names(self):
        seen = set()
        cluster_wide = ("Namespace", "PriorityClass")
        namespaces = [thing["metadata"]["name"] for thing in self.objects if thing["kind"] == "Namespace"]
        for thing in self.objects:
            self.where = name_of(thing)
            if self.where in seen:
                self.fault("exists twice")
            seen.add(self.where)
            if thing["kind"] not in cluster_wide and thing["metadata"].get("namespace") not in namespaces:
                self.fault("is in a namespace that the manifests do not create")

    def check_workload(self, workload):
        spec = workload["spec"]
        if not spec["selector"].get("matchLabels") or not selects(spec["selector"], labels_of(workload)):
            self.fault("the selector does not select its own pods")
        claims = spec.get("volumeClaimTemplates", [])
        for labels in [spec["selector"].get("matchLabels", {})] + [claim["metadata"].get("labels", {}) for claim in claims]:
            if "app.kubernetes.io/version" in labels:
                self.fault("a version in a field that cannot change: the next version could not be applied")
        service = self.named("Service", spec.get("serviceName"))
        if service is None or service["spec"].get("clusterIP") != "None":
            self.fault(f"serviceName: {spec.get('serviceName')} is no headless Service")
        elif not selects({"matchLabels": service["spec"]["selector"]}, labels_of(workload)):
            self.fault(f"serviceName: {spec['serviceName']} selects other pods")
        if spec.get("podManagementPolicy") != "Parallel":
            self.fault("podManagementPolicy: members that wait for one another would never all start")
        if spec.get("volumeClaimTemplates") and spec.get("replicas") != 1:
            self.fault("replicas: two coordinators would each have half of the members")
        if spec["template"]["spec"].get("restartPolicy", "Always") != "Always":
            self.fault("restartPolicy: must be Always in a StatefulSet")

    def check_references(self, workload):
        spec = workload["spec"]["template"]["spec"]
        claims = [claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])]
        if self.named("ServiceAccount", spec.get("serviceAccountName")) is None:
            self.fault(f"there is no ServiceAccount {spec.get('serviceAccountName')}")
        if self.named("PriorityClass", spec.get("priorityClassName")) is None:
            self.fault(f"there is no PriorityClass {spec.get('priorityClassName')}")
        self.check_volumes(workload, claims)
        for constraint in spec.get("topologySpreadConstraints", []):
            if not selects(constraint["labelSelector"], labels_of(workload)):
                self.fault("topologySpreadConstraints: spreads other pods")
            if constraint["whenUnsatisfiable"] == "DoNotSchedule" and constraint.get("nodeTaintsPolicy") != "Honor":
                self.fault("topologySpreadConstraints: a cordoned node would count as an empty one, and a pod would wait for it")

    def check_volumes(self, workload, claims=()):
        spec = workload["spec"]["template"]["spec"]
        made_secrets = [thing["spec"]["secretName"] for thing in self.objects if thing["kind"] == "Certificate"]
        volumes = [*claims, *(volume["name"] for volume in spec.get("volumes", []))]
        for volume in spec.get("volumes", []):
            config = volume.get("configMap", {}).get("name")
            if config and self.named("ConfigMap", config) is None:
                self.fault(f"there is no ConfigMap {config}")
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and self.named("PersistentVolumeClaim", claim) is None:
                self.fault(f"there is no PersistentVolumeClaim {claim}")
            secret = volume.get("secret", {}).get("secretName")
            if secret and secret not in made_secrets and secret not in SITE_SECRETS and self.named("Secret", secret) is None:
                self.fault(f"no object makes the Secret {secret}")
        mounted = [mount["name"] for container in containers(workload) for mount in container.get("volumeMounts", [])]
        for name in sorted(set(mounted) - set(volumes)):
            self.fault(f"there is no volume {name} to mount")
        for name in sorted(set(volumes) - set(mounted)):
            self.fault(f"the volume {name} is mounted nowhere")

    def check_security(self, workload):
        """Checks the Pod Security Standard "restricted" if the namespace enforces it, and its common part everywhere."""
        spec = workload["spec"]["template"]["spec"]
        pod = spec.get("securityContext", {})
        if spec.get("automountServiceAccountToken") is not False:
            self.fault("a token of the Kubernetes API is mounted, but no program needs it")
        for field in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
            if spec.get(field):
                self.fault(f"{field} is not restricted")
        for volume in spec.get("volumes", []):
            if "hostPath" in volume:
                self.fault(f"the volume {volume['name']} is a hostPath")
        restricted = all(thing["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce") == "restricted"
                         for thing in self.objects if thing["kind"] == "Namespace")
        for container in containers(workload):
            own = container.get("securityContext", {})
            context = {**pod, **own}
            if context.get("privileged") or context.get("allowPrivilegeEscalation") is not False:
                self.fault("allowPrivilegeEscalation must be false")
            if context.get("readOnlyRootFilesystem") is not True:
                self.fault("readOnlyRootFilesystem must be true")
            if context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
                self.fault("seccompProfile must be RuntimeDefault")
            if "ALL" not in own.get("capabilities", {}).get("drop", []):
                self.fault("capabilities: ALL must be dropped")
            if not restricted:
                continue
            if set(own.get("capabilities", {}).get("add", [])) - {"NET_BIND_SERVICE"}:
                self.fault("capabilities: none may be added")
            if context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0:
                self.fault("runAsNonRoot must be true")

    def check_container(self, workload, container):
        spec = workload["spec"]["template"]["spec"]
        role = workload["metadata"]["labels"].get("app.kubernetes.io/component")
        if container["name"] != role:
            self.fault(f"the container has the name {container['name']}, but the component is {role}")
        if not container.get("image", "").endswith(":" + self.version):
            self.fault(f"image: {container.get('image')} is not of version {self.version}")
        resources = container.get("resources", {})
        for resource in ("cpu", "memory"):
            if resource not in resources.get("requests", {}) or resource not in resources.get("limits", {}):
                self.fault(f"resources: no request or no limit of {resource}")
            elif quantity(resources["requests"][resource]) > quantity(resources["limits"][resource]):
                self.fault(f"resources: more {resource} is requested than the limit")
        flags, faults = flags_of(container, spec, self.objects)
        # A fleet without certificates is for a first look, on machines that other programs use too.
        if role != "coordinator" and "insecure" not in flags and resources.get("requests") != resources.get("limits"):
            self.fault("resources: requests and limits differ, so it shares its processors with other pods")
        for text in faults:
            self.fault(text)
        if self.program_flags is not None:
            for flag in sorted(set(flags) - self.program_flags[role]):
                self.fault(f"--{flag}: the program has no such flag")
        self.check_flags(workload, container, flags)
        self.check_probes(workload, container, flags, role)

    def check_flags(self, workload, container, flags):
        spec = workload["spec"]["template"]["spec"]
        ports = {port.get("name"): port["containerPort"] for port in container.get("ports", [])}
        for flag, port in (("listen", "grpc"), ("metrics", "metrics"), ("health", "health"), ("data_port", "data")):
            if port not in ports and flag not in flags:
                continue
            if flag == "data_port" and flags.get("transport") == "rdma":
                continue  # RDMA listens on no TCP port
            if str(flags.get(flag, "")).rsplit(":", 1)[-1] != str(ports.get(port)):
                self.fault(f"--{flag}={flags.get(flag)}, but the port {port} is {ports.get(port)}")
            elif flag != "data_port" and not flags[flag].startswith("0.0.0.0:"):
                self.fault(f"--{flag}={flags[flag]}: not reachable from outside of the pod")
        variables = {variable["name"] for variable in container.get("env", [])}
        for value in container.get("args", []) + container.get("command", []):
            for variable in re.findall(r"\$\(([A-Z_]+)\)", value):
                if variable not in variables:
                    self.fault(f"there is no variable {variable}")
        if "coordinator" in flags:
            for address in flags["coordinator"].split(","):
                self.check_coordinator_address(address)
            if flags.get("name") != "$(POD_NAME)":
                self.fault("--name must be the name of the pod: it identifies a replaced member")
        grace = spec.get("terminationGracePeriodSeconds", 30)
        if "drain_timeout" in flags and seconds(flags["drain_timeout"]) + HEADROOM_S > grace:
            self.fault(f"--drain_timeout={flags['drain_timeout']} does not fit the grace period of {grace} s")
        if "state_dir" in flags and not any(mount["mountPath"] == flags["state_dir"] and not mount.get("readOnly")
                                            for mount in container.get("volumeMounts", [])):
            self.fault(f"--state_dir={flags['state_dir']} is on no volume")
        roots = flags.get("data_roots", "").split(",")
        if role_reads(container["name"]) and not all(any(mount["mountPath"] == root for mount in container["volumeMounts"])
                                                     for root in roots):
            self.fault("--data_roots: jobs could read folders that are not mounted for them")
        if ("tls" in flags) == ("insecure" in flags):
            self.fault("--tls or --insecure: exactly one of them is required")
        secrets = {volume["name"] for volume in spec.get("volumes", []) if "secret" in volume}
        for flag in {"tls", "store_tls"} & set(flags):
            if not any(mount["mountPath"] == flags[flag] and mount["name"] in secrets and not
                       mount.get("subPath") for mount in container.get("volumeMounts", [])):
                self.fault(f"--{flag}={flags[flag]}: no Secret is mounted there as a whole")
        if container["name"] == "coordinator" and workload["spec"].get("replicas", 1) != 1:
            self.check_turns(spec, flags)
        if flags.get("data_security") == "none":
            self.fault("--data_security=none: every process that reaches the port would be trusted")

    def check_coordinator_address(self, address):
        """Checks HOST:PORT, of a Service or of a pod of a StatefulSet by its headless Service."""
        host, _, port = address.partition(":")
        pod, _, service_name = host.rpartition(".")
        service = self.named("Service", service_name)
        if service is None or int(port) not in [item["port"] for item in service["spec"]["ports"]]:
            self.fault(f"--coordinator={address}: there is no such Service")
        elif pod and not any(pod == f"{workload['metadata']['name']}-{ordinal}"
                             for workload in self.selected({"matchLabels": service["spec"]["selector"]})
                             for ordinal in range(workload["spec"]["replicas"])):
            self.fault(f"--coordinator={address}: there is no such pod")

    def check_turns(self, spec, flags):
        """Checks the requirements of several coordinators."""
        if not (flags.get("store") or "").startswith("etcd://"):
            self.fault("replicas: several coordinators need etcd")
            return
        host, _, port = flags["store"][len("etcd://"):].split("/")[0].split(",")[0].rpartition(":")
        etcd = {"namespace": host.partition(".")[2]}
        mine = labels_of(next(workload for workload in self.workloads if name_of(workload) == self.where))
        if not Policies(self.objects).side_allows("Egress", "egress", "to", mine, etcd, int(port), "TCP"):
            self.fault(f"the coordinator cannot reach etcd at {host}:{port}")
        claims = [volume["persistentVolumeClaim"]["claimName"] for volume in spec.get("volumes", [])
                  if "persistentVolumeClaim" in volume and volume["name"] == "state"]
        if not any(self.named("PersistentVolumeClaim", claim)["spec"]["accessModes"] == ["ReadWriteMany"]
                   for claim in claims if self.named("PersistentVolumeClaim", claim)):
            self.fault("several coordinators need a shared state folder (ReadWriteMany)")

    def check_probes(self, workload, container, flags, role):
        port = str(flags.get("health", "")).rsplit(":", 1)[-1]
        # With several coordinators the probe must not ask for the leader: an update would wait for the standbys.
        ready = "" if role == "coordinator" and workload["spec"].get("replicas", 1) != 1 else role
        for probe, service in (("startupProbe", ""), ("livenessProbe", ""), ("readinessProbe", ready)):
            grpc = container.get(probe, {}).get("grpc")
            if grpc is None:
                self.fault(f"{probe} is missing, or not a gRPC probe")
            elif str(grpc["port"]) != port or grpc.get("service", "") != service:
                self.fault(f"{probe} must ask port {port} for '{service}'")
        liveness = container.get("livenessProbe", {})
        if liveness.get("periodSeconds", 10) * liveness.get("failureThreshold", 3) < 30:
            self.fault("livenessProbe: would kill a busy process")
        self.check_grace_of_probes(container)

    def check_grace_of_probes(self, container):
        """Checks how long the kubelet waits for a process whose probe failed. Without the field it waits for the pod's grace period."""
        for name in ("startupProbe", "livenessProbe"):
            if name in container and not 1 <= container[name].get("terminationGracePeriodSeconds", math.inf) <= HUNG_GRACE_MAX_S:
                self.fault(f"{name}: terminationGracePeriodSeconds must be 1 to {HUNG_GRACE_MAX_S}: a process that hangs does not drain")

    def selected(self, selector, also=()):
        return [workload for workload in self.workloads if selects(selector, labels_of(workload))]

    def check_cronjob(self, cron):
        job = cron["spec"]["jobTemplate"]  # with a template of pods in its spec, as a StatefulSet
        self.check_volumes(job)
        self.check_security(job)
        for container in containers(job):
            image = container["image"].rsplit("/", 1)[-1]
            if image.startswith("muster-") and not image.endswith(":" + self.version):
                self.fault(f"image: {container['image']} is not of version {self.version}")
        policies = Policies(self.objects)
        coordinator = self.named("StatefulSet", "muster-coordinator")
        if coordinator and not policies.allows(labels_of(job), labels_of(coordinator), 7070):
            self.fault("cannot reach port 7070 of coordinator")
        if not policies.allows(labels_of(job), {"namespace": "kube-system", "k8s-app": "kube-dns"}, 53, "UDP"):
            self.fault("cannot look up the coordinator's name")
        if self.selected({"matchLabels": labels_of(job)}):
            self.fault("has the labels of a member")

    def check_service(self, service):
        selected = self.selected({"matchLabels": service["spec"].get("selector", {})})
        if not service["spec"].get("selector") or len(selected) != 1:
            self.fault(f"selects the pods of {len(selected)} workloads")
            return
        for port in service["spec"]["ports"]:
            number = port_number(port.get("targetPort", port["port"]), selected[0])
            declared = [item["containerPort"] for item in containers(selected[0])[0].get("ports", [])]
            if number not in declared:
                self.fault(f"port {port.get('name')}: the pods have no port {port.get('targetPort')}")
            elif number != port["port"]:
                self.fault(f"port {port.get('name')} is {port['port']} here and {number} in the pods")
        headless = service["spec"].get("clusterIP") == "None"
        if headless and not service["spec"].get("publishNotReadyAddresses"):
            self.fault("publishNotReadyAddresses: pods that are not ready yet would have no name")

    def check_poddisruptionbudget(self, budget):
        selected = self.selected(budget["spec"]["selector"])
        if len(selected) != 1:
            self.fault(f"selects the pods of {len(selected)} workloads")
        if budget["spec"].get("maxUnavailable") in (0, "0", "0%") or "minAvailable" in budget["spec"]:
            self.fault("would block every node drain")

    def check_networkpolicy(self, policy):
        spec = policy["spec"]
        selected = self.selected(spec["podSelector"])
        if not selected and not set(spec["podSelector"].get("matchLabels", {})) & set(STRANGERS):
            self.fault("selects no pods")
        for kind, rules, ends in (("Ingress", "ingress", "from"), ("Egress", "egress", "to")):
            if rules in spec and kind not in spec.get("policyTypes", []):
                self.fault(f"has rules of {kind}, but its policyTypes do not")
            for rule in spec.get(rules) or []:
                if not rule.get(ends) or not rule.get("ports"):
                    self.fault(f"{rules}: allows every peer, or every port")
                for peer in rule.get(ends) or []:
                    self.check_peer(peer, rule, kind, selected)

    def check_peer(self, peer, rule, kind, selected):
        if "ipBlock" in peer:
            return
        selector = peer.get("podSelector", {})
        keys = list(selector.get("matchLabels", {})) + [item["key"] for item in selector.get("matchExpressions", [])]
        ours = "namespaceSelector" not in peer and not set(keys) & set(STRANGERS)
        peers = self.selected(selector) if ours else []
        if ours and not peers:
            self.fault(f"{kind}: no pods match {selector}")
        for end in peers if kind == "Egress" else selected:
            declared = {port["containerPort"] for container in containers(end) for port in container.get("ports", [])}
            numbers = {port.get("port") for port in rule.get("ports", [])}
            if not numbers & declared:
                self.fault(f"{kind}: {name_of(end)} has none of the ports {sorted(map(str, numbers))}")

    def check_certificate(self, certificate):
        spec = certificate["spec"]
        issuer = self.named(spec["issuerRef"].get("kind", "Issuer"), spec["issuerRef"]["name"])
        if issuer is None:
            self.fault(f"there is no issuer {spec['issuerRef']['name']}")
        if spec.get("isCA"):
            return
        role = certificate["metadata"]["name"].rsplit("-", 1)[1]
        if spec.get("uris") != [f"spiffe://muster/{role}"]:
            self.fault(f"uris: must be spiffe://muster/{role}")
        if spec["secretName"] != f"muster-{role}-tls":
            self.fault("secretName: another role would have its key")
        side = "server auth" if role == "coordinator" else "client auth"
        if side not in spec.get("usages", []):
            self.fault(f"usages: must contain {side}, which {role} needs")
        if role == "coordinator":
            settings = [thing["data"] for thing in self.objects if thing["kind"] == "ConfigMap" and "members.flags" in thing["data"]]
            dialled = {address.partition(":")[0] for data in settings
                       for address in re.search(r"^--coordinator=(.*)$", data["members.flags"], re.MULTILINE)[1].split(",")}
            for name in sorted((dialled | {"muster-coordinator", "localhost"}) - set(spec.get("dnsNames", []))):
                self.fault(f"dnsNames: {name} is missing, although members or users dial it")

    def check_secret(self, secret):
        if secret["metadata"]["name"].endswith("-tls"):
            for name in sorted({"tls.crt", "tls.key", "ca.crt"} - set(secret.get("data", {}))):
                self.fault(f"{name} is missing")

    def check_issuer(self, issuer):
        secret = issuer["spec"].get("ca", {}).get("secretName")
        made = [thing["spec"]["secretName"] for thing in self.objects if thing["kind"] == "Certificate"]
        if secret and secret not in made:
            self.fault(f"no object makes the Secret {secret}")

    def check_podmonitor(self, monitor):
        selected = self.selected(monitor["spec"]["selector"])
        if len(selected) != len(self.workloads):
            self.fault("does not select all members")
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            if any(port_number(endpoint["port"], workload) is None for workload in selected):
                self.fault(f"not all pods have a port {endpoint['port']}")

    def check_scaler(self, target, smallest, largest, behavior):
        """Checks the settings that every autoscaler has."""
        workload = self.named("StatefulSet", target.get("name"))
        if workload is None or target.get("kind") != "StatefulSet" or target.get("apiVersion") != workload["apiVersion"]:
            self.fault(f"scaleTargetRef: there is no such workload: {target}")
            return
        role = workload["metadata"]["labels"].get("app.kubernetes.io/component")
        if role != "worker":
            self.fault(f"scales the {role}, but only jobs choose that number")
        if "replicas" in workload["spec"]:
            self.fault("replicas of its target are in the manifest: each apply would reset them")
        if "kueue.x-k8s.io/queue-name" in workload["metadata"]["labels"]:
            self.fault("its target belongs to Kueue, which allows no change of the number")
        if not (isinstance(smallest, int) and isinstance(largest, int) and 1 <= smallest < largest):
            self.fault(f"from {smallest} to {largest} workers: at least one, and room to scale")
        down = behavior.get("scaleDown", {})
        if down.get("stabilizationWindowSeconds", 300) < 300 or not down.get("policies"):
            self.fault("scaleDown: workers would leave between two jobs of a series")
        if len([thing for thing in self.objects if thing["kind"] in ("ScaledObject", "HorizontalPodAutoscaler")]) > 1:
            self.fault("two autoscalers scale the same workload")

    def check_metric(self, name, labels):
        """Checks that the scaling metric is one of the coordinator's, for one bound, and that it is scraped."""
        if name != "muster_workers_wanted" or labels.get("bound") not in ("min", "max"):
            self.fault(f"{name} of {labels}: must be muster_workers_wanted of one bound")
        if labels.get("namespace", "muster") not in [thing["metadata"]["name"] for thing in self.objects if thing["kind"] == "Namespace"]:
            self.fault(f"counts jobs of the namespace {labels['namespace']}")
        if not any(thing["kind"] == "PodMonitor" for thing in self.objects):
            self.fault("no PodMonitor scrapes its metric")

    def check_horizontalpodautoscaler(self, scaler):
        spec = scaler["spec"]
        self.check_scaler(spec["scaleTargetRef"], spec.get("minReplicas", 1), spec["maxReplicas"], spec.get("behavior", {}))
        for metric in spec.get("metrics", []):
            external = metric.get("external", {})
            self.check_metric(external.get("metric", {}).get("name"), external.get("metric", {}).get("selector", {}).get("matchLabels", {}))
            if external.get("target", {}).get("type") != "AverageValue" or str(external["target"].get("averageValue")) != "1":
                self.fault("target: one worker for each that is wanted (AverageValue 1)")
        if len(spec.get("metrics", [])) != 1:
            self.fault("metrics: one, the workers that jobs want")

    # These tests have no schema of KEDA. This is the part that they use, as keda.sh documents it for 2.8 and later. Values below
    # `metadata` of a trigger are strings.
    SCALED_OBJECT = {
        "spec": {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "idleReplicaCount",
                 "fallback", "advanced", "triggers"},
        "advanced": {"restoreToOriginalReplicaCount", "horizontalPodAutoscalerConfig", "scalingModifiers"},
        "autoscaler": {"name", "behavior"},
        "trigger": {"type", "name", "metricType", "useCachedMetrics", "authenticationRef", "metadata"},
        "prometheus": {"serverAddress", "query", "threshold", "activationThreshold", "namespace", "ignoreNullValues", "authModes",
                       "customHeaders", "unsafeSsl", "timeout", "queryParameters"},
    }

    def check_fields(self, value, kind, path):
        for field in sorted(set(value) - self.SCALED_OBJECT[kind]):
            self.fault(f"{path}.{field}: KEDA has no such field")

    def check_scaledobject(self, scaler):
        spec = scaler["spec"]
        if scaler["apiVersion"] != "keda.sh/v1alpha1":
            self.fault(f"{scaler['apiVersion']}: KEDA has no such version")
        advanced = spec.get("advanced", {})
        autoscaler = advanced.get("horizontalPodAutoscalerConfig", {})
        self.check_fields(spec, "spec", "spec")
        self.check_fields(advanced, "advanced", "advanced")
        self.check_fields(autoscaler, "autoscaler", "horizontalPodAutoscalerConfig")
        behavior = autoscaler.get("behavior", {})
        if self.schema is not None:
            for text in type_faults(behavior, "autoscaling.v2.HorizontalPodAutoscalerBehavior", "behavior", self.schema):
                self.fault(text)
        self.check_scaler(spec["scaleTargetRef"], spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100), behavior)
        if len(spec.get("triggers", [])) != 1:
            self.fault("triggers: one, the workers that jobs want")
        for trigger in spec.get("triggers", []):
            self.check_trigger(trigger)

    def check_trigger(self, trigger):
        self.check_fields(trigger, "trigger", "trigger")
        if trigger.get("type") != "prometheus":
            self.fault(f"trigger: must be prometheus, which has the coordinator's metrics (is {trigger.get('type')})")
            return
        metadata = trigger.get("metadata", {})
        self.check_fields(metadata, "prometheus", "metadata")
        for field, value in metadata.items():
            if not isinstance(value, str):
                self.fault(f"metadata.{field}: must be a string, is {value!r}")
        if not re.fullmatch(r"https?://[a-z0-9.-]+(:[0-9]+)?", metadata.get("serverAddress", "")):
            self.fault(f"serverAddress: {metadata.get('serverAddress')} is no URL of a Prometheus")
        query = re.fullmatch(r"max\((\w+)\{(.*)\}\)", metadata.get("query", ""))
        if query is None:
            self.fault("query: must be the largest of one metric; of several coordinators one leads")
        else:
            self.check_metric(query[1], dict(re.findall(r'(\w+)="([^"]*)"', query[2])))
        if trigger.get("metricType", "AverageValue") != "AverageValue" or str(metadata.get("threshold")) != "1":
            self.fault("threshold: one worker for each that is wanted (AverageValue 1)")
        if metadata.get("ignoreNullValues", "true") != "false":
            self.fault("ignoreNullValues: a Prometheus without data would remove all workers")

    def check_paths(self):
        """Checks which pods must reach which ports, and which must not."""
        self.where = "NetworkPolicies"
        policies = Policies(self.objects)
        labels = {workload["metadata"]["name"].removeprefix("muster-"): labels_of(workload) for workload in self.workloads}
        dns = {"namespace": "kube-system", "k8s-app": "kube-dns"}
        stranger = {"app.kubernetes.io/name": "stranger"}
        needed = [("ps", "coordinator", 7070), ("worker", "coordinator", 7070), ("worker", "ps", 9500), ("ps", "ps", 9500),
                  ("worker", "worker", 9500)]
        for source, target, port in needed:
            if source in labels and target in labels and not policies.allows(labels[source], labels[target], port):
                self.fault(f"{source} cannot reach port {port} of {target}")
        client = {**stranger, "muster.io/client": "true"}
        if "coordinator" in labels and not policies.allows(client, labels["coordinator"], 7070):
            self.fault("a client cannot reach port 7070 of coordinator")
        for source, its in [("ps", labels.get("ps")), ("worker", labels.get("worker")), ("client", client)]:
            if its is not None and not policies.allows(its, dns, 53, "UDP"):
                self.fault(f"{source} cannot look up the coordinator's name")
        if policies.side_allows("Ingress", "ingress", "from", stranger, stranger, 80, "TCP"):
            self.fault("a pod that no rule names can be reached")
        for source in labels:
            if policies.allows(labels[source], {"namespace": "default"}, 443):
                self.fault(f"{source} reaches other namespaces")
        for target in labels:
            for port in (7070, 9400, 9401, 9402, 9410, 9500):
                if policies.side_allows("Ingress", "ingress", "from", labels[target], stranger, port, "TCP"):
                    self.fault(f"a stranger reaches port {port} of {target}")
                if policies.allows({"namespace": "default"}, labels[target], port):
                    self.fault(f"another namespace reaches port {port} of {target}")
