// Runs every consistency mode over random schedules: messages between workers and shards are
// delayed, reordered, duplicated and lost. The invariants I1 to I5 and I7 of
// docs/how_a_job_survives.md must hold in each schedule.
//
// Every value shows which pushes it contains. A push of rank r for step s is 2^s in element r of
// the chunk and 0 elsewhere. The learning rate is -1, so element r of a value is a bit mask of the
// steps of r in it. A push that is lost or counted twice makes a wrong mask.
//
// A push of a program is -2^s, and names the learning rate 1. Its weight is the worker's share of
// the batch. Some pushes have no gradient, so their bits are missing.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/core/plan_check.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/transport/core/transport.h"

namespace muster::consistency_simulation_test {
namespace {

constexpr int kSchedules = 1000;
constexpr int64_t kTotalStepsMax = 11;  // rounding must not reach the lowest bit of a mask

struct Mode {
  std::string name;
  v1::SyncMode sync = v1::BSP;
  int staleness = 0;
  bool has_backup_workers = false;
  bool judged = false;
  bool has_program = false;
};

uint64_t StepsBefore(int64_t step) { return (uint64_t{1} << step) - 1; }

// Events in the order of their times.
class EventQueue {
 public:
  void At(double time, std::function<void()> event) {
    events_.push({time, next_++, std::move(event)});
  }
  bool RunNext() {
    if (events_.empty()) return false;
    auto event = std::move(const_cast<Event&>(events_.top()).happen);
    now_ = events_.top().time;
    events_.pop();
    event();
    return true;
  }
  double now() const { return now_; }

 private:
  struct Event {
    double time;
    int64_t number;
    std::function<void()> happen;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  std::priority_queue<Event> events_;
  int64_t next_ = 0;
  double now_ = 0;
};

// Lends gradients, and spoils those that are returned, because a shard must not read them any more.
class LendingTransport : public Transport {
 public:
  PayloadLease Lend(std::vector<float>* gradient) {
    lent_[++loans_] = gradient;
    return PayloadLease(this, loans_);
  }
  size_t lent() const { return lent_.size(); }

  void SetReceiver(MessageReceiver*) override {}
  std::string address() const override { return ""; }
  std::string name() const override { return "lending"; }
  void OpenSession(uint64_t, uint32_t, const SessionToken&) override {}
  void CloseSession(uint64_t, uint32_t) override {}
  absl::StatusOr<PeerId> Connect(absl::string_view, const LinkCredentials&) override {
    return PeerId::kNone;
  }
  void Disconnect(PeerId) override {}
  void Send(PeerId, const WireHeader&, absl::Span<const std::byte>, SendDone) override {}
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte>) override {
    return nullptr;
  }
  int Progress() override { return 0; }
  void Wait(absl::Duration) override {}
  void Wake() override {}

 private:
  void Return(uint64_t loan) override {
    std::vector<float>& gradient = *lent_.at(loan);
    std::fill(gradient.begin(), gradient.end(), std::nanf(""));
    lent_.erase(loan);
  }

  uint64_t loans_ = 0;
  std::map<uint64_t, std::vector<float>*> lent_;
};

// One job and one schedule.
class Simulation {
 public:
  Simulation(const Mode& mode, uint32_t seed) : mode_(mode), random_(seed), plan_(MakePlan()) {
    EXPECT_TRUE(CheckPlan(plan_).ok()) << CheckPlan(plan_);
    const auto shared = std::make_shared<v1::JobPlan>(plan_);
    for (const ShardIndex number : NumbersBelow<ShardIndex>(plan_.shards_size())) {
      shards_.emplace_back(std::make_unique<Shard>(this, shared, number));
    }
    for (int rank = 0; rank < plan_.workers_size(); ++rank) {
      workers_.push_back(std::make_unique<Worker>(this, rank));
    }
  }

  // Runs until no event is left.
  void Run() {
    for (auto& shard : shards_) {
      Soon([&shard, this] { shard->core->Start(total_steps_); });
    }
    for (auto& worker : workers_) {
      Soon([&worker] { worker->Begin(); });
    }
    for (int trouble = Pick(0, 6); trouble > 0; --trouble) ScheduleTrouble();
    for (int64_t events = 0; !HasFailure() && events < 1'000'000 && queue_.RunNext();) ++events;
    if (!HasFailure()) CheckEnd();
  }

