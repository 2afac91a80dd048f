#include "services/coordinator/testing/store_conformance.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int kAll = 1 << 20;  // all events

}  // namespace

std::unique_ptr<Store> StoreConformance::Open() {
  auto store = bench_->Open();
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

Store::Submission StoreConformance::Submission(const std::string& request_id) {
  Store::Submission submission{.request_id = request_id, .fingerprint = "spec"};
  submission.record.mutable_spec()->set_name("net");
  submission.record.set_state(v1::QUEUED);
  submission.record.set_reason("SUBMITTED");
  submission.origin = {"/elsewhere/step-00000010", 10};
  return submission;
}

absl::Status StoreConformance::Advance(Store& store, v1::Job& record) {
  record.set_state(v1::RUNNING);
  record.set_revision(record.revision() + 1);
  record.set_generation(1);
  v1::JobEvent event;
  event.set_revision(record.revision());
  event.set_reason("STARTED");
  v1::JobPlan plan;
  plan.set_generation(1);
  plan.set_session_token("token");
  v1::Checkpoint checkpoint;
  checkpoint.set_step(20);
  return store.Commit({.record = &record,
                       .events = absl::MakeConstSpan(&event, 1),
                       .plan = &plan,
                       .checkpoint = &checkpoint});
}

absl::Status StoreConformance::ImportAll(Store& store,
                                         const std::vector<v1::BackupRecord>& records) {
  auto next = records.begin();
  return store.Import([&]() -> absl::StatusOr<std::optional<v1::BackupRecord>> {
    if (next == records.end()) return std::nullopt;
    return *next++;
  });
}

TEST_P(StoreConformance, EveryOpeningRaisesTheTerm) {
  EXPECT_EQ(Open()->term(), 1);
  EXPECT_EQ(Open()->term(), 2);
}

TEST_P(StoreConformance, KeepsJobsEventsPlansAndCheckpointsOverReopening) {
  v1::Job record;
  {
    auto store = Open();
    record = *store->AddJob(Submission());
    EXPECT_EQ(record.name(), "jobs/net-1");
    ASSERT_TRUE(Advance(*store, record).ok());
  }
  auto store = Open();

  const auto jobs = store->LoadJobs();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 1);
  const StoredJob& job = jobs->front();
  EXPECT_EQ(job.record.SerializeAsString(), record.SerializeAsString());
  EXPECT_EQ(job.origin.restore, "/elsewhere/step-00000010");
  EXPECT_EQ(job.origin.first_step, 10);
  ASSERT_NE(job.plan, nullptr);
  EXPECT_EQ(job.plan->session_token(), "token");
  const auto events = store->Events(1, 0, kAll);
  ASSERT_EQ(events->size(), 2);
  EXPECT_EQ((*events)[0].reason(), "SUBMITTED");
  EXPECT_EQ(store->Events(1, 1, kAll)->size(), 1);
  EXPECT_EQ(store->Checkpoints(1)->at(0).step(), 20);
}

TEST_P(StoreConformance, ForgetsADeletedJobButNeverReusesItsNumber) {
  auto store = Open();
  v1::Job record = *store->AddJob(Submission("request"));
  ASSERT_TRUE(Advance(*store, record).ok());

  ASSERT_TRUE(store->DeleteJob(1).ok());

  EXPECT_TRUE(store->LoadJobs()->empty());
  EXPECT_TRUE(store->Events(1, 0, kAll)->empty());
  EXPECT_TRUE(store->Checkpoints(1)->empty());
  EXPECT_FALSE(store->FindRequest("request")->has_value());
  EXPECT_EQ(store->AddJob(Submission())->number(), 2);
}

TEST_P(StoreConformance, RemovesTheRecordsOfPrunedCheckpoints) {
  auto store = Open();
  v1::Job record = *store->AddJob(Submission());
  ASSERT_TRUE(Advance(*store, record).ok());
  const int64_t removed = 20;

  ASSERT_TRUE(
      store->Commit({.record = &record, .checkpoints_removed = absl::MakeConstSpan(&removed, 1)})
          .ok());

  EXPECT_TRUE(store->Checkpoints(1)->empty());
}

