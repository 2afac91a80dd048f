#include "lib/fleet/fleet_client.h"

#include <glog/logging.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/client_context.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/fleet/channel.h"
#include "lib/limits/limits.h"
#include "lib/log/log_scope.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "proto/muster/v1/member.grpc.pb.h"

namespace muster {
namespace {

constexpr absl::Duration kBackoffMin = absl::Milliseconds(100);
constexpr absl::Duration kReportInterval = absl::Seconds(1);  // until Welcome says otherwise
constexpr size_t kLogBytesReportedMax = 1 << 20;              // and one part more

// Returns whether no later attempt can succeed. A certificate may not match for a moment while it
// is being renewed, so a member that was welcomed before tries again.
bool IsForGood(const absl::Status& status, bool was_welcomed) {
  const std::string reason = ReasonOf(status);
  if (reason == "NOT_YOUR_NAME" || reason == "NOT_ALLOWED") return !was_welcomed;
  return reason == "REPLACED" || reason == "CLUSTER_CHANGED" || reason == "HELLO_INVALID";
}

// Explains UNIMPLEMENTED: gRPC's own message for an unknown method names no cause.
absl::Status WithCause(absl::Status status, const std::string& version) {
  if (!absl::IsUnimplemented(status)) return status;
  return absl::UnimplementedError(absl::StrCat(
      "it does not implement MemberService.Attach: it is no coordinator, or of another version "
      "than this program's ",
      version, ". All programs of a cluster should be of one version",
      status.message().empty() ? "" : absl::StrCat(" (it says: ", status.message(), ")")));
}

}  // namespace

// One thread runs Attach() calls one after another; while a stream is open a second thread reads
// it. Handle() and Report() are serialised by `member_mu_`, which is never held while waiting.
class FleetClient::Session {
 public:
  Session(Options options, FleetMember* member)
      : options_(std::move(options)), member_(member), thread_([this] { Run(); }) {}

  ~Session() {
    Detach(absl::ZeroDuration());
    thread_.join();
  }

  void ReportSoon() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    report_due_ = true;
  }

