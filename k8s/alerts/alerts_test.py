#!/usr/bin/env python3
"""Checks that every alert fires when it should, stays silent when it should, and has a section in docs/alerts.md."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import prometheus_rule  # noqa: E402

RULES = HERE / "muster.rules.yaml"
COMPONENT = HERE / ".." / "components" / "prometheus-operator" / "rules.yaml"
RUNBOOK = HERE / ".." / ".." / "docs" / "alerts.md"

COORDINATOR = 'instance="coordinator"'


def job(name, sick, well, labels=""):
    """Returns series of a metric for two jobs, "sick" and "well"."""
    return {f'{name}{{{labels}job="sick"}}': sick, f'{name}{{{labels}job="well"}}': well}


def histogram(name, sick, fast="0.1", slow="10"):
    """Returns a histogram of one observation a minute, which is slow if `sick`. Its buckets are `fast`, `slow` and infinite."""
    below = "0x90" if sick else "0+1x90"
    return {f'{name}_bucket{{le="{fast}"}}': below, f'{name}_bucket{{le="{slow}"}}': "0+1x90", f'{name}_bucket{{le="+Inf"}}': "0+1x90"}


def steps(of_job, waits, **own):
    """Returns constant step times of a job's workers: `own` has each worker's own time, `waits` is the time that all wait."""
    return {f'muster_job_workers{{job="{of_job}"}}': f"{len(own)}x90",
            **{f'muster_job_worker_step_seconds{{job="{of_job}",phase="{phase}",worker="{worker}"}}': f"{seconds}x90"
               for worker, busy in own.items() for phase, seconds in (("data", 0.01), ("compute", busy), ("wait", waits))}}


def pulls(instance, late, steps):
    """Returns series of a hundred pulls a minute.

    `late` of them take about ten seconds, others less than 0.15 s. `steps` is the series of the steps made."""
    at, below = f'muster_worker_pull_duration_seconds_bucket{{instance="{instance}",transport="tcp",le=', f"0+{100 - 2 * late}x90"
    return {f'{at}"0.15"}}': below, f'{at}"2.5"}}': below, f'{at}"10"}}': "0+100x90", f'{at}"+Inf"}}': "0+100x90",
            f'muster_worker_step_duration_seconds_sum{{instance="{instance}"}}': "0+60x90",
            f'muster_worker_step_duration_seconds_count{{instance="{instance}"}}': steps}


def timed(name, saved, step="10+10x90", running="1x90"):
    """Returns series of a job with checkpoints by time, the last at step 10. `saved`: when it was written; None: no checkpoint."""
    series = {"muster_job_step": step, "muster_job_first_step": "0x90", "muster_job_running": running}
    if saved is not None:
        series |= {"muster_checkpoint_last_success_step": "10x90", "muster_checkpoint_last_success_timestamp_seconds": saved}
    return {f'{metric}{{job="{name}"}}': values for metric, values in series.items()}


def serving(*instances):
    return {f'muster_worker_job_info{{instance="{instance}",job="j"}}': "1x90" for instance in instances}


def until(minute, values):
    """Returns values in promtool's notation up to `minute`, then the marker that the series has ended."""
    told = []
    for word in values.split():
        first, change, count = re.fullmatch(r"([^+x-]+)(?:([+-][\d.]+))?(?:x(\d+))?", word).groups()
        times = 1 if count is None else int(count) + (first != "_")
        told += [first if first in ("_", "stale") else float(first) + i * float(change or 0) for i in range(times)]
    return " ".join(map(str, told[:minute])) + " stale"


RUNNING = job("muster_job_running", "1x90", "1x90")
RECOVERING = job("muster_job_running", "0x90", "0x90")