 private:
  using Values = std::vector<float>;

  // ---- randomness

  int64_t Pick(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  bool Chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  double Delay() { return std::exponential_distribution<>(Chance(0.1) ? 0.1 : 1)(random_); }
  void Soon(std::function<void()> event) { queue_.At(queue_.now() + Delay(), std::move(event)); }
  void After(double time, std::function<void()> event) {
    queue_.At(queue_.now() + time, std::move(event));
  }
  static bool HasFailure() { return testing::Test::HasFailure(); }

  v1::JobPlan MakePlan() {
    TestPlanOptions options{.workers = static_cast<int>(Pick(mode_.has_backup_workers ? 2 : 1, 4)),
                            .shards = static_cast<int>(Pick(1, 3))};
    options.parameters.clear();
    for (int64_t p = Pick(options.shards, 5); p > 0; --p) {
      options.parameters.push_back(options.workers + Pick(0, 3));
    }
    options.optimizer = TestPlanOptions::PlainSgd(-1);
    options.sync.set_mode(mode_.sync);
    options.sync.set_staleness(mode_.staleness);
    if (mode_.has_backup_workers) {
      options.sync.set_backup_workers(static_cast<int>(Pick(1, options.workers - 1)));
    }
    if (mode_.sync == v1::LOCAL_SGD) options.sync.set_every(Pick(2, 4));
    if (mode_.judged) options.clip_norm = 1e30;
    options.has_program = mode_.has_program;
    const int64_t multiple = std::max<int64_t>(1, options.sync.every());
    options.checkpoint_every = multiple * Pick(0, 3);
    total_steps_ = Pick(1, kTotalStepsMax);
    v1::JobPlan plan = MakeTestPlan(options);
    for (auto& parameter : *plan.mutable_graph()->mutable_parameters()) {
      parameter.mutable_initializer()->set_constant(0);
    }
    // The scale of a step with backup workers must not depend on its ranks, so all have the same
    // samples.
    for (auto& worker : *plan.mutable_workers()) {
      worker.set_samples(mode_.has_backup_workers ? 1 : Pick(1, 3));
    }
    return plan;
  }

  bool IsAsync() const { return mode_.sync == v1::SSP || mode_.sync == v1::ASP; }
  int64_t RoundAfter(int64_t version) const {
    const int64_t every = std::max<int64_t>(1, plan_.spec().sync().every());
    return std::min((version / every + 1) * every, total_steps_);
  }

  // ---- the content of values

  // Returns the steps of `rank` in element `rank` of a value, as a bit mask.
  uint64_t StepsIn(const Values& value, int rank) const {
    const int workers = plan_.workers_size();
    const double scale =
        static_cast<double>(workers - plan_.spec().sync().backup_workers()) / workers;
    const double mask = value[rank] * scale;
    EXPECT_NEAR(mask, std::round(mask), 0.01) << "not a sum of steps";
    return static_cast<uint64_t>(std::llround(mask));
  }

  // A program's ranks have no gradient of the chunk in some steps, one by one or all of them.
  bool HasGradient(int64_t step, int chunk, int rank) const {
    return !mode_.has_program || ((step + chunk + rank) % 3 != 0 && (step + 2 * chunk) % 5 != 0);
  }
  // Returns the steps before `step` in which `rank` has a gradient of the chunk.
  uint64_t GradientsBefore(int64_t step, int chunk, int rank) const {
    uint64_t steps = 0;
    for (int64_t s = 0; s < step; ++s) {
      if (HasGradient(s, chunk, rank)) steps |= uint64_t{1} << s;
    }
    return steps;
  }

  // Expects the value of a chunk after exactly the steps before `step`.
  void ExpectExactly(const Values& value, int64_t step, int chunk, const std::string& where) {
    for (int rank = 0; rank < plan_.workers_size(); ++rank) {
      const uint64_t steps = StepsIn(value, rank), all = GradientsBefore(step, chunk, rank);
      if (!mode_.has_backup_workers) {
        EXPECT_EQ(steps, all) << where << ", rank " << rank;
        continue;
      }
      EXPECT_EQ(steps & ~all, 0) << where << ", rank " << rank;
      for (int64_t s = 0; s < step; ++s) {
        if (!HasGradient(s, chunk, rank)) continue;
        const bool counted = steps >> s & 1;
        const auto [first, is_first] = counted_.insert({{s, rank}, counted});
        EXPECT_EQ(first->second, counted)
            << where << ": not every chunk has step " << s << " of rank " << rank;
      }
    }
  }

  // Checks a value that a worker is served.
  void CheckServed(const WireHeader& header, const Values& value) {
    const auto rank = static_cast<int>(header.rank);
    const std::string where =
        absl::StrCat("chunk ", header.chunk, " at ", header.step, " for ", rank);
    const auto chunk = static_cast<int>(header.chunk);
    if (!IsAsync()) return ExpectExactly(value, header.step, chunk, where);
    for (int other = 0; other < plan_.workers_size(); ++other) {
      const uint64_t steps = StepsIn(value, other);
      EXPECT_EQ(steps, GradientsBefore(std::bit_width(steps), chunk, other))
          << where << ": steps are missing before the last one, " << steps;
      EXPECT_LE(steps, StepsBefore(workers_[other]->pushed)) << where << ": never pushed";
      if (mode_.sync == v1::SSP) {
        const int64_t seen = std::max<int64_t>(0, header.step - mode_.staleness);
        EXPECT_GE(steps, GradientsBefore(seen, chunk, other))
            << where << ", I3: too little of rank " << other;
      }
      if (other == rank) {
        EXPECT_EQ(steps, GradientsBefore(header.step, chunk, other)) << where << ": its own steps";
      }
    }
  }

  // ---- shards

  struct Shard : public ShardOutput {
    Shard(Simulation* simulation, std::shared_ptr<const v1::JobPlan> plan, ShardIndex number)
        : sim(*simulation) {
      const int64_t bytes = ParameterShard::BytesNeeded(*plan, number);
      core =
          *ParameterShard::Create(plan, number, *sim.budget_.Reserve(bytes, absl::ZeroDuration()));
      core->set_output(this);
      for (const LocalChunk chunk : core->chunks()) core->Initialize(chunk);
    }

    void SendTo(Rank, const WireHeader& header, absl::Span<const std::byte> payload,
                Transport::SendDone done) override {
      const auto* values = reinterpret_cast<const float*>(payload.data());
      Values sent(values, values + payload.size() / sizeof(float));
      auto shared_done = std::make_shared<Transport::SendDone>(std::move(done));
      sim.Soon([this, header, payload, sent = std::move(sent), shared_done] {
        EXPECT_EQ(std::memcmp(payload.data(), sent.data(), payload.size()), 0)
            << "the payload changed while it was sent";
        if (!sim.Chance(0.05)) sim.workers_[header.rank]->ParamsArrived(header, sent);
        (*shared_done)(absl::OkStatus());
      });
    }

    void SendToShard(ShardIndex shard, const WireHeader& header,
                     absl::Span<const std::byte> payload, Transport::SendDone done) override {
      auto shared_done = std::make_shared<Transport::SendDone>(std::move(done));
      sim.Soon([this, shard, header, payload, shared_done] {
        sim.shards_[shard]->Deliver(header, payload);
        (*shared_done)(absl::OkStatus());
      });
    }

    void Deliver(const WireHeader& header, absl::Span<const std::byte> payload) {
      if (header.kind == MessageKind::kSquares || header.kind == MessageKind::kArrived) {
        const absl::Span<std::byte> place = core->PlaceReport(header);
        ASSERT_FALSE(place.empty());
        std::memcpy(place.data(), payload.data(), payload.size());
        core->ReportArrived(header);
      } else {
        EXPECT_EQ(core->DecisionArrived(header, payload), RefusalReason::kNone);
      }
    }

    void StepJudged(const StepVerdict& verdict) override { EXPECT_FALSE(verdict.skipped); }
    kernels::OutgoingStores UpdateBegins(int64_t) override {
      return kernels::OutgoingStores::kDirect;
    }
    void UpdateEnds(double) override {}

    void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) override {
      sim.CheckSnapshot(*snapshot);
      taken.insert({snapshot->step, snapshot->id});
      sim.Soon([this, snapshot] {
        sim.CheckSnapshot(*snapshot);  // it must not have changed
        core->SnapshotWritten(snapshot->id, snapshot->step);
      });
    }
    void SnapshotDeclined(uint64_t, int64_t, v1::SnapshotOutcome, const std::string&) override {}

    Simulation& sim;
    std::unique_ptr<ParameterShard> core;
    std::set<std::pair<int64_t, uint64_t>> taken;  // step, id
  };

