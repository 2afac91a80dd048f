#include "services/coordinator/operations/user_operations.h"

#include <gmock/gmock.h>
#include <sqlite3.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/types/span.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/graph/onnx/onnx_model_builder.h"
#include "lib/job/path_rules.h"
#include "lib/limits/limits.h"
#include "lib/plan/chunk_check.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "proto/third_party/onnx/onnx.pb.h"
#include "services/coordinator/scheduling/job_plan.h"
#include "services/coordinator/testing/made_up_jobs.h"
#include "services/coordinator/testing/registry_fixture.h"

namespace muster::user_operations_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class UserOperationsTest : public RegistryFixture {
 protected:
  static v1::CreateJobRequest Request() {
    v1::CreateJobRequest request;
    *request.mutable_spec() = LinearSpec("resources { workers { min: 1 } ps: 1 }");
    return request;
  }

  // Adds a cancelled job that starts from the values in a folder of models/.
  void AddWithValues(const std::string& folder, const std::string& resume_from) {
    const std::string path = registry_->folder().models() + "/" + folder + "/step-00000000";
    std::filesystem::create_directories(path);
    v1::Job record;
    *record.mutable_spec() = Request().spec();
    record.mutable_spec()->mutable_checkpoint()->set_resume_from(resume_from);
    record.set_state(v1::CANCELLED);
    const auto stored = store_->AddJob({.record = record, .origin = {.restore = path}});
    ASSERT_TRUE(stored.ok()) << stored.status();
    JobRegistry::Transaction transaction(registry_.get());
    transaction.Add(*stored, {.restore = path}, /*graph=*/nullptr, /*plan=*/nullptr);
  }
  bool HasValues(const std::string& folder) const {
    return std::filesystem::exists(registry_->folder().models() + "/" + folder);
  }

  Checkpointer checkpoints_{registry_.get(), &series_, &coordinator_metrics_};
  UserOperations users_{
      {.registry = registry_.get(), .checkpoints = &checkpoints_, .watches = &watches_}};
};

// The result depends on the number of logical workers.
TEST_F(UserOperationsTest, AJobIsNotResumedWithAnotherNumberOfLogicalWorkers) {
  v1::JobSpec policy;
  policy.mutable_resources()->mutable_workers()->set_max(4);
  policy.mutable_resources()->mutable_workers()->set_logical(8);
  *policy.mutable_data() = Request().spec().data();
  const v1::Job job = View(AddJob(/*graph=*/nullptr, policy));
  ASSERT_TRUE(users_.SuspendJob(job.name()).ok());
  v1::ResumeJobRequest request;
  request.set_name(job.name());
  *request.mutable_resources() = job.spec().resources();
  for (const int logical : {0, 2, 6}) {
    request.mutable_resources()->mutable_workers()->set_logical(logical);
    const absl::Status refused = users_.ResumeJob(request).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    const std::vector<FieldFault> faults = FaultsOf(refused);
    ASSERT_EQ(faults.size(), 1) << refused;
    EXPECT_EQ(faults[0].field, "resources.workers.logical");
    EXPECT_EQ(faults[0].description, absl::StrCat("cannot change (was 8, is ", logical,
                                                  "): submit a job with checkpoint.resume_from"));
  }
  request.mutable_resources()->mutable_workers()->set_logical(8);
  request.mutable_resources()->mutable_workers()->set_max(2);
  const auto resumed = users_.ResumeJob(request);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->spec().resources().workers().logical(), 8);
}

// Workers of other devices would be needed.
TEST_F(UserOperationsTest, AJobKeepsItsTensorParallelDegree) {
  v1::JobSpec policy;
  policy.mutable_resources()->set_tensor_parallel(2);
  *policy.mutable_data() = Request().spec().data();
  const v1::Job job = View(AddJob(/*graph=*/nullptr, policy));
  ASSERT_TRUE(users_.SuspendJob(job.name()).ok());
  v1::ResumeJobRequest request;
  request.set_name(job.name());
  request.mutable_resources()->set_tensor_parallel(4);
  const absl::Status refused = users_.ResumeJob(request).status();
  ASSERT_EQ(FaultsOf(refused).size(), 1) << refused;
  EXPECT_EQ(FaultsOf(refused)[0].field, "resources.tensor_parallel");

  request.mutable_resources()->clear_tensor_parallel();
  const auto resumed = users_.ResumeJob(request);

  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->spec().resources().tensor_parallel(), 2);
}

