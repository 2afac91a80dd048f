#!/usr/bin/env python3
"""Creates a job and watches it until it ends. Exits with 0 if the job has succeeded.

Run it in Muster's sources, with the packages grpcio, grpcio-tools and grpcio-status:

    mkdir -p stubs
    python3 -m grpc_tools.protoc -I. --python_out=stubs --grpc_python_out=stubs proto/muster/v1/*.proto
    PYTHONPATH=stubs python3 examples/clients/watch_job.py --server HOST:7070 --tls DIR --token-file FILE
"""

import argparse
import pathlib
import random
import sys
import time
import uuid

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from proto.muster.v1 import coordinator_pb2, coordinator_pb2_grpc, job_pb2

PATIENCE_SECONDS = 300  # how long to retry while no coordinator answers
ENDED = (job_pb2.SUCCEEDED, job_pb2.FAILED, job_pb2.CANCELLED)


def dial(server, tls, token_file):
    """Returns a channel. `tls` is a folder with ca.crt and, unless there is a token, tls.crt and tls.key; without it: plaintext."""
    if not tls:
        return grpc.insecure_channel(server)
    folder = pathlib.Path(tls)
    certificate, key = folder / "tls.crt", folder / "tls.key"
    credentials = grpc.ssl_channel_credentials(
        (folder / "ca.crt").read_bytes(),
        key.read_bytes() if key.exists() else None,
        certificate.read_bytes() if certificate.exists() else None)
    if token_file:
        token = pathlib.Path(token_file).read_text(encoding="utf-8").strip()
        credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
    return grpc.secure_channel(server, credentials)


def detail(error, message):
    """Fills `message` with the detail of its type; None if the error has none."""
    status = rpc_status.from_call(error)
    for any_message in status.details if status else ():
        if any_message.Unpack(message):
            return message
    return None


def explain(error):
    """Describes an error: the message, the reason to branch on, and every fault of the request."""
    lines = [f"{error.code().name}: {error.details()}"]
    if info := detail(error, error_details_pb2.ErrorInfo()):
        lines.append(f"reason: {info.reason}")  # docs/reference/errors.md
    if request := detail(error, error_details_pb2.BadRequest()):
        lines += [f"field {fault.field}: {fault.description}" for fault in request.field_violations]
    return "\n".join(lines)


class Retry:
    """Waits between attempts, as the server says. Raises the error if another attempt is useless."""

    def __init__(self):
        self._attempts = 0
        self._last_success = time.monotonic()

    def succeeded(self):
        self._attempts = 0
        self._last_success = time.monotonic()

    def wait(self, error):
        hint = detail(error, error_details_pb2.RetryInfo())
        # Without the server's hint, only UNAVAILABLE is worth a retry: it means that no server was reached.
        if not hint and error.code() != grpc.StatusCode.UNAVAILABLE:
            raise error
        if time.monotonic() - self._last_success > PATIENCE_SECONDS:
            raise error
        seconds = hint.retry_delay.ToTimedelta().total_seconds() if hint else min(0.1 * 2**self._attempts, 10)
        self._attempts += 1
        print(f"{explain(error)}\ntrying again in about {seconds:.1f} s", file=sys.stderr)
        time.sleep(seconds * random.uniform(1, 1.3))


def create_job(jobs, spec):
    """Creates the job. With the request id, a retry returns the job that an earlier attempt has created."""
    request = coordinator_pb2.CreateJobRequest(spec=spec, request_id=str(uuid.uuid4()))
    retry = Retry()
    while True:
        try:
            return jobs.CreateJob(request, timeout=60)
        except grpc.RpcError as error:
            retry.wait(error)


def watch_job(jobs, name):
    """Prints the job's events until it ends, and returns it. After a break, the watch continues after the last event."""
    revision = 0
    retry = Retry()
    while True:
        try:
            job = None
            for message in jobs.WatchJob(coordinator_pb2.WatchJobRequest(name=name, revision=revision)):
                retry.succeeded()
                job = message.job
                for event in message.events:
                    revision = event.revision
                    print(f"{job_pb2.JobState.Name(event.state)} {event.reason}: {event.message}")
                if job.state == job_pb2.RUNNING:
                    print(f"step {job.progress.step} of {job.progress.total_steps}, loss {job.progress.loss:.4g}")
            if job is not None and job.state in ENDED:
                return job
        except grpc.RpcError as error:
            retry.wait(error)


def linear_job(name):
    """The same as examples/linear.yaml."""
    spec = job_pb2.JobSpec(name=name)
    spec.model.zoo.name = "linear"
    spec.data.linear.slope = 3
    spec.data.linear.intercept = -1
    spec.data.linear.samples = 4096
    spec.data.batch_size = 64
    spec.training.epochs = 10
    spec.training.optimizer.sgd.learning_rate = 0.1
    spec.resources.workers.min = 1
    spec.resources.workers.max = 1
    spec.resources.ps = 1
    return spec


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", default="127.0.0.1:7070", help="the coordinator")
    parser.add_argument("--tls", help="folder with ca.crt, and tls.crt and tls.key if there is no token")
    parser.add_argument("--token-file", help="file with a token of scope submit")
    parser.add_argument("--name", default="linear", help="of the job")
    options = parser.parse_args()
    with dial(options.server, options.tls, options.token_file) as channel:
        jobs = coordinator_pb2_grpc.JobServiceStub(channel)
        try:
            job = create_job(jobs, linear_job(options.name))
            print(f"created {job.name}")
            job = watch_job(jobs, job.name)
        except grpc.RpcError as error:
            print(explain(error), file=sys.stderr)
            return 1
    print(f"{job.name}: {job_pb2.JobState.Name(job.state)}")
    return 0 if job.state == job_pb2.SUCCEEDED else 1


if __name__ == "__main__":
    sys.exit(main())
