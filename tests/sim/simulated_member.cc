#include "tests/sim/simulated_member.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"
#include "services/coordinator/membership/member_directive.h"
#include "services/coordinator/membership/stream_waker.h"

namespace muster {
namespace {

constexpr absl::Duration kReportInterval = absl::Seconds(1);
constexpr absl::Duration kBackoffMin = absl::Milliseconds(100);
constexpr absl::Duration kBackoffMax = absl::Seconds(2);

}  // namespace

SimulatedMember::SimulatedMember(SimulatedWorld* world, std::string name, v1::Role role)
    : world_(world), name_(std::move(name)), role_(role) {}

// ---------------------------------------------------------------- the process

void SimulatedMember::StartProcess() {
  if (running_) return;
  running_ = true;
  leaving_ = false;
  report_due_ = false;
  wakes_ = absl::InfinitePast();
  backoff_ = kBackoffMin;
  ++life_;
  hello_ = {};
  hello_.set_member(name_);
  hello_.set_role(role_);
  hello_.set_incarnation(absl::StrCat(name_, "#", life_));
  hello_.set_host(absl::StrCat("host-of-", name_));
  world_->Log(absl::StrCat(hello_.incarnation(), " starts"));
  Begin(hello_);
  Later(time().Between(absl::Milliseconds(1), absl::Milliseconds(50)), [this] { Attach(); });
  Later(kReportInterval, [this] { ReportAgain(); });
}

void SimulatedMember::Exit() {
  running_ = false;
  ++life_;
  stream_ = nullptr;
  End();
  world_->Ended(name_);
  world_->Stir();
}

void SimulatedMember::Kill(bool with_host) {
  if (!running_) return;
  world_->Log(absl::StrCat(name_, " is killed", with_host ? " with its host" : ""));
  if (stream_ != nullptr) {
    stream_->broken = true;
    if (!with_host) {
      Detach(stream_, time().Between(absl::ZeroDuration(), absl::Milliseconds(100)),
             Fleet::Departure::kBroken);
    }
  }
  Exit();
}

void SimulatedMember::StandStill(absl::Duration time) {
  if (!running_) return;
  world_->Log(absl::StrCat(name_, " stands still for ", absl::FormatDuration(time)));
  wakes_ = std::max(wakes_, world_->time().now() + time);
}

void SimulatedMember::Leave() {
  if (!running_ || leaving_) return;
  world_->Log(absl::StrCat(name_, " is told to leave"));
  leaving_ = true;
  ReportSoon();
}

void SimulatedMember::Later(absl::Duration delay, std::function<void()> what) {
  time().After(delay, [this, life = life_, what = std::move(what)]() mutable {
    if (life != life_) return;
    if (stands_still()) return Later(wakes_ - time().now(), std::move(what));
    what();
  });
}

bool SimulatedMember::LookAtLinks() { return running_ && !stands_still() && Turn(); }

// ---------------------------------------------------------------- the stream

void SimulatedMember::Attach() {
  if (stream_ != nullptr) return;
  bool refused = false;
  world_->AtCoordinator([&](Coordinator& coordinator) {
    v1::MemberReport report;
    for (v1::JobReport& job : Reports()) *report.add_jobs() = std::move(job);
    *report.mutable_hello() = hello_;
    report.set_leaving(leaving_);
    auto attached = coordinator.members().Attach(
        report, std::make_shared<StreamWaker>(std::function<void()>()));
    if (attached.ok()) {
      stream_ = std::make_shared<Stream>(Stream{.attachment = *std::move(attached),
                                                .coordinator_life = world_->coordinator_life()});
      backoff_ = kBackoffMin;
      return;
    }
    const std::string reason = ReasonOf(attached.status());
    refused = reason == "REPLACED" || reason == "CLUSTER_CHANGED" || reason == "HELLO_INVALID";
    if (refused)
      world_->Violated(absl::StrCat(name_, " is refused: ", attached.status().ToString()));
  });
  if (stream_ != nullptr || refused) return;
  Later(backoff_, [this] { Attach(); });
  backoff_ = std::min(backoff_ * 2, kBackoffMax);
}

// Tells the coordinator, after `delay`, that the stream has ended.
void SimulatedMember::Detach(const std::shared_ptr<Stream>& stream, absl::Duration delay,
                             Fleet::Departure departure) {
  time().After(delay, [world = world_, stream, departure] {
    if (stream->coordinator_life != world->coordinator_life()) return;
    world->AtCoordinator([&](Coordinator& coordinator) {
      coordinator.members().Detach(*stream->attachment, departure);
    });
  });
}

void SimulatedMember::LoseStream() {
  stream_ = nullptr;
  Later(time().Between(absl::Milliseconds(1), kBackoffMin), [this] { Attach(); });
}

void SimulatedMember::BreakStream() {
  if (!running_ || stream_ == nullptr || stream_->broken) return;
  world_->Log(absl::StrCat(name_, "'s stream breaks"));
  stream_->broken = true;
  Detach(stream_, time().Between(absl::ZeroDuration(), absl::Seconds(2)),
         Fleet::Departure::kBroken);
  Later(time().Between(absl::ZeroDuration(), absl::Milliseconds(500)), [this, stream = stream_] {
    if (stream == stream_) LoseStream();
  });
}

void SimulatedMember::CoordinatorDied() {
  if (!running_ || stream_ == nullptr) return;
  stream_->broken = true;
  Later(time().Between(absl::ZeroDuration(), absl::Milliseconds(20)), [this, stream = stream_] {
    if (stream == stream_) LoseStream();
  });
}

void SimulatedMember::TakeDirectives() {
  if (stream_ == nullptr || stream_->broken) return;
  const auto after = [this](absl::Time& arrives) {
    arrives = std::max(
        arrives, time().now() + time().Between(absl::Microseconds(50), absl::Milliseconds(5)));
    return arrives - time().now();
  };
  for (const MemberDirective& told : stream_->attachment->TakeDirectives()) {
    Later(after(stream_->directive_arrives), [this, stream = stream_, directive = Whole(told)] {
      if (stream == stream_ && !stream->broken) Obey(directive);
    });
  }
  if (stream_->attachment->closed().ok()) return;
  world_->Log(
      absl::StrCat(name_, "'s stream is closed: ", stream_->attachment->closed().ToString()));
  stream_->broken = true;
  Detach(stream_, absl::ZeroDuration(), Fleet::Departure::kBroken);
  Later(after(stream_->directive_arrives), [this, stream = stream_] {
    if (stream == stream_) LoseStream();
  });
}

// Ignores job directives of an earlier term: they come from a coordinator that was replaced.
void SimulatedMember::Obey(const v1::Directive& directive) {
  if (directive.has_welcome()) {
    hello_.set_term(directive.term());
    hello_.set_cluster(directive.welcome().cluster());
    if (directive.welcome().ordinal() != 0) hello_.set_ordinal(directive.welcome().ordinal());
    ReportSoon();
  } else if (directive.has_leave()) {
    Leave();
  } else if (directive.term() >= hello_.term()) {
    Handle(directive);
  }
}

void SimulatedMember::ReportSoon() {
  if (std::exchange(report_due_, true)) return;
  Later(time().Between(absl::Microseconds(100), absl::Milliseconds(10)), [this] { SendReport(); });
}

void SimulatedMember::ReportAgain() {
  SendReport();
  Later(kReportInterval, [this] { ReportAgain(); });
}

void SimulatedMember::SendReport() {
  report_due_ = false;
  if (stream_ == nullptr || stream_->broken) return;
  v1::MemberReport report;
  report.set_leaving(leaving_);
  for (v1::JobReport& job : Reports()) *report.add_jobs() = std::move(job);
  const bool leaves = leaving_ && report.jobs().empty();
  stream_->report_arrives =
      std::max(stream_->report_arrives,
               time().now() + time().Between(absl::Microseconds(50), absl::Milliseconds(5)));
  time().After(stream_->report_arrives - time().now(),
               [world = world_, stream = stream_, report = std::move(report)] {
                 if (stream->broken || stream->coordinator_life != world->coordinator_life())
                   return;
                 world->AtCoordinator([&](Coordinator& coordinator) {
                   // If the stream was closed meanwhile, TakeDirectives() ends it.
                   coordinator.members().Report(*stream->attachment, report).IgnoreError();
                 });
               });
  if (!leaves) return;
  world_->Log(absl::StrCat(name_, " leaves"));
  Detach(stream_, stream_->report_arrives - time().now() + absl::Milliseconds(1),
         Fleet::Departure::kOrderly);
  Exit();
}

}  // namespace muster