TEST_F(UserOperationsTest, ASubmittedModelIsBuiltOnceAndKeptForThePlan) {
  const auto job = users_.CreateJob(Request());
  ASSERT_TRUE(job.ok()) << job.status();

  JobRegistry::Transaction transaction(registry_.get());
  const JobRegistry::Entry* const entry = transaction.FindNumber(job->number());
  ASSERT_NE(entry, nullptr);
  ASSERT_NE(entry->graph, nullptr);
  EXPECT_EQ(entry->graph->parameters_size(), 2);
}

TEST_F(UserOperationsTest, LeavesDataThatAreTooLargeToTheWorkers) {
  UserOperations users({.registry = registry_.get(),
                        .checkpoints = &checkpoints_,
                        .watches = &watches_,
                        .data_visible = true});
  const std::string text = ::testing::TempDir() + "/text";
  std::ofstream(text) << "a text";
  v1::CreateJobRequest request = Request();
  request.mutable_spec()->mutable_model()->mutable_zoo()->set_name("gpt");
  request.mutable_spec()->mutable_data()->mutable_text()->set_path(text);

  const auto small = users.CreateJob(request);
  std::filesystem::resize_file(text, limits::kDataCheckBytesMax + 1);
  const auto large = users.CreateJob(request);

  EXPECT_THAT(small.status().message(), HasSubstr("bytes to train on are less than two contexts"));
  ASSERT_TRUE(large.ok()) << large.status();
  ASSERT_EQ(large->warnings_size(), 1);
  EXPECT_EQ(large->warnings(0),
            absl::StrCat("data.text.path: ", text,
                         ": takes more than the 268435456 bytes that it may while a job is "
                         "submitted; the workers alone will check the data"));
}

// Checks of files that do not answer occupy every slot.
TEST_F(UserOperationsTest, LeavesDataToTheWorkersIfNoSlotIsFree) {
  UserOperations users({.registry = registry_.get(),
                        .checkpoints = &checkpoints_,
                        .watches = &watches_,
                        .data_visible = true,
                        .data_checks_max = 0,
                        .data_check_patience = absl::ZeroDuration()});
  v1::CreateJobRequest request = Request();
  const auto made = users.CreateJob(request);
  request.mutable_spec()->mutable_model()->mutable_zoo()->set_name("lenet");
  request.mutable_spec()->mutable_data()->mutable_idx()->set_images("/data/images");
  request.mutable_spec()->mutable_data()->mutable_idx()->set_labels("/data/labels");

  const auto read = users.CreateJob(request);

  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->warnings_size(), 0) << "its data are in no file";
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->warnings_size(), 1);
  EXPECT_EQ(read->warnings(0),
            "data: others are being read, and none finished within 0; the workers alone will "
            "check the data");
}

TEST_F(UserOperationsTest, ACallerThatLeavesInAnyPhaseLeavesNoJob) {
  int phases = 0;
  absl::StatusOr<v1::Job> job;
  do {
    const auto jobs = users_.ListJobs({});
    ASSERT_TRUE(jobs.ok()) << jobs.status();
    ASSERT_EQ(jobs->jobs_size(), 0);
    ++phases;
    int asked = 0;
    job = users_.CreateJob(Request(), [&] { return ++asked >= phases; });
    ASSERT_TRUE(job.ok() || absl::IsCancelled(job.status())) << job.status();
  } while (!job.ok());

  EXPECT_EQ(phases, 3) << "after the model and before the job is stored it could have gone";
  EXPECT_EQ(store_->LoadJobs()->size(), 1);
  EXPECT_EQ(job->name(), "jobs/line-1");
}