TEST_P(StoreConformance, RemembersTheNewestProcessOfEachName) {
  auto store = Open();
  for (const Store::Seat& seat : {Store::Seat{"w-0", 7}, {"w-1", 8}, {"w-0", 9}}) {
    ASSERT_TRUE(store->Commit({.seat = &seat}).ok());
  }
  store.reset();

  const auto seats = Open()->Seats();

  ASSERT_TRUE(seats.ok()) << seats.status();
  ASSERT_EQ(seats->size(), 2);
  EXPECT_EQ(seats->at(0).member, "w-0");
  EXPECT_EQ(seats->at(0).ordinal, 9);
  EXPECT_EQ(seats->at(1).ordinal, 8);
}

TEST_P(StoreConformance, LoadsTheReadablePartOfADamagedJobAndAllOtherJobs) {
  {
    auto store = Open();
    for (int job = 0; job < 3; ++job) {
      v1::Job record = *store->AddJob(Submission());
      ASSERT_TRUE(Advance(*store, record).ok());
    }
  }
  bench_->SpoilRecord(1);
  bench_->SpoilPlan(2);

  const auto jobs = Open()->LoadJobs();

  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 3);
  EXPECT_EQ(jobs->at(0).record.number(), 1);
  EXPECT_EQ(ReasonOf(jobs->at(0).damage), "STORE_CORRUPT");
  EXPECT_EQ(jobs->at(1).record.name(), "jobs/net-2");
  EXPECT_EQ(ReasonOf(jobs->at(1).damage), "STORE_CORRUPT");
  EXPECT_EQ(jobs->at(1).plan, nullptr);
  EXPECT_TRUE(jobs->at(2).damage.ok());
  EXPECT_NE(jobs->at(2).plan, nullptr);
}

TEST_P(StoreConformance, ADamagedJobCanBeDeletedWithItsRequest) {
  {
    auto store = Open();
    for (const char* request : {"first", "second", "third"}) {
      ASSERT_TRUE(store->AddJob(Submission(request)).ok());
    }
  }
  bench_->SpoilRecord(1);
  bench_->SpoilOrigin(2);
  auto store = Open();
  EXPECT_EQ(ReasonOf(store->LoadJobs()->at(1).damage), "STORE_CORRUPT");

  for (const uint64_t job : {1, 2}) {
    const absl::Status deleted = store->DeleteJob(job);
    EXPECT_TRUE(deleted.ok()) << deleted;
  }

  ASSERT_EQ(store->LoadJobs()->size(), 1);
  EXPECT_EQ(store->LoadJobs()->front().record.number(), 3);
  EXPECT_FALSE(store->FindRequest("first")->has_value());
  EXPECT_FALSE(store->FindRequest("second")->has_value());
  EXPECT_TRUE(store->FindRequest("third")->has_value());
}

TEST_P(StoreConformance, KeepsTheNewestEventsOfAJobAndReturnsThemInPages) {
  auto store = Open();
  v1::Job record = *store->AddJob(Submission());
  std::vector<v1::JobEvent> events(limits::kJobEventsKeptMax + 6);
  for (v1::JobEvent& event : events) {
    record.set_revision(record.revision() + 1);
    event.set_revision(record.revision());
  }
  ASSERT_TRUE(store->Commit({.record = &record, .events = events}).ok());

  const auto all = store->Events(1, 0, kAll);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), limits::kJobEventsKeptMax);
  EXPECT_EQ(all->front().revision(), 8);
  EXPECT_EQ(all->back().revision(), record.revision());
  const auto page = store->Events(1, 10, 3);
  ASSERT_EQ(page->size(), 3);
  EXPECT_EQ(page->front().revision(), 11);
  EXPECT_EQ(page->back().revision(), 13);
}

TEST_P(StoreConformance, KeepsThePlanOfTheLastGenerationUntilTheJobHasEnded) {
  auto store = Open();
  v1::Job record = *store->AddJob(Submission());
  ASSERT_TRUE(Advance(*store, record).ok());
  record.set_generation(2);
  v1::JobPlan plan;
  plan.set_generation(2);
  ASSERT_TRUE(store->Commit({.record = &record, .plan = &plan}).ok());
  EXPECT_EQ(store->LoadJobs()->front().plan->generation(), 2);
  EXPECT_EQ(bench_->CountPlans(), 1) << "the previous plan is deleted";

  record.set_state(v1::SUCCEEDED);
  record.mutable_end_time()->set_seconds(1);
  ASSERT_TRUE(store->Commit({.record = &record}).ok());

  EXPECT_EQ(bench_->CountPlans(), 0);
  EXPECT_EQ(store->LoadJobs()->front().plan, nullptr);
}

