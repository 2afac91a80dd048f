#!/usr/bin/env python3
"""The stages of gpu_check on the GPU machine: starts programs, limits their time, and writes their results.

    FILE run STAGE [MODEL] RESULTS [--rounds N] [--seconds N] [--rehearse]

    tests            every test case that needs a GPU; a skipped one counts as failed
    nccl             two processes on one GPU, as two hosts
    models [MODEL]   a training step of Muster and of PyTorch in every variant: gpt2, resnet50 (the default is both), bert
    profile [MODEL]  the parts of a step's time: by node for Muster, by kernel for both
    ranks            the first rank of a GPT with tensor parallelism, without collectives: 1, 2, 4 and 8 ranks
    job [MODEL]      whole jobs (coordinator, ps, worker) and what the exchange costs: gpt2 and resnet50
    all              all of them, until the time is over

A stage takes 470 seconds at most (--seconds), and lists what it did not reach. RESULTS gets a JSON file for each result, a
table, and an archive of logs, named by stage and UTC time; no file is overwritten. Exit codes: 0 everything ran and passed,
1 something did not, 69 no GPU. --rehearse runs small models on this machine's CPU instead, to test gpu_check itself.
"""

import argparse
import concurrent.futures
import datetime
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
import time
import urllib.request

import report

HERE = os.path.dirname(os.path.abspath(__file__))
STAGE_SECONDS = 470.0
EXIT_UNAVAILABLE = 69

# Arguments of `muster bench model` and of pytorch_models.py; dropout is off on both sides.
MODELS = {
    "gpt2": {"title": "GPT-2 124M, 1024 tokens, bf16", "batch": 32, "unit": "tokens", "units_per_sample": 1024,
             "muster": ["--zoo", "gpt2", "--arg", "size=124m", "--arg", "context=1024", "--arg", "dropout=0"],
             "torch": ["--zoo", "gpt2", "--context", "1024"], "job": "gpt2.yaml"},
    "resnet50": {"title": "ResNet-50, 224 x 224, bf16", "batch": 256, "unit": "images", "units_per_sample": 1,
                 "muster": ["--zoo", "resnet50"], "torch": ["--zoo", "resnet50", "--channels-last"], "job": "resnet50.yaml"},
    "bert": {"title": "BERT-large, 512 tokens, bf16", "batch": 32, "unit": "tokens", "units_per_sample": 512,
             "muster": ["--zoo", "bert", "--arg", "size=large", "--arg", "context=512", "--arg", "dropout=0"],
             "torch": ["--zoo", "bert", "--context", "512"]},
}
MODELS_BY_DEFAULT = ["gpt2", "resnet50"]

# --rehearse runs these small models on a CPU, with the same programs.
TOYS = {
    "gpt2": {"title": "toy GPT", "batch": 2, "unit": "tokens", "units_per_sample": 16,
             "muster": ["--zoo", "gpt", "--arg", "layers=1", "--arg", "heads=2", "--arg", "channels=16", "--arg", "context=16",
                        "--arg", "vocabulary=50", "--threads", "1"],
             "torch": ["--zoo", "mlp"], "job": "gpt2.yaml",
             "job_settings": ["model.zoo={name: gpt, args: {layers: 1, heads: 2, channels: 16, context: 16, vocabulary: 50}}",
                              "data.batch_size=2", "training.precision=fp32", "training.steps=4000"]},
    "resnet50": {"title": "toy of images", "batch": 4, "unit": "images", "units_per_sample": 1,
                 "muster": ["--zoo", "mlp", "--threads", "1"], "torch": ["--zoo", "mlp"], "job": "resnet50.yaml",
                 "job_settings": ["model.zoo={name: mlp, args: {}}", "data.batch_size=4", "training.precision=fp32", "training.steps=2000"]},
}

# Two wide layers without a head that matters, divided among so many ranks. The toy has two heads.
RANKS = {"title": "GPT, 2 layers of width 3,072, 1024 tokens, bf16", "batch": 8, "unit": "tokens", "units_per_sample": 1024,
         "degrees": [1, 2, 4, 8],
         "muster": ["--zoo", "gpt", "--arg", "layers=2", "--arg", "heads=24", "--arg", "channels=3072", "--arg", "context=1024",
                    "--arg", "vocabulary=512"]}
