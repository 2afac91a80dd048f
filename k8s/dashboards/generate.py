#!/usr/bin/env python3
"""Writes the Grafana dashboards (*.json in this folder) from the description below. `--check` only says whether they are up to date.

Grafana 9 and later import them (classic JSON). docs/metrics.md says how Prometheus must scrape: `job` is a training job, and
`instance` is a member's name.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent

RATE = "[$__rate_interval]"
OF_JOB = '{job=~"$job"}'
OF_MEMBER = '{instance=~"$instance"}'


def rate(counter, selector="", by=""):
    inside = f"rate({counter}{selector}{RATE})"
    return f"sum by ({by}) ({inside})" if by else inside


def quantile(q, histogram, selector="", by=""):
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({histogram}_bucket{selector}{RATE})))"


def mean(histogram, selector="", by=""):
    return f"{rate(histogram + '_sum', selector, by)} / {rate(histogram + '_count', selector, by)}"


def of_job(by_instance):
    """Returns the expression for the part of a worker's metric that belongs to the selected jobs. A worker serves one job at a time."""
    return f"{by_instance} * on (instance) group_left (job) muster_worker_job_info{OF_JOB}"


def graph(title, unit, *queries, about="", stacked=False, width=8, log=False, steps=()):
    """Returns a panel with a graph. `queries`: (expression, legend). `steps`: thresholds, drawn as lines."""
    return {"kind": "timeseries", "title": title, "unit": unit, "queries": queries, "about": about, "stacked": stacked, "width": width,
            "height": 8, "log": log, "steps": steps, "words": ()}


def number(title, unit, expression, about="", width=4, legend="", steps=((None, "text"),), words=()):
    """Returns a panel that shows the last value.

    `steps`: (from which value on, color). `words`: texts that replace values, see mapping()."""
    return {"kind": "stat", "title": title, "unit": unit, "queries": ((expression, legend),), "about": about, "width": width, "height": 4,
            "steps": steps, "words": words}


def table(title, expression, columns, about="", width=12, height=8, colors=()):
    """Returns a panel with a table that has a row for each series. `columns`: (label, heading). `colors`: (label, value, color)."""
    return {"kind": "table", "title": title, "unit": "none", "queries": ((expression, ""),), "about": about, "width": width, "height": height,
            "columns": columns, "colors": colors, "steps": (), "words": ()}


GREEN_UNLESS = {"some": ((None, "green"), (1, "red")), "none": ((None, "red"), (1, "green")), "not one": ((None, "red"), (1, "green"), (2, "red"))}
# Colors of free disk space: red below the limit of the alert MusterStateDiskFull.
DISK = ((None, "red"), (0.05, "orange"), (0.15, "green"))

ALERTS = 'ALERTS{alertstate="firing",alertname=~"Muster.*"}'


def first_of(*cases):
    """Returns an expression for the value of the first case that has a result. A case is (value, expression)."""
    return " or ".join(f"({expression}) * 0 + {value}" for value, expression in cases)


VERDICT = first_of(
    (4, "absent(muster_coordinator_term)"),
    (3, 'count(ALERTS{alertstate="firing",alertname=~"Muster.*",severity=~"critical|warning"})'),
    (2, "count(muster_job_trouble == 1)"),
    (1, 'count(muster_job_state{state="recovering"})'),
    (0, "vector(0)"))
VERDICT_WORDS = ((0, "healthy", "green"), (1, "a job recovers", "yellow"), (2, "a job has trouble", "orange"), (3, "an alert fires", "red"),
                 (4, "no coordinator", "red"))

LEARNING = "avg_over_time(muster_job_loss[1m]) / avg_over_time(muster_job_loss[30m])"
LEARNING_WORDS = (((None, 0.97), "learning", "green"), ((0.97, 1.1), "flat", "blue"), ((1.1, None), "loss rises", "red"),
                  ("nan", "not finite", "red"))


def bound_by(selector=""):
    """Returns an expression for what bounds a job, by the rule of lib/text/step_verdict.cc: the largest part of a step of the worker with
    the most work of its own."""
    own = f'sum by (job, worker) (muster_job_worker_step_seconds{{{selector}phase!="wait"}})'
    data, compute, wait = (f'max by (job) (muster_job_worker_step_seconds{{{selector}phase="{phase}"}} and on (job, worker) '
                           f'topk by (job) (1, {own}))' for phase in ("data", "compute", "wait"))
    return first_of((1, f"{data} >= {compute} >= {wait}"), (2, f"{compute} >= {wait}"), (3, wait))