// The model file is allowed and valid, but a data file that it names is a link to a forbidden
// place.
TEST_F(UserOperationsTest, DoesNotFollowALinkOfModelDataOutOfTheFolders) {
  namespace fs = std::filesystem;
  std::string home = ::testing::TempDir() + "/home-XXXXXX";
  ASSERT_NE(mkdtemp(home.data()), nullptr);
  const std::string allowed = home + "/data", secret = home + "/secret";
  fs::create_directory(allowed);
  const float values[] = {1.5f, -2};
  std::ofstream(secret, std::ios::binary)
      .write(reinterpret_cast<const char*>(values), sizeof(values));
  OnnxModelBuilder model;
  model.Input("x", {0, 3}).Weight("w", {2, 3}).Weight("b", {2}).Output("y");
  model.Node("Gemm", {"x", "w", "b"}, {"y"}, {{"transB", {1}}});
  onnx::TensorProto& bias = *model.proto().mutable_graph()->mutable_initializer(1);
  bias.clear_float_data();
  bias.set_data_location(onnx::TensorProto::EXTERNAL);
  onnx::StringStringEntryProto& location = *bias.add_external_data();
  location.set_key("location");
  location.set_value("weights.bin");
  fs::rename(model.Write("linked.onnx"), allowed + "/linked.onnx");
  v1::CreateJobRequest request = Request();
  request.mutable_spec()->mutable_model()->mutable_onnx()->set_path(allowed + "/linked.onnx");
  UserOperations users({.registry = registry_.get(),
                        .checkpoints = &checkpoints_,
                        .watches = &watches_,
                        .paths = *PathRules::Parse(allowed)});

  fs::create_symlink(secret, allowed + "/weights.bin");
  const absl::Status refused = users.CreateJob(request).status();
  EXPECT_EQ(ReasonOf(refused), "INVALID_SPEC");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("may not be read: '"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--data_roots"));

  fs::remove(allowed + "/weights.bin");
  fs::rename(secret, allowed + "/kept.bin");
  fs::create_symlink("kept.bin", allowed + "/weights.bin");
  const auto job = users.CreateJob(request);
  EXPECT_TRUE(job.ok()) << job.status();
}

TEST_F(UserOperationsTest, RefusesAModelWhoseConstantsExceedAPlan) {
  OnnxModelBuilder model;
  model.Input("x", {0, 1}).Weight("table", {1, 5 << 20}).Weight("w", {2, 1}).Output("y");
  model.Node("Add", {"x", "table"}, {"sum"})
      .Node("ReduceMax", {"sum"}, {"best"}, {{"axes", {1, 1}}})
      .Node("Gemm", {"best", "w"}, {"y"}, {{"transB", {1}}});
  model.proto()
      .mutable_graph()
      ->mutable_node(1)
      ->mutable_attribute(0)
      ->mutable_ints()
      ->RemoveLast();
  v1::CreateJobRequest request = Request();
  v1::OnnxModel& onnx = *request.mutable_spec()->mutable_model()->mutable_onnx();
  onnx.set_path(model.Write("table.onnx"));
  onnx.add_freeze("table");
  const absl::Status refused = users_.CreateJob(request).status();
  EXPECT_EQ(ReasonOf(refused), "INVALID_SPEC");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("model.onnx: is a graph of 4194"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 33554432 fit into a job's plan"));

  onnx.clear_freeze();
  onnx.add_train("table");
  const auto job = users_.CreateJob(request);
  EXPECT_TRUE(job.ok()) << job.status();
}

// A model file with a matrix, a scalar and a statistic.
std::string WriteExternalModel() {
  const std::string path = ::testing::TempDir() + "/external.safetensors";
  SafetensorsHeader header{.tensors = {{.name = "w", .shape = {2, 300}},
                                       {.name = "scale", .shape = {}},
                                       {.name = "mean", .shape = {3}}},
                           .metadata = {{"muster.statistics", "[\"mean\"]"}}};
  std::string file = EncodeSafetensorsHeader(header);
  const std::vector<float> values(604, 0.5f);
  file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  std::ofstream(path, std::ios::binary) << file;
  return path;
}

TEST_F(UserOperationsTest, AnExternalModelBecomesAPlanWithItsValues) {
  v1::CreateJobRequest request = Request();
  v1::JobSpec& spec = *request.mutable_spec();
  spec.mutable_model()->mutable_external()->set_path(WriteExternalModel());
  spec.mutable_data()->mutable_external();
  spec.set_chunk_bytes(1024);
  const auto job = users_.CreateJob(request);
  ASSERT_TRUE(job.ok()) << job.status();
  std::filesystem::remove(spec.model().external().path());
  Reopen();  // the store has the parameters and the values

  JobRegistry::Transaction transaction(registry_.get());
  const JobRegistry::Entry& entry = *transaction.FindNumber(job->number());
  ASSERT_NE(entry.graph, nullptr);
  const auto plan = MakePlan({.job = entry.job.record(),
                              .graph = *entry.graph,
                              .workers = {Hello("w-0")},
                              .ps = {Hello("ps-0")},
                              .restore = entry.origin.restore});
  EXPECT_TRUE(CheckChunks(*plan).ok()) << CheckChunks(*plan);
  EXPECT_EQ(plan->chunks_size(), 5);
  const auto values = CheckpointReader::Open(plan->restore());
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_TRUE((*values)->CheckFits(plan->graph()).ok());
  float scale = 0;
  ASSERT_TRUE((*values)->Read("scale", "", 0, absl::MakeSpan(&scale, 1)).ok());
  EXPECT_EQ(scale, 0.5f);
}

TEST_F(UserOperationsTest, AFaultOfAnExternalModelIsAtItsPath) {
  v1::CreateJobRequest request = Request();
  request.mutable_spec()->mutable_model()->mutable_external()->set_path("/no/such/file");
  request.mutable_spec()->mutable_data()->mutable_external();
  const absl::Status refused = users_.CreateJob(request).status();
  EXPECT_EQ(ReasonOf(refused), "INVALID_SPEC");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("model.external.path: /no/such/file"));
}

TEST_F(UserOperationsTest, ABasicListHasOnlyTheIdentifyingFieldsOfTheSpec) {
  v1::CreateJobRequest request = Request();
  request.mutable_spec()->set_priority(7);
  const auto job = users_.CreateJob(request);
  ASSERT_TRUE(job.ok()) << job.status();

  const auto full = users_.ListJobs({});
  v1::ListJobsRequest basic_request;
  basic_request.set_view(v1::JOB_VIEW_BASIC);
  const auto basic = users_.ListJobs(basic_request);

  ASSERT_TRUE(full.ok() && basic.ok());
  v1::Job expected = full->jobs(0);
  EXPECT_TRUE(expected.spec().has_model()) << "the default view has everything";
  const v1::JobSpec spec = expected.spec();
  expected.clear_spec();
  expected.mutable_spec()->set_name("line");
  expected.mutable_spec()->set_priority(7);
  *expected.mutable_spec()->mutable_resources() = spec.resources();
  EXPECT_EQ(basic->jobs(0).SerializeAsString(), expected.SerializeAsString());
}

TEST_F(UserOperationsTest, APageOfLargeJobsEndsEarlyAndTheNextContinues) {
  constexpr int kJobs = 20, kBytesEach = 200 << 10;
  v1::JobSpec large;
  (*large.mutable_annotations())["notes"] = std::string(kBytesEach, 'x');
  for (int i = 0; i < kJobs; ++i) AddJob(/*graph=*/nullptr, large);
  v1::ListJobsRequest request;
  request.set_page_size(limits::kPageSizeMax);
  std::vector<uint64_t> numbers;
  int pages = 0;
  do {
    const auto page = users_.ListJobs(request);
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_LE(page->ByteSizeLong(), (1 << 20) + kBytesEach + 1024);
    for (const v1::Job& job : page->jobs()) numbers.push_back(job.number());
    request.set_page_token(page->next_page_token());
    ASSERT_LE(++pages, kJobs);
  } while (!request.page_token().empty());
  ASSERT_EQ(numbers.size(), kJobs);
  for (int i = 0; i < kJobs; ++i) EXPECT_EQ(numbers[i], kJobs - i);
}

TEST_F(UserOperationsTest, AnswersAChangeAfterItIsStored) {
  const auto job = users_.CreateJob(Request());
  ASSERT_TRUE(job.ok()) << job.status();

  const auto cancelled = users_.CancelJob(job->name());

  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  EXPECT_EQ(cancelled->state(), v1::CANCELLED);
  const auto stored = store_->LoadJobs();
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->at(0).record.state(), v1::CANCELLED);
}