TOY_RANKS = {**TOYS["gpt2"], "degrees": [1, 2]}

# (side, variant, options), the most informative first.
VARIANTS = [
    ("Muster", "autotuned, resident", ["--autotuned", "--values", "resident"]),
    ("PyTorch", "torch.compile", ["--compile"]),
    ("Muster", "deterministic, streamed", ["--deterministic", "--values", "streamed"]),
    ("PyTorch", "eager", []),
    ("Muster", "deterministic, resident", ["--deterministic", "--values", "resident"]),
    ("Muster", "autotuned, streamed", ["--autotuned", "--values", "streamed"]),
]


stop_signal = 0  # the signal that came; 0: none


def stop(number, _):
    """Only records the signal. A function that waits for a program then ends the program and raises Stopped; no other one is started.

    The handler takes no lock and raises nothing, because it may interrupt Popen while that holds its lock."""
    global stop_signal
    stop_signal = number


class Stopped(Exception):
    pass


class NoGpu(Exception):
    pass


class Outcome:
    """How a program ended. `error` is None or one line; `out` and `err` are what it printed."""

    def __init__(self, out, err, error, timed_out=False):
        self.out, self.err, self.error, self.timed_out = out, err, error, timed_out

    def json(self):
        """Returns the JSON that it printed, or {"error": ...}."""
        if self.error is None:
            try:
                return json.loads(self.out)
            except ValueError:
                self.error = "no JSON: " + report.last_line(self.out)
        return {"error": self.error}


class Stage:
    """One stage's time, results and logs."""

    def __init__(self, name, results, seconds, options):
        self.name, self.options = name, options
        self.end = time.monotonic() + seconds
        self.missed, self.failed = [], []
        self.logs = tempfile.mkdtemp(prefix="logs-", dir=options.work)
        # The first file takes the name; a second run in the same second takes another.
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        for attempt in range(1, 1000):
            self.prefix = os.path.join(results, f"{name}-{stamp}" + (f"-{attempt}" if attempt > 1 else ""))
            try:
                with open(self.prefix + ".md", "x", encoding="utf-8") as file:
                    file.write(f"## {name}: began, and did not end\n")
                return
            except FileExistsError:
                continue

    def left(self):
        return 0.0 if stop_signal else self.end - time.monotonic()

    def environment(self, **more):
        """Returns the environment of Muster's programs. They find CUDA's libraries in LD_LIBRARY_PATH, then in PyTorch's wheels."""
        environment = dict(os.environ, **more)
        folders = [environment.get("LD_LIBRARY_PATH", ""), *wheel_libraries()]
        environment["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder)
        return environment

    def command(self, log, argv, limit, env=None):
        """Runs a program for at most `limit` seconds and at most the rest of the stage's time. Its children end with it."""
        limit = min(limit, self.left())
        if limit < 1:
            return Outcome("", "", "no time was left")
        out_path, err_path = os.path.join(self.logs, log + ".out"), os.path.join(self.logs, log + ".err")
        with open(out_path, "wb") as out, open(err_path, "wb") as err:
            process = start(argv, out, err, env)
            try:
                timed_out = not ended_within(limit, process)
            finally:
                kill_group(process)
        texts = [read(out_path), read(err_path)]
        said = report.last_line(texts[1] if texts[1].strip() else texts[0])
        if timed_out:
            return Outcome(*texts, f"took more than {limit:.0f} s; its last line: {said}", timed_out=True)
        if process.returncode < 0:
            return Outcome(*texts, f"{signal.Signals(-process.returncode).name}; its last line: {said}")
        return Outcome(*texts, None if process.returncode == 0 else said)

    def muster(self, log, arguments, limit, **environment):
        return self.command(log, [os.path.join(HERE, "muster"), "-o", "json", *arguments], limit,
                            self.environment(GLOG_minloglevel="0", **environment))

    def torch(self, log, arguments, limit):
        cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or compile_cache()
        return self.command(log, [sys.executable, os.path.join(HERE, "pytorch_models.py"), "--json", *arguments], limit,
                            dict(os.environ, TORCHINDUCTOR_CACHE_DIR=cache))

    def save(self, name, result):
        with open(f"{self.prefix}-{name}.json", "x", encoding="utf-8") as file:
            json.dump({"stage": self.name, "result": name, "machine": self.options.machine, **result}, file, indent=1)
            file.write("\n")

    def finish(self, table):
        """Prints the table and what failed or is missing, and packs the logs. Returns whether nothing failed or is missing."""
        text = f"## {self.name}: {self.options.machine['gpu']}\n\n{table}"
        text += "".join(f"\nFAILED: {what}\n" for what in self.failed)
        text += "".join(f"\nnot reached, for want of time: {what}\n" for what in self.missed)
        with open(self.prefix + ".md", "w", encoding="utf-8") as file:
            file.write(text)
        with tarfile.open(self.prefix + "-logs.tar.gz", "x:gz") as archive:
            archive.add(self.logs, arcname=os.path.basename(self.prefix) + "-logs")
        print(text, flush=True)
        print(f"results: {self.prefix}*\n", flush=True)
        return not self.failed and not self.missed


def start(argv, out, err, env):
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True)


