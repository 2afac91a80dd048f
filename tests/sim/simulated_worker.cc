#include "tests/sim/simulated_worker.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/plan_credentials.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"

namespace muster {
namespace {

constexpr int64_t kSamples = 64;

absl::Span<std::byte> BytesOf(std::vector<float>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace

// Runs one generation of the job, like services/worker/worker_job and lib/exchange/ps_exchange.
class SimulatedWorker::Generation : private MessageReceiver {
 public:
  Generation(SimulatedWorker* worker, const v1::JobPlan& plan, int rank)
      : worker_(*worker), plan_(plan), rank_(rank), next_step_(plan.first_step()) {
    worker_.Later(worker_.time().Between(absl::Milliseconds(1), absl::Milliseconds(100)),
                  Guarded([this] {
                    if (state_ != v1::MEMBER_PREPARING) return;
                    const bool fails = plan_.rehearsal() != 0 && worker_.time().Below(3) == 0;
                    Enter(fails ? v1::MEMBER_FAILED : v1::MEMBER_PREPARED);
                  }));
  }
  ~Generation() override { Disconnect(); }

  const v1::JobPlan& plan() const { return plan_; }

  void Start(int64_t total_steps) {
    if (started_ || state_ != v1::MEMBER_PREPARED) return;
    started_ = true;
    total_steps_ = total_steps;
    if (pausing_) return Enter(v1::MEMBER_PAUSED);
    Enter(finished() ? v1::MEMBER_DONE : v1::MEMBER_RUNNING);
    Connect();
  }
  void Pause() {
    pausing_ = true;
    if (state_ == v1::MEMBER_RUNNING) Enter(v1::MEMBER_PAUSED);
  }
  void Halt() {
    if (state_ == v1::MEMBER_HALTED) return;
    GiveUp();
    Disconnect();
    Enter(v1::MEMBER_HALTED);
  }
  void Acknowledge(const v1::Acknowledge& acknowledge) {
    std::erase_if(records_, [&](const v1::StepRecord& record) {
      return record.step() < acknowledge.steps_before();
    });
  }

  v1::JobReport Report() const {
    v1::JobReport report;
    report.set_job(plan_.job());
    report.set_generation(plan_.generation());
    report.set_rehearsal(plan_.rehearsal());
    report.set_state(state_);
    report.set_next_step(next_step_);
    if (state_ != v1::MEMBER_PREPARING) report.mutable_dataset()->set_samples(kSamples);
    if (state_ == v1::MEMBER_FAILED) *report.mutable_error() = error_;
    for (const v1::StepRecord& record : records_) *report.add_steps() = record;
    return report;
  }

  bool Turn() { return transport_ != nullptr && transport_->Progress() > 0; }

  void CutLink() {
    if (transport_ == nullptr || links_.empty()) return;
    const size_t shard = worker_.time().Below(static_cast<int64_t>(links_.size()));
    if (links_[shard].peer == PeerId::kNone) return;
    worker_.world().Log(absl::StrCat(worker_.name(), "'s link to shard ", shard, " is cut"));
    LinkLost(links_[shard].peer, absl::UnavailableError("cut"));
  }

 private:
  struct Link {
    PeerId peer = PeerId::kNone;
    uint64_t session = 0;
    bool greeted = false;
  };
  struct Chunk {
    int64_t version = -1;
    int64_t awaited = -1;
    bool sending = false;
    std::vector<float> values;
    std::vector<float> gradient;
  };

  std::function<void()> Guarded(std::function<void()> what) {
    return [exists = std::weak_ptr<int>(exists_), what = std::move(what)] {
      if (!exists.expired()) what();
    };
  }

  void Enter(v1::MemberJobState state) {
    state_ = state;
    worker_.ReportSoon();
  }

  // ---- the data plane

  void Connect() {
    transport_ = worker_.world().network().MakeTransport();
    transport_->SetReceiver(this);
    chunks_.resize(plan_.chunks_size());
    for (int c = 0; c < plan_.chunks_size(); ++c) {
      chunks_[c].values.resize(plan_.chunks(c).elements());
    }
    for (const ShardIndex shard : NumbersBelow<ShardIndex>(plan_.shards_size())) {
      Link& link = links_.emplace_back();
      link.session = SessionOf(plan_, shard);
      const auto credentials = CredentialsFor(link.session, plan_, Rank(rank_));
      CHECK(credentials.ok()) << credentials.status();
      const auto peer = transport_->Connect(plan_.shards(ToInt(shard)).address(), *credentials);
      CHECK(peer.ok()) << peer.status();
      link.peer = *peer;
      transport_->Send(link.peer,
                       {.kind = MessageKind::kHello,
                        .generation = plan_.generation(),
                        .job = link.session,
                        .rank = static_cast<uint32_t>(rank_)},
                       {}, nullptr);
    }
    worker_.world().Stir();
  }

  void Disconnect() {
    transport_.reset();
    links_.clear();
    worker_.world().Stir();
  }

  WireHeader HeaderOf(MessageKind kind, int chunk, int64_t step) const {
    return {.kind = kind,
            .generation = plan_.generation(),
            .job = links_[plan_.chunks(chunk).shard()].session,
            .step = step,
            .chunk = static_cast<uint32_t>(chunk),
            .rank = static_cast<uint32_t>(rank_)};
  }

  bool IsWanted(const WireHeader& header) const {
    return header.kind == MessageKind::kParams && header.generation == plan_.generation() &&
           header.chunk < chunks_.size() && header.step == chunks_[header.chunk].awaited;
  }

  void PeerJoined(PeerId peer, const LinkIdentity&) override { transport_->Disconnect(peer); }
  PayloadPlace PlacePayload(PeerId, const WireHeader& header) override {
    if (!IsWanted(header)) return {};
    const absl::Span<std::byte> place = BytesOf(chunks_[header.chunk].values);
    CHECK_EQ(header.length, place.size());
    return place;
  }
  void Received(PeerId from, const WireHeader& header, absl::Span<const std::byte>,
                PayloadLease) override {
    if (header.kind == MessageKind::kHello) return Greeted(from);
    if (header.kind == MessageKind::kRefused) {
      return Fail("PS_REFUSED",
                  absl::StrCat("refused step ", header.step, " of chunk ", header.chunk, ": ",
                               RefusalReasonName(header.reason)),
                  plan_.chunks(static_cast<int>(header.chunk)).shard());
    }
    if (IsWanted(header)) Answered(static_cast<int>(header.chunk), header.step);
  }
  void PayloadLost(PeerId, const WireHeader&) override {}
  void PeerLost(PeerId peer, const absl::Status& why) override { LinkLost(peer, why); }

  void LinkLost(PeerId peer, const absl::Status& why) {
    const auto link = std::ranges::find(links_, peer, &Link::peer);
    if (link == links_.end()) return;
    transport_->Disconnect(peer);
    link->peer = PeerId::kNone;
    Fail("PS_UNREACHABLE", absl::StrCat("lost: ", why.ToString()),
         static_cast<int>(link - links_.begin()));
  }

  void Fail(const std::string& reason, const std::string& message, int shard) {
    if (state_ != v1::MEMBER_RUNNING && state_ != v1::MEMBER_PAUSED) return;
    if (finished()) return;
    GiveUp();
    error_.set_code(static_cast<int32_t>(absl::StatusCode::kUnavailable));
    error_.set_reason(reason);
    error_.set_message(message);
    error_.set_step(next_step_);
    error_.set_culprit(plan_.shards(shard).member());
    failed_ = true;
    Enter(v1::MEMBER_FAILED);
  }

  void Greeted(PeerId from) {
    const auto link = std::ranges::find(links_, from, &Link::peer);
    if (link == links_.end() || std::exchange(link->greeted, true)) return;
    for (int c = 0; c < plan_.chunks_size(); ++c) {
      if (plan_.chunks(c).shard() != link - links_.begin()) continue;
      chunks_[c].awaited = plan_.first_step();
      transport_->Send(link->peer, HeaderOf(MessageKind::kFetch, c, plan_.first_step()), {},
                       nullptr);
    }
  }

  // ---- training

  bool finished() const { return started_ && next_step_ >= total_steps_; }

  void Answered(int c, int64_t version) {
    Chunk& chunk = chunks_[c];
    if (version < chunk.version) {
      worker_.world().Violated(absl::StrCat("I7: ", worker_.name(), " sees chunk ", c,
                                            " go back from version ", chunk.version, " to ",
                                            version));
    }
    if (!worker_.world().trajectory().Has(plan_.chunks(c), version, chunk.values)) {
      worker_.world().Violated(absl::StrCat("I1, I2, I4: ", worker_.name(), ", generation ",
                                            plan_.generation(), ": chunk ", c,
                                            " has other values than version ", version));
    }
    chunk.version = version;
    chunk.awaited = -1;
    const bool all =
        std::ranges::all_of(chunks_, [&](const Chunk& other) { return other.version == version; });
    if (!all) return;
    if (pending_) FinishStep();
    if (failed_ || pausing_ || finished()) return;
    worker_.Later(
        worker_.time().Between(worker_.world().step_max() / 20, worker_.world().step_max()),
        Guarded([this] { BeginStep(); }));
  }

  void FinishStep() {
    pending_->set_gradient_norm(1);
    records_.push_back(*std::exchange(pending_, std::nullopt));
    ++next_step_;
    worker_.world().Advanced();
    if (finished()) {
      Enter(v1::MEMBER_DONE);
    } else {
      worker_.ReportSoon();
    }
  }

  void BeginStep() {
    if (failed_ || pausing_ || transport_ == nullptr) return;
    pending_.emplace();
    pending_->set_step(next_step_);
    const v1::PlanWorker& self = plan_.workers(rank_);
    pending_->set_loss_share(static_cast<double>(self.samples()) /
                             static_cast<double>(plan_.spec().data().batch_size()));
    pending_->set_step_seconds(0.1);
    for (int c = 0; c < plan_.chunks_size(); ++c) {
      worker_.Later(worker_.time().Between(absl::ZeroDuration(), absl::Milliseconds(5)),
                    Guarded([this, c, step = next_step_] { Push(c, step); }));
    }
  }

  void Push(int c, int64_t step) {
    Chunk& chunk = chunks_[c];
    if (transport_ == nullptr || failed_) return;
    if (chunk.sending) {  // the answer arrived before the previous send completed
      return worker_.Later(absl::Milliseconds(1), Guarded([this, c, step] { Push(c, step); }));
    }
    const Link& link = links_[plan_.chunks(c).shard()];
    if (link.peer == PeerId::kNone) return;
    chunk.gradient = Trajectory::GradientOf(plan_, c, step, rank_);
    WireHeader header = HeaderOf(MessageKind::kPush, c, step);
    header.dtype = WireDType::kF32;
    const absl::Span<const std::byte> payload = BytesOf(chunk.gradient);
    header.length = payload.size();
    chunk.sending = true;
    chunk.awaited = step + 1;
    transport_->Send(link.peer, header, payload,
                     [&chunk](const absl::Status&) { chunk.sending = false; });
    worker_.world().Stir();
  }

  // Records the last computed step even if its answers have not arrived.
  void GiveUp() {
    if (!pending_) return;
    pending_->set_gradient_norm(std::numeric_limits<double>::quiet_NaN());
    records_.push_back(*std::exchange(pending_, std::nullopt));
  }

  SimulatedWorker& worker_;
  const v1::JobPlan plan_;
  const int rank_;
  v1::MemberJobState state_ = v1::MEMBER_PREPARING;
  v1::MemberError error_;
  bool started_ = false;
  bool pausing_ = false;
  bool failed_ = false;
  int64_t total_steps_ = 0;
  int64_t next_step_;
  std::optional<v1::StepRecord> pending_;  // computed, not yet answered
  std::vector<v1::StepRecord> records_;    // not yet acknowledged
  std::vector<Chunk> chunks_;              // must outlive the transport, which sends from them
  std::vector<Link> links_;                // by shard
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<int> exists_ = std::make_shared<int>();
};

SimulatedWorker::SimulatedWorker(SimulatedWorld* world, std::string name)
    : SimulatedMember(world, std::move(name), v1::WORKER) {}

SimulatedWorker::~SimulatedWorker() = default;

void SimulatedWorker::CutLink() {
  if (generation_ != nullptr) generation_->CutLink();
}

void SimulatedWorker::Begin(v1::Hello& hello) { hello.add_devices("cpu:0"); }

void SimulatedWorker::End() { generation_.reset(); }

std::vector<v1::JobReport> SimulatedWorker::Reports() {
  std::vector<v1::JobReport> reports;
  if (generation_ != nullptr) reports.push_back(generation_->Report());
  return reports;
}

bool SimulatedWorker::Turn() { return generation_ != nullptr && generation_->Turn(); }

void SimulatedWorker::Handle(const v1::Directive& directive) {
  if (directive.has_prepare()) {
    const v1::JobPlan& plan = directive.prepare().plan();
    const bool warms_up = generation_ != nullptr && generation_->plan().rehearsal() != 0;
    const bool is_another = generation_ != nullptr &&
                            plan.rehearsal() != generation_->plan().rehearsal() &&
                            plan.generation() == generation_->plan().generation();
    if (generation_ != nullptr && generation_->plan().generation() >= plan.generation() &&
        !(warms_up && is_another)) {
      return;
    }
    const auto self = std::ranges::find(plan.workers(), name(), &v1::PlanWorker::member);
    if (self == plan.workers().end()) return;
    generation_.reset();
    generation_ =
        std::make_unique<Generation>(this, plan, static_cast<int>(self - plan.workers().begin()));
    return ReportSoon();
  }
  if (generation_ == nullptr || generation_->plan().generation() != directive.generation()) return;
  switch (directive.kind_case()) {
    case v1::Directive::kStart:
      return generation_->Start(directive.start().total_steps());
    case v1::Directive::kPause:
      return generation_->Pause();
    case v1::Directive::kHalt:
      return generation_->Halt();
    case v1::Directive::kAcknowledge:
      return generation_->Acknowledge(directive.acknowledge());
    case v1::Directive::kRelease:
      generation_.reset();
      return ReportSoon();
    default:
      return;
  }
}

}  // namespace muster
