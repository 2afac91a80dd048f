#include "cli/framework/coordinator_client.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "cli/text/job_text.h"
#include "grpcpp/client_context.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/leader.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kCallTimeout = absl::Seconds(15);
constexpr absl::Duration kTraceSlack = absl::Seconds(30);
constexpr absl::Duration kSaveTimeout = absl::Minutes(10);
constexpr absl::Duration kCreateTimeout = absl::Minutes(10);
constexpr int kCreateAttempts = 3;
constexpr absl::Duration kBackoffMin = absl::Milliseconds(200);
constexpr absl::Duration kBackoffMax = absl::Seconds(2);
constexpr int kPageSize = 500;

// Adds the coordinator and a remedy to the message. A coordinator with TLS closes the connection of
// a plaintext client without a reason, so the last message mentions --tls.
absl::Status Explained(const grpc::Status& status, const std::string& where) {
  absl::Status result = FromGrpc(status);
  if (absl::IsNotFound(result)) return Annotate(result, where);  // another coordinator may have it
  if (!absl::IsUnavailable(result)) return result;
  if (absl::StrContains(result.message(), "http1.x server")) {  // gRPC has no status code for this
    return Annotate(
        absl::InvalidArgumentError(result.message()),
        absl::StrCat(
            where,
            " is the port of a status page or of metrics, not of the coordinator's calls; "
            "give --server the port of its --listen (usually 7070; for a local cluster see "
            "the first line of muster local status)"));
  }
  if (absl::StrContains(absl::AsciiStrToLower(result.message()), "handshake")) {
    return Annotate(
        result,
        absl::StrCat(where,
                     ": the TLS handshake failed; check that ca.crt in the --tls folder is the "
                     "coordinator's and that its certificate has this name"));
  }
  return Annotate(result,
                  absl::StrCat("no coordinator answers at ", where,
                               " (muster local up starts one; --server names another; if it has "
                               "certificates, give their folder with --tls)"));
}

// Calls `method` of `stub` within `timeout`.
template <typename Response, typename Stub, typename Request>
absl::StatusOr<Response> Call(
    Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
    const Request& request, const std::string& where, absl::Duration timeout = kCallTimeout) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  Response response;
  const grpc::Status status = (stub.*method)(&context, request, &response);
  if (!status.ok()) return Explained(status, where);
  return response;
}

template <typename Request>
Request Named(const std::string& job) {
  Request request;
  request.set_name(JobName(JobIdOf(job)));
  return request;
}

// File names from the coordinator become paths here. Only plain names are allowed, so that a
// download cannot write outside its folder.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name[0] != '.' && !absl::StrContains(name, '/') &&
         !absl::StrContains(name, '\0');
}

// Writes the files of a download, one after the other. Their parts must arrive in order.
class FileDownload {
 public:
  absl::Status Append(const std::string& folder, const v1::ReadCheckpointResponse& part) {
    // A part with another name and offset 0 begins the next file.
    if (part.file() != name_ && part.offset() == 0) {
      if (!IsPlainFileName(part.file())) {
        return absl::DataLossError(
            absl::StrCat("the coordinator sent the file name '", part.file(), "'"));
      }
      RETURN_IF_ERROR(Finish());
      name_ = part.file();
      bytes_ = 0;
      path_ = folder + "/" + name_;
      file_.open(path_, std::ios::binary | std::ios::trunc);
    }
    if (part.file() != name_ || part.offset() != bytes_) {
      return absl::DataLossError(absl::StrCat(part.file(), ": part at ", part.offset(),
                                              " arrived when ", name_, " had ", bytes_, " bytes"));
    }
    const auto* data = reinterpret_cast<const std::byte*>(part.data().data());
    if (Crc32c(absl::MakeConstSpan(data, part.data().size())) != part.crc32c()) {
      return absl::DataLossError(absl::StrCat(name_, ": checksum mismatch at ", part.offset()));
    }
    file_.write(part.data().data(), static_cast<std::streamsize>(part.data().size()));
    bytes_ += static_cast<int64_t>(part.data().size());
    expected_ = part.file_bytes();
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (name_.empty()) return absl::OkStatus();
    if (bytes_ != expected_) {
      return absl::DataLossError(
          absl::StrCat(name_, ": ", bytes_, " of ", expected_, " bytes arrived"));
    }
    file_.close();
    if (!file_) return absl::ResourceExhaustedError(absl::StrCat(path_, ": cannot write"));
    return absl::OkStatus();
  }