# For each alert, `series` has one value a minute. The alert is silent at `before`, and fires at `minute` for the labels of `fires` and
# for nothing else. With the series of `silent` it does not fire at all. Series with a job end after `minute`; then the alert fires for
# `after_end` alone.
CASES = {
    "MusterCoordinatorDown": dict(series={f"muster_coordinator_term{{{COORDINATOR}}}": "1x5 stale"}, minute=9, before=6, fires=[""],
                                  silent={f"muster_coordinator_term{{{COORDINATOR}}}": "1x90"}),
    "MusterSeveralCoordinators": dict(
        series={'muster_coordinator_term{instance="a"}': "1x90", 'muster_coordinator_term{instance="b"}': "2x90"}, minute=3, before=1,
        fires=[""], silent={'muster_coordinator_term{instance="a"}': "3x90"}),
    "MusterNoMembers": dict(series={'muster_members{role="ps",state="attached"}': "0x90", 'muster_members{role="ps",state="silent"}': "0x90",
                                    'muster_members{role="worker",state="attached"}': "3x90"}, minute=6, before=4, fires=['role="ps"'],
                            silent={'muster_members{role="ps",state="attached"}': "0x90",
                                    'muster_members{role="ps",state="silent"}': "1x90"}),
    "MusterVersionsDiffer": dict(
        series={'muster_build_info{instance="a",version="0.3.0"}': "1x90", 'muster_build_info{instance="b",version="0.3.0+2.gabc"}': "1x90"},
        minute=31, before=29, fires=[""],
        silent={'muster_build_info{instance="a",version="0.3.0"}': "1x90", 'muster_build_info{instance="b",version="0.3.0"}': "1x90"}),
    "MusterInsecure": dict(series={'muster_insecure{instance="a"}': "1x90", 'muster_insecure{instance="b"}': "1x90"}, minute=6, before=4,
                           fires=[""], silent={'muster_insecure{instance="a"}': "0x90"}),
    "MusterMemberLost": dict(series={f"muster_lease_expiries_total{{{COORDINATOR}}}": "0x20 1x70"}, minute=22, before=20, fires=[COORDINATOR],
                             silent={f"muster_lease_expiries_total{{{COORDINATOR}}}": "7x90"}),
    "MusterTicksLate": dict(series=histogram("muster_coordinator_tick_lateness_seconds", sick=True), minute=8, before=4, fires=[""],
                            silent=histogram("muster_coordinator_tick_lateness_seconds", sick=False)),
    "MusterStoreSlow": dict(series=histogram("muster_store_commit_duration_seconds", sick=True), minute=14, before=9, fires=[""],
                            silent=histogram("muster_store_commit_duration_seconds", sick=False)),
    "MusterStateDiskFull": dict(
        series={f"muster_state_free_bytes{{{COORDINATOR}}}": "4x90", f"muster_state_size_bytes{{{COORDINATOR}}}": "100x90"}, minute=6, before=4,
        fires=[COORDINATOR],
        silent={f"muster_state_free_bytes{{{COORDINATOR}}}": "50x90", f"muster_state_size_bytes{{{COORDINATOR}}}": "100x90"}),
    "MusterStateDiskFills": dict(series={f"muster_state_free_bytes{{{COORDINATOR}}}": "200-1x90"}, minute=80, before=10, fires=[COORDINATOR],
                                 silent={f"muster_state_free_bytes{{{COORDINATOR}}}": "900-1x90"}),
    "MusterCallsFail": dict(
        series={'muster_rpc_requests_total{code="OK",method="a"}': "0+90x90", 'muster_rpc_requests_total{code="INTERNAL",method="a"}': "0+10x90",
                'muster_rpc_requests_total{code="OK",method="b"}': "0+90x90", 'muster_rpc_requests_total{code="NOT_FOUND",method="b"}': "0+90x90"},
        minute=14, before=9, fires=['method="a"'], silent={'muster_rpc_requests_total{code="UNAVAILABLE",method="a"}': "3x90"}),
    "MusterCertificateEnds": dict(  # promtool's clock begins in 1970
        series={'muster_tls_certificate_expiry_timestamp_seconds{instance="a"}': f"{7 * 86400 + 600}x90",
                'muster_tls_certificate_begin_timestamp_seconds{instance="a"}': f"{-80 * 86400}x90",
                'muster_tls_certificate_expiry_timestamp_seconds{instance="b"}': f"{30 * 86400}x90",
                'muster_tls_files_faulty{instance="a"}': "0x90", 'muster_tls_files_faulty{instance="b"}': "0x90",
                'muster_tls_files_faulty{instance="c"}': "0x9 1x80"}, minute=72, before=69,
        fires=['instance="a"', 'instance="c"'],
        silent={'muster_tls_certificate_expiry_timestamp_seconds{instance="b"}': f"{8 * 86400}x90",
                # A certificate that is valid for a day.
                'muster_tls_certificate_expiry_timestamp_seconds{instance="d"}': f"{20 * 3600}x90",
                'muster_tls_certificate_begin_timestamp_seconds{instance="d"}': f"{-4 * 3600}x90",
                'muster_tls_files_faulty{instance="d"}': "0x90"}),
    "MusterFileDescriptorsShort": dict(
        series={'process_open_fds{instance="a"}': "95x90", 'process_max_fds{instance="a"}': "100x90", 'muster_build_info{instance="a"}': "1x90",
                'process_open_fds{instance="no-muster"}': "95x90", 'process_max_fds{instance="no-muster"}': "100x90"},
        minute=6, before=4, fires=['instance="a"'],
        silent={'process_open_fds{instance="a"}': "30x90", 'process_max_fds{instance="a"}': "100x90", 'muster_build_info{instance="a"}': "1x90"}),
    "MusterStrangers": dict(series={'muster_data_port_strangers_total{instance="a",reason="not_muster"}': "0+120x90"}, minute=19, before=9,
                            fires=['instance="a",reason="not_muster"'],
                            silent={'muster_data_port_strangers_total{instance="a",reason="not_muster"}': "0+10x90"}),
    "MusterMessagesDamaged": dict(
        series={'muster_data_port_damaged_frames_total{instance="a"}': "0x10 1x9 2x9 3x60",
                'muster_data_port_damaged_frames_total{instance="b"}': "0x10 1x80"}, minute=32, before=28, fires=['instance="a"'],
        silent={'muster_data_port_damaged_frames_total{instance="a"}': "0x10 1x9 2x70",
                'muster_data_port_damaged_frames_total{instance="b"}': "9x90"}),
    "MusterLinksFellBack": dict(
        series={'muster_transport_info{fallback="one host, but another user",instance="a",peer="ps-0/0"}': "1x90",
                'muster_transport_info{fallback="one host, but another user",instance="a",peer="ps-0/1"}': "1x90",
                'muster_transport_info{fallback="",instance="b",peer="ps-0/0"}': "1x90"}, minute=16, before=14,
        fires=['fallback="one host, but another user",instance="a"'],
        silent={'muster_transport_info{instance="a",peer="ps-0/0",transport="tcp"}': "1x90"}),
    "MusterJobStalled": dict(series={**job("muster_job_running", "1x90", "1x90"), **job("muster_job_step", "0+9x10 99x80", "0+9x90")},
                             minute=27, before=23, fires=['job="sick"'],
                             silent={**job("muster_job_running", "0x90", "0x90"), **job("muster_job_step", "99x90", "99x90")}),
    "MusterJobSlow": dict(
        series={**job("muster_job_running", "1x120", "1x120"), **job("muster_job_samples_per_second", "100x60 40x60", "100x120")},
        minute=78, before=70, fires=['job="sick"'],
        silent={**job("muster_job_running", "1x90", "0x90"), **job("muster_job_samples_per_second", "100x60 80x30", "100x60 1x30")}),
    "MusterStraggler": dict(
        series={**RUNNING, **job("muster_ps_gate_wait_seconds_total", "0+30x90", "0+3x90", 'worker="worker-1",'),
                **job("muster_job_logical_workers", "4x90", "4x90"), **job("muster_job_workers", "4x90", "3x90")}, minute=19, before=9,
        fires=['job="sick",worker="worker-1"'],
        silent={**RUNNING, **job("muster_ps_gate_wait_seconds_total", "0+6x90", "0+30x90", 'worker="worker-1",'),
                # One of three workers computes two of four shares.
                'muster_job_logical_workers{job="well"}': "4x90", 'muster_job_workers{job="well"}': "3x90"}),
    "MusterWorkerSlow": dict(
        series={**steps("sick", 0.1, a=0.2, b=0.2, c=0.35), **steps("two", 0.1, a=0.2, b=0.35), **steps("well", 0.1, a=0.2, b=0.2, c=0.28)},
        minute=6, before=4, fires=['job="sick",worker="c"', 'job="two",worker="b"'],
        silent={**steps("one", 0.1, a=9), **steps("network", 2, a=0.2, b=0.2, c=0.8), **steps("even", 0.1, a=0.2, b=0.2),
                **steps("with-ps", 0.1, a=0.2, b=0.2, c=0.9),
                'muster_ps_gate_wait_seconds_total{instance="ps-0",job="with-ps",worker="c"}': "0x90"}),
    "MusterPullSlow": dict(  # steps of two seconds, of which one in a hundred gets its parameters late
        series={**pulls("a", late=1, steps="0+30x90"), **pulls("b", late=0, steps="0+30x90"), **pulls("long-steps", late=1, steps="0+6x90"),
                **serving("a", "b", "long-steps")},
        minute=22, before=9, fires=['instance="a"'], silent={**pulls("a", late=0, steps="0+30x90"), **serving("a")}),
    "MusterSendQueueFull": dict(
        series={'muster_worker_send_queue_full_seconds_total{instance="a"}': "0+58x90",
                'muster_worker_send_queue_full_seconds_total{instance="b"}': "0+40x90", **serving("a", "b")},
        minute=26, before=14, fires=['instance="a"'],
        silent={'muster_worker_send_queue_full_seconds_total{instance="a"}': "0+50x90", **serving("a")}),
    "MusterJobFailed": dict(
        series={'muster_jobs{state="failed"}': "1x20 2x70", 'muster_jobs{state="succeeded"}': "0+1x90"}, minute=22, before=20,
        fires=['state="failed"'], silent={'muster_jobs{state="failed"}': "4x50 3x40"}),
    "MusterJobRecovering": dict(series={'muster_jobs{state="recovering"}': "0x20 1x60"}, minute=32, before=30, fires=['state="recovering"'],
                                silent={'muster_jobs{state="recovering"}': "0x20 2x8 0x60"}),
    "MusterRestartLoop": dict(series={**RECOVERING, **job("muster_job_recoveries_total", "0x5 1 2 3x82", "0x10 1x80", 'lost="ps",reason="MEMBER_LOST",'),
                                      **job("muster_job_recoveries_total", "0x8 1 2x80", "0x90", 'lost="worker",reason="MEMBER_LOST",')},
                              minute=12, before=6,
                              fires=['job="sick"'],
                              silent={**RECOVERING, **job("muster_job_recoveries_total", "40x90", "0x40 1x40"),
                                      **job("muster_job_recoveries_total", "0x5 1 3 4x82", "0x90", 'lost="worker",reason="MEMBER_LEAVES",'),
                                      **job("muster_job_recoveries_total", "0x5 1 3 4x82", "0x90", 'lost="none",reason="WORKERS_YIELD",'),
                                      **job("muster_job_recoveries_total", "0x5 1 3 8x82", "0x90", 'lost="none",reason="LOSS_NOT_FINITE",'),
                                      **job("muster_job_recoveries_total", "0x5 1 3 8x82", "0x90", 'lost="none",reason="DATA_NOT_FINITE",'),
                                      **job("muster_job_recoveries_total", "0x5 1 3 4x82", "0x90", 'lost="none",reason="WORKERS_JOIN",')}),
    "MusterRecoverySlow": dict(series=histogram("muster_recovery_duration_seconds", sick=True, fast="60", slow="1800"), minute=10, before=0,
                               fires=[""], silent=histogram("muster_recovery_duration_seconds", sick=False, fast="60", slow="1800")),
    "MusterJobsWait": dict(series={'muster_jobs{state="queued"}': "2x150", 'muster_jobs{state="running"}': "2x150"}, minute=61, before=59,
                           fires=['state="queued"'], silent={'muster_jobs{state="queued"}': "2x50 0 2x60"}),
    "MusterNonFiniteLoss": dict(series={'muster_worker_nonfinite_losses_total{instance="worker-0"}': "0x10 1x80"}, minute=11, before=10,
                                fires=['instance="worker-0"'],
                                silent={'muster_worker_nonfinite_losses_total{instance="worker-0"}': "5x90"}),
    "MusterStepsSkipped": dict(series=job("muster_ps_skipped_steps_in_row", "10x90", "9x90", 'instance="ps-0",'), minute=2, before=0,
                               fires=['job="sick"'], silent=job("muster_ps_skipped_steps_in_row", "2x90", "0x90")),
    "MusterPsMemoryFull": dict(series={'muster_ps_shard_bytes{instance="ps-0"}': "96x90", 'muster_ps_memory_bytes{instance="ps-0"}': "100x90"},
                               minute=16, before=14, fires=['instance="ps-0"'],
                               silent={'muster_ps_shard_bytes{instance="ps-0"}': "90x90", 'muster_ps_memory_bytes{instance="ps-0"}': "100x90"}),
    "MusterMessagesRefused": dict(series={'muster_ps_refused_messages_total{instance="ps-0",reason="WRONG_CHUNK"}': "0+1x90"}, minute=7,
                                  before=4, fires=['instance="ps-0",reason="WRONG_CHUNK"'],
                                  silent={'muster_ps_refused_messages_total{instance="ps-0",reason="UNKNOWN_JOB"}': "0+9x90",
                                          'muster_ps_refused_messages_total{instance="ps-0",reason="WRONG_STEP"}': "4x90"}),
    "MusterGpuIdle": dict(
        series={'muster_gpu_utilization_ratio{instance="a",gpu="0"}': "0.02x90", **serving("a"),
                'muster_gpu_utilization_ratio{instance="free",gpu="0"}': "0x90"}, minute=16, before=14, fires=['instance="a",gpu="0"'],
        silent={'muster_gpu_utilization_ratio{instance="a",gpu="0"}': "0.9x90", **serving("a")}),
    "MusterGpuFault": dict(
        series={'DCGM_FI_DEV_XID_ERRORS{Hostname="a",gpu="0"}': "0x20 79x70", 'DCGM_FI_DEV_XID_ERRORS{Hostname="b",gpu="0"}': "0x90"},
        minute=22, before=20, fires=['Hostname="a",gpu="0"'],
        silent={'DCGM_FI_DEV_XID_ERRORS{Hostname="a",gpu="0"}': "79x20 0x70"}),
    "MusterCheckpointStale": dict(  # without checkpoint.every_steps an hour counts
        series={**job("muster_job_step", "0+10x90", "0+10x90"), **job("muster_job_checkpoint_every_steps", "100x90", "100x90"),
                **job("muster_checkpoint_last_success_step", "100x90", "0+10x90"), 'muster_job_step{job="never"}': "0+10x90",
                'muster_job_first_step{job="never"}': "0x90",
                'muster_job_checkpoint_every_steps{job="never"}': "100x90",
                **timed("timed", saved="60x90"), **timed("timed-never", saved=None), **timed("timed-well", saved="0+60x90")},
        minute=70, before=35, fires=[f'job="{name}"' for name in ("sick", "never", "timed", "timed-never")],
        silent={**job("muster_job_step", "0+10x90", "0+1x90"), **job("muster_checkpoint_last_success_step", "0x90", "0x90"),
                'muster_job_checkpoint_every_steps{job="well"}': "100x90",
                'muster_job_step{job="resumed"}': "10000+1x90", 'muster_job_first_step{job="resumed"}': "10000x90",
                'muster_job_checkpoint_every_steps{job="resumed"}': "1000x90",
                **timed("timed-resumed", saved="0x90", running="_x30 1x60"), **timed("timed-recovers", saved="0x90", running="1x50 0x40"),
                **timed("timed-stands", saved="0x90", step="10x90"),
                **timed("by-steps", saved="0x90"), 'muster_job_checkpoint_every_steps{job="by-steps"}': "1000x90"}),
    "MusterCheckpointFails": dict(
        series={f'muster_checkpoint_failures_total{{{COORDINATOR},reason="STORAGE_FULL"}}': "0x10 1x80",
                f'muster_checkpoint_failures_total{{{COORDINATOR},reason="SNAPSHOT_FAILED"}}': "0x10 1x80",
                f'muster_checkpoint_failures_total{{{COORDINATOR},reason="OTHER"}}': "0x90",
                **RUNNING, **job("muster_job_checkpoint_failures_total", "0x10 1x80", "0x90", COORDINATOR + ',reason="STORAGE_FULL",')},
        after_end=[COORDINATOR + ',reason="SNAPSHOT_FAILED"'],  # of no job
        minute=11, before=10, fires=[COORDINATOR + ',job="sick",reason="STORAGE_FULL"', COORDINATOR + ',reason="SNAPSHOT_FAILED"'],
        silent={f'muster_checkpoint_failures_total{{{COORDINATOR},reason="OTHER"}}': "3x90",
                **RUNNING, **job("muster_job_checkpoint_failures_total", "3x90", "0x90", COORDINATOR + ',reason="OTHER",')}),
    "MusterCheckpointDamaged": dict(
        series={f"muster_checkpoint_damaged_total{{{COORDINATOR}}}": "0x10 1x80",
                'muster_checkpoint_damaged_total{instance="met-at-its-start"}': "_x11 1x79"}, minute=12, before=10,
        fires=[COORDINATOR, 'instance="met-at-its-start"'],
        silent={f"muster_checkpoint_damaged_total{{{COORDINATOR}}}": "0x90"}),
}


