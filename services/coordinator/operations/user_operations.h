// What users ask of jobs: create, look, list, cancel, suspend, resume, update, delete, watch.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/job/path_rules.h"
#include "lib/limits/limits.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/membership/watch_hub.h"
#include "services/coordinator/operations/checkpoint_desk.h"
#include "services/coordinator/operations/import_gate.h"
#include "services/coordinator/operations/submission.h"
#include "services/coordinator/registry/job_registry.h"

namespace muster {

// Thread-safe; see JobService for what each does. A change is answered once it is stored: calls
// wait for the disk, up to limits::kChangeWaitMax, and then say that the change is on its way
// (RESOURCE_EXHAUSTED with reason "STORE_FULL", DEADLINE_EXCEEDED with "STORE_SLOW"). What is only
// looked at is what is stored, and waits for nothing.
class UserOperations {
 public:
  struct Options {
    JobRegistry* registry;  // all three outlive this
    CheckpointDesk* checkpoints;
    WatchHub* watches;
    bool data_visible = false;  // CreateJob opens the data sets
    PathRules paths = {};       // which files a job may name
    // At once, and how long a submission waits for its turn before its data are left to the
    // workers: a file system that does not answer holds a check for ever. One less than imports of
    // models, each of which may wait for its data so.
    int data_checks_max = limits::kModelImportsMax - 1;
    absl::Duration data_check_patience = absl::Seconds(20);
  };
  explicit UserOperations(Options options)
      : options_(options), data_checks_(options.data_checks_max) {}

  // What a crash left of calls of CreateJob and DeleteJob: values of models that no job starts
  // from. Left where a job has a folder and the store does not know it: they may be its own. To be
  // called before any other method.
  void RemoveOrphans();

  // CANCELLED, and nothing is left behind, where the caller is gone before the job is stored:
  // `caller_gone` is asked between the phases and while other models and data sets are read.
  using CallerGone = std::function<bool()>;
  absl::StatusOr<v1::Job> CreateJob(
      const v1::CreateJobRequest& request, const CallerGone& caller_gone = [] { return false; })
      ABSL_LOCKS_EXCLUDED(creating_);
  absl::StatusOr<v1::Job> GetJob(const std::string& name);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  absl::StatusOr<v1::Job> CancelJob(const std::string& name);
  absl::Status DeleteJob(const std::string& name);
  absl::StatusOr<v1::Job> SuspendJob(const std::string& name);
  absl::StatusOr<v1::Job> ResumeJob(const v1::ResumeJobRequest& request);
  absl::StatusOr<v1::Job> UpdateJob(const v1::UpdateJobRequest& request);

  absl::StatusOr<std::shared_ptr<JobWatch>> WatchJob(const v1::WatchJobRequest& request,
                                                     std::shared_ptr<StreamWaker> waker);
  struct WatchAnswer {
    v1::WatchJobResponse response;
    bool last = false;
  };
  // What is to be sent now; nullopt: nothing, the waker will tell. NOT_FOUND: the job was deleted.
  // One call at a time for each watch. At most limits::kWatchEventsMax events: ask again until
  // nullopt.
  absl::StatusOr<std::optional<WatchAnswer>> NextOf(JobWatch& watch);

 private:
  // Checks the spec, reads the model and keeps its values: may take long, holds no lock.
  // `source` keeps the checkpoint that the job starts from.
  absl::StatusOr<CheckedSpec> Check(const v1::CreateJobRequest& request,
                                    const CallerGone& caller_gone,
                                    std::unique_ptr<CheckpointDesk::Pin>& source);
  // What the job that this one goes on from has left out of the same data is left out here too:
  // steps are counted over the rest.
  void TakeOverLeftOut(const JobOrigin& origin, v1::Job& record);
  // Stores a checked job, and lets the registry know it.
  absl::StatusOr<v1::Job> Enter(const v1::CreateJobRequest& request, v1::Job record,
                                CheckedSpec checked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(creating_);
  // The job that an earlier call with the same request id made.
  absl::StatusOr<std::optional<v1::Job>> FindRequest(const v1::CreateJobRequest& request);
  absl::StatusOr<v1::Job> Change(const std::string& name,
                                 const std::function<absl::Status(Job&)>& change);
  // What a watch has not had yet, at most limits::kWatchEventsMax; `news`: see JobRegistry::Entry.
  absl::StatusOr<std::vector<v1::JobEvent>> EventsAfter(
      const JobWatch& watch, const std::vector<v1::JobEvent>* news) const;
  // Of a job that the registry has forgotten: out of the store, its folder set aside; or an error,
  // and all is as before, but that a full disk may have cost it its folder.
  absl::Status Erase(const JobRegistry::Entry& entry);
  JobRegistry& registry() const { return *options_.registry; }

  const Options options_;
  ImportGate imports_{limits::kModelImportsMax};
  ImportGate data_checks_;
  absl::Mutex creating_;  // one at a time between the look for the request id and its row
};

}  // namespace muster