TEST_F(UserOperationsTest, ReadingReturnsStoredStateWithoutWaiting) {
  const auto job = users_.CreateJob(Request());
  ASSERT_TRUE(job.ok()) << job.status();
  absl::Notification go;
  const auto slow = HoldQueue(job->number(), &go);
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(job->number());
    EXPECT_TRUE(entry.job.Cancel(now_).ok());
    transaction.Commit(entry);
  }

  EXPECT_NE(users_.GetJob("line-1")->state(), v1::CANCELLED);
  EXPECT_EQ(ReasonOf(users_.DeleteJob("line-1")), "JOB_NOT_FINISHED");

  go.Notify();
  registry_->changes().AwaitAll();
  EXPECT_EQ(users_.GetJob("line-1")->state(), v1::CANCELLED);
  EXPECT_TRUE(users_.DeleteJob("line-1").ok());
}

TEST_F(UserOperationsTest, RemovesUnusedModelValuesAtTheStart) {
  AddWithValues("model-kept", "");
  std::filesystem::create_directories(registry_->folder().models() + "/model-orphan/step-00000000");
  std::filesystem::create_directories(registry_->folder().models() + "/of a user");

  users_.RemoveOrphans();

  EXPECT_TRUE(HasValues("model-kept"));
  EXPECT_FALSE(HasValues("model-orphan"));
  EXPECT_TRUE(HasValues("of a user"));
}