TEST_P(StoreConformance, OnlyOneOpenerAtATime) {
  auto store = Open();

  const auto second = bench_->Open();

  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_EQ(ReasonOf(second.status()), "STORE_LOCKED");
  EXPECT_TRUE(store->AddJob(Submission()).ok()) << "the first opener is not affected";
  store.reset();
  EXPECT_EQ(Open()->LoadJobs()->size(), 1);
}

TEST_P(StoreConformance, KeepsTheClusterIdAndANewStoreHasAnother) {
  const std::string id = Open()->cluster();

  EXPECT_EQ(id.size(), 36) << id;
  EXPECT_EQ(id[14], '4') << "a random UUID: " << id;
  EXPECT_EQ(Open()->cluster(), id);
  const auto other = GetParam()();
  EXPECT_NE((*other->Open())->cluster(), id);
}

TEST_P(StoreConformance, JobNumbersRiseOverReopeningEvenWithoutJobs) {
  {
    auto store = Open();
    ASSERT_TRUE(store->AddJob(Submission()).ok());
    ASSERT_TRUE(store->DeleteJob(1).ok());
  }
  auto store = Open();

  EXPECT_EQ(store->AddJob(Submission())->name(), "jobs/net-2");
  EXPECT_EQ(store->AddJob(Submission())->name(), "jobs/net-3");
  const auto jobs = store->LoadJobs();
  ASSERT_EQ(jobs->size(), 2);
  EXPECT_EQ(jobs->at(0).record.number(), 2);
  EXPECT_EQ(jobs->at(1).record.number(), 3);
}

TEST_P(StoreConformance, NeverAssignsSkippedNumbers) {
  {
    auto store = Open();
    const auto passed = store->PassOverNumbers(7);
    ASSERT_TRUE(passed.ok()) << passed.status();
    EXPECT_TRUE(*passed);
    EXPECT_FALSE(*store->PassOverNumbers(7)) << "they are already";
  }
  {
    auto store = Open();
    EXPECT_FALSE(*store->PassOverNumbers(7)) << "over reopening as well";
    EXPECT_EQ(store->AddJob(Submission())->number(), 8);
    EXPECT_FALSE(*store->PassOverNumbers(5));
    EXPECT_EQ(store->AddJob(Submission())->number(), 9) << "a lower one changes nothing";
    EXPECT_TRUE(*store->PassOverNumbers(20));
    EXPECT_EQ(store->AddJob(Submission())->number(), 21);
  }
  EXPECT_EQ(Open()->AddJob(Submission())->number(), 22);
}

TEST_P(StoreConformance, AnswersARepeatedRequestWithItsJob) {
  {
    auto store = Open();
    ASSERT_TRUE(store->AddJob(Submission("first/request")).ok());
    ASSERT_TRUE(store->AddJob(Submission("")).ok());
  }
  auto store = Open();

  const auto found = store->FindRequest("first/request");
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(found->has_value());
  EXPECT_EQ((*found)->job, "net-1");
  EXPECT_EQ((*found)->fingerprint, "spec");
  for (const char* unknown : {"first", "first/request2", ""}) {
    EXPECT_FALSE(store->FindRequest(unknown)->has_value()) << unknown;
  }
}

TEST_P(StoreConformance, CreatesTheFirstEventFromTheRecord) {
  auto store = Open();
  Store::Submission submission = Submission();
  submission.record.set_message("waits for members");
  submission.record.mutable_create_time()->set_seconds(77);

  const auto record = store->AddJob(std::move(submission));

  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->number(), 1);
  EXPECT_EQ(record->revision(), 1);
  const auto events = store->Events(1, 0, kAll);
  ASSERT_EQ(events->size(), 1);
  EXPECT_EQ(events->front().revision(), 1);
  EXPECT_EQ(events->front().state(), v1::QUEUED);
  EXPECT_EQ(events->front().reason(), "SUBMITTED");
  EXPECT_EQ(events->front().message(), "waits for members");
  EXPECT_EQ(events->front().time().seconds(), 77);
}