 private:
  std::string name_;
  std::string path_;
  std::ofstream file_;
  int64_t bytes_ = 0;
  int64_t expected_ = 0;
};

// Cancels a call that does not advance for `stall_max`. It compares a counter once per `stall_max`,
// so a stall may last up to twice that.
class StallGuard {
 public:
  StallGuard(grpc::ClientContext* context, absl::Duration stall_max)
      : context_(context), stall_max_(stall_max), thread_([this] { Watch(); }) {}
  ~StallGuard() {
    absl::MutexLock lock(&mu_);
    over_ = true;
  }

  // Relaxed, because only the change of the counter matters. No other memory is read through it.
  void Advance() { advances_.fetch_add(1, std::memory_order_relaxed); }
  bool stalled() const { return stalled_; }

 private:
  void Watch() {
    absl::MutexLock lock(&mu_);
    int64_t seen = -1;
    while (!AwaitFor(&mu_, absl::Condition(&over_), stall_max_)) {
      const int64_t advances = advances_.load(std::memory_order_relaxed);
      if (advances == seen) {
        stalled_ = true;
        return context_->TryCancel();
      }
      seen = advances;
    }
  }

  grpc::ClientContext* const context_;
  const absl::Duration stall_max_;
  std::atomic<int64_t> advances_ = 0;
  std::atomic<bool> stalled_ = false;
  absl::Mutex mu_;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::jthread thread_;  // last, because it uses the other members
};

// Returns 128 random bits, so that ids of different calls never collide.
std::string RandomRequestId() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

}  // namespace

CoordinatorClient::CoordinatorClient(CoordinatorTarget target, std::string where,
                                     absl::Duration stall_max)
    : target_(std::move(target)),
      where_(where.empty() ? target_.address() : std::move(where)),
      stall_max_(stall_max) {
  auto channel = DialCoordinator(target_);
  jobs_ = v1::JobService::NewStub(channel);
  fleet_ = v1::FleetService::NewStub(channel);
  checkpoints_ = v1::CheckpointService::NewStub(channel);
  access_ = v1::AccessService::NewStub(channel);
}

absl::StatusOr<v1::Job> CoordinatorClient::CreateJob(v1::CreateJobRequest request,
                                                     const CreateOptions& options) {
  // The coordinator may have created the job before the connection broke. The id lets it recognize
  // the retry.
  if (request.request_id().empty()) request.set_request_id(RandomRequestId());
  const absl::Time give_up = absl::Now() + options.away_max;
  absl::Duration backoff = kBackoffMin;
  for (int attempt = 1;; ++attempt) {
    absl::StatusOr<v1::Job> job = CreateJobOnce(request);
    if (!absl::IsUnavailable(job.status())) return job;
    const absl::Duration left = give_up - absl::Now();
    if (attempt >= kCreateAttempts && left <= absl::ZeroDuration()) return job;
    if (attempt == 1 && options.on_outage) options.on_outage(job.status());
    absl::SleepFor(attempt < kCreateAttempts ? backoff : std::min(backoff, left));
    backoff = std::min(2 * backoff, kBackoffMax);
  }
}

absl::StatusOr<v1::Job> CoordinatorClient::CreateJobOnce(const v1::CreateJobRequest& request) {
  RETURN_IF_ERROR(FindLeader(target_));
  // Each attempt has its own channel, because a channel whose name does not resolve retries with
  // longer and longer waits.
  const auto jobs = v1::JobService::NewStub(DialCoordinator(target_));
  return Call(*jobs, &v1::JobService::Stub::CreateJob, request, where_, kCreateTimeout);
}

absl::StatusOr<v1::Job> CoordinatorClient::GetJob(const std::string& job) {
  return Call(*jobs_, &v1::JobService::Stub::GetJob, Named<v1::GetJobRequest>(job), where_);
}