  void CheckSnapshot(const ShardSnapshot& snapshot) {
    for (const ShardSnapshot::Piece& piece : snapshot.pieces) {
      ExpectExactly({piece.elements.begin(), piece.elements.end()}, snapshot.step,
                    ToInt(piece.chunk),
                    absl::StrCat("I5: snapshot ", snapshot.id, " of chunk ", ToInt(piece.chunk),
                                 " at ", snapshot.step));
    }
    const int64_t updates_per_step = IsAsync() ? plan_.workers_size() : 1;
    EXPECT_EQ(snapshot.update_state.updates(), snapshot.step * updates_per_step);
  }

  // ---- workers

  struct Worker {
    Worker(Simulation* simulation, int rank)
        : sim(*simulation), rank(rank), chunks(sim.plan_.chunks_size()) {}

    void Begin() {
      for (int c = 0; c < std::ssize(chunks); ++c) Ask(c, MessageKind::kFetch, 0, 0);
    }

    // Sends a push or a fetch for chunk `c`, and repeats it until the chunk has `version`, or a
    // later version if there are backup workers.
    void Ask(int c, MessageKind kind, int64_t at, int64_t version) {
      Chunk& chunk = chunks[c];
      chunk.awaited = version;
      const int64_t question = ++chunk.question;
      WireHeader header = PushHeader(sim.plan_, at, c, rank);
      header.kind = kind;
      if (kind == MessageKind::kPush && sim.mode_.has_program) {
        header.scalar = 1;
        header.loss_scale = static_cast<float>(Share());
        if (!sim.HasGradient(at, c, rank)) {
          header.dtype = WireDType::kNone;
          header.length = 0;
        }
      }
      for (int copies = sim.Chance(0.15) ? 2 : 1; copies > 0; --copies) {
        if (!sim.Chance(0.1))
          sim.Soon([=, this] { sim.Carry(header, GradientOf(header.chunk, at)); });
      }
      sim.After(30, [=, this] {
        if (chunks[c].question == question && chunks[c].awaited >= 0) Ask(c, kind, at, version);
      });
    }