  void Leave() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    leaving_ = true;
    report_due_ = true;
  }

  bool left() ABSL_LOCKS_EXCLUDED(mu_, member_mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (attached_ || !leaving_) return left_;
    }
    absl::MutexLock lock(&member_mu_);
    return member_->Report().empty();
  }

  void Detach(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    if (!AwaitFor(&mu_, absl::Condition(&finished_), timeout) && context_ != nullptr) {
      context_->TryCancel();
    }
  }

  bool attached() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return attached_;
  }

  absl::Status refusal() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return refusal_;
  }

 private:
  using Stream = grpc::ClientReaderWriter<v1::MemberReport, v1::Directive>;

  void Run() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::Duration backoff = kBackoffMin;
    size_t in_vain = 0;  // attempts that failed since the last welcome
    absl::Duration lost_since = SteadyNow();
    bool lost_told = false;
    while (!stopping()) {
      const bool welcomed = AttachOnce();
      if (welcomed) {
        lost_since = SteadyNow();
        lost_told = false;
        backoff = kBackoffMin;
        in_vain = 0;
      }
      if (const absl::Status refused = refusal(); !refused.ok()) {
        LOG(ERROR) << "the coordinator at " << options_.coordinator.address()
                   << " refuses this process for good: " << ReasonOf(refused) << ": "
                   << refused.message();
        LoseCoordinator();
        if (options_.refused) options_.refused();
        break;
      }
      if (!lost_told && SteadyNow() - lost_since > options_.coordinator_grace) {
        LOG(ERROR) << "not attached to the coordinator at " << options_.coordinator.address()
                   << " for " << options_.coordinator_grace << " (" << last_error()
                   << "): dropping all jobs";
        LoseCoordinator();
        lost_told = true;
      }
      // Back off only after every address was tried.
      if (!welcomed && ++in_vain % options_.coordinator.addresses().size() != 0) continue;
      WaitStopping(backoff);
      backoff = std::min(backoff * 2, limits::kAttachBackoffMax);
    }
    absl::MutexLock lock(&mu_);
    finished_ = true;
  }

  void LoseCoordinator() ABSL_LOCKS_EXCLUDED(member_mu_) {
    absl::MutexLock lock(&member_mu_);
    member_->CoordinatorLost();
  }

  std::string last_error() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return last_error_;
  }

  // Holds one stream until it breaks or Detach() is called. Each attempt uses a channel of its own;
  // DialCoordinator() says why. Returns true if the coordinator welcomed the member.
  bool AttachOnce() ABSL_LOCKS_EXCLUDED(mu_) {
    grpc::ClientContext context;
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return false;
      context_ = &context;
      broken_ = false;
      report_interval_ = kReportInterval;
    }
    v1::MemberReport report = MakeReport();
    v1::Hello& hello = *report.mutable_hello() = options_.hello;
    hello.set_cluster(cluster_);
    hello.set_ordinal(ordinal_);
    hello.set_term(term_);
    const std::string& address = options_.coordinator.address();
    const auto stub = v1::MemberService::NewStub(DialCoordinator(options_.coordinator));
    std::unique_ptr<Stream> stream = stub->Attach(&context);
    std::thread reader([&] { Read(*stream); });
    bool open = stream->Write(report);
    while (open && WaitForReport()) open = stream->Write(MakeReport());
    if (open && stopping()) {
      stream->Write(MakeReport());
      stream->WritesDone();
    }
    // If this thread did not close the stream, it has ended already. It must not be cancelled:
    // TryCancel() could replace the coordinator's status with CANCELLED.
    reader.join();
    // Pending answers are for the coordinator of this stream; the next one did not ask for them.
    if (options_.traces != nullptr) options_.traces->Forget();
    absl::Status status = WithCause(FromGrpc(stream->Finish()), options_.hello.version());
    if (!mistrust_.ok()) status = std::exchange(mistrust_, absl::OkStatus());
    const std::string error(status.message());
    absl::MutexLock lock(&mu_);
    context_ = nullptr;
    const bool welcomed = std::exchange(attached_, false);
    if (IsForGood(status, ordinal_ != 0)) refusal_ = status;
    if (!stopping_ && refusal_.ok()) options_.coordinator.PassOver(address);
    // Standby coordinators answer NOT_LEADER in turn; do not log each of these answers.
    const bool stands_by = ReasonOf(status) == "NOT_LEADER";
    if (!stopping_ && refusal_.ok() && (welcomed || (error != last_error_ && !stands_by))) {
      LOG(WARNING) << (welcomed ? "lost the coordinator at "
                                : "cannot attach to the coordinator at ")
                   << address << ": " << error << "; retrying";
    }
    last_error_ = error;
    return welcomed;
  }

  void Read(Stream& stream) ABSL_LOCKS_EXCLUDED(mu_, member_mu_) {
    v1::Directive directive;
    while (stream.Read(&directive)) {
      if (directive.has_welcome()) {
        mistrust_ = CheckWelcome(directive);
        if (!mistrust_.ok()) break;
        TakeWelcome(directive);
      } else if (directive.term() < term_) {
        LOG(WARNING) << "ignoring a directive of term " << directive.term() << ", term is "
                     << term_;
      } else if (directive.has_leave()) {
        if (options_.drained) options_.drained();
      } else if (directive.has_tell_log()) {
        TellLog(directive.tell_log());
      } else if (directive.has_trace_order()) {
        if (options_.traces != nullptr) options_.traces->Handle(directive);
      } else {
        const LogScope scope({.job = directive.job(), .generation = directive.generation()});
        absl::MutexLock lock(&member_mu_);
        member_->Handle(directive);
      }
    }
    absl::MutexLock lock(&mu_);
    broken_ = true;
    if (!mistrust_.ok()) context_->TryCancel();
  }

  void TellLog(const v1::TellLog& question) ABSL_LOCKS_EXCLUDED(mu_) {
    v1::LogPart answer;
    answer.set_request(question.request());
    if (options_.log != nullptr) {
      LogRing::Part part = options_.log->Read(
          question.has_offset() ? std::optional<int64_t>(question.offset()) : std::nullopt,
          question.bytes_max());
      answer.set_offset(part.offset);
      answer.set_text(std::move(part.text));
      answer.set_next_offset(part.next_offset);
    }
    absl::MutexLock lock(&mu_);
    if (std::ssize(log_parts_) < limits::kMemberLogCallsMax) {
      log_parts_.push_back(std::move(answer));
    }
    report_due_ = true;
  }

  // Returns an error if the coordinator belongs to another cluster, or has an older term, than one
  // that this member was attached to. The coordinator makes the same checks of the Hello, unless it
  // is an older program.
  absl::Status CheckWelcome(const v1::Directive& directive) const {
    const std::string& cluster = directive.welcome().cluster();
    if (!cluster_.empty() && !cluster.empty() && cluster != cluster_) {
      return WithReason(
          absl::FailedPreconditionError(absl::StrCat(
              "it is of cluster ", cluster, ", this process belongs to ", cluster_,
              ": its --state_dir was wiped or replaced, or the address leads to another "
              "coordinator. Put the folder back, or start this process again to join that "
              "cluster")),
          "CLUSTER_CHANGED");
    }
    if (directive.term() < term_) {
      return WithReason(
          absl::UnavailableError(absl::StrCat(
              "it is of term ", directive.term(), ", this process has seen term ", term_,
              ": it was replaced by a later coordinator and must be stopped, or its --state_dir "
              "was "
              "put back to an older copy; then start this process again")),
          "COORDINATOR_OUTDATED");
    }
    return absl::OkStatus();
  }

  void TakeWelcome(const v1::Directive& directive) ABSL_LOCKS_EXCLUDED(mu_) {
    const v1::Welcome& welcome = directive.welcome();
    term_ = directive.term();
    if (!welcome.cluster().empty()) cluster_ = welcome.cluster();
    if (welcome.ordinal() != 0) ordinal_ = welcome.ordinal();
    LOG(INFO) << "attached to the coordinator at " << options_.coordinator.address() << ", term "
              << term_;
    absl::MutexLock lock(&mu_);
    attached_ = true;
    if (welcome.report_millis() > 0) {
      report_interval_ = absl::Milliseconds(welcome.report_millis());
    }
  }

  v1::MemberReport MakeReport() ABSL_LOCKS_EXCLUDED(mu_, member_mu_) {
    v1::MemberReport report;
    {
      absl::MutexLock lock(&mu_);
      report.set_leaving(leaving_);
    }
    {
      absl::MutexLock lock(&member_mu_);
      for (v1::JobReport& job : member_->Report()) *report.add_jobs() = std::move(job);
    }
    const bool more_traces = options_.traces != nullptr && options_.traces->AddTo(report);
    absl::MutexLock lock(&mu_);
    // Leave the rest for the next report: the coordinator limits the size of a report.
    for (size_t bytes = 0; !log_parts_.empty() && bytes < kLogBytesReportedMax;) {
      bytes += log_parts_.front().text().size();
      *report.add_logs() = std::move(log_parts_.front());
      log_parts_.pop_front();
    }
    if (!log_parts_.empty() || more_traces) report_due_ = true;
    left_ = report.leaving() && report.jobs().empty();
    return report;
  }

  // Returns true when a report is due, false if the stream broke or the client stops.
  bool WaitForReport() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return report_due_ || broken_ || stopping_;
    };
    AwaitFor(&mu_, absl::Condition(&due), report_interval_);
    report_due_ = false;
    return !broken_ && !stopping_;
  }

  void WaitStopping(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    AwaitFor(&mu_, absl::Condition(&stopping_), timeout);
  }

  bool stopping() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return stopping_;
  }

  const Options options_;
  FleetMember* const member_;
  // Used by the reader thread while there is one, else by the client's thread; joining the reader
  // orders the two. They hold the last Welcome's values, and why the present one is rejected.
  uint64_t term_ = 0;
  std::string cluster_;
  uint64_t ordinal_ = 0;
  absl::Status mistrust_;

  absl::Mutex member_mu_;
  mutable absl::Mutex mu_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  bool left_ ABSL_GUARDED_BY(mu_) = false;  // what was last reported, if leaving
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool attached_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  bool report_due_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<v1::LogPart> log_parts_ ABSL_GUARDED_BY(mu_);  // for the next report
  absl::Duration report_interval_ ABSL_GUARDED_BY(mu_) = kReportInterval;
  std::string last_error_ ABSL_GUARDED_BY(mu_);
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses all members above
};

FleetClient::FleetClient(Options options, FleetMember* member)
    : session_(std::make_unique<Session>(std::move(options), member)) {}

FleetClient::~FleetClient() = default;

void FleetClient::ReportSoon() { session_->ReportSoon(); }

void FleetClient::Leave() { session_->Leave(); }

bool FleetClient::left() const { return session_->left(); }

void FleetClient::Detach(absl::Duration timeout) { session_->Detach(timeout); }

bool FleetClient::attached() const { return session_->attached(); }

absl::Status FleetClient::refusal() const { return session_->refusal(); }

}  // namespace muster