absl::StatusOr<v1::ListJobsResponse> CoordinatorClient::ListJobs(
    const v1::ListJobsRequest& request) {
  v1::ListJobsResponse all;
  v1::ListJobsRequest page = request;
  page.set_page_size(kPageSize);
  do {
    ASSIGN_OR_RETURN(v1::ListJobsResponse response,
                     Call(*jobs_, &v1::JobService::Stub::ListJobs, page, where_));
    page.set_page_token(response.next_page_token());
    all.MergeFrom(response);
  } while (!page.page_token().empty());
  all.clear_next_page_token();
  return all;
}

absl::StatusOr<v1::Job> CoordinatorClient::CancelJob(const std::string& job) {
  return Call(*jobs_, &v1::JobService::Stub::CancelJob, Named<v1::CancelJobRequest>(job), where_);
}

absl::StatusOr<v1::Job> CoordinatorClient::SuspendJob(const std::string& job) {
  return Call(*jobs_, &v1::JobService::Stub::SuspendJob, Named<v1::SuspendJobRequest>(job), where_);
}

absl::StatusOr<v1::Job> CoordinatorClient::ResumeJob(const v1::ResumeJobRequest& request) {
  return Call(*jobs_, &v1::JobService::Stub::ResumeJob, request, where_);
}

absl::StatusOr<v1::Job> CoordinatorClient::UpdateJob(const v1::UpdateJobRequest& request) {
  return Call(*jobs_, &v1::JobService::Stub::UpdateJob, request, where_);
}

absl::StatusOr<v1::ListEventsResponse> CoordinatorClient::ListEvents(
    const v1::ListEventsRequest& request) {
  return Call(*jobs_, &v1::JobService::Stub::ListEvents, request, where_);
}

absl::StatusOr<v1::ReadJobMetricsResponse> CoordinatorClient::ReadJobMetrics(
    const v1::ReadJobMetricsRequest& request) {
  return Call(*jobs_, &v1::JobService::Stub::ReadJobMetrics, request, where_);
}

absl::StatusOr<v1::ReadJobTimingResponse> CoordinatorClient::ReadJobTiming(const std::string& job) {
  return Call(*jobs_, &v1::JobService::Stub::ReadJobTiming, Named<v1::ReadJobTimingRequest>(job),
              where_);
}

absl::StatusOr<v1::ReadJobLinksResponse> CoordinatorClient::ReadJobLinks(const std::string& job) {
  return Call(*jobs_, &v1::JobService::Stub::ReadJobLinks, Named<v1::ReadJobLinksRequest>(job),
              where_);
}

absl::StatusOr<v1::TraceJobResponse> CoordinatorClient::TraceJob(
    const v1::TraceJobRequest& request) {
  const absl::Duration timeout = request.has_timeout() ? absl::Seconds(request.timeout().seconds())
                                                       : limits::kTraceTimeoutDefault;
  return Call(*jobs_, &v1::JobService::Stub::TraceJob, request, where_, timeout + kTraceSlack);
}

absl::StatusOr<v1::ServerInfo> CoordinatorClient::GetServerInfo() {
  return Call(*jobs_, &v1::JobService::Stub::GetServerInfo, v1::GetServerInfoRequest(), where_);
}

absl::StatusOr<v1::ReadMemberLogResponse> CoordinatorClient::ReadMemberLog(
    const v1::ReadMemberLogRequest& request) {
  return Call(*fleet_, &v1::FleetService::Stub::ReadMemberLog, request, where_);
}

absl::Status CoordinatorClient::DeleteJob(const std::string& job) {
  return Call(*jobs_, &v1::JobService::Stub::DeleteJob, Named<v1::DeleteJobRequest>(job), where_)
      .status();
}

absl::Status CoordinatorClient::DrainMember(const std::string& member) {
  v1::DrainMemberRequest request;
  request.set_name(member);
  return Call(*fleet_, &v1::FleetService::Stub::DrainMember, request, where_).status();
}

absl::StatusOr<v1::ListMembersResponse> CoordinatorClient::ListMembers() {
  return Call(*fleet_, &v1::FleetService::Stub::ListMembers, v1::ListMembersRequest(), where_);
}

absl::StatusOr<v1::CreateTokenResponse> CoordinatorClient::CreateToken(
    const v1::CreateTokenRequest& request) {
  return Call(*access_, &v1::AccessService::Stub::CreateToken, request, where_);
}