TEST_F(UserOperationsTest, DeletesModelValuesWithTheirJob) {
  AddWithValues("model-1", "");
  AddWithValues("model-1", registry_->folder().models() + "/model-1/step-00000000");

  ASSERT_TRUE(users_.DeleteJob("line-2").ok());
  EXPECT_TRUE(HasValues("model-1")) << "it only resumed from them";
  ASSERT_TRUE(users_.DeleteJob("line-1").ok());
  EXPECT_FALSE(HasValues("model-1"));
}

// A job that was suspended and resumed many times. Each change is an event.
TEST_F(UserOperationsTest, AWatcherGetsManyEventsInPagesAndTheNumberOfDroppedOnes) {
  const auto job = users_.CreateJob(Request());
  ASSERT_TRUE(job.ok()) << job.status();
  uint64_t newest;
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(job->number());
    for (int i = 0; i < 600; ++i) {
      EXPECT_TRUE(entry.job.Suspend(now_).ok());
      EXPECT_TRUE(entry.job.Resume(nullptr, now_).ok());
    }
    EXPECT_TRUE(entry.job.Cancel(now_).ok());
    newest = entry.job.record().revision();
    transaction.Commit(entry);
  }
  registry_->changes().AwaitAll();
  v1::WatchJobRequest request;
  request.set_name(job->name());
  const auto watch =
      users_.WatchJob(request, std::make_shared<StreamWaker>(std::function<void()>()));
  ASSERT_TRUE(watch.ok()) << watch.status();

  std::vector<v1::JobEvent> events;
  bool last = false;
  while (true) {
    const auto next = users_.NextOf(**watch);
    ASSERT_TRUE(next.ok()) << next.status();
    if (!next->has_value()) break;
    EXPECT_FALSE(last) << "something came after the last message";
    EXPECT_LE((*next)->response.events_size(), limits::kWatchEventsMax);
    last = (*next)->last;
    for (const v1::JobEvent& event : (*next)->response.events()) events.push_back(event);
  }

  EXPECT_TRUE(last);
  ASSERT_EQ(events.size(), limits::kJobEventsKeptMax);
  EXPECT_EQ(events.back().revision(), newest);
  EXPECT_EQ(events.front().revision(), newest - limits::kJobEventsKeptMax + 1);
  EXPECT_THAT(events.front().message(), HasSubstr("202 earlier events are not kept"));
  EXPECT_THAT(events[1].message(), Not(HasSubstr("earlier events")));
}