TEST_P(StoreConformance, KeepsTheDataOfJobsApart) {
  auto store = Open();
  for (int job = 1; job <= 12; ++job) {  // the name "1" is a prefix of 10, 11 and 12
    v1::Job record = *store->AddJob(Submission(absl::StrCat("request-", job)));
    ASSERT_TRUE(Advance(*store, record).ok());
  }

  ASSERT_TRUE(store->DeleteJob(1).ok());

  EXPECT_EQ(store->LoadJobs()->size(), 11);
  for (int job = 2; job <= 12; ++job) {
    EXPECT_EQ(store->Events(job, 0, kAll)->size(), 2) << job;
    EXPECT_EQ(store->Checkpoints(job)->size(), 1) << job;
    EXPECT_TRUE(store->FindRequest(absl::StrCat("request-", job))->has_value()) << job;
  }
  EXPECT_TRUE(store->DeleteJob(1).ok()) << "a second deletion changes nothing";
}

TEST_P(StoreConformance, ListsCheckpointsByStepAndReplacesAStep) {
  auto store = Open();
  v1::Job record = *store->AddJob(Submission());
  for (const auto& [step, name] : {std::pair(1000, "a"), {9, "b"}, {20, "c"}, {9, "d"}}) {
    v1::Checkpoint checkpoint;
    checkpoint.set_step(step);
    checkpoint.set_name(name);
    ASSERT_TRUE(store->Commit({.record = &record, .checkpoint = &checkpoint}).ok());
  }

  const auto checkpoints = store->Checkpoints(1);

  ASSERT_EQ(checkpoints->size(), 3);
  EXPECT_EQ(checkpoints->at(0).name(), "d");
  EXPECT_EQ(checkpoints->at(1).name(), "c");
  EXPECT_EQ(checkpoints->at(2).name(), "a");
}

TEST_P(StoreConformance, StoresASeatTogetherWithAJob) {
  auto store = Open();
  v1::Job record = *store->AddJob(Submission());
  record.set_state(v1::PREPARING);
  const Store::Seat seat{"w-0", uint64_t{1} << 40};

  ASSERT_TRUE(store->Commit({.record = &record, .seat = &seat}).ok());

  EXPECT_EQ(store->LoadJobs()->front().record.state(), v1::PREPARING);
  const auto seats = store->Seats();
  ASSERT_EQ(seats->size(), 1);
  EXPECT_EQ(seats->front().ordinal, uint64_t{1} << 40);
}

TEST_P(StoreConformance, KeepsTokensWithTheHashesOfTheirSecrets) {
  {
    auto store = Open();
    for (const char* id : {"a", "ab", "b"}) {
      Store::Token token{.hash = std::string("\0hash", 5)};
      token.record.set_id(id);
      ASSERT_TRUE(store->PutToken(token).ok());
    }
    Store::Token again{.hash = "other"};
    again.record.set_id("b");
    again.record.set_holder("ann");
    ASSERT_TRUE(store->PutToken(again).ok());
    ASSERT_TRUE(store->DeleteToken("a").ok());
  }

  const auto tokens = Open()->Tokens();

  ASSERT_TRUE(tokens.ok()) << tokens.status();
  ASSERT_EQ(tokens->size(), 2);
  EXPECT_EQ(tokens->at(0).record.id(), "ab");
  EXPECT_EQ(tokens->at(0).hash, std::string("\0hash", 5));
  EXPECT_EQ(tokens->at(1).record.holder(), "ann");
  EXPECT_EQ(tokens->at(1).hash, "other");
}

TEST_P(StoreConformance, PrunesThousandsOfCheckpointsAtOnce) {
  auto store = Open();
  v1::Job record = *store->AddJob(Submission());
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= 5000; ++step) {
    v1::Checkpoint checkpoint;
    checkpoint.set_step(step);
    if (step <= 130) {
      ASSERT_TRUE(store->Commit({.record = &record, .checkpoint = &checkpoint}).ok());
    }
    if (step != 20) steps.push_back(step);
  }

  const absl::Status removed = store->Commit({.record = &record, .checkpoints_removed = steps});

  EXPECT_TRUE(removed.ok()) << removed;
  const auto left = store->Checkpoints(1);
  ASSERT_EQ(left->size(), 1);
  EXPECT_EQ(left->front().step(), 20);
}