    // The worker's share of the batch.
    double Share() const {
      int64_t batch = 0;
      for (const auto& worker : sim.plan_.workers()) batch += worker.samples();
      return static_cast<double>(sim.plan_.workers(rank).samples()) / static_cast<double>(batch);
    }

    Values GradientOf(int c, int64_t at) {
      Values gradient(sim.plan_.chunks(c).elements(), 0);
      if (sim.mode_.sync == v1::LOCAL_SGD) {
        // In local SGD a push has the values of the worker, which contain its own steps up to the
        // end of the round. They are multiplied by the worker's share of the average.
        const double share = Share();
        for (size_t e = 0; e < gradient.size(); ++e) {
          double value = chunks[c].value.empty() ? 0 : chunks[c].value[e];
          if (static_cast<int>(e) == rank) {
            value += static_cast<double>(StepsBefore(sim.RoundAfter(at)) - StepsBefore(at)) / share;
          }
          gradient[e] = static_cast<float>(value * share);
        }
        return gradient;
      }
      gradient[rank] = static_cast<float>(uint64_t{1} << at);
      if (sim.mode_.has_program) gradient[rank] *= -1;
      return gradient;
    }

    void ParamsArrived(const WireHeader& header, const Values& value) {
      sim.CheckServed(header, value);
      Chunk& chunk = chunks[header.chunk];
      const bool is_awaited =
          chunk.awaited >= 0 && (sim.mode_.has_backup_workers ? header.step >= chunk.awaited
                                                              : header.step == chunk.awaited);
      if (!is_awaited) return;
      EXPECT_GE(header.step, chunk.version) << "I7: a version went back";
      chunk.version = header.step;
      chunk.value = value;
      chunk.awaited = -1;
      if (std::ranges::any_of(chunks, [](const Chunk& c) { return c.awaited >= 0; })) return;
      Advance();
    }