TEST_F(UserOperationsTest, JobsAreListedByTheirLabels) {
  for (const char* team : {"vision", "audio", "vision"}) {
    v1::CreateJobRequest request = Request();
    (*request.mutable_spec()->mutable_labels())["team"] = team;
    ASSERT_TRUE(users_.CreateJob(request).ok());
  }
  v1::ListJobsRequest request;
  request.set_selector("team=vision");
  request.set_view(v1::JOB_VIEW_BASIC);
  request.set_page_size(1);
  std::vector<std::string> names;
  do {
    const auto page = users_.ListJobs(request);
    ASSERT_TRUE(page.ok()) << page.status();
    for (const v1::Job& job : page->jobs()) {
      names.push_back(job.name());
      EXPECT_EQ(job.spec().labels().at("team"), "vision");
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(names, ::testing::ElementsAre("jobs/line-3", "jobs/line-1"));
  request.set_selector("team~vision");
  EXPECT_EQ(ReasonOf(users_.ListJobs(request).status()), "INVALID_REQUEST");
  v1::CreateJobRequest faulty = Request();
  (*faulty.mutable_spec()->mutable_labels())["team"] = "a b";
  EXPECT_THAT(std::string(users_.CreateJob(faulty).status().message()), HasSubstr("labels.team"));
}

TEST_F(UserOperationsTest, AnUpdateChangesOnlyTheFieldsOfTheMask) {
  ASSERT_TRUE(users_.CreateJob(Request()).ok());
  const v1::Job before = *users_.GetJob("line-1");
  v1::UpdateJobRequest request;
  request.set_name("line-1");
  request.mutable_spec()->set_priority(7);
  request.mutable_spec()->set_chunk_bytes(1);
  (*request.mutable_spec()->mutable_labels())["team"] = "vision";
  request.mutable_spec()->mutable_checkpoint()->set_keep_last(5);
  request.mutable_update_mask()->add_paths("priority");
  request.mutable_update_mask()->add_paths("labels");
  request.mutable_update_mask()->add_paths("labels");

  const auto changed = users_.UpdateJob(request);

  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->revision(), before.revision() + 1);
  Reopen();
  v1::JobSpec expected = before.spec();
  expected.set_priority(7);
  (*expected.mutable_labels())["team"] = "vision";
  EXPECT_EQ(View(1).spec().SerializeAsString(), expected.SerializeAsString())
      << "stored, and nothing that the mask does not name";
}

TEST_F(UserOperationsTest, ARefusedUpdateNamesTheField) {
  ASSERT_TRUE(users_.CreateJob(Request()).ok());
  v1::UpdateJobRequest request;
  request.set_name("line-1");
  EXPECT_EQ(ReasonOf(users_.UpdateJob(request).status()), "INVALID_REQUEST") << "no mask";
  request.mutable_update_mask()->add_paths("training.steps");
  const auto refused = users_.UpdateJob(request);
  EXPECT_EQ(ReasonOf(refused.status()), "INVALID_REQUEST");
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("'training.steps' cannot be changed; what can is priority, labels"));

  request.mutable_update_mask()->set_paths(0, "priority");
  request.mutable_spec()->set_priority(5000);
  EXPECT_THAT(std::string(users_.UpdateJob(request).status().message()), HasSubstr("priority"));
  request.mutable_spec()->set_priority(5);
  request.set_revision(17);
  EXPECT_EQ(ReasonOf(users_.UpdateJob(request).status()), "JOB_CHANGED");
  request.set_revision(1);
  EXPECT_TRUE(users_.UpdateJob(request).ok());
  request.set_revision(0);
  EXPECT_EQ(users_.UpdateJob(request)->revision(), 2) << "nothing changes twice";
  request.mutable_update_mask()->set_paths(0, "checkpoint.keep_last");
  EXPECT_EQ(users_.UpdateJob(request)->spec().checkpoint().keep_last(), 3) << "the default";
  request.mutable_update_mask()->set_paths(0, "labels");
  for (int i = 0; i < 1000; ++i) {
    (*request.mutable_spec()->mutable_labels())[absl::StrCat("label-", i)] = "%";
  }
  const auto too_many = users_.UpdateJob(request);
  EXPECT_THAT(std::string(too_many.status().message()), HasSubstr("labels: must be at most"));
  EXPECT_THAT(std::string(too_many.status().message()), Not(HasSubstr("label-")));
  (*request.mutable_spec()).clear_labels();
  request.set_name("nobody-9");
  EXPECT_EQ(ReasonOf(users_.UpdateJob(request).status()), "JOB_NOT_FOUND");
}

