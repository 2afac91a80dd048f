#include "lib/fleet/fleet_client.h"

#include <glog/logging.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "grpcpp/client_context.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/fleet/channel.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"

namespace muster {
namespace {

constexpr absl::Duration kBackoffMin = absl::Milliseconds(100);
constexpr absl::Duration kBackoffMax = absl::Seconds(2);
constexpr absl::Duration kReportInterval = absl::Seconds(1);  // until Welcome says otherwise

}  // namespace

// One thread runs Attach() calls one after another; while a stream is open a second thread reads
// it. Handle() and Report() are serialised by `member_mu_`, which is never held while waiting.
class FleetClient::Session {
 public:
  Session(Options options, FleetMember* member)
      : options_(std::move(options)),
        member_(member),
        stub_(v1::FleetService::NewStub(DialCoordinator(options_.coordinator))),
        thread_([this] { Run(); }) {}

  ~Session() {
    Detach(absl::ZeroDuration());
    thread_.join();
  }

  void ReportSoon() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    report_due_ = true;
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

 private:
  using Stream = grpc::ClientReaderWriter<v1::MemberReport, v1::Directive>;

  void Run() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::Duration backoff = kBackoffMin;
    absl::Duration lost_since = SteadyNow();
    bool lost_told = false;
    while (!stopping()) {
      const bool welcomed = AttachOnce();
      if (welcomed) {
        lost_since = SteadyNow();
        lost_told = false;
        backoff = kBackoffMin;
      }
      if (!lost_told && SteadyNow() - lost_since > options_.coordinator_grace) {
        LOG(ERROR) << "no coordinator at " << options_.coordinator << " for "
                   << options_.coordinator_grace << ": dropping all jobs";
        absl::MutexLock lock(&member_mu_);
        member_->CoordinatorLost();
        lost_told = true;
      }
      WaitStopping(backoff);
      backoff = std::min(backoff * 2, kBackoffMax);
    }
    absl::MutexLock lock(&mu_);
    finished_ = true;
  }

  // Holds one stream until it breaks or Detach(). True if the coordinator welcomed us.
  bool AttachOnce() ABSL_LOCKS_EXCLUDED(mu_) {
    grpc::ClientContext context;
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return false;
      context_ = &context;
      broken_ = false;
      report_interval_ = kReportInterval;
    }
    std::unique_ptr<Stream> stream = stub_->Attach(&context);
    std::thread reader([&] { Read(*stream); });
    v1::MemberReport report = MakeReport();
    *report.mutable_hello() = options_.hello;
    bool open = stream->Write(report);
    while (open && WaitForReport()) open = stream->Write(MakeReport());
    if (open && stopping()) {
      stream->Write(MakeReport());
      stream->WritesDone();
    } else {
      context.TryCancel();
    }
    reader.join();
    const grpc::Status status = stream->Finish();
    absl::MutexLock lock(&mu_);
    context_ = nullptr;
    const bool welcomed = std::exchange(attached_, false);
    if (!stopping_ && (welcomed || status.error_message() != last_error_)) {
      LOG(WARNING) << (welcomed ? "lost the coordinator at "
                                : "cannot attach to the coordinator at ")
                   << options_.coordinator << ": " << status.error_message() << "; retrying";
    }
    last_error_ = status.error_message();
    return welcomed;
  }

  void Read(Stream& stream) ABSL_LOCKS_EXCLUDED(mu_, member_mu_) {
    v1::Directive directive;
    while (stream.Read(&directive)) {
      if (directive.term() < term_) {
        LOG(WARNING) << "ignoring a directive of term " << directive.term() << ", term is "
                     << term_;
        continue;
      }
      term_ = directive.term();
      if (directive.has_welcome()) {
        LOG(INFO) << "attached to the coordinator at " << options_.coordinator << ", term "
                  << term_;
        absl::MutexLock lock(&mu_);
        attached_ = true;
        if (directive.welcome().report_millis() > 0) {
          report_interval_ = absl::Milliseconds(directive.welcome().report_millis());
        }
        continue;
      }
      absl::MutexLock lock(&member_mu_);
      member_->Handle(directive);
    }
    absl::MutexLock lock(&mu_);
    broken_ = true;
  }

  v1::MemberReport MakeReport() ABSL_LOCKS_EXCLUDED(member_mu_) {
    absl::MutexLock lock(&member_mu_);
    v1::MemberReport report;
    for (v1::JobReport& job : member_->Report()) *report.add_jobs() = std::move(job);
    return report;
  }

  // True when a report is due, false when the stream broke or we stop.
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
  const std::unique_ptr<v1::FleetService::Stub> stub_;
  uint64_t term_ = 0;  // reader threads only, one at a time
  absl::Mutex member_mu_;
  mutable absl::Mutex mu_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool attached_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  bool report_due_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration report_interval_ ABSL_GUARDED_BY(mu_) = kReportInterval;
  std::string last_error_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: starts when everything else is there
};

FleetClient::FleetClient(Options options, FleetMember* member)
    : session_(std::make_unique<Session>(std::move(options), member)) {}

FleetClient::~FleetClient() = default;

void FleetClient::ReportSoon() { session_->ReportSoon(); }

void FleetClient::Detach(absl::Duration timeout) { session_->Detach(timeout); }

bool FleetClient::attached() const { return session_->attached(); }

}  // namespace muster