def ended_within(seconds, process):
    """Returns whether the process ended within `seconds`. Raises Stopped after a signal."""
    end, pause = time.monotonic() + seconds, 0.0005
    while process.poll() is None:
        if stop_signal:
            raise Stopped
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return True


def kill_group(process):
    """Kills all processes of the process's group, and reaps it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def wheel_libraries():
    """Returns the folders of the nvidia-* wheels beside PyTorch: nvidia/cu13/lib, nvidia/cudnn/lib, nvidia/nccl/lib."""
    sites = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path])
    return [folder for site in sites if site for folder in sorted(glob.glob(os.path.join(site, "nvidia", "*", "lib")))]


def compile_cache():
    """Returns a folder that is kept between runs, because torch.compile takes minutes."""
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "muster-gpu-check")
    try:
        os.makedirs(folder, exist_ok=True)
        return folder
    except OSError:
        return os.path.join(HERE, "compile-cache")  # only for this run


# ---------------------------------------------------------------- tests


def run_tests(stage, names, jobs):
    """Returns the results of the named tests. They run in groups, up to `jobs` groups at a time.

    A test may end the program, use all of its time, or leave the device in a lasting error. The other tests of its group then
    run in another process. Suites that end in FaultTest cause such errors on purpose: each of their tests has its own process,
    after all others."""
    results, lock = {}, threading.Lock()
    size = 40
    faults = [[name] for name in names if "FaultTest." in name]
    others = [name for name in names if "FaultTest." not in name]
    groups = [others[i:i + size] for i in range(0, len(others), size)]
    groups_together = len(groups)
    groups += faults

    def run_group(number):
        todo, attempt = groups[number], 0
        while todo and stage.left() > 1:
            outcome = stage.command(f"tests-{number:03d}-{attempt}", [os.path.join(HERE, "gpu_tests")], 120,
                                    stage.environment(GTEST_FILTER=":".join(todo), MUSTER_DEVICE=stage.options.device))
            ended, unfinished = report.gtest_results(outcome.out)
            ended = report.until_the_device_fails(ended)
            # After a timeout, the unfinished test is at fault only if it was the first one and so had all of the time.
            if unfinished and (not outcome.timed_out or (unfinished == todo[0] and stage.left() > 1)):
                ended[unfinished] = (report.CRASHED, outcome.error or "the program ended in it")
            remaining = [name for name in todo if name not in ended]
            if remaining == todo and stage.left() > 1:  # it did not begin any of them
                ended.update({name: (report.CRASHED, outcome.error or "the program did not run it") for name in todo})
                remaining = []
            with lock:
                results.update(ended)
            todo, attempt = remaining, attempt + 1

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(run_group, number) for number in range(groups_together)]:
            future.result()
    for number in range(groups_together, len(groups)):
        run_group(number)
    for name in names:
        results.setdefault(name, (report.MISSED, ""))
    return results


def list_tests(stage, wanted):
    outcome = stage.command("list", [os.path.join(HERE, "gpu_tests"), "--gtest_list_tests"], 60,
                            stage.environment(MUSTER_DEVICE=stage.options.device, GTEST_FILTER=wanted))
    return report.listed_tests(outcome.out)


def finish_tests(stage, results):
    count = lambda status: sum(1 for s, _ in results.values() if s == status)
    if count(report.MISSED):
        stage.missed.append(f"{count(report.MISSED)} tests")
    bad = count(report.FAILED) + count(report.CRASHED) + count(report.SKIPPED)
    if bad or not results:
        stage.failed.append(f"{bad} tests" if results else "there are no tests")
    stage.save("tests", {"tests": {name: {"status": s, "why": why} for name, (s, why) in sorted(results.items())}})
    return stage.finish(report.tests_table(results))


def tests(stage, _):
    # A CPU cannot run the CUDA tests, so --rehearse runs others.
    wanted = "TiesTest.*:PaddingTest.*:IdsTest.*" if stage.options.rehearse else "-NcclCommunicatorTest.*"
    return finish_tests(stage, run_tests(stage, list_tests(stage, wanted), jobs=min(8, os.cpu_count() or 1)))


def nccl(stage, _):
    os.environ.setdefault("NCCL_DEBUG", "WARN")  # goes to the logs
    names = list_tests(stage, "NcclCommunicatorTest.*")
    return finish_tests(stage, run_tests(stage, names, jobs=1))


# ---------------------------------------------------------------- models, profile


def model_row(stage, log, side, variant, options, model, **environment):
    rehearse = stage.options.rehearse
    common = ["--device", "cpu" if rehearse else "cuda:0", "--precision", "fp32" if rehearse else "bf16",
              "--batch", str(model["batch"]), "--steps", "20"]
    if side == "Muster":
        own = [o for o in options if not rehearse or o not in ("--autotuned", "--values", "resident", "streamed")]  # a CPU refuses these
        outcome = stage.muster(log, ["bench", "model", *model["muster"], *own, *common], 150, **environment)
        result = outcome.json()
        if attention := report.attention_choices(outcome.err):
            result["attention"] = attention
    else:
        result = stage.torch(log, [*model["torch"], *options, *common], 240).json()
    return {"side": side, "variant": variant, **result}


def models_of(stage, name):
    table = TOYS if stage.options.rehearse else MODELS
    return {n: table[n] for n in ([name] if name else MODELS_BY_DEFAULT)}


def models(stage, name):
    text = ""
    for model_name, model in models_of(stage, name).items():
        rounds = []
        for number in range(stage.options.rounds):
            rows = []
            for side, variant, options in VARIANTS:
                if stage.left() < 5:
                    rows.append({"side": side, "variant": variant, "error": "not reached"})
                    stage.missed.append(f"{model_name}, round {number + 1}: {side}, {variant}")
                    continue
                label = f"{model_name}-{side}-{variant}-{number + 1}".replace(", ", "-").lower()
                row = model_row(stage, label, side, variant, options, model)
                if "error" in row:
                    stage.failed.append(f"{model_name}: {side}, {variant}")
                rows.append(row)
                stage.save(label, row)
                print(f"gpu_check: {label}: {row.get('error') or '%.2f ms' % (row['step_seconds'] * 1e3)}", file=sys.stderr, flush=True)
            rounds.append(rows)
        text += report.models_table(model["title"], model["batch"], model["unit"], model["units_per_sample"],
                                    report.median_rows(rounds)) + "\n"
    return stage.finish(text)


def ranks(stage, _):
    model = TOY_RANKS if stage.options.rehearse else RANKS
    rows = []
    for degree in model["degrees"]:
        label = f"rank-0-of-{degree}"
        if stage.left() < 5:
            stage.missed.append(label)
            continue
        row = model_row(stage, label, "Muster", f"rank 0 of {degree}",
                        ["--autotuned", "--values", "resident", "--tensor-parallel", str(degree)], model)
        if "error" in row:
            stage.failed.append(label)
        rows.append({"degree": degree, **row})
        stage.save(label, row)
    return stage.finish(report.ranks_table(model["title"], model["batch"], rows))


def kernels(stage, model_name, model):
    """Returns the kernels of a steady step from kernel_times.so. Returns None if the file was packed without it, or it failed."""
    library, path = os.path.join(HERE, "kernel_times.so"), os.path.join(stage.logs, model_name + "-kernels.tsv")
    if stage.options.rehearse or not os.path.exists(library):
        return None
    row = model_row(stage, model_name + "-kernels", "Muster", "kernels", ["--autotuned", "--values", "resident"], model,
                    CUDA_INJECTION64_PATH=library, MUSTER_KERNEL_TIMES=path)
    return report.kernels_of_a_step(read(path), row["step_seconds"]) if "step_seconds" in row and os.path.exists(path) else None


def profile(stage, name):
    text = ""
    for model_name, model in models_of(stage, name).items():
        if stage.left() < 5:
            stage.missed.append(model_name)
            continue
        ours = model_row(stage, model_name + "-muster", "Muster", "profile", ["--profile", "--autotuned", "--values", "resident"], model)
        ours["kernels"] = kernels(stage, model_name, model)
        theirs = model_row(stage, model_name + "-pytorch", "PyTorch", "profile", ["--profile", "--compile"], model)
        for side, result in (("muster", ours), ("pytorch", theirs)):
            if "profile" not in result:
                stage.failed.append(f"{model_name}: {side}")
            stage.save(f"{model_name}-{side}", result)
        text += report.profile_table(model["title"], ours, theirs) + "\n"
    return stage.finish(text)


# ---------------------------------------------------------------- job


def run_job(stage, name, model):
    """Returns {"step_seconds": ..., "wait_seconds": ..., ...} of a steady step of a whole job, or {"error": ...}."""
    limit = min(stage.left(), 200)
    if limit < 5:
        return {"error": "no time was left"}
    folder = os.path.join(stage.logs, name + "-job")
    settings = [word for setting in model.get("job_settings", []) for word in ("--set", setting)]
    out, err = os.path.join(stage.logs, name + "-job.out"), os.path.join(stage.logs, name + "-job.err")
    argv = [os.path.join(HERE, "muster"), "-o", "json", "run", os.path.join(HERE, model["job"]), "--ps", "1", "--workers", "1",
            "--devices", stage.options.device, "--dir", folder, *settings]
    samples = []
    with open(out, "wb") as out_file, open(err, "wb") as err_file:
        process = start(argv, out_file, err_file, stage.environment())
        end = time.monotonic() + limit
        try:
            while process.poll() is None and time.monotonic() < end and not stop_signal:
                url = worker_url(err)
                totals = worker_sample(url) if url else None
                # The first steps are slower: they make buffers, connections and CUDA graphs.
                if totals and totals["steps"] >= 3 and (not samples or totals["steps"] > samples[-1]["steps"]):
                    samples.append(totals)
                time.sleep(0.02)
            if stop_signal:
                raise Stopped
            timed_out = process.poll() is None
        finally:
            if process.poll() is None:  # on SIGTERM, muster stops its members
                process.terminate()
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    pass
            kill_group(process)
    shutil.rmtree(os.path.join(folder, "state"), ignore_errors=True)  # checkpoints do not belong into the logs
    said = report.last_line(read(err))
    if timed_out:
        return {"error": f"took more than {limit:.0f} s; its last line: {said}"}
    if process.returncode != 0:
        return {"error": said}
    try:
        return report.steady_step(samples[0], samples[-1]) if samples else {"error": "no step was seen"}
    except ValueError as error:
        return {"error": str(error)}


def worker_url(log):
    """Returns the URL of the worker's metrics from the output of `muster run`, or None if it is not printed yet."""
    found = re.search(r"(http://\S+)\s+worker-0$", read(log), re.MULTILINE)
    return found.group(1) if found else None


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def worker_sample(url):
    try:
        # Ignores proxies of the environment, because the worker is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return report.worker_totals(opener.open(url, timeout=2).read().decode())
    except OSError:
        return None  # it is ending


