// Cuts the power after every single write during a job's life. Unsynced data are lost completely or
// in part. Everything that the coordinator said before must still hold. A second test makes any one
// of its disk calls fail.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/sound_checkpoints.h"
#include "lib/transport/core/crc32c.h"
#include "services/coordinator/checkpoints/initial_values.h"
#include "services/coordinator/coordinator.h"
#include "services/coordinator/testing/fake_member.h"
#include "services/coordinator/testing/made_up_jobs.h"
#include "services/coordinator/testing/recorded_disk.h"

namespace muster::power_cut_test {
namespace {

namespace fs = std::filesystem;
using Change = CachedTree::Change;
using Loss = CachedTree::Loss;

constexpr int kSteps = 50;
constexpr char kJob[] = "cut-1";

v1::JobSpec Spec() {
  return LinearSpec(R"pb(
    name: "cut"
    data { linear { slope: 2 intercept: 1 } }
    training {
      steps: 50
      optimizer { sgd { momentum: 0.9 } }
    }
    resources {
      workers { min: 1 max: 1 }
      ps: 2
    }
    checkpoint { every_steps: 10 keep_last: 2 }
  )pb");
}

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const text = getenv(name);
  int64_t value = otherwise;
  if (text != nullptr) CHECK(absl::SimpleAtoi(text, &value)) << name << ": " << text;
  return value;
}

// The content of a checkpoint, in every element of values (slot 0) and momentum.
float ValueOf(int64_t step, int slot) { return static_cast<float>(step) + 0.5f * slot; }

// The knowledge of processes outside of the coordinator.
struct Heard {
  uint64_t revision = 0;     // of the job; 0: unknown
  int64_t steps_before = 0;  // acknowledged, so the worker has dropped them
  int64_t checkpoint = 0;    // the step that the ps know to be committed

  void Add(const Heard& other) {
    revision = std::max(revision, other.revision);
    steps_before = std::max(steps_before, other.steps_before);
    checkpoint = std::max(checkpoint, other.checkpoint);
  }
};

// A coordinator on a recorded disk, its members, and a job from its begin to its end.
class RecordedJob {
 public:
  explicit RecordedJob(const std::string& root) : disk_(root), state_dir_(root + "/state") {
    for (const char* name : {"w-0", "p-0", "p-1"}) {
      members_[name].fake.hello = HelloOf(name);
    }
  }
  ~RecordedJob() { Stop(); }

  RecordedDisk& disk() { return disk_; }
  // Writes all knowledge to `told` as well, for a process that is about to die.
  void set_told(Heard* told) { told_ = told; }

  void Run() {
    Start();
    v1::CreateJobRequest request;
    *request.mutable_spec() = Spec();
    ASSERT_TRUE(coordinator_->users().CreateJob(request).ok());
    for (int i = 0; i < 3; ++i) Exchange();
    ASSERT_EQ(Get().state(), v1::RUNNING) << Get().message();
    for (int step = 0; step < kSteps; ++step) {
      members_.at("w-0").fake.Step(kJob);
      if (step + 1 == kSteps) members_.at("w-0").fake.jobs.at(kJob).set_state(v1::MEMBER_DONE);
      if (step == kSteps / 2) {  // including unreported steps
        Stop();
        Start();
      }
      Exchange();
      if ((step + 1) % 10 == 0) WriteShards(step + 1);
    }
    Exchange();
    ASSERT_EQ(Get().state(), v1::SUCCEEDED) << Get().message();
    v1::WatchJobRequest watch;
    watch.set_name(kJob);
    const auto events = coordinator_->users().WatchJob(
        watch, std::make_shared<StreamWaker>(std::function<void()>()));
    const auto answer = coordinator_->users().NextOf(**events);
    for (const v1::JobEvent& event : (*answer)->response.events()) {
      states_[event.revision()] = event.state();
    }
    Stop();
  }