    // All answers are here: begins the next step, or fetches the values of chunks that others have
    // moved ahead.
    void Advance() {
      const int64_t newest = std::ranges::max(chunks, {}, &Chunk::version).version;
      bool behind = false;
      for (int c = 0; c < std::ssize(chunks); ++c) {
        if (chunks[c].version == newest) continue;
        behind = true;
        Ask(c, MessageKind::kFetch, newest, newest);
      }
      if (behind) return;
      step = newest;
      if (step < sim.total_steps_) sim.Soon([this] { Push(); });
    }

    void Push() {
      pushed = step + 1;
      std::vector<int> order(chunks.size());
      for (size_t c = 0; c < order.size(); ++c) order[c] = static_cast<int>(c);
      std::shuffle(order.begin(), order.end(), sim.random_);
      for (const int c : order) Ask(c, MessageKind::kPush, step, sim.RoundAfter(step));
    }

    struct Chunk {
      int64_t version = -1;
      int64_t awaited = -1;  // -1: none
      int64_t question = 0;
      Values value;
    };
    Simulation& sim;
    const int rank;
    std::vector<Chunk> chunks;
    int64_t step = 0;
    int64_t pushed = 0;  // steps
  };

  // ---- the network

  // Sends a message to the shard of its chunk. A push's payload arrives some time after its header.
  void Carry(const WireHeader& header, Values gradient) {
    Shard& shard = *shards_[ShardIndex(plan_.chunks(static_cast<int>(header.chunk)).shard())];
    // The shard may refuse only messages that the worker no longer waits for.
    const Worker& worker = *workers_[header.rank];
    if (header.kind == MessageKind::kFetch) {
      const RefusalReason refusal = shard.core->Fetch(header);
      EXPECT_TRUE(refusal == RefusalReason::kNone || worker.pushed > header.step);
      return;
    }
    const auto placement = shard.core->PlacePush(header);
    if (placement.refusal != RefusalReason::kNone) {
      EXPECT_GT(worker.step, header.step) << RefusalReasonName(placement.refusal);
      return;
    }
    if (!placement.taken) return shard.core->AnswerRepeat(header);
    const int64_t connection = connections_[{shard.core->shard(), Rank(header.rank)}];
    const bool lent = Chance(0.5);
    auto payload = std::make_shared<Values>(std::move(gradient));
    Soon([=, this, &shard] {
      if (connections_[{shard.core->shard(), Rank(header.rank)}] != connection) return;  // lost
      PayloadLease lease;
      absl::Span<const std::byte> bytes = placement.memory;
      if (lent) {
        lent_.push_back(payload);
        lease = lender_.Lend(payload.get());
        bytes = {reinterpret_cast<const std::byte*>(payload->data()), placement.memory.size()};
      } else if (header.length > 0) {
        std::memcpy(placement.memory.data(), payload->data(), placement.memory.size());
      }
      EXPECT_EQ(shard.core->PushArrived(header, bytes, std::move(lease)), RefusalReason::kNone);
    });
  }

  // Schedules a requested snapshot or a broken connection.
  void ScheduleTrouble() {
    const double when = 3.0 * static_cast<double>(Pick(0, 30));
    if (Chance(0.5)) {
      After(when, [this] {
        int64_t step = 0;
        for (const auto& worker : workers_) step = std::max(step, worker->step);
        step = std::min(step + Pick(0, 3), total_steps_);
        const uint64_t id = ++snapshots_;
        for (auto& shard : shards_) {
          Soon([&shard, id, step] { shard->core->TakeSnapshot(id, step); });
        }
      });
    } else {
      After(when, [this] {
        const auto rank = Rank(Pick(0, plan_.workers_size() - 1));
        Shard& shard = *shards_[ShardIndex(Pick(0, plan_.shards_size() - 1))];
        ++connections_[{shard.core->shard(), rank}];
        shard.core->RankLost(rank);
      });
    }
  }

