"""A local cluster that Prometheus observes, for live_test.py, metrics_page.py and picture.py. Its job can lose a parameter server and
recover, so that every dashboard has something to show."""

import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.parse
import urllib.request

PATIENCE = 120  # seconds that anything may take
JOB = """
name: lenet
model: {zoo: {name: lenet, args: {classes: 10}}}
data: {idx: {images: IMAGES, labels: LABELS, holdout: 0.15}, batch_size: 64}
training: {steps: 100000, optimizer: {adam: {learning_rate: 1e-3}}, clip: {global_norm: 100}, evaluate_every_steps: 40}
resources: {workers: {min: 2, max: 2, logical: 2}, ps: 2}
checkpoint: {every_steps: EVERY, keep_last: 2}
"""


class ObservedCluster:
    """A context manager that starts the cluster on entry and ends it on exit. `muster` is the path of that program; `folder` holds the
    cluster's files."""

    def __init__(self, muster, folder, examples):
        self.muster = pathlib.Path(muster).absolute()
        self.folder = pathlib.Path(folder)
        self.examples = pathlib.Path(examples).absolute()

    def __enter__(self):
        try:
            self.run("local", "up", "--observe", "--ps", "2", "--workers", "2")
            self.url = self.record("prometheus/process.json")["url"]
            self.await_value("count(up == 1)", 5)
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_):
        self.down()

    def down(self):
        if (self.folder / "cluster.json").exists():
            self.run("local", "down")

    def run(self, *arguments):
        """Runs `muster` and returns its output. Raises AssertionError if it fails."""
        flags = ["--dir", str(self.folder)] if arguments[0] == "local" else ["--server", self.record("cluster.json")["address"]]
        ran = subprocess.run([self.muster, *arguments, *flags], capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise AssertionError(f"muster {' '.join(arguments)} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}\n{self.logs()}")
        return ran.stdout

    def logs(self):
        return "\n".join(f"{path}:\n" + "\n".join(path.read_text(encoding="utf-8").splitlines()[-8:])
                         for path in sorted(self.folder.glob("**/*log")))

    def record(self, name):
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def ask(self, path, **parameters):
        """Returns the `data` of Prometheus' answer."""
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    def values(self, expression):
        return [float(sample["value"][1]) for sample in self.ask("query", query=expression)["result"]]

    def await_value(self, expression, least):
        """Waits until the expression has a value of at least `least`."""
        deadline = time.monotonic() + PATIENCE
        values = None
        while time.monotonic() < deadline:
            try:
                values = self.values(expression)
            except OSError:  # Prometheus is not ready yet
                pass
            if values and max(values) >= least:
                return
            time.sleep(0.2)
        raise AssertionError(f"{expression} is {values}, not {least}, after {PATIENCE} s\n{self.logs()}")

    def await_scrapes(self):
        """Waits until the last scrape of every process is at least 5 s from now. Rates need two scrapes that have the present values."""
        self.await_value("min(timestamp(up))", time.time() + 5)

    def train(self, until_step, checkpoint_every=20):
        """Submits the job and returns its name. Waits until it is at this step, has written a checkpoint and has an evaluation."""
        spec = self.folder / "job.yaml"
        spec.write_text(JOB.replace("EVERY", str(checkpoint_every))
                        .replace("IMAGES", str(self.examples / "data/mnist/t10k-images-idx3-ubyte.gz"))
                        .replace("LABELS", str(self.examples / "data/mnist/t10k-labels-idx1-ubyte.gz")), encoding="utf-8")
        self.run("submit", str(spec))
        self.await_value("muster_job_step", until_step)
        self.await_value("muster_checkpoint_last_success_step", 1)
        self.await_value("muster_job_evaluation_loss", -1e9)
        return "lenet-1"

    def pid_of(self, member):
        return next(known["pid"] for known in self.record("cluster.json")["members"] if known["name"] == member)

    def lose(self, member):
        """Kills a member, starts it again, and waits until the job has recovered and Prometheus sees all five processes."""
        before = max(self.values("sum(muster_recovery_duration_seconds_count)"))
        pid = self.pid_of(member)
        os.kill(pid, signal.SIGKILL)
        while self.pid_of(member) == pid:  # on a busy machine a killed process may live for a moment
            self.run("local", "up")
        self.await_value("sum(muster_recovery_duration_seconds_count)", before + 1)
        self.await_value("count(up == 1)", 5)
