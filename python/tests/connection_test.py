#!/usr/bin/env python3
"""Tests calls of muster.Client against a server in this process: errors, retries, several coordinators, broken downloads."""

import concurrent.futures
import hashlib
import json
import logging
import pathlib
import tempfile
import threading
import unittest
from unittest import mock

import support

support.prepare()

import grpc

import muster
from muster import _proto, checkpoints, errors, jobs


class Server:
    """Answers each call with the next of the answers: a message, a list of messages, or an error of failure()."""

    def __init__(self, *answers, address="127.0.0.1:0"):
        self.answers = list(answers)
        self.requests = []
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def service(self, call):
        name = call.method.rpartition(".v1.")[2].replace("/", ".")
        _, request, response = _proto.method(name)
        kind = (grpc.unary_stream_rpc_method_handler
                if name in ("JobService.WatchJob", "CheckpointService.ReadCheckpoint") else grpc.unary_unary_rpc_method_handler)
        handler = self._stream if kind is grpc.unary_stream_rpc_method_handler else self._unary
        return kind(handler, request.FromString, response.SerializeToString)

    def _unary(self, request, context):
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Failure):
            context.abort_with_status(answer)
        return answer

    def _stream(self, request, context):
        self.requests.append(request)
        for answer in self.answers.pop(0):
            if isinstance(answer, Failure):
                context.abort_with_status(answer)
            if isinstance(answer, threading.Event):
                answer.wait(support.PATIENCE)
                return
            yield answer

    def stop(self):
        self._server.stop(None).wait()


class Failure(grpc.Status):
    """An error as the coordinator sends it."""

    def __init__(self, code, message, reason="", faults=(), retry_millis=0):
        self.code, self.details = code, message
        status = _proto.message_type("google.rpc.Status")(code=code.value[0], message=message)
        if reason:
            status.details.add().Pack(_proto.message_type("google.rpc.ErrorInfo")(reason=reason, domain="muster.io"))
        if faults:
            request = _proto.message_type("google.rpc.BadRequest")()
            for field, description in faults:
                request.field_violations.add(field=field, description=description)
            status.details.add().Pack(request)
        if retry_millis:
            retry = _proto.message_type("google.rpc.RetryInfo")()
            retry.retry_delay.FromMilliseconds(retry_millis)
            status.details.add().Pack(retry)
        self.trailing_metadata = (("grpc-status-details-bin", status.SerializeToString()),)


def job(state="RUNNING", revision=1):
    return _proto.new("Job", name="jobs/linear-1", state=jobs._state(state), revision=revision)


def not_leader():
    return Failure(grpc.StatusCode.UNAVAILABLE, "stands by", "NOT_LEADER", retry_millis=1000)


class ServerTest(unittest.TestCase):
    def serve(self, *answers, **options):
        server = Server(*answers, **options)
        self.addCleanup(server.stop)
        return server

    def connect(self, *servers, **options):
        client = muster.Client(",".join(server.address for server in servers), **options)
        self.addCleanup(client.close)
        return client


class ConnectionTest(ServerTest):
    def test_an_error_has_a_type_a_reason_and_faults(self):
        server = self.serve(
            Failure(grpc.StatusCode.NOT_FOUND, "no job 'x-1'", "JOB_NOT_FOUND"),
            Failure(grpc.StatusCode.INVALID_ARGUMENT, "page_size: too large", "INVALID_REQUEST", [("page_size", "too large")]),
            Failure(grpc.StatusCode.UNIMPLEMENTED, "unknown method"))
        client = self.connect(server)

        with self.assertRaises(errors.NotFoundError) as missing:
            client.jobs.get("x-1")
        with self.assertRaises(errors.InvalidArgumentError) as faulty:
            client.jobs.list()
        with self.assertRaises(errors.MusterError) as unknown:
            client.jobs.list()

        self.assertEqual(missing.exception.reason, "JOB_NOT_FOUND")
        self.assertIn(server.address, str(missing.exception))
        self.assertEqual(faulty.exception.faults, (errors.Fault("page_size", "too large"),))
        self.assertNotIsInstance(faulty.exception, errors.InvalidSpecError)
        self.assertEqual(unknown.exception.reason, "UNIMPLEMENTED")

    def test_faults_of_the_coordinator_get_their_lines(self):
        server = self.serve(_proto.new("ServerInfo"), Failure(
            grpc.StatusCode.INVALID_ARGUMENT, "...", "INVALID_SPEC",
            [("data.batch_size", "must be at least 1"), ("training.optimizer", "required")]))

        with self.assertRaises(errors.InvalidSpecError) as caught:
            self.connect(server).jobs.submit("name: linear\ndata: {batch_size: 0}\ntraining:\n  steps: 3\n")

        self.assertEqual([fault.place for fault in caught.exception.faults], ["job:2", "job:3"])
        self.assertIn("job:2: data.batch_size: must be at least 1", str(caught.exception))

    def test_a_call_is_repeated_when_the_answer_says_when(self):
        full = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", "QUEUE_FULL", retry_millis=1)
        server = self.serve(full, full, job())

        self.assertEqual(self.connect(server).jobs.get("linear-1").state, "RUNNING")

        self.assertEqual(len(server.requests), 3)

    def test_a_retry_of_a_submission_has_the_same_request_id(self):
        lost = Failure(grpc.StatusCode.UNAVAILABLE, "stopping", "STOPPING", retry_millis=1)
        server = self.serve(_proto.new("ServerInfo"), lost, job())

        self.connect(server).jobs.submit({"name": "linear"})

        self.assertNotEqual(server.requests[1].request_id, "")
        self.assertEqual(server.requests[1].request_id, server.requests[2].request_id)

    def test_the_coordinator_that_leads_is_found_and_kept(self):
        standby, leader = self.serve(not_leader()), self.serve(job(), job())
        client = self.connect(standby, leader)

        client.jobs.get("linear-1")
        client.jobs.get("linear-1")

        self.assertEqual((len(standby.requests), len(leader.requests)), (1, 2))

    def test_a_wrong_address_is_an_error_after_three_attempts(self):
        server = Server()
        server.stop()

        with self.assertRaises(errors.UnavailableError) as caught:
            self.connect(server).jobs.list()

        self.assertRegex(str(caught.exception), f"no coordinator answers at {server.address}.*muster local up")

    def test_an_outage_of_a_coordinator_that_was_reached_is_bridged(self):
        server = Server(job())
        client = self.connect(server)
        client.jobs.get("linear-1")
        server.stop()
        restarted = []

        class Restart(logging.Handler):  # the client logs its first failure
            def emit(_, record):
                restarted.append(self.serve(job("SUCCEEDED"), address=server.address))

        handler = Restart()
        logger = logging.getLogger("muster")
        logger.addHandler(handler)
        self.addCleanup(logger.removeHandler, handler)
        logger.setLevel(logging.INFO)
        self.addCleanup(logger.setLevel, logging.NOTSET)

        self.assertEqual(client.jobs.get("linear-1").state, "SUCCEEDED")
        self.assertEqual(len(restarted), 1)

    def test_a_watch_goes_on_behind_the_last_event(self):
        def update(state, revision):
            response = _proto.new("WatchJobResponse", job=job(state, revision))
            response.events.add(revision=revision, state=response.job.state, reason="STARTED")
            return response

        lost = Failure(grpc.StatusCode.UNAVAILABLE, "stopping", "STOPPING", retry_millis=1)
        server = self.serve([update("RUNNING", 3), lost], [update("SUCCEEDED", 4)])

        updates = list(self.connect(server).jobs.watch("linear-1"))

        self.assertEqual([each.job.state for each in updates], ["RUNNING", "SUCCEEDED"])
        self.assertEqual([request.revision for request in server.requests], [0, 3])

    def test_a_wait_ends_at_its_timeout(self):
        never = threading.Event()
        self.addCleanup(never.set)
        server = self.serve([_proto.new("WatchJobResponse", job=job()), never])

        with self.assertRaisesRegex(TimeoutError, "linear-1 was not SUCCEEDED within 0.2 s; it goes on"):
            self.connect(server).jobs.wait("linear-1", timeout=0.2)

    def test_a_closed_client_says_so(self):
        client = self.connect(self.serve())
        client.close()

        with self.assertRaisesRegex(errors.FailedPreconditionError, "the client is closed"):
            client.jobs.list()