BOUND_WORDS = ((1, "input", "yellow"), (2, "compute", "green"), (3, "network", "orange"))
BOUND_ABOUT = ("The largest part of a step of the slowest worker: waiting for its batch (input), computing, or waiting for parameters (network). "
               "`muster top` and the status page give the arithmetic.")

JOB_VARIABLE = ("job", "label_values(muster_job_state, job)")
INSTANCE_VARIABLE = ("instance", "label_values(muster_build_info, instance)")

# Vertical lines in every graph: (name, color, title, expression, whether the value is the time in milliseconds).
ANNOTATIONS = (
    ("Recoveries", "orange", "{{job}} recovers",
     "sum by (job) (muster_job_recoveries_total) > sum by (job) (muster_job_recoveries_total offset 1m)", False),
    ("Checkpoints", "blue", "checkpoint of {{job}}", "muster_checkpoint_last_success_timestamp_seconds * 1000", True),
)

STATE_COLORS = (("state", "running", "green"), ("state", "preparing", "blue"), ("state", "queued", "yellow"), ("state", "recovering", "orange"),
                ("state", "suspended", "yellow"))
SEVERITY_COLORS = (("severity", "critical", "red"), ("severity", "warning", "orange"), ("severity", "info", "blue"))

DASHBOARDS = {
    "overview": dict(
        title="Muster: overview", about="Is the cluster healthy, do its jobs learn, and what limits them?", variables=[INSTANCE_VARIABLE],
        rows={
            "Now": [
                number("Verdict", "none", VERDICT, "The worst of: no coordinator, an alert of severity warning or critical, a job with trouble, "
                       "a job that recovers.", width=5, words=VERDICT_WORDS),
                number("Learning", "none", LEARNING, "The mean loss of the last minute compared with that of the last 30. Below 97 %: the job "
                       "learns. Above 110 %: the loss rises.", width=5, legend="{{job}}", words=LEARNING_WORDS),
                number("Bound by", "none", bound_by(), BOUND_ABOUT, width=5, legend="{{job}}", words=BOUND_WORDS),
                number("Firing alerts", "none", f"count({ALERTS}) or vector(0)", "Alerts of Muster, of every severity.", steps=GREEN_UNLESS["some"]),
                number("Free disk", "percentunit", "min(muster_state_free_bytes / muster_state_size_bytes)",
                       "Of the fullest file system that the coordinator writes to.", width=5, steps=DISK),
                table("Jobs", "max by (job, state, reason) (muster_job_state)", (("job", "Job"), ("state", "State"), ("reason", "Reason")), width=14,
                      about="Jobs that have not ended. The reason is a trouble, why the job waits, or why its state last changed. "
                      "docs/operations/reasons.md explains each.", colors=STATE_COLORS),
                table("Alerts", f"max by (alertname, severity, job, instance) ({ALERTS})",
                      (("alertname", "Alert"), ("severity", "Severity"), ("job", "Job"), ("instance", "Member")), width=10,
                      about="Firing alerts. Empty if there are none. docs/alerts.md says what to do.", colors=SEVERITY_COLORS),
            ],
            "Cluster": [
                number("Coordinators", "none", "count(muster_coordinator_term) or vector(0)", "Coordinators that lead. There must be exactly one.",
                       steps=GREEN_UNLESS["not one"]),
                number("Workers", "none", 'sum(muster_members{role="worker"})', steps=GREEN_UNLESS["none"]),
                number("Parameter servers", "none", 'sum(muster_members{role="ps"})', "Jobs that use all-reduce need none."),
                number("Running jobs", "none", 'sum(muster_jobs{state="running"})'),
                number("Waiting jobs", "none", 'sum(muster_jobs{state="queued"})', steps=((None, "green"), (1, "yellow"))),
                number("Versions", "none", "count(count by (version) (muster_build_info))", "Versions of Muster that run side by side. There should be one.",
                       steps=((None, "green"), (2, "orange"))),
                graph("Members by state", "none", ("sum by (role, state) (muster_members)", "{{role}}, {{state}}"), stacked=True, width=24,
                      about="Draining: the member gets no new work and will end. Silent: its stream is broken and its lease has not expired."),
                graph("Jobs by state", "none", ("sum by (state) (muster_jobs)", "{{state}}"), stacked=True),
                graph("Progress", "percentunit", ("muster_job_step / muster_job_steps_planned", "{{job}}"), about="Steps done, as a share of the planned steps."),
                graph("Training speed", "suffix: samples/s", ("muster_job_samples_per_second", "{{job}}")),
            ],
            "Faults": [
                graph("Recoveries", "none", (f"sum by (job, reason, lost) (increase(muster_job_recoveries_total{RATE}))", "{{job}}: {{reason}}, lost {{lost}}"),
                      about="Recoveries of running jobs, by reason and by the role of the lost member."),
                graph("Phases of a recovery", "s", (mean("muster_recovery_phase_duration_seconds", by="phase"), "{{phase}}"), stacked=True,
                      about="Mean time to: detect the loss, halt the members, plan, prepare the members, make the first step."),
                graph("Silence of members", "s", ("max by (instance, member) (muster_member_heartbeat_age_seconds)", "{{member}}"),
                      about="Time since a member's last report. Members report every second; a member is lost when its lease expires.",
                      steps=((None, "transparent"), (10, "red"))),
                graph("Changes of job states", "none", (f"sum by (to, reason) (increase(muster_job_transitions_total{RATE}))", "{{to}}: {{reason}}"),
                      width=12, about="Number of jobs that entered a state, by reason."),
                graph("Time in the queue", "s", (quantile(0.5, "muster_job_queue_wait_seconds"), "median"),
                      (quantile(0.9, "muster_job_queue_wait_seconds"), "90th percentile"), width=12, about="From queueing until a job has members."),
            ],
            "Coordinator": [
                graph("Calls", "reqps", (rate("muster_rpc_requests_total", by="method"), "{{method}}"), about="Finished calls and streams."),
                graph("Failed calls", "reqps",
                      (rate("muster_rpc_requests_total", '{code!="OK"}', "method, code") + " or vector(0)", "{{method}} {{code}}")),
                graph("Call duration, 99th percentile", "s",
                      (quantile(0.99, "muster_rpc_duration_seconds", '{method!~".*(Attach|WatchJob)"}', "method"), "{{method}}"), log=True,
                      about="Without streams, which last as long as a member or a watch."),
                graph("Open calls", "none", ("sum by (method) (muster_rpc_in_flight) > 0", "{{method}}")),
                graph("Store commits", "s", (quantile(0.5, "muster_store_commit_duration_seconds"), "median"),
                      (quantile(0.99, "muster_store_commit_duration_seconds"), "99th percentile"), log=True, about="Time to write one change to disk."),
                graph("Late checks, 99th percentile", "s", (quantile(0.99, "muster_coordinator_tick_lateness_seconds"), "delay"),
                      about="Delay of the check of leases and deadlines.", steps=((None, "transparent"), (1, "red"))),
                graph("Disk of the state folder", "bytes", ("muster_state_free_bytes", "free"), ("muster_state_size_bytes", "size")),
                graph("Store size", "bytes", ("muster_store_bytes", "store")),
                graph("Term", "none", ("muster_coordinator_term", "{{instance}}"), about="Rises by one when a coordinator starts to lead."),
            ],
            "Processes": [
                graph("CPU", "suffix: cores", (rate("process_cpu_seconds_total", OF_MEMBER), "{{instance}}"), about="Cores in use."),
                graph("Memory", "bytes", (f"process_resident_memory_bytes{OF_MEMBER}", "{{instance}}"), about="Resident memory."),
                graph("File descriptors", "percentunit", (f"process_open_fds{OF_MEMBER} / process_max_fds{OF_MEMBER}", "{{instance}}"),
                      about="Open descriptors, as a share of the limit.", steps=((None, "transparent"), (0.8, "red"))),
                graph("Threads", "none", (f"process_threads{OF_MEMBER}", "{{instance}}"), width=12),
                table("Builds", f"max by (instance, version, commit, kind, cuda) (muster_build_info{OF_MEMBER})",
                      (("instance", "Member"), ("version", "Version"), ("commit", "Commit"), ("kind", "Build"), ("cuda", "CUDA"))),
            ],
        }),
    "job": dict(
        title="Muster: job", about="Does it learn, and what limits its speed?", variables=[JOB_VARIABLE],
        rows={
            "Learning": [
                number("Steps done", "none", f"max(muster_job_step{OF_JOB})"),
                number("Planned steps", "none", f"max(muster_job_steps_planned{OF_JOB})"),
                number("Loss", "none", f"min(muster_job_loss{OF_JOB})"),
                number("Training speed", "suffix: samples/s", f"sum(muster_job_samples_per_second{OF_JOB})"),
                number("Workers", "none", f"sum(muster_job_workers{OF_JOB})", steps=GREEN_UNLESS["none"]),
                number("Recoveries", "none", f"sum(muster_job_recoveries_total{OF_JOB})", steps=((None, "green"), (1, "yellow"), (10, "red"))),
                graph("Loss", "none", (f"muster_job_loss{OF_JOB}", "{{job}}"), (f"muster_job_evaluation_loss{OF_JOB}", "{{job}}, evaluation"),
                      width=12, about="Of the last step, and of the last evaluation."),
                graph("Training speed", "suffix: samples/s", (f"muster_job_samples_per_second{OF_JOB}", "{{job}}"), width=12),
                graph("Learning rate", "none", (f"muster_job_learning_rate{OF_JOB}", "{{job}}")),
                graph("Gradient norm", "none", (f"muster_job_gradient_norm{OF_JOB}", "{{job}}"), log=True),
                graph("Step rate", "suffix: steps/s", (f"rate(muster_worker_steps_total{RATE}) * on (instance) group_left (job) muster_worker_job_info{OF_JOB}",
                                                       "{{instance}}")),
            ],
            "Where the time goes": [
                number("Bound by", "none", bound_by('job=~"$job",'), BOUND_ABOUT, width=24, legend="{{job}}", words=BOUND_WORDS),
                graph("Parts of a step", "s",
                      ('avg by (phase) (' + of_job('rate(muster_worker_step_phase_duration_seconds_sum{phase!="evaluate"}' + RATE + ')'
                       ' / on (instance) group_left () rate(muster_worker_steps_total' + RATE + ')') + ')', "{{phase}}"),
                      about="Mean of all workers. data: waits for the batch. compute: computes. wait: waits for parameters.", stacked=True),
                graph("Waiting for parameters, by worker", "percentunit",
                      (of_job(rate("muster_worker_step_phase_duration_seconds_sum", '{phase="wait"}', "instance")), "{{instance}}"),
                      about="Share of the time. The worker that waits least is the one that the others wait for."),
                graph("Waiting for one worker", "percentunit", (f"max by (job, worker) (rate(muster_ps_gate_wait_seconds_total{OF_JOB}{RATE}))",
                                                                "for {{worker}}"),
                      about="Share of the time in which the ps have all gradients except those of this worker."),
                graph("Step time, median", "s",
                      (of_job(quantile(0.5, "muster_worker_step_duration_seconds", by="instance")), "{{instance}}")),
                graph("Step time, 99th percentile", "s",
                      (of_job(quantile(0.99, "muster_worker_step_duration_seconds", by="instance")), "{{instance}}")),
                graph("A worker's own time in a step", "s",
                      ('sum by (job, worker) (muster_job_worker_step_seconds{job=~"$job",phase!="wait"})', "{{worker}}"),
                      about="Batch and computing, without waiting for parameters. In synchronous modes all workers wait for the largest."),
                graph("Arithmetic, by worker", "si:FLOP/s", (of_job(f"rate(muster_worker_flops_total{RATE})"), "{{instance}}"), width=12,
                      about="Floating-point operations of the model, forward and backward."),
                graph("Model FLOP utilization (MFU), by worker", "percentunit",
                      (of_job(f"rate(muster_worker_flops_total{RATE}) / muster_worker_peak_flops"), "{{instance}}"), width=12,
                      about="Arithmetic as a share of the devices' peak. Empty if the peak is unknown: CPUs need --peak_flops."),
                graph("Start", "s", ("sum by (instance, phase) (muster_worker_start_phase_seconds) * on (instance) group_left (job) "
                                     f"muster_worker_job_info{OF_JOB}", "{{instance}} {{phase}}"), about="Time of each phase of the last start.",
                      stacked=True),
                graph("Reading a sample, by stage", "s",
                      ('sum by (stage) (' + of_job('rate(muster_worker_input_seconds_total{stage!="room"}' + RATE + ')') + ') / on () group_left () sum('
                       + of_job(f"rate(muster_worker_input_samples_total{RATE})") + ')', "{{stage}}"),
                      about="Mean over the workers, on one reading thread. Room, the wait while all batches are ready, is left out.", stacked=True),
                graph("Samples read, by worker", "suffix: samples/s", (of_job(f"rate(muster_worker_input_samples_total{RATE})"), "{{instance}}"),
                      about="For training and for evaluations."),
            ],
            "Non-finite values": [
                graph("Non-finite losses", "none", (of_job(f"increase(muster_worker_nonfinite_losses_total{RATE})"), "{{instance}}"), width=12,
                      about="Steps whose loss was infinite or not a number.", steps=((None, "transparent"), (1, "red"))),
                graph("Skipped steps", "none", (of_job(f"increase(muster_worker_skipped_steps_total{RATE})"), "{{instance}}"), width=12,
                      about="Steps that changed nothing because their gradient was not finite."),
            ],
        }),
    "ps": dict(
        title="Muster: parameter servers", about="What does each ps hold, and how fast does it update it?", variables=[JOB_VARIABLE, INSTANCE_VARIABLE],
        rows={
            "Memory": [
                graph("Memory in use", "percentunit", (f"muster_ps_shard_bytes{OF_MEMBER} / muster_ps_memory_bytes{OF_MEMBER}", "{{instance}}"),
                      about="Memory of all shards, as a share of the limit.", steps=((None, "transparent"), (0.95, "red"))),
                graph("Memory by job", "bytes", (f"sum by (job) (muster_ps_job_bytes{OF_JOB})", "{{job}}"), stacked=True),
                graph("Memory limit", "bytes", (f"muster_ps_memory_bytes{OF_MEMBER}", "{{instance}}"), about="For all shards of a ps together."),
            ],
            "Traffic": [
                graph("Gradients received", "Bps", (rate("muster_ps_push_bytes_total", OF_MEMBER, "instance"), "{{instance}}")),
                graph("Parameters sent", "Bps", (rate("muster_ps_params_bytes_total", OF_MEMBER, "instance"), "{{instance}}")),
                graph("Gradient chunks received", "suffix: chunks/s", (rate("muster_ps_pushes_total", OF_MEMBER, "instance"), "{{instance}}")),
                graph("Gradients received, by job", "Bps", (rate("muster_ps_job_push_bytes_total", OF_JOB, "job"), "{{job}}"), stacked=True),
                graph("Parameters sent, by job", "Bps", (rate("muster_ps_job_params_bytes_total", OF_JOB, "job"), "{{job}}"), stacked=True),
                graph("Gradient chunks received, by job", "suffix: chunks/s", (rate("muster_ps_job_pushes_total", OF_JOB, "job"), "{{job}}"), stacked=True),
            ],
            "Replicas": [
                graph("Lag of replicas", "suffix: versions", (f"muster_ps_backup_lag_versions{OF_JOB}", "{{job}} on {{instance}}"), width=12,
                      about="Versions that a replica is behind its shard, for jobs with resources.ps_replication. Above 1, training waits.",
                      steps=((None, "transparent"), (1, "orange"))),
                graph("Sent to replicas", "Bps", (rate("muster_ps_forwarded_bytes_total", OF_MEMBER, "instance"), "{{instance}}"), width=12),
            ],
            "Updates": [
                graph("Time to update a chunk", "s", (quantile(0.5, "muster_ps_apply_duration_seconds", OF_MEMBER, "instance"), "{{instance}}, median"),
                      (quantile(0.99, "muster_ps_apply_duration_seconds", OF_MEMBER, "instance"), "{{instance}}, 99th percentile"), log=True),
                graph("Versions of the parameters", "none", (f"muster_ps_version{OF_JOB}", "{{job}} on {{instance}}"),
                      about="Updates of the job's parameters on a ps: the lowest of its chunks."),
                graph("Waiting for one worker", "percentunit", (f"max by (job, worker) (rate(muster_ps_gate_wait_seconds_total{OF_JOB}{RATE}))",
                                                                "{{job}}: for {{worker}}"),
                      about="Share of the time in which the ps have all gradients except those of this worker."),
                graph("Rejected messages", "suffix: messages/s", (rate("muster_ps_refused_messages_total", OF_MEMBER, "reason"), "{{reason}}")),
                graph("Dropped gradients", "suffix: chunks/s", (rate("muster_ps_duplicate_pushes_total", OF_MEMBER, "instance"), "{{instance}}, repeated"),
                      (rate("muster_ps_late_pushes_total", OF_MEMBER, "instance"), "{{instance}}, late"),
                      about="Repeated: received before. Late: the step was closed without them (backup workers)."),
                graph("Non-finite gradients", "suffix: chunks/s",
                      (rate("muster_ps_nonfinite_gradients_total", OF_MEMBER, "instance"), "{{instance}}"), about="Updates by a gradient with NaN or infinity."),
                graph("Non-finite gradients, by job", "suffix: chunks/s", (rate("muster_ps_job_nonfinite_gradients_total", OF_JOB, "job"), "{{job}}")),
                graph("Skipped steps", "none", (f"sum by (job) (increase(muster_ps_job_skipped_steps_total{OF_JOB}{RATE}))", "{{job}}"),
                      about="Steps that changed nothing because their gradient was not finite."),
            ],
        }),
    "transport": dict(
        title="Muster: transport and GPU", about="What carries the messages, and how busy are links and GPUs?", variables=[INSTANCE_VARIABLE],
        rows={
            "Links": [
                table("Transport of each link", f"max by (instance, peer, transport, network, device, connections, fallback) (muster_transport_info{OF_MEMBER})",
                      (("instance", "Member"), ("peer", "Peer"), ("transport", "Transport"), ("network", "Network"), ("device", "Device"),
                       ("connections", "Connections"), ("fallback", "Reason of a fallback")), width=24),
                graph("Gradients sent", "Bps", (rate("muster_worker_link_sent_bytes_total", OF_MEMBER, "instance, peer"), "{{instance}} to {{peer}}")),
                graph("Parameters received", "Bps",
                      (rate("muster_worker_link_received_bytes_total", OF_MEMBER, "instance, peer"), "{{instance}} from {{peer}}")),
                graph("In-flight bytes", "bytes", (f"sum by (instance, peer) (muster_worker_link_inflight_bytes{OF_MEMBER})", "{{instance}} to {{peer}}"),
                      about="Gradient bytes that are being sent over a link. Its credit is the limit."),
                graph("Gradients waiting for credit", "bytes", (f"muster_worker_queued_bytes{OF_MEMBER}", "{{instance}}"), width=12,
                      about="Gradients that are ready but not sent, because the network or a ps is too slow."),
                graph("Time to pull parameters, 99th percentile", "s",
                      (quantile(0.99, "muster_worker_pull_duration_seconds", OF_MEMBER, "instance, transport"), "{{instance}}, {{transport}}"),
                      width=12, log=True, about="From sending a gradient until its parameters arrive."),
                graph("Time without credit", "percentunit",
                      (rate("muster_worker_send_queue_full_seconds_total", OF_MEMBER), "{{instance}}"), width=12,
                      about="Share of the time in which a gradient is ready and cannot be sent."),
                graph("Traffic between the devices of a worker", "Bps",
                      (rate("muster_collective_bytes_total", OF_MEMBER, "instance, library, operation"), "{{instance}} {{operation}}, {{library}}"), width=12,
                      about="Of collective operations, for each device. Empty if workers have one device."),
                graph("Collective operation, 99th percentile", "s",
                      (quantile(0.99, "muster_collective_duration_seconds", OF_MEMBER, "instance, operation"), "{{instance}} {{operation}}"), width=12, log=True,
                      about="In shared memory, with waiting for the other devices. The duration is unknown with NCCL."),
                graph("Wait for credit, 99th percentile", "s",
                      (quantile(0.99, "muster_worker_credit_wait_duration_seconds", OF_MEMBER, "instance"), "{{instance}}"), width=12, log=True,
                      about="Time that a ready gradient waits for the credit of its link."),
                graph("Rejected connections", "suffix: connections/s", (rate("muster_data_port_strangers_total", OF_MEMBER, "instance, reason"),
                                                                       "{{instance}} {{reason}}"), width=12,
                      about="To the data port, from peers that are not authenticated."),
                graph("Damaged messages", "none", (f"increase(muster_data_port_damaged_frames_total{OF_MEMBER}{RATE})",
                                                   "{{instance}}"), width=12, about="Messages that changed on the way, by receiver. There should be none.",
                      steps=((None, "transparent"), (1, "red"))),
            ],
            "GPUs": [
                graph("GPU utilization", "percentunit", (f"max by (instance, gpu) (muster_gpu_utilization_ratio{OF_MEMBER})", "{{instance}} {{gpu}}"), width=6,
                      about="Share of the time in which a kernel ran."),
                graph("GPU memory", "percentunit", (f"max by (instance, gpu) (muster_gpu_memory_used_bytes{OF_MEMBER} / "
                                                    f"muster_gpu_memory_size_bytes{OF_MEMBER})", "{{instance}} {{gpu}}"), width=6),
                graph("GPU power", "watt", (f"max by (instance, gpu) (muster_gpu_power_watts{OF_MEMBER})", "{{instance}} {{gpu}}"), width=6),
                graph("GPU temperature", "celsius", (f"max by (instance, gpu) (muster_gpu_temperature_celsius{OF_MEMBER})", "{{instance}} {{gpu}}"),
                      width=6),
            ],
        }),
    "checkpoints": dict(
        title="Muster: checkpoints", about="How much work would a fault cost now?", variables=[JOB_VARIABLE],
        rows={
            "At risk": [
                # Steps are reported once a second, so a checkpoint may be committed before its step is reported.
                graph("Steps since the last checkpoint", "suffix: steps",
                      (f"clamp_min(muster_job_step{OF_JOB} - muster_checkpoint_last_success_step{OF_JOB}, 0)", "{{job}}"),
                      about="The loss of a ps without a replica costs these steps."),
                graph("Time since the last checkpoint", "s", (f"time() - muster_checkpoint_last_success_timestamp_seconds{OF_JOB}", "{{job}}")),
                graph("Checkpoint interval", "suffix: steps", (f"muster_job_checkpoint_every_steps{OF_JOB}", "{{job}}")),
            ],
            "Writing": [
                graph("Time to write a checkpoint", "s", (quantile(0.5, "muster_checkpoint_duration_seconds"), "median"),
                      (quantile(0.99, "muster_checkpoint_duration_seconds"), "99th percentile"), about="From the first shard to the commit."),
                graph("Time to write a checkpoint, by job", "s", (mean("muster_job_checkpoint_duration_seconds", OF_JOB, "job"), "{{job}}"),
                      about="Mean, from the first shard to the commit."),
                graph("Checkpoint bytes written", "Bps", (rate("muster_checkpoint_bytes_total"), "{{instance}}")),
                graph("Failed checkpoints", "none", (f"sum by (reason) (increase(muster_checkpoint_failures_total{RATE}))", "{{reason}}"),
                      steps=((None, "transparent"), (1, "red"))),
                graph("Failed checkpoints, by job", "none",
                      (f"sum by (job, reason) (increase(muster_job_checkpoint_failures_total{OF_JOB}{RATE}))", "{{job}}: {{reason}}")),
                graph("Time to write a shard", "s", (mean("muster_ps_snapshot_duration_seconds", by="instance"), "{{instance}}"),
                      about="Mean of each ps. Training continues meanwhile."),
                graph("Free disk", "percentunit", ("muster_state_free_bytes / muster_state_size_bytes", "free"),
                      about="Of the fullest file system that the coordinator writes to.", steps=DISK),
                graph("Store size", "bytes", ("muster_store_bytes", "store")),
            ],
            "Reading": [
                graph("Time to restore a shard", "s", (mean("muster_ps_restore_duration_seconds", by="instance"), "{{instance}}"), about="Mean of each ps."),
                graph("Checkpoint bytes read", "Bps", (rate("muster_ps_restore_bytes_total", by="instance"), "{{instance}}")),
                graph("Damaged or missing checkpoints", "none", (f"increase(muster_checkpoint_damaged_total{RATE})", "{{instance}}"),
                      about="Found when they were read. There should be none.", steps=((None, "transparent"), (1, "red"))),
            ],
        }),
}

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def mapping(when, text, color):
    """Returns the setting that shows `when` (a value, a range (from, to) or "nan") as a word in a color."""
    result = {"text": text, "color": color}
    if when == "nan":
        return {"type": "special", "options": {"match": "nan", "result": result}}
    if isinstance(when, tuple):
        return {"type": "range", "options": {"from": when[0], "to": when[1], "result": result}}
    return {"type": "value", "options": {str(when): result}}