def job(stage, name):
    rows = []
    for model_name, model in models_of(stage, name).items():
        alone = model_row(stage, model_name + "-alone", "Muster", "alone", ["--deterministic", "--values", "streamed"], model)
        result = run_job(stage, model_name, model)
        row = {key: model[key] for key in ("title", "batch", "unit", "units_per_sample")}
        row.update(alone=alone, job=result)
        for side in ("alone", "job"):
            if row[side].get("error") == "no time was left":
                stage.missed.append(f"{model_name}: {side}")
            elif "error" in row[side]:
                stage.failed.append(f"{model_name}: {side}")
        rows.append(row)
        stage.save(model_name, row)
    return stage.finish(report.jobs_table(rows))


# ---------------------------------------------------------------- all

STAGES = {"tests": tests, "nccl": nccl, "models": models, "profile": profile, "ranks": ranks, "job": job}
ALL = [("tests", None), ("nccl", None), ("models", "gpt2"), ("models", "resnet50"), ("ranks", None), ("job", None),
       ("profile", "gpt2"), ("profile", "resnet50")]


def run_all(options, seconds):
    end, passed, missed = time.monotonic() + seconds, True, []
    for i, (name, model) in enumerate(ALL):
        left = end - time.monotonic()
        if left < 20:
            missed.append(f"{name} {model or ''}".strip())
            continue
        # A stage may use twice its share of the time that is left. Later stages get the time that it does not use.
        share = min(left, STAGE_SECONDS, 2 * left / (len(ALL) - i))
        label = f"{name}-{model}" if model else name
        passed = STAGES[name](Stage(label, options.results, share, options), model) and passed
    for what in missed:
        print(f"not reached, for want of time: {what}")
    return passed and not missed