  // Runs the same job on a failing disk, with retries as users and members make them. Returns true
  // if the job came to its end. All errors are on standard error. Does not return if the
  // coordinator dies.
  bool Persist(int steps) {
    if (!TryToStart()) return false;
    v1::CreateJobRequest request;
    *request.mutable_spec() = Spec();
    request.mutable_spec()->mutable_training()->set_steps(steps);
    absl::Status created;
    for (int attempt = 0; attempt < 3; ++attempt) {
      created = coordinator_->users().CreateJob(request).status();
      if (created.ok()) break;
      std::cerr << created << "\n";
    }
    if (!created.ok()) return false;
    for (int i = 0; i < 3; ++i) Exchange();
    FakeMember& worker = members_.at("w-0").fake;
    for (int step = 0; step < steps; ++step) {
      if (!worker.jobs.contains(kJob)) break;
      worker.Step(kJob);
      if (step + 1 == steps) worker.jobs.at(kJob).set_state(v1::MEMBER_DONE);
      if (step == steps / 2) {
        Stop();
        if (!TryToStart()) return false;
      }
      Exchange();
      if ((step + 1) % 10 == 0) TryToWriteShards(step + 1);
    }
    // Members send steps and shards again that were not accepted.
    for (int attempt = 0; attempt < 2 && !Ended(); ++attempt) {
      Stop();
      if (!TryToStart()) return false;
      Exchange();
      if (!Ended()) TryToWriteShards(steps);
      Exchange();
    }
    const bool ended = Ended();
    Stop();
    return ended;
  }

  std::vector<Change> TakeChanges() { return disk_.Take(); }
  // Returns what other processes learned, by the number of disk changes before it.
  const std::multimap<int64_t, Heard>& heard() const { return heard_; }
  const std::map<uint64_t, v1::JobState>& states() const { return states_; }

 private:
  struct Member {
    FakeMember fake;
    std::mutex mu;
    std::deque<v1::Directive> directives;

    // Returns the waiting directives. Blocks later ones.
    std::deque<v1::Directive> Take() {
      const std::lock_guard<std::mutex> lock(mu);
      return std::exchange(directives, {});
    }
  };

  // Opens the coordinator. Tries again after an error, like a process supervisor.
  bool TryToStart() {
    for (int attempt = 0; attempt < 3; ++attempt) {
      metrics_ = std::make_unique<Metrics>();
      auto opened = Coordinator::Open(
          {.state_dir = state_dir_, .metrics = metrics_.get(), .clock = [this] { return now_; }});
      if (!opened.ok()) {
        std::cerr << opened.status() << "\n";
        continue;
      }
      coordinator_ = *std::move(opened);
      for (auto& [name, member] : members_) Attach(member);
      return true;
    }
    return false;
  }
  bool Ended() {
    const auto job = coordinator_->users().GetJob(kJob);
    if (job.ok() && job->state() == v1::SUCCEEDED) return true;
    std::cerr << (job.ok() ? job->message() : job.status().ToString()) << "\n";
    return false;
  }
  void TryToWriteShards(int64_t step) {
    const auto planned = members_.at("p-0").fake.plans.find(kJob);
    if (planned == members_.at("p-0").fake.plans.end()) return;
    const v1::JobPlan& plan = planned->second;
    bool taken = true;
    for (int shard = 0; shard < plan.shards_size(); ++shard) {
      v1::WriteShardHeader header;
      header.set_job(kJob);
      header.set_generation(plan.generation());
      header.set_step(step);
      header.set_shard(shard);
      auto upload = coordinator_->checkpoints().BeginShard(header);
      absl::Status status = upload.status();
      if (upload.ok() && upload->has_value()) {
        status =
            coordinator_->checkpoints().EndShard(**upload, SendShard(plan, shard, step, **upload));
      }
      if (!status.ok()) std::cerr << status << "\n";
      taken = taken && status.ok();
    }
    if (taken) Hear({.checkpoint = step});
  }