// An imported model has a graph of this size, and a plan may have very many chunks.
TEST_P(StoreConformance, KeepsAGraphAndPlansOfSeveralMegabytes) {
  const std::string megabytes(3 << 20, 'x');
  {
    auto store = Open();
    Store::Submission submission = Submission();
    submission.origin.graph.add_nodes()->set_name(megabytes);
    v1::Job record = *store->AddJob(std::move(submission));
    for (int generation = 1; generation <= 2; ++generation) {
      record.set_generation(generation);
      v1::JobPlan plan;
      plan.set_generation(generation);
      plan.set_restore(absl::StrCat(megabytes, generation));
      ASSERT_TRUE(store->Commit({.record = &record, .plan = &plan}).ok());
    }
    v1::Job small = *store->AddJob(Submission());
    ASSERT_TRUE(Advance(*store, small).ok());
  }

  const auto jobs = Open()->LoadJobs();

  ASSERT_EQ(jobs->size(), 2);
  EXPECT_TRUE(jobs->at(0).damage.ok()) << jobs->at(0).damage;
  ASSERT_EQ(jobs->at(0).origin.graph.nodes_size(), 1);
  EXPECT_TRUE(jobs->at(0).origin.graph.nodes(0).name() == megabytes);
  ASSERT_NE(jobs->at(0).plan, nullptr);
  EXPECT_TRUE(jobs->at(0).plan->restore() == absl::StrCat(megabytes, 2));
  EXPECT_EQ(bench_->CountPlans(), 2);
}

TEST_P(StoreConformance, AnotherStoreImportsEverythingExported) {
  std::vector<v1::BackupRecord> records;
  std::string cluster;
  {
    auto store = Open();
    cluster = store->cluster();
    for (int job = 1; job <= 3; ++job) {
      Store::Submission submission = Submission(absl::StrCat("request-", job));
      submission.origin.graph.set_name(std::string(job == 3 ? 300 << 10 : 3, 'x'));
      v1::Job record = *store->AddJob(std::move(submission));
      ASSERT_TRUE(Advance(*store, record).ok());
    }
    ASSERT_TRUE(store->DeleteJob(2).ok());
    Store::Token token{.hash = "hash"};
    token.record.set_id("t");
    ASSERT_TRUE(store->PutToken(token).ok());
    bool changed = false;
    const absl::Status exported = store->Export([&](const v1::BackupRecord& record) {
      // A change after the begin of the export is not visible.
      if (!std::exchange(changed, true)) {
        EXPECT_TRUE(store->DeleteJob(3).ok());
      }
      records.push_back(record);
      return absl::OkStatus();
    });
    ASSERT_TRUE(exported.ok()) << exported;
    EXPECT_TRUE(absl::IsCancelled(
        store->Export([](const v1::BackupRecord&) { return absl::CancelledError("enough"); })));
    EXPECT_EQ(ReasonOf(store->Import([] { return std::nullopt; })), "STORE_NOT_EMPTY");
  }
  ASSERT_EQ(records.size(), 4);
  EXPECT_EQ(records[0].header().cluster(), cluster);
  EXPECT_EQ(records[0].header().term(), 1);
  EXPECT_EQ(records[0].header().jobs(), 3);
  const auto other = GetParam()();
  {
    auto store = *other->Open();
    const absl::Status imported = ImportAll(*store, records);
    ASSERT_TRUE(imported.ok()) << imported;
  }

  auto store = *other->Open();
  EXPECT_GT(store->term(), Store::kTermsPassedOver);
  EXPECT_NE(store->cluster(), cluster);
  const auto jobs = store->LoadJobs();
  ASSERT_EQ(jobs->size(), 2);
  for (const int at : {0, 1}) {
    const StoredJob& job = jobs->at(at);
    const int number = at == 0 ? 1 : 3;
    EXPECT_TRUE(job.damage.ok()) << job.damage;
    EXPECT_EQ(job.record.number(), number);
    EXPECT_EQ(job.record.state(), v1::RUNNING);
    EXPECT_EQ(job.origin.restore, "/elsewhere/step-00000010");
    EXPECT_EQ(job.origin.first_step, 10);
    EXPECT_EQ(job.origin.graph.name().size(), at == 0 ? 3 : 300 << 10);
    ASSERT_NE(job.plan, nullptr);
    EXPECT_EQ(job.plan->session_token(), "token");
    EXPECT_EQ(store->Events(number, 0, kAll)->size(), 2);
    EXPECT_EQ(store->Checkpoints(number)->at(0).step(), 20);
    const auto request = *store->FindRequest(absl::StrCat("request-", number));
    ASSERT_TRUE(request.has_value());
    EXPECT_EQ(request->fingerprint, "spec");
    EXPECT_EQ(request->job, absl::StrCat("net-", number));
  }
  ASSERT_EQ(store->Tokens()->size(), 1);
  EXPECT_EQ(store->Tokens()->front().hash, "hash");
  EXPECT_EQ(store->AddJob(Submission())->number(), 4);
}

