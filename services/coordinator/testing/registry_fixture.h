// A fixture for tests of the coordinator's parts: a registry on a new state folder, a clock, and a
// way to delay the commit queue.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "lib/telemetry/metrics.h"
#include "services/coordinator/common/proto_time.h"
#include "services/coordinator/membership/fleet.h"
#include "services/coordinator/membership/watch_hub.h"
#include "services/coordinator/records/coordinator_metrics.h"
#include "services/coordinator/records/metric_series.h"
#include "services/coordinator/registry/job_registry.h"
#include "services/coordinator/store/sqlite_store.h"
#include "services/coordinator/store/store.h"
#include "services/coordinator/testing/made_up_jobs.h"

namespace muster {

class RegistryFixture : public ::testing::Test {
 protected:
  RegistryFixture() {
    path_ = ::testing::TempDir() + "/registry-XXXXXX";
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
    Reopen();
  }

  // Simulates a restart of the coordinator.
  void Reopen() {
    const absl::Status loaded = TryToReopen();
    ASSERT_TRUE(loaded.ok()) << loaded;
  }
  absl::Status TryToReopen() {
    registry_.reset();
    store_.reset();
    auto folder = StateFolder::Open(path_);
    EXPECT_TRUE(folder.ok()) << folder.status();
    auto store = SqliteStore::Open(folder->store());
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    fleet_ = std::make_unique<Fleet>(Fleet::Options{
        .cluster = store_->cluster(), .term = store_->term(), .lease = absl::Seconds(5)});
    registry_ =
        std::make_unique<JobRegistry>(JobRegistry::Options{.folder = *std::move(folder),
                                                           .store = store_.get(),
                                                           .fleet = fleet_.get(),
                                                           .watches = &watches_,
                                                           .metrics = &coordinator_metrics_,
                                                           .clock = [this] { return now_; }});
    return registry_->Load();
  }

  // Adds a queued job with one worker and one ps, which keeps one checkpoint and is due for one
  // every two steps. Returns its number. `graph`: null if it must still be built. `policy`: more
  // fields of its spec.
  uint64_t AddJob(std::shared_ptr<const v1::Graph> graph = nullptr,
                  const v1::JobSpec& policy = v1::JobSpec()) {
    v1::Job record;
    *record.mutable_create_time() = ToProto(now_);
    *record.mutable_spec() = LinearSpec(R"pb(
      resources {
        workers { min: 1 max: 1 }
        ps: 1
      }
      checkpoint { every_steps: 2 keep_last: 1 }
      chunk_bytes: 1024
      restart { max_restarts: 3 }
    )pb");
    record.mutable_spec()->MergeFrom(policy);
    record.set_state(v1::QUEUED);
    auto stored = store_->AddJob({.record = std::move(record), .origin = {}});
    EXPECT_TRUE(stored.ok()) << stored.status();
    JobRegistry::Transaction transaction(registry_.get());
    transaction.Add(*stored, {}, std::move(graph), /*plan=*/nullptr);
    return stored->number();
  }
  v1::Job View(uint64_t number) {
    JobRegistry::Transaction transaction(registry_.get());
    return transaction.View(*transaction.FindNumber(number));
  }

  v1::Hello Hello(const std::string& name) const { return HelloOf(name); }
  std::shared_ptr<Attachment> Attach(const std::string& name) {
    auto arrival =
        fleet_->Attach(Hello(name), std::make_shared<StreamWaker>(std::function<void()>()), now_);
    EXPECT_TRUE(arrival.ok()) << arrival.status();
    arrival->attachment->TakeDirectives();  // discards the welcome
    return arrival->attachment;
  }

  // Blocks the commit queue at a change of this job, with a watcher that waits until `go` is
  // notified. Requires: the job was not suspended before.
  std::shared_ptr<JobWatch> HoldQueue(uint64_t number, absl::Notification* go) {
    auto watch = watches_.Add(number, "slow", 0,
                              std::make_shared<StreamWaker>([go] { go->WaitForNotification(); }));
    JobRegistry::Transaction transaction(registry_.get());
    JobRegistry::Entry& entry = *transaction.FindNumber(number);
    EXPECT_TRUE(entry.job.Suspend(now_).ok());
    EXPECT_TRUE(entry.job.Resume(nullptr, now_).ok());
    transaction.Commit(entry);
    return watch;
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::string path_;
  Metrics metrics_;
  CoordinatorMetrics coordinator_metrics_{&metrics_};
  MetricSeries series_;
  WatchHub watches_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<JobRegistry> registry_;
};

}  // namespace muster