absl::StatusOr<v1::ListTokensResponse> CoordinatorClient::ListTokens() {
  return Call(*access_, &v1::AccessService::Stub::ListTokens, v1::ListTokensRequest(), where_);
}

absl::StatusOr<v1::AccessToken> CoordinatorClient::RevokeToken(const std::string& id) {
  v1::RevokeTokenRequest request;
  request.set_id(id);
  return Call(*access_, &v1::AccessService::Stub::RevokeToken, request, where_);
}

absl::StatusOr<v1::ListCheckpointsResponse> CoordinatorClient::ListCheckpoints(
    const std::string& job) {
  v1::ListCheckpointsRequest request;
  if (!job.empty()) request.set_parent(JobName(JobIdOf(job)));
  return Call(*checkpoints_, &v1::CheckpointService::Stub::ListCheckpoints, request, where_);
}

absl::StatusOr<v1::Checkpoint> CoordinatorClient::GetCheckpoint(const std::string& name) {
  v1::GetCheckpointRequest request;
  request.set_name(name);
  return Call(*checkpoints_, &v1::CheckpointService::Stub::GetCheckpoint, request, where_);
}

absl::Status CoordinatorClient::DeleteCheckpoint(const std::string& name) {
  v1::DeleteCheckpointRequest request;
  request.set_name(name);
  return Call(*checkpoints_, &v1::CheckpointService::Stub::DeleteCheckpoint, request, where_)
      .status();
}

absl::StatusOr<v1::Checkpoint> CoordinatorClient::SaveCheckpoint(const std::string& job) {
  v1::SaveCheckpointRequest request;
  request.set_job(JobIdOf(job));
  return Call(*checkpoints_, &v1::CheckpointService::Stub::SaveCheckpoint, request, where_,
              kSaveTimeout);
}

absl::Status CoordinatorClient::DownloadCheckpoint(const std::string& name,
                                                   const std::string& directory,
                                                   Interrupt* interrupt) {
  std::error_code error;
  if (fs::exists(directory, error)) {
    return absl::AlreadyExistsError(absl::StrCat(directory, " exists already"));
  }
  // Trailing slashes are removed. Otherwise the partial folder would lie inside the final one.
  const std::string whole = directory.substr(0, directory.find_last_not_of('/') + 1);
  const std::string partial = absl::StrCat(whole, ".partial-", getpid());
  grpc::ClientContext context;
  // A signal cancels the call. The code below then removes the partial folder.
  std::optional<Interrupt::Registration> cancel;
  if (interrupt != nullptr) cancel.emplace(*interrupt, [&context] { context.TryCancel(); });
  if (!fs::create_directories(partial, error)) {
    return absl::PermissionDeniedError(
        absl::StrCat(partial, ": cannot make the folder: ", error.message()));
  }
  v1::ReadCheckpointRequest request;
  request.set_name(name);
  auto reader = checkpoints_->ReadCheckpoint(&context, request);
  FileDownload download;
  v1::ReadCheckpointResponse part;
  absl::Status status;
  StallGuard guard(&context, stall_max_);
  while (status.ok() && reader->Read(&part)) {
    status = download.Append(partial, part);
    guard.Advance();
  }
  if (!status.ok()) context.TryCancel();
  const grpc::Status finished = reader->Finish();
  if (status.ok() && !finished.ok() && interrupt != nullptr && interrupt->signal() != 0) {
    status =
        absl::CancelledError(absl::StrCat(name, ": interrupted; the partial download was removed"));
  }
  if (status.ok() && guard.stalled()) {
    status = absl::DeadlineExceededError(absl::StrCat(
        name, ": no data from the coordinator at ", where_, " for ",
        absl::FormatDuration(stall_max_), "; check its disk and the network, then try again"));
  }
  if (status.ok()) status = finished.ok() ? download.Finish() : Explained(finished, where_);
  if (status.ok()) {
    fs::rename(partial, whole, error);
    if (error) status = absl::UnavailableError(absl::StrCat(directory, ": ", error.message()));
  }
  if (!status.ok()) fs::remove_all(partial, error);
  return status;
}