def describe_machine(options):
    """Returns the machine and the versions that the results belong to. Raises NoGpu with the reason if there is none."""
    machine = {"gpu": "rehearsal on a CPU" if options.rehearse else "a GPU (no nvidia-smi here)", "cpus": os.cpu_count(), "libraries": wheel_libraries()}
    probe = Stage.__new__(Stage)  # has only time and a folder for logs, no results
    probe.end, probe.logs, probe.options = time.monotonic() + 60, options.work, options
    machine["muster"] = probe.muster("version", ["version"], 20).json()
    if options.rehearse:
        return machine
    outcome = probe.command("probe", [os.path.join(HERE, "gpu_tests"), "--gtest_filter=TestedDeviceTest.*"], 60,
                            probe.environment(MUSTER_DEVICE=options.device))
    results, _ = report.gtest_results(outcome.out)
    status, why = results.get("TestedDeviceTest.IsThere", (report.CRASHED, outcome.error or "the program said nothing"))
    if status != report.PASSED:
        raise NoGpu(re.sub(r"^\S+:\d+: (Skipped|Failure) ", "", why))
    smi = shutil.which("nvidia-smi")
    if smi:
        outcome = probe.command("smi", [smi, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], 20)
        machine["gpu"] = (outcome.out.strip().splitlines() or [machine["gpu"]])[0]
    return machine