  void Start() {
    metrics_ = std::make_unique<Metrics>();
    auto opened = Coordinator::Open(
        {.state_dir = state_dir_, .metrics = metrics_.get(), .clock = [this] { return now_; }});
    ASSERT_TRUE(opened.ok()) << opened.status();
    coordinator_ = *std::move(opened);
    for (auto& [name, member] : members_) Attach(member);
  }
  void Stop() {
    for (auto& [name, member] : members_) {
      if (member.fake.attachment != nullptr) member.fake.attachment->waker()->Disarm();
      member.fake.attachment.reset();
    }
    coordinator_.reset();
  }
  void Attach(Member& member) {
    v1::MemberReport report = member.fake.Report();
    *report.mutable_hello() = member.fake.hello;
    auto attached = coordinator_->members().Attach(
        report, std::make_shared<StreamWaker>([this, &member] { Receive(member); }));
    ASSERT_TRUE(attached.ok()) << attached.status();
    {
      const std::lock_guard<std::mutex> lock(member.mu);
      member.fake.attachment = *std::move(attached);
    }
    Receive(member);
  }
  // The coordinator's waker calls this on any thread. An acknowledgement is recorded at once, with
  // the disk count of that moment: from then on the worker may drop its step records.
  void Receive(Member& member) {
    const std::lock_guard<std::mutex> lock(member.mu);
    if (member.fake.attachment == nullptr) return;
    for (const MemberDirective& told : member.fake.attachment->TakeDirectives()) {
      v1::Directive directive = Whole(told);
      if (directive.has_acknowledge()) {
        Hear({.steps_before = directive.acknowledge().steps_before()});
      }
      member.directives.push_back(std::move(directive));
    }
  }
  void Hear(const Heard& heard) {
    const std::lock_guard<std::mutex> lock(heard_mu_);
    heard_.emplace(disk_.count(), heard);
    if (told_ != nullptr) told_->Add(heard);
  }

  void Exchange() {
    for (int round = 0; round < 2; ++round) {
      for (auto& [name, member] : members_) {
        for (const v1::Directive& directive : member.Take()) member.fake.Obey(directive);
        ASSERT_TRUE(
            coordinator_->members().Report(*member.fake.attachment, member.fake.Report()).ok());
      }
      now_ += LeaseTable::kCheckInterval;
      coordinator_->Tick();
      coordinator_->Settle();
    }
    for (auto& [name, member] : members_) {
      for (const v1::Directive& directive : member.Take()) member.fake.Obey(directive);
    }
    if (const auto job = coordinator_->users().GetJob(kJob); job.ok())
      Hear({.revision = job->revision()});
  }
  v1::Job Get() { return *coordinator_->users().GetJob(kJob); }

  void WriteShards(int64_t step) {
    const v1::JobPlan& plan = members_.at("p-0").fake.plans.at(kJob);
    for (int shard = 0; shard < plan.shards_size(); ++shard) {
      v1::WriteShardHeader header;
      header.set_job(kJob);
      header.set_generation(plan.generation());
      header.set_step(step);
      header.set_shard(shard);
      auto upload = coordinator_->checkpoints().BeginShard(header);
      ASSERT_TRUE(upload.ok()) << upload.status();
      ASSERT_TRUE(upload->has_value());
      const absl::Status sent = SendShard(plan, shard, step, **upload);
      const absl::Status ended = coordinator_->checkpoints().EndShard(**upload, sent);
      ASSERT_TRUE(ended.ok()) << ended;
    }
    Hear({.checkpoint = step});
  }
  static absl::Status SendShard(const v1::JobPlan& plan, int shard, int64_t step,
                                ShardUpload& upload) {
    for (int chunk = 0; chunk < plan.chunks_size(); ++chunk) {
      if (plan.chunks(chunk).shard() != shard) continue;
      for (int slot = 0; slot < 2; ++slot) {
        const std::vector<float> values(plan.chunks(chunk).elements(), ValueOf(step, slot));
        const auto bytes = std::as_bytes(std::span(values));
        v1::ShardSlice slice;
        slice.set_chunk(chunk);
        slice.set_slot(slot);
        slice.set_data(bytes.data(), bytes.size());
        slice.set_crc32c(Crc32c(bytes));
        if (absl::Status written = upload.Write(slice); !written.ok()) return written;
      }
    }
    return absl::OkStatus();
  }

