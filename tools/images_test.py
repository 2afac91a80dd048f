#!/usr/bin/env python3
"""Tests tools/images.sh with a fake docker without BuildKit, which runs every stage before the target."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
PROGRAM = os.path.join(ROOT, "services", "ps", "main")
TARGETS = ["coordinator", "ps", "worker", "cli"]

# The registry has the two base images of the Dockerfile. `RUN` in the build stage only makes the roots.
DOCKER = """#!/usr/bin/env python3
import json, os, re, shlex, sys

BASES = ("debian:12-slim", "nvidia/cuda:13.0.1-cudnn-runtime-ubuntu24.04")


def fail(message):
    sys.exit("docker: " + message)


def files_under(folder):
    return {os.path.relpath(os.path.join(path, name), folder) for path, _, names in os.walk(folder) for name in names}


def build(words):
    given, options, arguments = {}, {}, {}
    context = words.pop()
    while words:
        option, value = words.pop(0), words.pop(0)
        if option == "--build-arg":
            name, _, given[name] = value.partition("=")
        else:
            options[option] = value
    with open(options.get("--file", os.path.join(context, "Dockerfile")), encoding="utf-8") as file:
        text = re.sub(r"^\\s*#.*\\n", "", file.read(), flags=re.MULTILINE).replace("\\\\\\n", " ")
    stages, name = {}, None
    for words in map(shlex.split, filter(str.strip, text.splitlines())):
        instruction, words = words[0], [re.sub(r"\\$\\{?(\\w+)\\}?", lambda m: arguments.get(m[1], ""), word) for word in words[1:]]
        if instruction == "ARG" and name is None:
            variable, _, default = words[0].partition("=")
            arguments[variable] = given.get(variable, default)
        elif instruction == "FROM":
            if name == options["--target"]:
                break
            base, name = words[0], words[2]
            if base not in BASES and base not in stages and base != "scratch":
                fail(f"pull access denied for {base}")
            stages[name] = set(stages.get(base, ()) if base not in BASES else {"bin/sh"})
            entry = None
        elif instruction == "RUN":
            if "bin/sh" not in stages[name]:
                fail('exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown')
            if "--roots" in words:
                stages[name] |= {f"roots/{role}/usr/bin/muster-{role}" for role in ("coordinator", "ps", "worker")}
                stages[name] |= {"roots/ps-rdma/usr/bin/muster-ps", "roots/cli/usr/bin/muster", "roots/worker-cuda/muster-worker"}
        elif instruction == "COPY":
            start = words[0][len("--from="):] if words[0].startswith("--from=") else None
            source, to = words[-2].strip("/"), words[-1].strip("/")
            found = stages[start] if start else files_under(context)
            copied = found if source == "." else {path[len(source) + 1:] for path in found if path.startswith(source + "/")}
            if not copied:
                fail(f"COPY failed: file not found: {source}")
            stages[name] |= {os.path.join(to, path) for path in copied}
        elif instruction == "ENTRYPOINT":
            entry = words[0].strip("[]\\"")
    if name != options["--target"]:
        fail(f"failed to reach build target {options['--target']} in Dockerfile")
    with open(os.environ["IMAGES"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"image": options["--tag"], "entry": entry, "files": sorted(stages[name])}) + "\\n")


if sys.argv[1] == "build":
    build(sys.argv[2:])
elif sys.argv[1] != "info":
    fail(f"{sys.argv[1]}: unknown command")
"""


class Images(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        self.tree = os.path.join(self.folder, "tree")
        self.programs = os.path.join(self.folder, "programs")
        os.makedirs(os.path.join(self.tree, "tools"))
        for name in ("Dockerfile", "LICENSE", "VERSION", "tools/bundle.sh", "tools/image_root.sh", "tools/images.sh", "tools/sbom.py"):
            shutil.copy(os.path.join(ROOT, name), os.path.join(self.tree, name))
        for name in ("services/coordinator/main", "services/ps/main", "services/worker/main", "cli/muster"):
            os.makedirs(os.path.dirname(os.path.join(self.programs, name)), exist_ok=True)
            os.symlink(os.path.realpath(PROGRAM), os.path.join(self.programs, name))
        docker = os.path.join(self.folder, "docker")
        with open(docker, "w", encoding="utf-8") as file:
            file.write(DOCKER)
        os.chmod(docker, 0o755)
        self.images = os.path.join(self.folder, "images")
        self.env = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "IMAGES": self.images, "TMPDIR": self.folder,
                    "SOURCE_DATE_EPOCH": "0"}

    def make(self, *arguments):
        """Returns the output of the script, and the images by target."""
        made = subprocess.run([os.path.join(self.tree, "tools", "images.sh"), "--tool", "docker", *arguments], env=self.env,
                              capture_output=True, text=True, check=False)
        images = {}
        if made.returncode == 0:
            with open(self.images, encoding="utf-8") as file:
                for image in map(json.loads, file):
                    images[image["image"].split(":")[0].removeprefix("muster-")] = image
        return made, images

    def check(self, made, images, targets):
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertEqual(sorted(images), sorted(targets))
        for image in images.values():
            self.assertIn(image["entry"].lstrip("/"), image["files"])

    def test_programs_become_images_though_every_stage_before_the_target_runs(self):
        targets = [*TARGETS, "worker-cuda"]
        made, images = self.make("--programs", self.programs, *targets)
        self.check(made, images, targets)
        for target in TARGETS:
            self.assertIn("usr/share/muster/sbom.spdx.json", images[target]["files"])
            self.assertFalse([path for path in images[target]["files"] if path.endswith("bin/sh")], "it holds the program alone")

    def test_programs_that_a_container_builds_become_images_too(self):
        for command in (["init", "--quiet"], ["add", "--all"],
                        ["-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "--quiet", "--message=all"]):
            subprocess.run(["git", *command], cwd=self.tree, check=True)
        targets = [*TARGETS, "ps-rdma", "worker-cuda"]
        self.check(*self.make(*targets), targets)


if __name__ == "__main__":
    unittest.main()