  // ---- the end

  void CheckEnd() {
    for (const auto& worker : workers_) EXPECT_EQ(worker->step, total_steps_) << "stuck";
    for (const auto& shard : shards_) {
      EXPECT_EQ(shard->core->lowest_version(), total_steps_);
      EXPECT_TRUE(shard->core->idle());
      int local = 0;
      for (int chunk = 0; chunk < plan_.chunks_size(); ++chunk) {
        if (plan_.chunks(chunk).shard() != ToInt(shard->core->shard())) continue;
        const auto values = shard->core->values(LocalChunk(local++));
        ExpectExactly({values.begin(), values.end()}, total_steps_, chunk, "I1, I2: at the end");
      }
      ExpectEverySnapshot(*shard);
    }
    EXPECT_EQ(lender_.lent(), 0) << "not given back";
    if (!mode_.has_backup_workers) return;
    std::map<int64_t, int> ranks_in;
    for (const auto& [push, counted] : counted_) ranks_in[push.first] += counted;
    const int wanted = plan_.workers_size() - plan_.spec().sync().backup_workers();
    for (const auto& [step, ranks] : ranks_in) {
      // A rank without any gradient in a step leaves no trace.
      EXPECT_TRUE(ranks == wanted || (mode_.has_program && ranks < wanted)) << "step " << step;
    }
  }

  void ExpectEverySnapshot(const Shard& shard) {
    const int64_t every = plan_.spec().checkpoint().every_steps();
    for (int64_t step = 1; step <= total_steps_; ++step) {
      const bool due = step == total_steps_ || (every > 0 && step % every == 0);
      EXPECT_EQ(shard.taken.contains({step, 0}), due) << "I5: snapshot of step " << step;
    }
  }

  const Mode mode_;
  std::mt19937 random_;
  int64_t total_steps_ = 0;
  const v1::JobPlan plan_;
  MemoryBudget budget_{1 << 24};
  LendingTransport lender_;
  std::vector<std::shared_ptr<Values>> lent_;
  NumberedVector<ShardIndex, std::unique_ptr<Shard>> shards_;
  std::vector<std::unique_ptr<Worker>> workers_;
  EventQueue queue_;  // destroyed before the shards, with the messages under way
  // the number of the current connection
  std::map<std::pair<ShardIndex, Rank>, int64_t> connections_;
  uint64_t snapshots_ = 0;
  // Only with backup workers: whether the push of (step, rank) is part of the step.
  std::map<std::pair<int64_t, int>, bool> counted_;
};

class ConsistencySimulationTest : public testing::TestWithParam<Mode> {};

TEST_P(ConsistencySimulationTest, KeepsItsInvariantsOverRandomSchedules) {
  for (uint32_t seed = 1; seed <= kSchedules; ++seed) {
    Simulation(GetParam(), seed).Run();
    ASSERT_FALSE(HasFailure()) << GetParam().name << ", seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, ConsistencySimulationTest,
    testing::Values(
        Mode{.name = "Bsp"}, Mode{.name = "BspJudged", .judged = true},
        Mode{.name = "Backup", .has_backup_workers = true},
        Mode{.name = "BackupJudged", .has_backup_workers = true, .judged = true},
        Mode{.name = "Ssp0", .sync = v1::SSP, .staleness = 0},
        Mode{.name = "Ssp1", .sync = v1::SSP, .staleness = 1},
        Mode{.name = "Ssp3", .sync = v1::SSP, .staleness = 3}, Mode{.name = "Asp", .sync = v1::ASP},
        Mode{.name = "LocalSgd", .sync = v1::LOCAL_SGD},
        Mode{.name = "ProgramBsp", .has_program = true},
        Mode{.name = "ProgramBspJudged", .judged = true, .has_program = true},
        Mode{.name = "ProgramBackup", .has_backup_workers = true, .has_program = true},
        Mode{.name = "ProgramBackupJudged",
             .has_backup_workers = true,
             .judged = true,
             .has_program = true},
        Mode{.name = "ProgramSsp1", .sync = v1::SSP, .staleness = 1, .has_program = true},
        Mode{.name = "ProgramAsp", .sync = v1::ASP, .has_program = true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace muster::consistency_simulation_test