def thresholds(steps):
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in steps]}


def panel_json(panel, number_, x, y):
    defaults = {"unit": panel["unit"], "thresholds": thresholds(panel["steps"] or ((None, "text"),)),
                "mappings": [mapping(*word) for word in panel["words"]]}
    result = {
        "id": number_, "type": panel["kind"], "title": panel["title"], "description": panel["about"], "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel["width"], "h": panel["height"]},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [{"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
                    for i, (expression, legend) in enumerate(panel["queries"])],
    }
    if panel["kind"] == "timeseries":
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 20 if panel["stacked"] else 0, "showPoints": "never",
                              "stacking": {"mode": "normal" if panel["stacked"] else "none"},
                              "scaleDistribution": {"type": "log", "log": 10} if panel["log"] else {"type": "linear"},
                              "thresholdsStyle": {"mode": "line" if panel["steps"] else "off"}}
        result["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    else:
        for target in result["targets"]:
            target["instant"] = True
    if panel["kind"] == "stat":
        result["options"] = {"colorMode": "value", "graphMode": "none" if panel["words"] else "area",
                             "reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "value_and_name" if panel["queries"][0][1] else "value"}
    if panel["kind"] == "table":
        for target in result["targets"]:
            target["format"] = "table"
        result["options"] = {}
        headings = dict(panel["columns"])
        result["transformations"] = [{"id": "organize", "options": {
            "excludeByName": {"Time": True, "Value": True},
            "indexByName": {label: i for i, label in enumerate(headings)}, "renameByName": headings}}]
        for label in dict.fromkeys(label for label, _, _ in panel["colors"]):
            values = [mapping(value, value, color) for of, value, color in panel["colors"] if of == label]
            result["fieldConfig"]["overrides"].append({
                "matcher": {"id": "byName", "options": headings[label]},
                "properties": [{"id": "mappings", "value": values}, {"id": "custom.cellOptions", "value": {"type": "color-text"}}]})
    return result


def annotation_json(name, color, title, expression, value_is_time):
    return {"name": name, "datasource": SOURCE, "enable": True, "iconColor": color, "titleFormat": title, "textFormat": "", "tagKeys": "job",
            "expr": expression, "step": "15s", "useValueForTime": value_is_time}


def variable_json(name, query):
    return {"name": name, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name}, "definition": query, "refresh": 2,
            "includeAll": True, "multi": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "sort": 1}


def dashboard_json(name, dashboard):
    panels, y = [], 0
    for title, row in dashboard["rows"].items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        y += 1
        x = height = 0
        for panel in row:
            if x + panel["width"] > 24:
                x, y, height = 0, y + height, 0
            panels.append(panel_json(panel, len(panels) + 1, x, y))
            x, height = x + panel["width"], max(height, panel["height"])
        y += height
    return {
        "uid": f"muster-{name}", "title": dashboard["title"], "description": dashboard["about"], "tags": ["muster"], "schemaVersion": 38,
        "version": 1, "editable": True, "timezone": "browser", "refresh": "10s", "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["muster"], "title": "Muster", "asDropdown": True, "includeVars": True, "keepTime": True}],
        "annotations": {"list": [annotation_json(*annotation) for annotation in ANNOTATIONS]},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "current": {}}] +
                               [variable_json(*variable) for variable in dashboard["variables"]]},
        "panels": panels,
    }


def texts():
    return {f"{name}.json": json.dumps(dashboard_json(name, dashboard), indent=1) + "\n" for name, dashboard in DASHBOARDS.items()}


def main():
    stale = []
    for name, text in texts().items():
        path = HERE / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.exit(f"{', '.join(stale)}: not what generate.py makes; run k8s/dashboards/generate.py")


if __name__ == "__main__":
    main()