  RecordedDisk disk_;
  const std::string state_dir_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::mutex heard_mu_;
  std::multimap<int64_t, Heard> heard_;
  Heard* told_ = nullptr;
  std::map<uint64_t, v1::JobState> states_;
  std::map<std::string, Member> members_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Coordinator> coordinator_;
};

int64_t StepsRecorded(const std::string& path) {
  std::ifstream file(path);
  int64_t steps = 0;
  for (std::string line; std::getline(file, line); ++steps) {
    EXPECT_TRUE(absl::StartsWith(line, absl::StrCat("{\"step\":", steps, ","))) << line;
    EXPECT_TRUE(absl::EndsWith(line, "}")) << line;
  }
  return steps;
}

// Checks that a checkpoint is intact and has the values of its step.
void CheckCheckpoint(const std::string& path, int64_t step) {
  const absl::Status sound = VerifyCheckpoint(path);
  ASSERT_TRUE(sound.ok()) << sound;
  const auto reader = CheckpointReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (int slot = 0; slot < 2; ++slot) {
    float value = -1;
    const char* const name = slot == 0 ? "" : "momentum";
    EXPECT_TRUE((*reader)->Read("weight", name, 0, absl::MakeSpan(&value, 1)).ok());
    EXPECT_EQ(value, step == 0 ? 0 : ValueOf(step, slot));
  }
}

class PowerCutTest : public ::testing::Test {
 protected:
  PowerCutTest() {
    FLAGS_minloglevel = google::GLOG_FATAL;  // every start logs something
    root_ = Folder() + "/muster-disk-XXXXXX";
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    root_ = fs::canonical(root_).native();
  }
  ~PowerCutTest() override {
    std::error_code error;
    fs::remove_all(root_, error);
    fs::remove(root_ + ".said", error);
  }

  // The disk is simulated, so its folder is in memory. POWER_FOLDER names another folder, because
  // some bugs only appear on a file system that lists files in another order.
  static std::string Folder() {
    if (const char* const folder = getenv("POWER_FOLDER")) return folder;
    return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ::testing::TempDir();
  }

  // Starts a coordinator on the disk as it was left, and checks that it contradicts nothing in
  // `heard`. `states`: the job's states by revision; empty if unknown. `steps_of_job`: the number
  // of steps that the job trains.
  void Check(const Heard& heard, const std::map<uint64_t, v1::JobState>& states,
             int64_t steps_of_job = kSteps) {
    Metrics metrics;
    auto opened = Coordinator::Open({.state_dir = root_ + "/state", .metrics = &metrics});
    ASSERT_TRUE(opened.ok()) << opened.status();
    Coordinator& coordinator = **opened;
    const auto job = coordinator.users().GetJob(kJob);
    if (!job.ok()) {
      EXPECT_EQ(heard.revision, 0) << job.status();
      return;
    }
    std::set<v1::JobState> possible;
    for (const auto& [revision, state] : states) {
      if (revision >= heard.revision) possible.insert(state);
    }
    if (!states.empty()) {
      EXPECT_THAT(possible, ::testing::Contains(job->state())) << job->DebugString();
    }
    EXPECT_GE(job->revision(), heard.revision) << job->DebugString();

    const int64_t steps = StepsRecorded(root_ + "/state/jobs/" + kJob + "/metrics.jsonl");
    EXPECT_GE(steps, heard.steps_before);
    if (job->state() == v1::SUCCEEDED) {
      EXPECT_EQ(steps, steps_of_job);
    }

    const auto checkpoints = coordinator.checkpoints().List(kJob);
    ASSERT_TRUE(checkpoints.ok()) << checkpoints.status();
    std::vector<int64_t> listed;
    std::set<std::string> names;
    for (const v1::Checkpoint& checkpoint : *checkpoints) {
      listed.push_back(checkpoint.step());
      names.insert(checkpoint.name());
      CheckCheckpoint(checkpoint.directory(), checkpoint.step());
    }
    EXPECT_EQ(listed, *ListCheckpointSteps(root_ + "/state/jobs/" + kJob + "/checkpoints"));
    EXPECT_GE(listed.empty() ? 0 : listed.back(), heard.checkpoint);
    if (!job->checkpoint().empty()) {
      EXPECT_THAT(names, ::testing::Contains(job->checkpoint()));
    }
  }