TEST_P(StoreConformance, ADamagedJobDoesNotPreventABackupOfTheOthers) {
  {
    auto store = Open();
    for (int job = 1; job <= 5; ++job) {
      v1::Job record = *store->AddJob(Submission(absl::StrCat("request-", job)));
      ASSERT_TRUE(Advance(*store, record).ok());
    }
    for (const char* id : {"a", "b"}) {
      Store::Token token{.hash = "hash"};
      token.record.set_id(id);
      ASSERT_TRUE(store->PutToken(token).ok());
    }
  }
  bench_->SpoilRecord(1);
  bench_->SpoilPlan(2);
  bench_->SpoilOrigin(3);
  bench_->SpoilFirstEvent(4);
  bench_->SpoilCheckpoint(4, 20);
  bench_->SpoilToken("a");
  std::vector<v1::BackupRecord> records;

  const absl::Status exported = Open()->Export([&](const v1::BackupRecord& record) {
    records.push_back(record);
    return absl::OkStatus();
  });

  ASSERT_TRUE(exported.ok()) << exported;
  const auto other = GetParam()();
  const absl::Status imported = ImportAll(**other->Open(), records);
  ASSERT_TRUE(imported.ok()) << imported;
  auto store = *other->Open();
  const auto jobs = store->LoadJobs();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 5);
  for (const int at : {0, 1, 2}) {
    EXPECT_EQ(jobs->at(at).record.number(), at + 1);
    EXPECT_EQ(ReasonOf(jobs->at(at).damage), "STORE_CORRUPT") << at;
  }
  for (const int at : {3, 4}) {
    EXPECT_TRUE(jobs->at(at).damage.ok()) << jobs->at(at).damage;
    EXPECT_NE(jobs->at(at).plan, nullptr);
    EXPECT_TRUE(store->FindRequest(absl::StrCat("request-", at + 1))->has_value());
    const size_t whole = at == 3 ? 0 : 1;
    EXPECT_EQ(store->Events(at + 1, 0, kAll)->size(), 1 + whole);
    EXPECT_EQ(store->Checkpoints(at + 1)->size(), whole);
  }
  ASSERT_EQ(store->Tokens()->size(), 1);
  EXPECT_EQ(store->Tokens()->front().record.id(), "b");
}

// More checkpoints than etcd accepts in one request.
TEST_P(StoreConformance, ImportsAJobWithThousandsOfCheckpoints) {
  constexpr int kCheckpoints = 3000;
  std::vector<v1::BackupRecord> records(2);
  records[0].mutable_header()->set_jobs(1);
  v1::BackupJob& job = *records[1].mutable_job();
  job.set_number(1);
  v1::Job record;
  record.set_name("jobs/net-1");
  job.set_record(record.SerializeAsString());
  for (int step = 1; step <= kCheckpoints; ++step) {
    v1::Checkpoint checkpoint;
    checkpoint.set_step(step);
    checkpoint.set_name(std::string(1100, 'x'));
    job.add_checkpoints(checkpoint.SerializeAsString());
  }

  const absl::Status imported = ImportAll(*Open(), records);

  ASSERT_TRUE(imported.ok()) << imported;
  const auto store = Open();
  EXPECT_EQ(store->LoadJobs()->size(), 1);
  EXPECT_EQ(store->Checkpoints(1)->size(), kCheckpoints);
}

}  // namespace muster