def alerts():
    return re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))


def unit_tests(name, case):
    """Returns promtool's tests of a case: it fires, it stays silent and, if the alert is about a job, it ends with the job."""
    def firing(minute, of):
        return {"expr": f'count without (alertname, alertstate, severity) (ALERTS{{alertname="{name}",alertstate="firing"}})',
                "eval_time": f"{minute}m", "exp_samples": [{"labels": f"{{{labels}}}", "value": 1} for labels in of]}

    def test(series, what):
        return {"interval": "1m", "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": what}

    tests = [test(case["series"], [firing(case["before"], []), firing(case["minute"], case["fires"])]),
             test(case["silent"], [firing(minute, []) for minute in (5, case["minute"] // 2, case["minute"], case["minute"] + 3)])]
    if any('job="' in series for series in case["series"]):
        end = case["minute"] + 1
        ended = {series: until(end, values) if 'job="' in series else values for series, values in case["series"].items()}
        tests.append(test(ended, [firing(case["minute"], case["fires"])] +
                          [firing(end + later, case.get("after_end", [])) for later in (0, 1, 5, 10)]))
    return tests


@unittest.skipUnless(shutil.which("promtool"), "no promtool: the rules were not tried")
class Rules(unittest.TestCase):
    def promtool(self, *arguments):
        ran = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return ran.stdout

    def test_are_rules(self):
        self.assertIn(f"{len(alerts())} rules found", self.promtool("check", "rules", str(RULES)))

    def test_every_alert_fires_and_stays_silent(self):
        self.assertEqual(sorted(CASES), sorted(alerts()))
        with tempfile.TemporaryDirectory() as folder:
            tests = pathlib.Path(folder) / "tests.json"  # which is YAML
            tests.write_text(json.dumps({"rule_files": [str(RULES.resolve())], "evaluation_interval": "1m",
                                         "tests": [test for name, case in CASES.items() for test in unit_tests(name, case)]}),
                             encoding="utf-8")
            self.promtool("test", "rules", str(tests))


class Operator(unittest.TestCase):
    def test_has_the_same_rules(self):
        self.assertEqual(COMPONENT.read_text(encoding="utf-8"), prometheus_rule.text(RULES.read_text(encoding="utf-8")),
                         "run k8s/alerts/prometheus_rule.py, then k8s/render.sh")


def rules_by_alert():
    """Returns the text of each rule by the alert's name."""
    rules = re.split(r"- alert: ", RULES.read_text(encoding="utf-8"))[1:]
    return {rule.split("\n", 1)[0]: rule for rule in rules}


def severity(rule):
    return re.search(r"severity: (\w+)", rule)[1]


class Runbook(unittest.TestCase):
    PARTS = ("Severity", "Meaning", "Time", "Commands", "Branches", "Verify", "Inform")

    def setUp(self):
        self.text = RUNBOOK.read_text(encoding="utf-8")

    def test_every_alert_has_a_section_of_the_same_form(self):
        sections = re.findall(r"^### (Muster\w+)\n\n(.*?)(?=^### |\Z)", self.text, re.M | re.S)
        self.assertEqual(sorted(name for name, _ in sections), sorted(alerts()))
        for name, section in sections:
            with self.subTest(name):
                self.assertEqual(tuple(re.findall(r"^\*\*(\w+)\.\*\*", section, re.M)), self.PARTS)
                commands = re.search(r"^```\n(.*?)^```$", section, re.M | re.S)[1].splitlines()
                self.assertTrue(commands[0].startswith("$ "))
                self.assertEqual(sum(line.startswith("$ ") for line in commands), 3)
                for line, after in zip(commands, [*commands[1:], "$ "]):
                    if line.startswith("$ "):
                        self.assertNotRegex(line, r"logs .*--since=\S+ *(#|$)", f"{line}: a long log wants a filter")
                        self.assertFalse(after.startswith("$ "), f"{line}: the expected output is missing")
                    if line.startswith("$ kubectl "):
                        self.assertIn("# bare metal: ", line)
                branches = re.findall(r"^- (.*)", section, re.M)
                self.assertGreaterEqual(len(branches), 2, "branches")
                self.assertTrue(any(branch.startswith("Otherwise") for branch in branches[-2:]), "an operator may find none of the branches true")
                self.assertIn("[Settings](#before-you-begin) first", section)
                self.assertRegex(section, rf"\*\*Severity\.\*\* (?i:{severity(rules_by_alert()[name])}):")

    def test_the_index_has_every_alert_with_its_severity(self):
        index = re.findall(r"^\| [^|]+ \| \[(Muster\w+)\]\(#(\w+)\) \| (\w+) \|$", self.text, re.M)
        self.assertEqual(sorted((name, anchor, level) for name, anchor, level in index),
                         sorted((name, name.lower(), severity(rule)) for name, rule in rules_by_alert().items()))

    def test_every_alert_says_what_it_needs(self):
        for name, rule in rules_by_alert().items():
            with self.subTest(name):
                self.assertRegex(rule, r"severity: (critical|warning|info)\b")
                self.assertIn(f"runbook_url: {prometheus_rule.runbook_url(name)}\n", rule + "\n",
                              "run k8s/alerts/prometheus_rule.py, then k8s/render.sh")
                for part in ("summary", "description"):
                    self.assertIn(f"{part}: ", rule)

    def test_runbooks_are_absolute(self):
        self.assertRegex(prometheus_rule.RUNBOOKS, r"^https?://[^/\s]+/\S+$")

    def test_one_job_wakes_no_person(self):
        for name, rule in rules_by_alert().items():
            if severity(rule) == "critical":
                self.assertNotRegex(rule, r"muster_(jobs?|worker|ps|checkpoint)(_|\b)", f"{name}: a job file can cause it")

    def test_a_learning_rate_is_no_ticket(self):
        """Alerts on metrics that a bad learning rate changes must be of severity info, for the owner of the job."""
        for name, rule in rules_by_alert().items():
            if re.search(r"nonfinite|skipped|state=\"failed\"", rule):
                self.assertEqual(severity(rule), "info", name)


if __name__ == "__main__":
    if shutil.which("promtool") is None:
        print("k8s/alerts/alerts_test.py:1: Skipped\nno promtool: the rules were not tried")
    unittest.main()
