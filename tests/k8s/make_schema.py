#!/usr/bin/env python3
"""Makes schema-VERSION.json: the schema of one Kubernetes version for the kinds that Muster uses, in a few kilobytes.

    pip download --no-deps kubernetes-validate && unzip -d kubernetes-validate kubernetes_validate-*.whl
    tests/k8s/make_schema.py kubernetes-validate 1.27 1.37

The package holds Kubernetes' OpenAPI definitions as JSON schema. Both are under the Apache License 2.0, and so is the excerpt.
"""

import json
import os
import re
import sys

KINDS = [
    "v1/Namespace", "v1/ServiceAccount", "v1/ConfigMap", "v1/Secret", "v1/Service", "v1/Pod", "v1/PersistentVolumeClaim",
    "apps/v1/StatefulSet", "batch/v1/CronJob", "batch/v1/Job", "policy/v1/PodDisruptionBudget", "networking.k8s.io/v1/NetworkPolicy",
    "scheduling.k8s.io/v1/PriorityClass", "autoscaling/v2/HorizontalPodAutoscaler",
]
HERE = os.path.dirname(os.path.abspath(__file__))


def load(package, version):
    path = os.path.join(package, "kubernetes_validate", "kubernetes-json-schema", f"v{version}.0-local-strict",
                        "_definitions.json")
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    return document.get("$defs") or document["definitions"]


def short(name):
    return re.sub(r"^io\.k8s\.(api|apimachinery\.pkg\.apis|apimachinery\.pkg)\.", "", name)


class Excerpt:
    """Types by short name, with every type that they refer to."""

    def __init__(self, definitions):
        self.definitions = definitions
        self.types = {}

    def add(self, name):
        """Adds the type of this long name. Returns its form in the excerpt."""
        definition = self.definitions[name]
        if name.endswith((".IntOrString", ".Quantity")):
            return "scalar"
        if "properties" not in definition:
            return self.written({key: value for key, value in definition.items() if key != "$ref"})
        if short(name) not in self.types:
            fields = {}
            self.types[short(name)] = {"fields": fields, "required": sorted(definition.get("required", []))}
            fields.update((field, self.written(value)) for field, value in sorted(definition["properties"].items()))
        return short(name)

    def written(self, schema):
        if "$ref" in schema:
            return self.add(schema["$ref"].rsplit("/", 1)[1])
        kinds = schema.get("type", [])
        kinds = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
        if kinds == ["array"]:
            return ["list", self.written(schema["items"])]
        if kinds == ["object"]:
            values = schema.get("additionalProperties")
            return ["map", self.written(values) if isinstance(values, dict) else "any"]
        if len(kinds) == 1:
            return kinds[0]
        return "scalar" if kinds else "any"


def make(package, version):
    definitions = load(package, version)
    excerpt = Excerpt(definitions)
    kinds = {}
    for name, definition in sorted(definitions.items()):
        for kind in definition.get("x-kubernetes-group-version-kind", []):
            written = "/".join(filter(None, (kind["group"], kind["version"], kind["kind"])))
            if written in KINDS:
                kinds[written] = excerpt.add(name)
    missing = sorted(set(KINDS) - set(kinds))
    if missing:
        sys.exit(f"make_schema: Kubernetes {version} has no {', '.join(missing)}")
    origin = (f"Kubernetes {version}'s OpenAPI definitions (Apache License 2.0), from the Python package kubernetes-validate; "
              "made by tests/k8s/make_schema.py")
    path = os.path.join(HERE, f"schema-{version}.json")
    with open(path, "w", encoding="utf-8") as file:
        # One type per line, so that diff can compare two versions.
        file.write('{\n"origin": %s,\n"kinds": %s,\n"types": {\n' % (json.dumps(origin), json.dumps(kinds)))
        file.write(",\n".join(f"{json.dumps(name)}: {json.dumps(body, separators=(',', ':'))}"
                              for name, body in sorted(excerpt.types.items())))
        file.write("\n}}\n")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    for wanted in sys.argv[2:]:
        make(sys.argv[1], wanted)
