"""Parses the output of gpu_check's programs, and makes tables in Markdown. Starts no process.

Needs only the standard library of Python 3.8, because it runs on machines without the tools that build Muster.
"""

import re
import statistics

PASSED, FAILED, SKIPPED, CRASHED, MISSED = "passed", "failed", "skipped", "crashed", "not reached"


def last_line(text):
    """Returns the line that says why a program ended: the last one that names an error, else the last one.

    Programs print more after the error: PyTorch's advice, the paths of a job's logs."""
    text = re.split(r"^logs:$", text, flags=re.MULTILINE)[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return (errors or lines or ["it said nothing"])[-1][:300]


# ---------------------------------------------------------------- tests


def listed_tests(text):
    """Returns the names of the tests in the output of --gtest_list_tests."""
    names, suite = [], ""
    for line in text.splitlines():
        word = line.split("#")[0].strip()
        if not word:
            continue
        if not line.startswith(" "):
            suite = word if word.endswith(".") else ""  # main() printed the other lines
        elif suite:
            names.append(suite + word)
    return names


def gtest_results(text):
    """Returns (results, unfinished): {name: (PASSED | FAILED | SKIPPED, message)} of the tests that ended, and the name of
    the test that began and did not end, or None."""
    results, running, message = {}, None, []
    for line in text.splitlines():
        begun = re.match(r"\[ RUN      \] (\S+)", line)
        ended = re.match(r"\[(       OK |  FAILED  |  SKIPPED )\] ([^\s,]+)", line)
        if begun:
            running, message = begun.group(1), []
        elif running and ended and ended.group(2) == running:
            status = {"OK": PASSED, "FAILED": FAILED, "SKIPPED": SKIPPED}[ended.group(1).strip()]
            results[running] = (status, "" if status == PASSED else _reason(message))
            running = None
        elif ended and "FAILED" in ended.group(1) and results.get(ended.group(2), ("",))[0] == PASSED:
            # A child process of the test printed that it passed, or the summary counts it as failed.
            results[ended.group(2)] = (FAILED, "passed first, then failed")
        elif running and line.strip():
            message.append(line.strip())
    return results, running


# After one of these errors, every later call in the CUDA context returns the same error.
_LASTING = re.compile(r"illegal memory access|illegal instruction|misaligned address|unspecified launch failure|"
                      r"device-side assert|hardware stack error|invalid program counter|invalid address space")


def until_the_device_fails(results):
    """Returns the results of one process in order, without those that only repeat a lasting error of the device."""
    kept, broken = {}, False
    for name, (status, why) in results.items():
        if not (broken and status == FAILED):
            kept[name] = (status, why)
        broken = broken or (status == FAILED and _LASTING.search(why) is not None)
    return kept


def _reason(lines):
    # "FILE:LINE: Failure" or "FILE:LINE: Skipped" and what follows it.
    for i, line in enumerate(lines):
        if re.search(r":\d+: (Failure|Skipped)$", line):
            return " ".join([line.rsplit("/", 1)[-1]] + lines[i + 1:i + 6])[:500]
    return " ".join(lines[-3:])[:500]


def tests_table(results):
    """Returns a line per outcome, then every test that did not pass, skipped ones included."""
    counts = {status: 0 for status in (PASSED, FAILED, CRASHED, SKIPPED, MISSED)}
    for status, _ in results.values():
        counts[status] += 1
    lines = [", ".join(f"{n} {status}" for status, n in counts.items() if n or status == PASSED)]
    bad = [(name, status, why) for name, (status, why) in sorted(results.items()) if status in (FAILED, CRASHED, SKIPPED)]
    if bad:
        lines += ["", "| test | | why |", "|---|---|---|"]
        lines += [f"| {name} | {status} | {_cell(why)} |" for name, status, why in bad]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- models


def median_rows(rounds):
    """Merges the rows of several rounds, which have the same order, into one list. A row has "side", "variant" and either
    "step_seconds" (with "fastest_step_seconds" and the program's other results) or "error"."""
    merged = []
    for rows in zip(*rounds):
        good = [row for row in rows if "step_seconds" in row]
        if not good:
            merged.append(dict(rows[-1]))
            continue
        row = dict(good[0])
        row["step_seconds"] = statistics.median(r["step_seconds"] for r in good)
        row["fastest_step_seconds"] = min(r["fastest_step_seconds"] for r in good)
        merged.append(row)
    return merged


def models_table(title, batch, unit, units_per_sample, rows):
    """Returns a table with a line per row. A ratio above 1 means faster than PyTorch's torch.compile."""
    yardstick = next((r["step_seconds"] for r in rows if r["side"] == "PyTorch" and "compile" in r["variant"] and "step_seconds" in r),
                     None)
    flops = next((r["step_flops"] for r in rows if "step_flops" in r), None)
    peak = next((r["peak_flops_per_second"] for r in rows if "peak_flops_per_second" in r), None)
    lines = [f"{title}, batch {batch}", "",
             f"| side | variant | step, ms | fastest, ms | {unit}/s | to torch.compile | TFLOP/s | of one large product |",
             "|---|---|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        head = f"| {row['side']} | {row['variant']} |"
        if "step_seconds" not in row:
            lines.append(f"{head} failed: {_cell(row['error'])} | | | | | |")
            continue
        seconds = row["step_seconds"]
        ratio = f"{yardstick / seconds:.2f}" if yardstick else ""
        rate = f"{flops / seconds / 1e12:.1f}" if flops else ""
        share = f"{100 * flops / seconds / peak:.0f} %" if flops and peak else ""
        lines.append(f"{head} {seconds * 1e3:.2f} | {row['fastest_step_seconds'] * 1e3:.2f} | "
                     f"{batch * units_per_sample / seconds:,.0f} | {ratio} | {rate} | {share} |")
    choices = [f"- {row['variant']}: {choice}" for row in rows for choice in row.get("attention", [])]
    return "\n".join(lines + ([""] + choices if choices else [])) + "\n"


def ranks_table(title, batch, rows):
    """Returns a table with a line per number of ranks. The last column is 1 if t ranks divide all the computing by t."""
    whole = next((r["step_seconds"] for r in rows if r["degree"] == 1 and "step_seconds" in r), None)
    lines = [f"{title}, batch {batch}, rank 0 without collectives", "",
             "| ranks | step, ms | to one rank | times the ranks |",
             "|---:|---:|---:|---:|"]
    for row in rows:
        if "step_seconds" not in row:
            lines.append(f"| {row['degree']} | failed: {_cell(row['error'])} | | |")
            continue
        part = row["step_seconds"] / whole if whole else None
        lines.append(f"| {row['degree']} | {row['step_seconds'] * 1e3:.2f} | " +
                     (f"{part:.3f} | {part * row['degree']:.2f} |" if part else " | |"))
    return "\n".join(lines) + "\n"


def attention_choices(log):
    """Returns the log messages about the kernels for attention, or why cuDNN's were not used; each message once."""
    return list(dict.fromkeys(re.findall(r"^[IW]\d+ .*attention_choice\.cc:\d+\] (.*)$", log, re.MULTILINE)))


# ---------------------------------------------------------------- profile


def profile_table(title, ours, theirs, nodes=25):
    """Returns a table of both profiles.

    `ours` is the output of `muster bench model --profile`, with kernels_of_a_step() as "kernels" if they are known. `theirs`
    is the output of pytorch_models.py. Each may be {"error": ...} instead."""
    lines = [title, ""]
    if "profile" not in ours:
        lines += ["Muster failed: " + ours.get("error", "it printed no profile")]
    else:
        entries = ours["profile"]
        total = sum(e["seconds"] for e in entries) or 1e-12
        by_op = {}
        for e in entries:
            count, seconds = by_op.get(e["op"], (0, 0.0))
            by_op[e["op"]] = (count + 1, seconds + e["seconds"])
        lines += [f"Muster: {total * 1e3:.3f} ms in {len(entries)} nodes, each alone and waited for", "",
                  "| op | nodes | ms | share |", "|---|---:|---:|---:|"]
        for op, (count, seconds) in sorted(by_op.items(), key=lambda item: -item[1][1]):
            lines.append(f"| {op} | {count} | {seconds * 1e3:.3f} | {100 * seconds / total:.1f} % |")
        lines += ["", "| slowest nodes | op | ms | operands |", "|---|---|---:|---|"]
        for e in sorted(entries, key=lambda e: -e["seconds"])[:nodes]:
            lines.append(f"| {e['node']} | {e['op']} | {e['seconds'] * 1e3:.3f} | {_cell(e['types'])} |")
    lines.append("")
    if steady := ours.get("kernels"):
        total = sum(k["seconds"] for k in steady["kernels"])
        lines += kernels_table(f"Muster: {total * 1e3:.3f} ms of kernels in a step, in which a kernel ran for {steady['busy'] * 1e3:.3f} ms",
                               steady["kernels"], 2 * nodes) + [""]
    if "profile" not in theirs:
        lines += ["PyTorch failed: " + theirs.get("error", "it printed no profile")]
    else:
        entries = theirs["profile"]
        total = sum(e["seconds"] for e in entries)
        lines += kernels_table(f"PyTorch: {total * 1e3:.3f} ms of kernels in a step", entries, nodes)
    return "\n".join(lines) + "\n"


def kernels_of_a_step(text, step_seconds, steps=10):
    """Returns {"busy": seconds in which at least one kernel ran, "kernels": [{"kernel", "calls", "seconds"}, ...]} of one step:
    the mean over the last `steps` in the file of kernel_times.so. The longest kernel comes first."""
    records = []
    for line in text.splitlines():
        start, duration, _, name = line.split("\t", 3)
        records.append((int(start), int(start) + int(duration), name))
    records.sort()
    if not records:
        return {"busy": 0.0, "kernels": []}
    begin = max(end for _, end, _ in records) - int(steps * step_seconds * 1e9)
    by_name, busy, until = {}, 0, begin
    for start, end, name in records:
        if start < begin:
            continue
        calls, seconds = by_name.get(name, (0, 0.0))
        by_name[name] = (calls + 1, seconds + (end - start) / 1e9)
        busy += max(0, end - max(start, until))
        until = max(until, end)
    kernels = [{"kernel": name, "calls": calls / steps, "seconds": seconds / steps} for name, (calls, seconds) in by_name.items()]
    return {"busy": busy / 1e9 / steps, "kernels": sorted(kernels, key=lambda k: -k["seconds"])}


def kernels_table(title, kernels, rows):
    total = sum(k["seconds"] for k in kernels) or 1e-12
    lines = [title, "", "| kernel | calls | ms | share |", "|---|---:|---:|---:|"]
    for k in sorted(kernels, key=lambda k: -k["seconds"])[:rows]:
        lines.append(f"| {_cell(k['kernel'][:100])} | {k['calls']:g} | {k['seconds'] * 1e3:.3f} | {100 * k['seconds'] / total:.1f} % |")
    return lines


# ---------------------------------------------------------------- job

_PHASES = "muster_worker_step_phase_duration_seconds_sum"


def worker_totals(metrics):
    """Returns a worker's steps and seconds since its start, from the text of its /metrics; None before its first step."""
    totals = {"wait": 0.0, "data": 0.0, "compute": 0.0}
    steps = seconds = None
    for line in metrics.splitlines():
        parts = line.rsplit(" ", 1)
        if len(parts) != 2:
            continue
        name, value = parts
        if name == "muster_worker_step_duration_seconds_count":
            steps = int(float(value))
        elif name == "muster_worker_step_duration_seconds_sum":
            seconds = float(value)
        elif name.startswith(_PHASES):
            phase = re.search(r'phase="(\w+)"', name)
            if phase and phase.group(1) in totals:
                totals[phase.group(1)] = float(value)
    if not steps or seconds is None:
        return None
    return {"steps": steps, "seconds": seconds, **totals}


def steady_step(first, last):
    """Returns the means per step between two samples of worker_totals(). Raises ValueError if there is no step between them."""
    steps = last["steps"] - first["steps"]
    if steps <= 0:
        raise ValueError("no step was seen after the warm-up")
    return {"steps": steps, "step_seconds": (last["seconds"] - first["seconds"]) / steps,
            **{f"{phase}_seconds": (last[phase] - first[phase]) / steps for phase in ("wait", "data", "compute")}}


def jobs_table(rows):
    """Returns a table of whole jobs.

    A row has "title", "batch", "unit", "units_per_sample", and "alone" and "job": {"step_seconds": ...} or {"error": ...}.
    The cost of the exchange is the time of a step in a job, without waiting for input, minus the time of a step alone."""
    lines = ["| model, batch | alone, ms | in a job, ms | the exchange costs, ms | of it waiting for values, ms | input, ms | in the job |",
             "|---|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        alone, job = row["alone"], row["job"]
        cells = [f"{row['title']}, {row['batch']}", _milliseconds(alone), _milliseconds(job)]
        if "error" in job:
            cells += ["", "", "", ""]
        else:
            cost = "" if "error" in alone else f"{(job['step_seconds'] - job['data_seconds'] - alone['step_seconds']) * 1e3:.1f}"
            rate = row["batch"] * row["units_per_sample"] / job["step_seconds"]
            cells += [cost, f"{job['wait_seconds'] * 1e3:.1f}", f"{job['data_seconds'] * 1e3:.1f}", f"{rate:,.0f} {row['unit']}/s"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _milliseconds(side):
    return f"failed: {_cell(side['error'])}" if "error" in side else f"{side['step_seconds'] * 1e3:.1f}"


def _cell(text):
    return text.replace("|", "/").replace("\n", " ")