class DownloadTest(ServerTest):
    CONTENT = b"the bytes of a file"

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.target = self.folder / "checkpoint"
        files = [{"name": "model-1.safetensors", "sha256": hashlib.sha256(self.CONTENT).hexdigest()}]
        self.manifest = json.dumps({"format_version": 1, "files": files}).encode()
        self.checkpoint = _proto.new("Checkpoint", name="jobs/linear-1/checkpoints/7", job="linear-1", step=7)
        self.checkpoint.files.add(size_bytes=len(self.CONTENT), **files[0])

    def part(self, begin, end):
        return _proto.new("ReadCheckpointResponse", file="model-1.safetensors", offset=begin, data=self.CONTENT[begin:end])

    def manifest_part(self):
        return _proto.new("ReadCheckpointResponse", file="manifest.json", data=self.manifest)

    def test_a_broken_download_goes_on_where_it_was(self):
        lost = Failure(grpc.StatusCode.UNAVAILABLE, "stopping", "STOPPING", retry_millis=1)
        server = self.serve(self.checkpoint, [self.part(0, 4), self.part(4, 9), lost], [self.part(9, 19)],
                            [self.manifest_part()])

        self.connect(server).checkpoints.download("linear-1", self.target)

        self.assertEqual((self.target / "model-1.safetensors").read_bytes(), self.CONTENT)
        self.assertEqual([request.offset for request in server.requests[1:3]], [0, 9])

    def test_damaged_files_leave_no_folder(self):
        damaged = self.part(0, 19)
        damaged.data = damaged.data[:-1] + b"!"
        other_manifest = self.manifest_part()
        other_manifest.data = b'{"format_version": 1, "files": []}'
        for streams in ([[damaged]], [[self.part(0, 9)]], [[self.part(4, 19)]], [[self.part(0, 19)], [other_manifest]]):
            with self.subTest(streams=streams), self.assertRaises(errors.DataLossError):
                self.connect(self.serve(self.checkpoint, *streams)).checkpoints.download("linear-1", self.target)
            self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_file_name_cannot_lead_out_of_the_folder(self):
        for name in ("../evil", "/tmp/evil", ".evil", ""):
            self.checkpoint.files[0].name = name
            with self.subTest(name=name), self.assertRaisesRegex(errors.DataLossError, "is not the name of a file"):
                self.connect(self.serve(self.checkpoint)).checkpoints.download("linear-1", self.target)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_download_without_data_ends(self):
        never = threading.Event()
        self.addCleanup(never.set)
        server = self.serve(self.checkpoint, [never])

        with mock.patch.object(checkpoints, "_STALL_SECONDS", 0.2), self.assertRaises(errors.DeadlineExceededError) as caught:
            self.connect(server).checkpoints.download("linear-1", self.target)

        self.assertIn("no data from the coordinator", str(caught.exception))

    def test_an_existing_folder_is_refused(self):
        with self.assertRaises(errors.AlreadyExistsError):
            self.connect(self.serve()).checkpoints.download("linear-1", self.folder)


if __name__ == "__main__":
    support.main()