def main():
    parser = argparse.ArgumentParser(prog="gpu_check run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", metavar="STAGE", choices=[*STAGES, "all"])
    parser.add_argument("model", metavar="MODEL", nargs="?", choices=[*MODELS, []], default=[])
    parser.add_argument("results", metavar="RESULTS")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=STAGE_SECONDS)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    if options.model and options.stage not in ("models", "profile", "job"):
        parser.error(f"{options.stage} takes no MODEL")
    if options.model and options.model not in (TOYS if options.rehearse else MODELS):
        parser.error(f"--rehearse has no {options.model}")
    if options.stage == "job" and options.model and "job" not in MODELS[options.model]:
        parser.error(f"there is no job of {options.model}")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    options.device = "cpu" if options.rehearse else "cuda:0"
    try:
        os.makedirs(options.results, exist_ok=True)
    except OSError as error:
        parser.error(f"RESULTS {options.results}: {error.strerror}")
    with tempfile.TemporaryDirectory(prefix="work-", dir=HERE) as options.work:
        try:
            options.machine = describe_machine(options)
        except NoGpu as none:
            print(f"gpu_check: {options.stage}: no GPU: {none}", file=sys.stderr)
            return EXIT_UNAVAILABLE
        if options.stage == "all":
            return 0 if run_all(options, options.seconds) else 1
        label = f"{options.stage}-{options.model}" if options.model else options.stage
        stage = Stage(label, options.results, options.seconds, options)
        return 0 if STAGES[options.stage](stage, options.model or None) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stopped:
        sys.exit(128 + stop_signal)
