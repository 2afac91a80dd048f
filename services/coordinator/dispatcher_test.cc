#include "services/coordinator/dispatcher.h"

#include "absl/synchronization/notification.h"
#include "lib/graph/zoo/zoo.h"
#include "services/coordinator/registry_fixture.h"

namespace muster {
namespace {

class DispatcherTest : public RegistryFixture {
 protected:
  ~DispatcherTest() override {
    if (!go_.HasBeenNotified()) go_.Notify();
  }

  // As Tick() does, and waits for what comes of it.
  void Dispatch() {
    if (!go_.HasBeenNotified()) go_.Notify();
    dispatcher_.Dispatch();
    Settle();
  }
  void Settle() {
    dispatcher_.AwaitIdle();
    registry_->changes().AwaitAll();
  }

  absl::Notification go_;  // until then no model is built, and so no plan made
  Dispatcher dispatcher_{registry_.get(), fleet_.get(), [this](const v1::ModelSpec& spec) {
                           go_.WaitForNotification();
                           return BuildModel(spec);
                         }};
};

TEST_F(DispatcherTest, AJobStartsWhenItsWholeGangIsThere) {
  const uint64_t job = AddJob();
  Attach("w-0");
  Dispatch();
  EXPECT_EQ(View(job).state(), v1::QUEUED);

  Attach("p-0");
  Dispatch();

  const v1::Job view = View(job);
  EXPECT_EQ(view.state(), v1::PREPARING) << view.message();
  EXPECT_EQ(view.workers(0), "w-0");
  EXPECT_EQ(view.ps(0), "p-0");
  JobRegistry::Turn turn(registry_.get());
  EXPECT_EQ(turn.FindNumber(job)->job.plan()->graph().parameters_size(), 2)
      << "the model is built from the spec";
}

TEST_F(DispatcherTest, AModelThatWasBuiltWhenItWasSubmittedIsNotBuiltAgain) {
  auto graph = std::make_shared<v1::Graph>();
  v1::Parameter& parameter = *graph->add_parameters();
  parameter.set_name("as submitted");
  parameter.add_shape(4);
  const uint64_t job = AddJob(graph);
  Attach("w-0");
  Attach("p-0");
  Dispatch();
  ASSERT_EQ(View(job).state(), v1::PREPARING);
  {
    JobRegistry::Turn turn(registry_.get());
    JobRegistry::Entry& entry = *turn.FindNumber(job);
    EXPECT_EQ(entry.job.plan()->graph().parameters(0).name(), "as submitted");
    EXPECT_EQ(entry.graph, nullptr) << "the plan has it";
    EXPECT_TRUE(entry.job.Suspend(now_).ok());
    EXPECT_TRUE(entry.job.Resume(nullptr, now_).ok());
    turn.Perform(entry);
  }

  Dispatch();

  JobRegistry::Turn turn(registry_.get());
  const Job& again = turn.FindNumber(job)->job;
  ASSERT_EQ(again.plan()->generation(), 2);
  EXPECT_EQ(again.plan()->graph().parameters(0).name(), "as submitted");
}

TEST_F(DispatcherTest, MembersOfAPlanThatIsBeingMadeAreTaken) {
  Attach("w-0");
  Attach("p-0");
  const uint64_t first = AddJob();
  dispatcher_.Dispatch();
  const uint64_t second = AddJob();

  dispatcher_.Dispatch();
  go_.Notify();
  Settle();

  EXPECT_EQ(View(first).state(), v1::PREPARING);
  EXPECT_EQ(View(second).state(), v1::QUEUED);
}

TEST_F(DispatcherTest, AJobThatIsCancelledWhileItIsPlannedDoesNotStart) {
  Attach("w-0");
  Attach("p-0");
  const uint64_t job = AddJob();
  dispatcher_.Dispatch();
  {
    JobRegistry::Turn turn(registry_.get());
    JobRegistry::Entry& entry = *turn.FindNumber(job);
    EXPECT_TRUE(entry.job.Cancel(now_).ok());
    turn.Perform(entry);
  }
  go_.Notify();
  Settle();

  EXPECT_EQ(View(job).state(), v1::CANCELLED);
  EXPECT_EQ(View(job).generation(), 0);
}

TEST_F(DispatcherTest, AJobThatLosesAMemberWhileItIsPlannedWaitsForAnother) {
  const auto worker = Attach("w-0");
  Attach("p-0");
  const uint64_t job = AddJob();
  dispatcher_.Dispatch();
  EXPECT_TRUE(fleet_->Detach(*worker, Fleet::Departure::kOrderly));
  go_.Notify();
  Settle();
  EXPECT_EQ(View(job).state(), v1::QUEUED);

  Attach("w-1");
  Dispatch();

  EXPECT_EQ(View(job).state(), v1::PREPARING);
  EXPECT_EQ(View(job).workers(0), "w-1");
}

}  // namespace
}  // namespace muster