bool CoordinatorClient::MoreEventsFollow(const v1::WatchJobResponse& update) {
  return !update.events().empty() && update.events().rbegin()->revision() < update.job().revision();
}

absl::Status CoordinatorClient::Watch(
    const std::string& job, const WatchOptions& options,
    const std::function<WatchStep(const v1::WatchJobResponse&)>& on_update) {
  v1::WatchJobRequest request = Named<v1::WatchJobRequest>(job);
  return KeepReading(options, [&](grpc::ClientContext& context) {
    const auto jobs = v1::JobService::NewStub(DialCoordinator(target_));
    auto reader = jobs->WatchJob(&context, request);
    v1::WatchJobResponse response;
    Reading reading;
    while (!reading.done && reader->Read(&response)) {
      reading.answered = true;
      // A new stream starts after the last event received: nothing is lost or repeated.
      for (const v1::JobEvent& event : response.events()) {
        request.set_revision(std::max(request.revision(), event.revision()));
      }
      const bool ended = IsTerminal(response.job().state()) && !MoreEventsFollow(response);
      reading.done = on_update(response) == WatchStep::kStop || ended;
    }
    if (reading.done) context.TryCancel();
    reading.status = reader->Finish();
    return reading;
  });
}

absl::Status CoordinatorClient::WatchAll(
    const v1::WatchJobsRequest& request, const WatchOptions& options,
    const std::function<WatchStep(const v1::WatchJobsResponse&)>& on_update) {
  return KeepReading(options, [&](grpc::ClientContext& context) {
    const auto jobs = v1::JobService::NewStub(DialCoordinator(target_));
    auto reader = jobs->WatchJobs(&context, request);
    v1::WatchJobsResponse response;
    Reading reading;
    while (!reading.done && reader->Read(&response)) {
      reading.answered = true;
      reading.done = on_update(response) == WatchStep::kStop;
    }
    if (reading.done) context.TryCancel();
    reading.status = reader->Finish();
    return reading;
  });
}

absl::Status CoordinatorClient::KeepReading(
    const WatchOptions& options, const std::function<Reading(grpc::ClientContext&)>& read) {
  absl::Time away_since = absl::InfiniteFuture();
  absl::Duration backoff = kBackoffMin;
  bool answered = false;  // no retry if the first stream never delivered anything
  for (;;) {
    grpc::ClientContext context;
    if (options.deadline != absl::InfiniteFuture()) {
      context.set_deadline(absl::ToChronoTime(options.deadline));
    }
    std::optional<Interrupt::Registration> registration;
    if (options.interrupt != nullptr) {
      registration.emplace(*options.interrupt, [&context] { context.TryCancel(); });
    }
    const std::stop_callback on_stop(options.stop, [&context] { context.TryCancel(); });
    const std::string& tried = target_.address();
    const Reading reading = read(context);
    if (reading.answered) {
      answered = true;
      away_since = absl::InfiniteFuture();
      backoff = kBackoffMin;
    }
    const grpc::Status& finished = reading.status;
    if (reading.done) return absl::OkStatus();
    // The target may have several addresses: the next stream tries another one.
    target_.PassOver(tried);
    if (options.interrupt != nullptr && options.interrupt->signal() != 0) {
      return absl::CancelledError("interrupted");
    }
    if (options.stop.stop_requested()) return absl::CancelledError("the watch was stopped");
    if (!finished.ok() && (!answered || finished.error_code() != grpc::StatusCode::UNAVAILABLE)) {
      return Explained(finished, where_);
    }
    // The coordinator is away, or it ends the stream because it shuts down. The job continues
    // without it, so reconnect.
    const absl::Time now = absl::Now();
    if (away_since == absl::InfiniteFuture()) {
      away_since = now;
      if (options.on_outage && !finished.ok()) options.on_outage(Explained(finished, where_));
    }
    if (now >= options.deadline) return absl::DeadlineExceededError("the deadline has passed");
    if (now - away_since > options.away_max) return Explained(finished, where_);
    if (options.interrupt == nullptr) {
      absl::SleepFor(backoff);
    } else if (options.interrupt->WaitFor(backoff)) {
      return absl::CancelledError("interrupted");
    }
    backoff = std::min(2 * backoff, kBackoffMax);
  }
}

}  // namespace muster::cli
