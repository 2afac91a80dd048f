#!/usr/bin/env python3
"""Writes the Grafana dashboards beside it, *.json, from the one description below. `--check` only says whether they are up to date.

Grafana 9 and later import them (classic JSON); `job` is a training job and `instance` a member's name, as docs/metrics.md
has Prometheus scrape them.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent

RATE = "[$__rate_interval]"
OF_JOB = '{job=~"$job"}'
HERE_ONLY = '{instance=~"$instance"}'


def rate(counter, selector="", by=""):
    inside = f"rate({counter}{selector}{RATE})"
    return f"sum by ({by}) ({inside})" if by else inside


def quantile(q, histogram, selector="", by=""):
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({histogram}_bucket{selector}{RATE})))"


def mean(histogram, selector="", by=""):
    return f"{rate(histogram + '_sum', selector, by)} / {rate(histogram + '_count', selector, by)}"


def of_job(by_instance):
    """What a worker says, for the jobs that are chosen: it serves one at a time."""
    return f"{by_instance} * on (instance) group_left (job) muster_worker_job_info{OF_JOB}"


def graph(title, unit, *queries, about="", stacked=False, width=8, log=False):
    """`queries`: (expression, legend)."""
    return {"kind": "timeseries", "title": title, "unit": unit, "queries": queries, "about": about, "stacked": stacked, "width": width,
            "height": 8, "log": log}


def number(title, unit, expression, about="", width=4, bad=None):
    """The last value; `bad`: from which on it is red."""
    return {"kind": "stat", "title": title, "unit": unit, "queries": ((expression, ""),), "about": about, "width": width, "height": 4,
            "bad": bad}


def table(title, expression, about="", width=12):
    return {"kind": "table", "title": title, "unit": "none", "queries": ((expression, ""),), "about": about, "width": width, "height": 8}


JOB_VARIABLE = ("job", "label_values(muster_job_step, job)")
INSTANCE_VARIABLE = ("instance", "label_values(muster_build_info, instance)")

DASHBOARDS = {
    "overview": dict(
        title="Muster: overview", about="Is it healthy?", variables=[INSTANCE_VARIABLE],
        rows={
            "Cluster": [
                number("Coordinators", "none", "count(muster_coordinator_term) or vector(0)", "One, always."),
                number("Workers", "none", 'sum(muster_members{role="worker"})'),
                number("Parameter servers", "none", 'sum(muster_members{role="ps"})'),
                number("Jobs running", "none", 'sum(muster_jobs{state="running"})'),
                number("Jobs waiting", "none", 'sum(muster_jobs{state="queued"})'),
                number("Alerts", "none", 'count(ALERTS{alertstate="firing",alertname=~"Muster.*"}) or vector(0)', bad=1),
                graph("Members by state", "none", ("sum by (role, state) (muster_members)", "{{role}}, {{state}}"), stacked=True, width=24,
                      about="Draining: it ends, and is given nothing new. Silent: its stream is broken, and its lease runs."),
                graph("Jobs by state", "none", ("sum by (state) (muster_jobs)", "{{state}}"), stacked=True),
                graph("Progress", "percentunit", ("muster_job_step / muster_job_steps_planned", "{{job}}")),
                graph("Samples per second", "short", ("muster_job_samples_per_second", "{{job}}")),
            ],
            "What goes wrong": [
                graph("Recoveries", "none", (f"sum by (job, reason, lost) (increase(muster_job_recoveries_total{RATE}))", "{{job}}: {{reason}}, {{lost}}"),
                      about="Of jobs that are active: why, and whether a worker or a ps was lost."),
                graph("A recovery's phases", "s", (mean("muster_recovery_phase_duration_seconds", by="phase"), "{{phase}}"), stacked=True,
                      about="Means: silence of a member until its lease was over, halting, planning, preparing, first new step."),
                graph("Silence of members", "s", (f"max by (instance, member) (muster_member_heartbeat_age_seconds)", "{{member}}"),
                      about="They report once a second; after the lease they are lost."),
                graph("Why jobs changed", "none", (f"sum by (to, reason) (increase(muster_job_transitions_total{RATE}))", "{{to}}: {{reason}}"),
                      width=12),
                graph("Waiting in the queue", "s", (quantile(0.5, "muster_job_queue_wait_seconds"), "median"),
                      (quantile(0.9, "muster_job_queue_wait_seconds"), "90 %"), width=12),
            ],
            "Coordinator": [
                graph("Calls", "reqps", (rate("muster_rpc_requests_total", by="method"), "{{method}}"), about="That have ended; streams too."),
                graph("Calls that failed", "reqps",
                      (rate("muster_rpc_requests_total", '{code!="OK"}', "method, code") + " or vector(0)", "{{method}} {{code}}")),
                graph("Duration of calls, 99 %", "s",
                      (quantile(0.99, "muster_rpc_duration_seconds", '{method!~".*(Attach|WatchJob)"}', "method"), "{{method}}"), log=True),
                graph("Open calls", "none", ("sum by (method) (muster_rpc_in_flight) > 0", "{{method}}")),
                graph("Storing a change", "s", (quantile(0.5, "muster_store_commit_duration_seconds"), "median"),
                      (quantile(0.99, "muster_store_commit_duration_seconds"), "99 %"), log=True),
                graph("Ticks that come late", "s", (quantile(0.99, "muster_coordinator_tick_lateness_seconds"), "99 %"),
                      about="By how much leases and deadlines are looked at later than they should be."),
                graph("State folder's disk", "bytes", ("muster_state_free_bytes", "free"), ("muster_state_size_bytes", "size")),
                graph("Store", "bytes", ("muster_store_bytes", "coordinator.db")),
                graph("Term", "none", ("muster_coordinator_term", "{{instance}}"), about="Rises by one with each start of the coordinator."),
            ],
            "Processes": [
                graph("Processors", "none", (rate("process_cpu_seconds_total", HERE_ONLY), "{{instance}}"), about="Cores in use."),
                graph("Memory", "bytes", (f"process_resident_memory_bytes{HERE_ONLY}", "{{instance}}")),
                graph("File descriptors", "percentunit", (f"process_open_fds{HERE_ONLY} / process_max_fds{HERE_ONLY}", "{{instance}}"),
                      about="Of those that it may have."),
                graph("Threads", "none", (f"process_threads{HERE_ONLY}", "{{instance}}"), width=12),
                table("Which Muster", f"count by (instance, version, commit, kind, cuda) (muster_build_info{HERE_ONLY})"),
            ],
        }),
    "job": dict(
        title="Muster: job", about="Is it learning, and why is it slow?", variables=[JOB_VARIABLE],
        rows={
            "Learning": [
                number("Step", "none", f"max(muster_job_step{OF_JOB})"),
                number("Of", "none", f"max(muster_job_steps_planned{OF_JOB})"),
                number("Loss", "none", f"min(muster_job_loss{OF_JOB})"),
                number("Samples per second", "short", f"sum(muster_job_samples_per_second{OF_JOB})"),
                number("Workers", "none", f"sum(muster_job_workers{OF_JOB})"),
                number("Recoveries", "none", f"sum(muster_job_recoveries_total{OF_JOB})"),
                graph("Loss", "none", (f"muster_job_loss{OF_JOB}", "{{job}}"), (f"muster_job_evaluation_loss{OF_JOB}", "{{job}}, held out"),
                      width=12),
                graph("Samples per second", "short", (f"muster_job_samples_per_second{OF_JOB}", "{{job}}"), width=12),
                graph("Learning rate", "none", (f"muster_job_learning_rate{OF_JOB}", "{{job}}")),
                graph("Norm of the gradient", "none", (f"muster_job_gradient_norm{OF_JOB}", "{{job}}"), log=True),
                graph("Steps", "none", (f"rate(muster_worker_steps_total{RATE}) * on (instance) group_left (job) muster_worker_job_info{OF_JOB}",
                                        "{{instance}}"), about="Per second."),
            ],
            "Where the time goes": [
                graph("A step's phases", "s",
                      ('avg by (phase) (' + of_job('rate(muster_worker_step_phase_duration_seconds_sum{phase!="evaluate"}' + RATE + ')'
                       ' / on (instance) group_left () rate(muster_worker_steps_total' + RATE + ')') + ')', "{{phase}}"),
                      about="Mean of the workers, for each step: waiting for the batch, computing, waiting for parameters.", stacked=True),
                graph("Waiting, by worker", "percentunit",
                      (of_job(rate("muster_worker_step_phase_duration_seconds_sum", '{phase="wait"}', "instance")), "{{instance}}"),
                      about="Part of the time in which it waits for parameters. Who waits least is whom the others wait for."),
                graph("Who is waited for", "percentunit", (f"max by (job, worker) (rate(muster_ps_gate_wait_seconds_total{OF_JOB}{RATE}))",
                                                           "{{worker}}"),
                      about="Part of the time in which all other workers' gradients are at the ps."),
                graph("A step, median", "s",
                      (of_job(quantile(0.5, "muster_worker_step_duration_seconds", by="instance")), "{{instance}}")),
                graph("A step, 99 %", "s",
                      (of_job(quantile(0.99, "muster_worker_step_duration_seconds", by="instance")), "{{instance}}")),
                graph("A worker's own part of a step", "s",
                      (f'sum by (job, worker) (muster_job_worker_step_seconds{{job=~"$job",phase!="wait"}})', "{{worker}}"),
                      about="Its batch and its computing. Where workers go in step the others wait for the one with most."),
                graph("FLOP/s, by worker", "short", (of_job(f"rate(muster_worker_flops_total{RATE})"), "{{instance}}"), width=12,
                      about="Of the model: forward and backward, by the usual arithmetic."),
                graph("MFU, by worker", "percentunit",
                      (of_job(f"rate(muster_worker_flops_total{RATE}) / muster_worker_peak_flops"), "{{instance}}"), width=12,
                      about="Part of the devices' best. Nothing where that is not known: CPUs without --peak_flops."),
                graph("Starting", "s", (f"sum by (instance, phase) (muster_worker_start_phase_seconds) * on (instance) group_left (job) "
                                        f"muster_worker_job_info{OF_JOB}", "{{instance}} {{phase}}"), about="Phases of the last start.", stacked=True),
            ],
            "Numbers that are none": [
                graph("Steps without a finite loss", "none", (of_job(f"increase(muster_worker_nonfinite_losses_total{RATE})"), "{{instance}}"), width=12),
                graph("Skipped steps", "none", (of_job(f"increase(muster_worker_skipped_steps_total{RATE})"), "{{instance}}"), width=12,
                      about="They changed nothing: their gradient was not finite."),
            ],
        }),
    "ps": dict(
        title="Muster: parameter servers", about="Who holds what, and how fast it is updated.", variables=[JOB_VARIABLE, INSTANCE_VARIABLE],
        rows={
            "Memory": [
                graph("Shards", "percentunit", (f"muster_ps_shard_bytes{HERE_ONLY} / muster_ps_memory_bytes{HERE_ONLY}", "{{instance}}"),
                      about="Of what shards may take."),
                graph("Of jobs", "bytes", (f"sum by (job) (muster_ps_job_bytes{OF_JOB})", "{{job}}"), stacked=True),
                graph("May be taken", "bytes", (f"muster_ps_memory_bytes{HERE_ONLY}", "{{instance}}")),
            ],
            "Traffic": [
                graph("Gradients in", "Bps", (rate("muster_ps_push_bytes_total", HERE_ONLY, "instance"), "{{instance}}")),
                graph("Parameters out", "Bps", (rate("muster_ps_params_bytes_total", HERE_ONLY, "instance"), "{{instance}}")),
                graph("Gradients", "cps", (rate("muster_ps_pushes_total", HERE_ONLY, "instance"), "{{instance}}"), about="Of chunks."),
                graph("Gradients in, by job", "Bps", (rate("muster_ps_job_push_bytes_total", OF_JOB, "job"), "{{job}}"), stacked=True),
                graph("Parameters out, by job", "Bps", (rate("muster_ps_job_params_bytes_total", OF_JOB, "job"), "{{job}}"), stacked=True),
                graph("Gradients, by job", "cps", (rate("muster_ps_job_pushes_total", OF_JOB, "job"), "{{job}}"), stacked=True),
            ],
            "Backups": [
                graph("Versions that backups are behind", "none", (f"muster_ps_backup_lag_versions{OF_JOB}", "{{job}} on {{instance}}"), width=12,
                      about="Of jobs with resources.ps_replication. Beyond 1 training waits for them."),
                graph("Sent to backups", "Bps", (rate("muster_ps_forwarded_bytes_total", HERE_ONLY, "instance"), "{{instance}}"), width=12),
            ],
            "Updates": [
                graph("Updating a chunk", "s", (quantile(0.5, "muster_ps_apply_duration_seconds", HERE_ONLY, "instance"), "{{instance}} median"),
                      (quantile(0.99, "muster_ps_apply_duration_seconds", HERE_ONLY, "instance"), "{{instance}} 99 %"), log=True),
                graph("Versions", "none", (f"muster_ps_version{OF_JOB}", "{{job}} on {{instance}}"), about="The lowest of the job's chunks there."),
                graph("Who is waited for", "percentunit", (f"max by (job, worker) (rate(muster_ps_gate_wait_seconds_total{OF_JOB}{RATE}))",
                                                           "{{job}}: {{worker}}")),
                graph("Messages refused", "cps", (rate("muster_ps_refused_messages_total", HERE_ONLY, "reason"), "{{reason}}")),
                graph("Gradients not applied", "cps", (rate("muster_ps_duplicate_pushes_total", HERE_ONLY, "instance"), "{{instance}} repeated"),
                      (rate("muster_ps_late_pushes_total", HERE_ONLY, "instance"), "{{instance}} late")),
                graph("Updates by gradients that are not finite", "cps",
                      (rate("muster_ps_nonfinite_gradients_total", HERE_ONLY, "instance"), "{{instance}}")),
                graph("Gradients that are not finite, by job", "cps", (rate("muster_ps_job_nonfinite_gradients_total", OF_JOB, "job"), "{{job}}")),
                graph("Skipped steps", "none", (f"sum by (job) (increase(muster_ps_job_skipped_steps_total{OF_JOB}{RATE}))", "{{job}}"),
                      about="They changed nothing: their gradient was not finite."),
            ],
        }),
    "transport": dict(
        title="Muster: transport and GPU", about="What carries the messages, and what computes.", variables=[INSTANCE_VARIABLE],
        rows={
            "Links": [
                table("What carries each", f"muster_transport_info{HERE_ONLY}", width=24),
                graph("Gradients sent", "Bps", (rate("muster_worker_link_sent_bytes_total", HERE_ONLY, "instance, peer"), "{{instance}} to {{peer}}")),
                graph("Parameters received", "Bps",
                      (rate("muster_worker_link_received_bytes_total", HERE_ONLY, "instance, peer"), "{{instance}} from {{peer}}")),
                graph("On its way", "bytes", (f"sum by (instance, peer) (muster_worker_link_inflight_bytes{HERE_ONLY})", "{{instance}} to {{peer}}")),
                graph("Waiting for credit", "bytes", (f"muster_worker_queued_bytes{HERE_ONLY}", "{{instance}}"), width=12,
                      about="Gradients that are final and not sent: the network or a ps is behind."),
                graph("Pulling parameters, 99 %", "s",
                      (quantile(0.99, "muster_worker_pull_duration_seconds", HERE_ONLY, "instance, transport"), "{{instance}}, {{transport}}"),
                      width=12, log=True, about="From the sending of a gradient until the parameters are there."),
                graph("Waiting for credit, part of the time", "percentunit",
                      (rate("muster_worker_send_queue_full_seconds_total", HERE_ONLY), "{{instance}}"), width=12,
                      about="In which some gradient is final and cannot be sent."),
                graph("Among the devices of a worker", "Bps",
                      (rate("muster_collective_bytes_total", HERE_ONLY, "instance, library, operation"), "{{instance}} {{operation}}, {{library}}"), width=12,
                      about="Of collective operations, each device's; nothing where workers have one device."),
                graph("A collective operation, 99 %", "s",
                      (quantile(0.99, "muster_collective_duration_seconds", HERE_ONLY, "instance, operation"), "{{instance}} {{operation}}"), width=12, log=True,
                      about="In shared memory, with waiting for the others. How long NCCL's take is not known."),
                graph("Waiting for credit, 99 %", "s",
                      (quantile(0.99, "muster_worker_credit_wait_duration_seconds", HERE_ONLY, "instance"), "{{instance}}"), width=12, log=True),
                graph("Strangers turned away", "cps", (rate("muster_data_port_strangers_total", HERE_ONLY, "instance, reason"),
                                                       "{{instance}} {{reason}}"), width=12),
                graph("Messages that changed on their way", "none", (f"increase(muster_data_port_damaged_frames_total{HERE_ONLY}{RATE})",
                                                                     "{{instance}}"), width=12, about="By who received them. None, always."),
            ],
            "GPUs": [
                graph("Busy", "percentunit", (f"max by (instance, gpu) (muster_gpu_utilization_ratio{HERE_ONLY})", "{{instance}} {{gpu}}"), width=6,
                      about="Part of the time in which a kernel ran."),
                graph("Memory", "percentunit", (f"max by (instance, gpu) (muster_gpu_memory_used_bytes{HERE_ONLY} / "
                                                f"muster_gpu_memory_size_bytes{HERE_ONLY})", "{{instance}} {{gpu}}"), width=6),
                graph("Power", "watt", (f"max by (instance, gpu) (muster_gpu_power_watts{HERE_ONLY})", "{{instance}} {{gpu}}"), width=6),
                graph("Temperature", "celsius", (f"max by (instance, gpu) (muster_gpu_temperature_celsius{HERE_ONLY})", "{{instance}} {{gpu}}"),
                      width=6),
            ],
        }),
    "checkpoints": dict(
        title="Muster: checkpoints", about="What would be lost now?", variables=[JOB_VARIABLE],
        rows={
            "At risk": [
                # Steps are reported once a second, a checkpoint may be committed sooner.
                graph("Steps since the last one", "none",
                      (f"clamp_min(muster_job_step{OF_JOB} - muster_checkpoint_last_success_step{OF_JOB}, 0)", "{{job}}"),
                      about="What a lost ps would take."),
                graph("Time since the last one", "s", (f"time() - muster_checkpoint_last_success_timestamp_seconds{OF_JOB}", "{{job}}")),
                graph("Steps between two", "none", (f"muster_job_checkpoint_every_steps{OF_JOB}", "{{job}}")),
            ],
            "Writing": [
                graph("A checkpoint", "s", (quantile(0.5, "muster_checkpoint_duration_seconds"), "median"),
                      (quantile(0.99, "muster_checkpoint_duration_seconds"), "99 %"), about="From its first shard to its commit."),
                graph("A checkpoint, by job", "s", (mean("muster_job_checkpoint_duration_seconds", OF_JOB, "job"), "{{job}}"),
                      about="Mean, from its first shard to its commit."),
                graph("Bytes", "Bps", (rate("muster_checkpoint_bytes_total"), "{{instance}}")),
                graph("Failures", "none", (f"sum by (reason) (increase(muster_checkpoint_failures_total{RATE}))", "{{reason}}")),
                graph("Failures, by job", "none",
                      (f"sum by (job, reason) (increase(muster_job_checkpoint_failures_total{OF_JOB}{RATE}))", "{{job}}: {{reason}}")),
                graph("A shard's part", "s", (mean("muster_ps_snapshot_duration_seconds", by="instance"), "{{instance}}"),
                      about="Mean time in which a ps writes it; training goes on."),
                graph("State folder's disk", "percentunit", ("muster_state_free_bytes / muster_state_size_bytes", "free")),
                graph("Store", "bytes", ("muster_store_bytes", "coordinator.db")),
            ],
            "Reading": [
                graph("Restoring a shard", "s", (mean("muster_ps_restore_duration_seconds", by="instance"), "{{instance}}")),
                graph("Bytes", "Bps", (rate("muster_ps_restore_bytes_total", by="instance"), "{{instance}}")),
                graph("Damaged, or gone", "none", (f"increase(muster_checkpoint_damaged_total{RATE})", "{{instance}}"),
                      about="Checkpoints that were to be read. None, always."),
            ],
        }),
}

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panel_json(panel, number_, x, y):
    defaults = {"unit": panel["unit"]}
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
                              "scaleDistribution": {"type": "log", "log": 10} if panel["log"] else {"type": "linear"}}
        result["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    else:
        for target in result["targets"]:
            target["instant"] = True
        result["options"] = {}
    if panel["kind"] == "stat":
        steps = [{"color": "green", "value": None}] + ([{"color": "red", "value": panel["bad"]}] if panel["bad"] else [])
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        result["options"] = {"colorMode": "value", "graphMode": "area", "reduceOptions": {"calcs": ["lastNotNull"]}}
    if panel["kind"] == "table":
        for target in result["targets"]:
            target["format"] = "table"
        result["transformations"] = [{"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True, "__name__": True, "job": True}}}]
    return result


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
