// Serves the status page of a fictitious cluster, for the browser test. Prints the page's address
// and serves until its input ends.
//
//   made_up_cluster none|running|failed|hostile|tokens|large
//
// The scene "large" has 1001 jobs, the newest with a million steps. docs/benchmarks.md has its
// figures.
#include <glog/logging.h>
#include <stdlib.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lib/status/status.h"
#include "services/coordinator/status_page/fake_status.h"
#include "services/coordinator/status_page/status_page.h"

namespace muster {
namespace {

constexpr int kSteps = 20'000;
// Text that a browser might take for a tag, the end of an attribute, a script or a direction
// override.
constexpr char kHostile[] =
    "<img src=x onerror=\"window.struck=1\"><script>window.struck=1</script>'\"><b>&lt; "
    "\xE2\x80\xAE"
    "drawkcab javascript:window.struck=1";
// A similar text for a part of a path, where names cannot have a slash.
constexpr char kHostileId[] =
    "<img src=x onerror=\"window.struck=1\"><svg onload=window.struck=1>'\"><b>&lt; \xE2\x80\xAE"
    "drawkcab javascript:window.struck=1";

google::protobuf::Timestamp At(absl::Time time) {
  google::protobuf::Timestamp made;
  made.set_seconds(absl::ToUnixSeconds(time));
  return made;
}

std::string WriteLog(int steps) {
  std::string path = "/tmp/made-up-XXXXXX";
  CHECK(mkdtemp(path.data()) != nullptr);
  path += "/metrics.jsonl";
  std::ofstream file(path);
  for (int step = 0; step < steps; ++step) {
    const double noise = std::sin(step * 12.9898) * 0.15;
    file << "{\"step\":" << step << ",\"loss\":" << 0.8 + 3.2 * std::exp(-step / 4e3) + noise
         << ",\"gradient_norm\":" << 0.6 + noise
         << ",\"learning_rate\":" << 1e-3 * std::min(1.0, step / 1e3)
         << ",\"samples_per_second\":" << 1900 + 300 * noise << "}\n";
    if (step % 2000 == 1999) {
      file << "{\"step\":" << step + 1
           << ",\"evaluation_loss\":" << 0.9 + 3.0 * std::exp(-step / 4e3)
           << ",\"evaluation_accuracy\":" << 0.8 - 0.6 * std::exp(-step / 5e3) << "}\n";
    }
  }
  return path;
}

v1::Job MakeJob(const std::string& id, int number, v1::JobState state) {
  v1::Job job;
  job.set_name("jobs/" + id);
  job.set_number(number);
  job.set_state(state);
  job.set_revision(4);
  job.mutable_spec()->set_name(id);
  *job.mutable_create_time() = At(absl::Now() - absl::Minutes(30));
  *job.mutable_start_time() = At(absl::Now() - absl::Minutes(28));
  job.add_workers("worker-0");
  job.add_ps("ps-0");
  v1::JobProgress& progress = *job.mutable_progress();
  progress.set_step(kSteps);
  progress.set_total_steps(2 * kSteps);
  progress.set_loss(0.823);
  progress.set_first_loss(4.01);
  progress.set_evaluation_loss(0.91);
  progress.set_evaluation_accuracy(0.79);
  progress.set_learning_rate(1e-3);
  progress.set_gradient_norm(0.61);
  progress.set_samples_per_second(1912);
  progress.mutable_remaining()->set_seconds(1700);
  return job;
}

void PutEvent(FakeStatus& status, const v1::Job& job, int minutes_ago, v1::JobState state,
              const std::string& reason, const std::string& message) {
  static uint64_t revision = 0;
  v1::JobEvent event;
  event.set_revision(++revision);
  *event.mutable_time() = At(absl::Now() - absl::Minutes(minutes_ago));
  event.set_state(state);
  event.set_reason(reason);
  event.set_message(message);
  status.PutEvent(job.name(), event);
}

void PutJob(FakeStatus& status, const v1::Job& job, const std::string& log) {
  status.Put(job, log);
  PutEvent(status, job, 30, v1::QUEUED, "SUBMITTED", "");
  PutEvent(status, job, 29, v1::PREPARING, "SCHEDULED", "on worker-0 and ps-0");
  PutEvent(status, job, 28, v1::RUNNING, "STARTED", "20,000 steps");
  v1::Checkpoint checkpoint;
  checkpoint.set_job(job.name().substr(5));
  checkpoint.set_step(10'000);
  checkpoint.set_name(job.name() + "/checkpoints/10000");
  checkpoint.set_size_bytes(123'456'789);
  *checkpoint.mutable_create_time() = At(absl::Now() - absl::Minutes(10));
  checkpoint.add_files()->set_name("model.safetensors");
  status.PutCheckpoint(checkpoint, "the model");
}

void PutMember(FakeStatus& status, const std::string& name, v1::Role role, const std::string& job,
               const std::string& host) {
  v1::Member member;
  member.set_name(name);
  member.set_role(role);
  member.set_host(host);
  if (!job.empty()) member.add_jobs(job);
  if (role == v1::WORKER) member.add_devices("cpu:0");
  member.set_transport("tcp");
  *member.mutable_report_time() = At(absl::Now());
  status.PutMember(member);
  status.PutLog(name, absl::StrCat("I20261123 10:00:00 ", name, " is attached\n", host, "\n"));
}

v1::ReadJobTimingResponse MakeTiming() {
  v1::ReadJobTimingResponse made;
  made.add_members()->set_member("worker-0");
  v1::StepTiming& timing = *made.mutable_members(0)->mutable_timing();
  timing.set_steps(kSteps);
  timing.set_step_seconds(670);
  timing.set_data_seconds(20);
  timing.set_compute_seconds(560);
  timing.set_forward_seconds(180);
  timing.set_backward_seconds(350);
  timing.set_wait_seconds(90);
  v1::InputTiming& input = *timing.mutable_input();
  input.set_samples(int64_t{64} * kSteps);
  input.set_threads(2);
  input.set_read_seconds(30);
  input.set_decode_seconds(280);
  input.set_resample_seconds(90);
  input.set_augment_seconds(20);
  return made;
}

v1::LinkReport MakeLink(const std::string& peer, const std::string& transport,
                        const std::string& security) {
  v1::LinkReport link;
  link.set_peer(peer);
  link.set_transport(transport);
  link.set_security(security);
  link.set_sent_bytes(int64_t{21} << 30);
  link.set_received_bytes(int64_t{42} << 29);
  return link;
}

v1::ReadJobLinksResponse MakeLinks() {
  v1::ReadJobLinksResponse made;
  v1::MemberLinks& member = *made.add_members();
  member.set_member("worker-0");
  *member.add_links() = MakeLink("ps-0/0", "shm", "host");
  v1::LinkReport& tcp = *member.add_links();
  tcp = MakeLink("ps-0/1", "tcp", "encrypt");
  tcp.set_network("tls");
  tcp.set_device("eth0");
  tcp.set_fallback("one host, but another network namespace");
  member.set_links_left_out(72);
  return made;
}

v1::ReadJobLinksResponse MakeHostileLinks() {
  v1::ReadJobLinksResponse made;
  v1::MemberLinks& member = *made.add_members();
  member.set_member(kHostile);
  v1::LinkReport& link = *member.add_links();
  link = MakeLink(kHostile, kHostile, kHostile);
  link.set_network(kHostile);
  link.set_device(kHostile);
  link.set_fallback(kHostile);
  return made;
}

int Main(const std::string& scene) {
  FakeStatus status;
  if (scene != "none") {
    PutJob(status, MakeJob("char-gpt-1", 1, v1::RUNNING), WriteLog(kSteps));
    status.PutTiming("jobs/char-gpt-1", MakeTiming());
    status.PutLinks("jobs/char-gpt-1", MakeLinks());
    PutMember(status, "worker-0", v1::WORKER, "char-gpt-1", "node-a");
    PutMember(status, "ps-0", v1::PS, "char-gpt-1", "node-b");
  }
  if (scene == "failed") {
    v1::Job failed = MakeJob("resnet-2", 2, v1::FAILED);
    failed.set_reason("NON_FINITE_LOSS");
    failed.set_message("the loss of step 17 is not finite; try a smaller learning rate");
    *failed.mutable_end_time() = At(absl::Now());
    PutJob(status, failed, WriteLog(18));
    PutEvent(status, failed, 0, v1::FAILED, failed.reason(), failed.message());
  }
  if (scene == "running") {
    v1::Job waiting = MakeJob("bert-3", 3, v1::QUEUED);
    waiting.clear_progress();
    waiting.set_message("waits for members");
    waiting.mutable_waiting()->set_reason("WAITS_FOR_WORKERS");
    waiting.mutable_waiting()->set_message(
        "needs 4 workers and 1 is free of the 2 that are attached");
    status.Put(waiting);
    PutJob(status, MakeJob("char-gpt-0", 0, v1::SUCCEEDED), WriteLog(5000));
  }
  if (scene == "large") {
    PutJob(status, MakeJob("long-1001", 1001, v1::RUNNING), WriteLog(1'000'000));
    for (int number = 1; number <= 1000; ++number) {
      const auto state = number % 50 == 0 ? v1::RUNNING : v1::SUCCEEDED;
      status.Put(MakeJob(absl::StrCat("job-", number), number, state));
    }
    for (int i = 0; i < 200; ++i) {
      PutMember(status, absl::StrCat("worker-", i), v1::WORKER, absl::StrCat("job-", i), "node-a");
    }
  }
  if (scene == "hostile") {
    v1::Job job = MakeJob(kHostileId, 2, v1::FAILED);
    job.set_reason(kHostile);
    job.set_message(kHostile);
    PutJob(status, job, WriteLog(50));
    status.PutLinks(job.name(), MakeHostileLinks());
    PutEvent(status, job, 0, v1::FAILED, kHostile, kHostile);
    v1::Checkpoint checkpoint;
    checkpoint.set_job(kHostileId);
    checkpoint.set_name("other");
    checkpoint.add_files()->set_name(kHostile);
    status.PutCheckpoint(checkpoint, "");
    job = MakeJob(absl::StrCat(kHostileId, "-queued"), 3, v1::QUEUED);
    job.mutable_waiting()->set_message(kHostile);
    status.Put(job);
    PutMember(status, kHostile, v1::WORKER, kHostile, kHostile);
    status.PutLog("worker-0", absl::StrCat(kHostile, "\n"));
  }
  const auto check = [](absl::string_view secret) {
    return secret == "muster.t-1.good"
               ? absl::OkStatus()
               : WithReason(absl::UnauthenticatedError("the token is not known"), "TOKEN_INVALID");
  };
  const auto page =
      StatusPage::Start({.address = "127.0.0.1:0",
                         .access = scene == "tokens" ? PageAccess::Checked(check, /*secure=*/false)
                                                     : PageAccess::Open(),
                         .version = "made up"},
                        &status);
  CHECK(page.ok()) << page.status();
  std::printf("http://127.0.0.1:%d\n", (*page)->port());
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) { return muster::Main(argc > 1 ? argv[1] : "running"); }
