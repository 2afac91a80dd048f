"""A stand-in for a Kubernetes API server, as far as `kubectl apply`, `get` and `delete` need it. It stores objects, merges patches
without lists, and sets `replicas: 1` in a StatefulSet without the field. It checks no schema and starts no pods."""

import http.server
import json
import threading
import urllib.parse

# A protobuf message with only the field "swagger", 2.0. kubectl 1.28 requests it before it makes a patch.
EMPTY_OPENAPI_V2 = b"\x0a\x032.0"
SHORT_NAMES = {"HorizontalPodAutoscaler": ["hpa"]}


def plural(kind):
    word = kind.lower()
    return word[:-1] + "ies" if word.endswith("y") else word + ("es" if word.endswith("s") else "s")


def merge(thing, patch):
    """Applies a merge patch (RFC 7386). A strategic patch without lists has the same meaning."""
    for key, value in patch.items():
        if key.startswith("$") or isinstance(value, list):
            raise ValueError(f"this stand-in cannot merge {key}")
        if value is None:
            thing.pop(key, None)
        elif isinstance(value, dict):
            merge(thing.setdefault(key, {}), value)
        else:
            thing[key] = value


class ApiServer:
    """A server that knows the kinds of `objects` and stores no object yet."""

    def __init__(self, objects):
        self.kinds = {}  # by group and version: plural -> (kind, whether it is in a namespace)
        for thing in objects:
            self.kinds.setdefault(thing["apiVersion"], {})[plural(thing["kind"])] = (
                thing["kind"], "namespace" in thing["metadata"])
        self.stored = {}  # by path
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def named(self, kind, name):
        return next(thing for thing in self.stored.values() if (thing["kind"], thing["metadata"]["name"]) == (kind, name))

    def discover(self, path):
        """Returns the answer to a discovery request of `kubectl`; None for any other path."""
        groups = [version for version in self.kinds if "/" in version]
        if path == "/version":
            return {"major": "1", "minor": "32", "gitVersion": "v1.32.0"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            names = [{"groupVersion": version, "version": version.split("/")[1]} for version in groups]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                {"name": name["groupVersion"].split("/")[0], "versions": [name], "preferredVersion": name} for name in names]}
        if path == "/openapi/v3":
            return {"paths": {root(version)[1:]: {"serverRelativeURL": f"/openapi/v3{root(version)}"} for version in self.kinds}}
        for version, kinds in self.kinds.items():
            if path == root(version):
                return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": [
                    {"name": name, "singularName": kind.lower(), "namespaced": namespaced, "kind": kind, "shortNames": SHORT_NAMES.get(kind, []),
                     "verbs": ["create", "delete", "get", "list", "patch", "watch"]} for name, (kind, namespaced) in kinds.items()]}
            if path == f"/openapi/v3{root(version)}":
                group, _, number = version.rpartition("/")
                return {"openapi": "3.0.0", "info": {"title": "stand-in", "version": "1"}, "paths": {
                    f"{root(version)}/{name}/{{name}}": {"patch": {
                        "x-kubernetes-group-version-kind": {"group": group, "version": number, "kind": kind}, "responses": {},
                        "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]}}
                    for name, (kind, _) in kinds.items()}}
        return None

    def store(self, path, thing):
        if thing["kind"] == "StatefulSet":
            thing["spec"].setdefault("replicas", 1)
        self.stored[path] = thing
        return thing

    def answer(self, method, path, body):
        """Returns (HTTP code, object)."""
        found = self.discover(path) if method == "GET" else None
        if found is not None:
            return 200, found
        if method == "POST":
            return 201, self.store(f"{path}/{body['metadata']['name']}", body)
        if path not in self.stored:
            return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                         "message": f"{path} not found"}
        if method == "DELETE":
            del self.stored[path]
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        if method == "PATCH":
            merge(self.stored[path], body)
            self.store(path, self.stored[path])
        return 200, self.stored[path]

    def handler(self):
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def respond(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = urllib.parse.urlsplit(self.path).path
                code, thing = api.answer(self.command, path, json.loads(body) if body else None)
                data = json.dumps(thing).encode()
                if path == "/openapi/v2":
                    code, data = 200, EMPTY_OPENAPI_V2
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = respond

            def log_message(self, *_):
                pass

        return Handler


def root(version):
    return f"/apis/{version}" if "/" in version else f"/api/{version}"