// Executes SQL without the store. The store sees the effect at once.
void Execute(const std::string& database, const char* sql) {
  sqlite3* connection = nullptr;
  ASSERT_EQ(sqlite3_open(database.c_str(), &connection), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(connection, sql, nullptr, nullptr, nullptr), SQLITE_OK)
      << sqlite3_errmsg(connection);
  sqlite3_close(connection);
}

TEST_F(UserOperationsTest, AFailedDeletionKeepsTheFiles) {
  const auto job = users_.CreateJob(Request());
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_TRUE(users_.CancelJob(job->name()).ok());
  const StateFolder& folder = registry_->folder();
  ASSERT_TRUE(folder.MakeJob("line-1").ok());
  Execute(folder.store(),
          "CREATE TRIGGER kept BEFORE DELETE ON jobs BEGIN SELECT RAISE(ABORT, 'not now'); END");

  EXPECT_EQ(ReasonOf(users_.DeleteJob("line-1")), "STORE_FAILED");

  EXPECT_TRUE(users_.GetJob("line-1").ok());
  EXPECT_TRUE(std::filesystem::exists(folder.job("line-1")));
  Execute(folder.store(), "DROP TRIGGER kept");
  EXPECT_TRUE(users_.DeleteJob("line-1").ok());
  EXPECT_FALSE(std::filesystem::exists(folder.job("line-1")));
}

// A change that was queued before the deletion is public after the deletion has failed.
TEST_F(UserOperationsTest, AFailedDeletionKeepsTheLastChange) {
  const auto job = users_.CreateJob(Request());
  const auto other = users_.CreateJob(Request());
  ASSERT_TRUE(job.ok() && other.ok());
  ASSERT_TRUE(users_.CancelJob(job->name()).ok());
  Execute(registry_->folder().store(),
          "CREATE TRIGGER kept BEFORE DELETE ON jobs BEGIN SELECT RAISE(ABORT, 'not now'); END");
  absl::Notification go;
  const auto slow = HoldQueue(other->number(), &go);
  uint64_t revision;
  {
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(job->number());
    v1::JobSpec spec = entry.job.record().spec();
    spec.set_priority(7);
    entry.job.Update(spec, now_);
    transaction.Commit(entry);
    revision = entry.job.record().revision();
  }

  std::thread deletion([&] { EXPECT_EQ(ReasonOf(users_.DeleteJob("line-1")), "STORE_FAILED"); });
  go.Notify();
  deletion.join();

  const auto now = users_.GetJob("line-1");
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_EQ(now->revision(), revision);
  EXPECT_EQ(now->spec().priority(), 7);
}

TEST_F(UserOperationsTest, AnUpToDateWatcherNeedsNoStore) {
  const auto job = users_.CreateJob(Request());
  ASSERT_TRUE(job.ok()) << job.status();
  v1::WatchJobRequest request;
  request.set_name(job->name());
  const auto nobody = std::make_shared<StreamWaker>(std::function<void()>());
  const auto watch = users_.WatchJob(request, nobody);
  ASSERT_TRUE(watch.ok()) << watch.status();
  ASSERT_EQ((*users_.NextOf(**watch))->response.events_size(), 1);

  const auto cancelled = users_.CancelJob(job->name());
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  Execute(registry_->folder().store(), "DELETE FROM events");

  const auto next = users_.NextOf(**watch);
  ASSERT_TRUE(next.ok() && next->has_value()) << next.status();
  ASSERT_EQ((*next)->response.events_size(), 1);
  EXPECT_EQ((*next)->response.events(0).revision(), cancelled->revision());
  EXPECT_TRUE((*next)->last);
  // This watch has missed events, so it reads the store.
  const auto late = users_.WatchJob(request, nobody);
  EXPECT_EQ((*users_.NextOf(**late))->response.events_size(), 0);
}

}  // namespace
}  // namespace muster::user_operations_test
