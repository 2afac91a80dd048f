// Calls of users on jobs: create, get, list, cancel, suspend, resume, update, delete, watch.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/job/path_rules.h"
#include "lib/limits/limits.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/membership/watch_hub.h"
#include "services/coordinator/operations/checkpointer.h"
#include "services/coordinator/operations/import_gate.h"
#include "services/coordinator/operations/model_uploads.h"
#include "services/coordinator/registry/job_registry.h"
#include "services/coordinator/store/store.h"

namespace muster {

// Implements the calls of JobService; coordinator.proto documents each. A call that changes a job
// returns after the change is stored. It waits for the disk for up to limits::kChangeWaitMax; then
// an error says that the change is still queued (RESOURCE_EXHAUSTED with reason "STORE_FULL",
// DEADLINE_EXCEEDED with "STORE_SLOW"). A call that only reads returns what is stored and does not
// wait. Thread-safe.
class UserOperations {
 public:
  struct Options {
    JobRegistry* registry;  // this and the next two must outlive the object
    Checkpointer* checkpoints;
    WatchHub* watches;
    bool data_visible = false;  // CreateJob also opens the data sets
    PathRules paths = {};       // the files that a job may name
    // Limits concurrent checks of data, and how long a submission waits for its turn. After that
    // the workers alone check its data. A file system that does not answer blocks a check forever.
    // The number is one less than that of model imports, because each import may wait for a check
    // of its data.
    int data_checks_max = limits::kModelImportsMax - 1;
    absl::Duration data_check_patience = absl::Seconds(20);
  };
  explicit UserOperations(Options options)
      : options_(options),
        uploads_(options.registry->folder().uploads()),
        data_checks_(options.data_checks_max) {}

  // Removes what a crash left of CreateJob, UploadModel and DeleteJob calls: model values that no
  // job starts from, and parts of files. Keeps them if a job has a folder but is unknown to the
  // store: they may be its values. Must be called before any other method.
  void RemoveOrphans();

  const ModelUploads& uploads() const { return uploads_; }
  // Deletes uploaded models that are older than a day and that no job names. Blocks for the disk.
  void RemoveOldUploads();

  // Returns true if the caller of CreateJob() is gone.
  using CallerGone = std::function<bool()>;
  // Creates a job. Returns CANCELLED, and leaves nothing behind, if the caller is gone before the
  // job is stored. `caller_gone` is called between the phases and while waiting for other models
  // and data sets.
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
  // Returns the next message, or nullopt if there is none; then the waker signals the next one. A
  // message has at most limits::kWatchEventsMax events, so call until nullopt. Requires: one call
  // at a time for each watch.
  // Returns NOT_FOUND if the job was deleted.
  absl::StatusOr<std::optional<WatchUpdate<v1::WatchJobResponse>>> NextOf(JobWatch& watch);

 private:
  // A job that may be queued.
  struct CheckedSpec {
    v1::JobSpec spec;                        // defaults filled in
    JobOrigin origin;                        // has a graph if the spec alone does not define it
    std::shared_ptr<const v1::Graph> graph;  // the built model
    // Values by parameter, of a model that brings its own and does not resume; otherwise empty.
    // The caller stores them and names the place in `origin.restore`.
    std::vector<std::vector<float>> initial_values;
    std::vector<std::string> warnings;  // settings that the user may not intend
  };
  // Checks the request, reports all faults of its spec at once, fills in defaults, and reads the
  // model. May take long; holds no lock. `source` keeps the checkpoint that the job starts from.
  absl::StatusOr<CheckedSpec> Check(const v1::CreateJobRequest& request,
                                    const CallerGone& caller_gone,
                                    std::unique_ptr<Checkpointer::Pin>& source);
  // Copies the list of left-out data from the job that this one continues: steps are counted over
  // the remaining data.
  void TakeOverLeftOut(const JobOrigin& origin, v1::Job& record);
  // Stores a checked job and adds it to the registry.
  absl::StatusOr<v1::Job> Enter(const v1::CreateJobRequest& request, v1::Job record,
                                CheckedSpec checked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(creating_);
  // Returns the job that an earlier call with the same request id created.
  absl::StatusOr<std::optional<v1::Job>> FindRequest(const v1::CreateJobRequest& request);
  absl::StatusOr<v1::Job> Change(const std::string& name,
                                 const std::function<absl::Status(Job&)>& change);
  // Returns the events that a watch has not seen, at most limits::kWatchEventsMax. `news`: see
  // JobRegistry::Entry.
  absl::StatusOr<std::vector<v1::JobEvent>> EventsAfter(
      const JobWatch& watch, const std::vector<v1::JobEvent>* news) const;
  // Sets the folder of a job aside and deletes the job from the store. Requires:
  // Transaction::Take() has removed it from the registry. After an error nothing has changed,
  // except that with a full disk the folder may be gone.
  absl::Status Erase(const JobRegistry::Entry& entry);
  JobRegistry& registry() const { return *options_.registry; }

  const Options options_;
  const ModelUploads uploads_;
  ImportGate imports_{limits::kModelImportsMax};
  ImportGate data_checks_;
  absl::Mutex creating_;  // held from the search for the request id until its row is stored
};

}  // namespace muster