  void Cut(const CachedTree& tree, Loss loss) {
    fs::remove_all(root_);
    tree.Leave(loss, root_);
    ++cuts_;
  }
  void CutAtRandom(const CachedTree& tree, std::mt19937& random) {
    fs::remove_all(root_);
    tree.LeaveAtRandom(random, root_);
    ++cuts_;
  }

  std::string root_;
  int cuts_ = 0;
};

std::map<std::string, std::string> FilesBelow(const std::string& root) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (absl::EndsWith(entry.path().native(), "-shm"))
      continue;  // mapped memory, recreated at every start
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().native()] =
        entry.is_directory() ? "folder" : std::string(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

TEST_F(PowerCutTest, ACutAtAnyWriteRevokesNothing) {
  RecordedJob job(root_);
  ASSERT_NO_FATAL_FAILURE(job.Run());
  const std::vector<Change> changes = job.TakeChanges();
  const auto files = FilesBelow(root_);
  CachedTree whole;
  for (const Change& change : changes) whole.Apply(change);
  Cut(whole, Loss::kNothing);
  ASSERT_TRUE(FilesBelow(root_) == files) << "the recording has not seen every change";

  CachedTree tree;
  Heard heard;
  for (int64_t i = 0; i < std::ssize(changes) && !HasFailure(); ++i) {
    const Change& change = changes[i];
    SCOPED_TRACE(absl::StrCat("cut ", i + 1, " of ", changes.size(), ", after a change of kind ",
                              static_cast<int>(change.kind), " '", change.name, "'"));
    if (change.kind == Change::Kind::kWrite) {
      Change torn = change;
      torn.data.resize(torn.data.size() / 2);
      tree.Apply(torn);
      Cut(tree, Loss::kNothing);
      Check(heard, job.states());
    }
    tree.Apply(change);
    const auto [first, last] = job.heard().equal_range(i + 1);
    for (auto it = first; it != last; ++it) heard.Add(it->second);
    if (change.kind == Change::Kind::kSync || first != last) {
      SCOPED_TRACE("what was not synced is lost");
      Cut(tree, Loss::kWhatWasNotSynced);
      Check(heard, job.states());
    }
    if (change.kind != Change::Kind::kWrite) {
      SCOPED_TRACE("names are kept, content that was not synced is lost");
      Cut(tree, Loss::kContentThatWasNotSynced);
      Check(heard, job.states());
    }
  }

  EXPECT_EQ(heard.steps_before, kSteps);
  EXPECT_EQ(heard.checkpoint, kSteps);
  RecordProperty("cuts", cuts_);
  EXPECT_GT(cuts_, 500);
}

// Cuts the power when the device has begun to write unsynced data: POWER_CUTS times over the job's
// life, about 5 ms each. POWER_SEED selects other cuts.
TEST_F(PowerCutTest, ACutWithPartlyWrittenDataRevokesNothing) {
  const int64_t cuts = FromEnvironment("POWER_CUTS", 500);
  const int64_t seed = FromEnvironment("POWER_SEED", 15);
  RecordedJob job(root_);
  ASSERT_NO_FATAL_FAILURE(job.Run());
  const std::vector<Change> changes = job.TakeChanges();
  ASSERT_FALSE(changes.empty());

  CachedTree tree;
  Heard heard;
  std::mt19937 random(static_cast<uint32_t>(seed));
  for (int64_t i = 0; i < std::ssize(changes) && !HasFailure(); ++i) {
    const Change& change = changes[i];
    tree.Apply(change);
    const auto [first, last] = job.heard().equal_range(i + 1);
    for (auto it = first; it != last; ++it) heard.Add(it->second);
    while (cuts_ < cuts * (i + 1) / std::ssize(changes) && !HasFailure()) {
      SCOPED_TRACE(absl::StrCat("POWER_SEED=", seed, " POWER_CUTS=", cuts, ": number ", cuts_ + 1,
                                ", after change ", i + 1, " of ", changes.size(), ", of kind ",
                                static_cast<int>(change.kind), " '", change.name, "'"));
      CutAtRandom(tree, random);
      Check(heard, job.states());
    }
  }
  std::cerr << cuts_ << " cuts in " << changes.size() << " changes\n";
  EXPECT_EQ(cuts_, cuts);
  EXPECT_EQ(heard.steps_before, kSteps);
  EXPECT_EQ(heard.checkpoint, kSteps);
}

// ---------------------------------------------------------------- calls that fail

// The results of a child process that may die.
struct Told {
  Heard heard;
  int64_t calls = 0;  // disk calls of a run that came to its end
  bool faulted = false;
  bool succeeded = false;
  char operation[32] = "";
  char path[512] = "";
};

class FailingDiskTest : public PowerCutTest {
 protected:
  static constexpr int kShort = 20;

  FailingDiskTest() {
    void* const memory =
        mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    told_ = new (memory) Told;
  }
  ~FailingDiskTest() override { munmap(told_, sizeof(Told)); }

  // Runs a coordinator and its job in a process of their own, which the fault may kill. Returns the
  // status of waitpid(). Its standard error is in `said_`.
  int Run(int64_t first, int64_t count) {
    *told_ = {};
    fs::remove_all(root_);
    fs::create_directory(root_);
    const std::string said = root_ + ".said";
    const pid_t child = fork();
    if (child == 0) {
      const int file = open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
      dup2(file, STDERR_FILENO);
      dup2(file, STDOUT_FILENO);
      FLAGS_minloglevel = google::GLOG_WARNING;
      RunAsChild(first, count);
      fflush(stdout);
      _exit(HasFailure() ? 1 : 0);
    }
    int end = -1;
    EXPECT_EQ(waitpid(child, &end, 0), child);
    std::ifstream file(said);
    said_.assign(std::istreambuf_iterator<char>(file), {});
    return end;
  }

  void RunAsChild(int64_t first, int64_t count) {
    RecordedJob job(root_);
    job.set_told(&told_->heard);
    job.disk().Break({.first = first,
                      .count = count,
                      .told = [this](const char* operation, const std::string& path) {
                        if (std::exchange(told_->faulted, true)) return;
                        strncpy(told_->operation, operation, sizeof(told_->operation) - 1);
                        strncpy(told_->path, path.c_str(), sizeof(told_->path) - 1);
                      }});
    told_->succeeded = job.Persist(kShort);
    told_->calls = job.disk().Mend();
  }

  // The error messages must name the file, the operation and the cause.
  void CheckSaid(bool once) const {
    if (!told_->faulted) return;  // the run had fewer calls
    const std::string path = told_->path, store = root_ + "/state/coordinator.db";
    const bool is_store = absl::StartsWith(path, store);
    // SQLite does not report a failure of work that it can repeat later, such as copying its log
    // into the database at the close. Neither does the removal of temporary files.
    if (told_->succeeded && (is_store || path == root_ + "/state") && said_.empty()) {
      EXPECT_TRUE(once || is_store);
      return;
    }
    if (absl::StrContains(path, ".tmp-") && absl::StrContains(told_->operation, "unlink")) return;
    EXPECT_THAT(said_, ::testing::HasSubstr(root_));
    // SQLite then opens some files in another way, and loses the cause of the first failure.
    if (absl::StrContains(said_, "store: unable to open database file")) return;
    EXPECT_THAT(said_, ::testing::ContainsRegex("[Ii]nput/output error"));
    if (!once) return;  // the first failure may be one of those above, and a later one is reported
    EXPECT_THAT(said_, ::testing::HasSubstr(is_store ? store : path));
    static const auto* const kWords = new std::map<std::string, std::string>{
        {"open", "open|create"}, {"write", "write"},       {"pwrite", "write"},
        {"ftruncate", "resize"}, {"fallocate", "reserve"}, {"mkdir", "make folder"},
        {"rename", "rename"},    {"unlink", "remove"},     {"fsync", "sync"}};
    EXPECT_THAT(said_, ::testing::ContainsRegex(kWords->at(told_->operation)));
  }

  Told* told_;
  std::string said_;
};

// In each run a disk call fails, alone, with one or a few calls after it, or with all that follow.
// DISK_FAULTS runs, about 40 ms each.
TEST_F(FailingDiskTest, AFailureOfAnyDiskCallRevokesNothing) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  ASSERT_EQ(Run(kAll, 1), 0) << said_;
  ASSERT_TRUE(told_->succeeded) << said_;
  ASSERT_EQ(told_->heard.checkpoint, kShort);
  ASSERT_EQ(told_->heard.steps_before, kShort);
  const int64_t calls = told_->calls;  // varies a little between runs because of threads
  ASSERT_GT(calls, 200);
  const int64_t faults = FromEnvironment("DISK_FAULTS", 160);
  const int64_t seed = FromEnvironment("POWER_SEED", 14);

  int64_t deaths = 0, ends = 0;
  std::mt19937 random(static_cast<uint32_t>(seed));
  for (int64_t i = 0; i < faults && !HasFailure(); ++i) {
    const int64_t first = 1 + i * 97 % calls;
    const int64_t count = i >= 3 * calls ? 1 + random() % 30 : i % 3 == 2 ? kAll : 1 + i % 3;
    const int end = Run(first, count);
    SCOPED_TRACE(absl::StrCat("POWER_SEED=", seed, " DISK_FAULTS=", faults, ": call ", first,
                              " and ", count - 1, " after it: ", told_->operation, " ", told_->path,
                              "; the process said:\n", said_));
    if (WIFSIGNALED(end)) {
      ++deaths;
      EXPECT_EQ(WTERMSIG(end), SIGABRT);
      EXPECT_THAT(said_, ::testing::HasSubstr("cannot be stored: "));
    } else {
      EXPECT_EQ(end, 0);
      ends += told_->succeeded;
    }
    CheckSaid(count == 1);
    Check(told_->heard, {}, kShort);
  }

  RecordProperty("calls", static_cast<int>(calls));
  RecordProperty("deaths", static_cast<int>(deaths));
  std::cerr << faults << " faults of " << calls << " calls: the coordinator died of " << deaths
            << ", the job came to its end in " << ends << "\n";
  EXPECT_GT(deaths, 0);
  EXPECT_GT(ends, 0);
}

TEST_F(PowerCutTest, TheValuesOfASubmittedModelSurviveACut) {
  Model model;
  v1::Parameter& parameter = *model.graph.add_parameters();
  parameter.set_name("weight");
  parameter.add_shape(1);
  model.initial_values = {{0}};
  v1::JobSpec spec = Spec();
  spec.set_chunk_bytes(1024);
  RecordedDisk disk(root_);

  const auto path = WriteInitialValues(root_ + "/models", spec, model);
  CachedTree tree;
  for (const Change& change : disk.Take()) tree.Apply(change);
  Cut(tree, Loss::kWhatWasNotSynced);

  ASSERT_TRUE(path.ok()) << path.status();
  CheckCheckpoint(*path, /*step=*/0);
}

}  // namespace
}  // namespace muster::power_cut_test
