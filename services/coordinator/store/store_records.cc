#include "services/coordinator/store/store_records.h"

#include <sys/random.h>
#include <sys/types.h>

#include <array>
#include <memory>

#include "absl/strings/escaping.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"
#include "proto/muster/v1/access.pb.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {
namespace {

// Parses a part of a job. Returns an empty message and keeps the first error if it is damaged.
template <typename Message>
Message ParsePart(absl::string_view part, uint64_t job, const std::string& bytes,
                  absl::Status& damage) {
  auto parsed = Parsed<Message>(absl::StrCat("the ", part, " of job ", job), bytes);
  damage.Update(parsed.status());
  return parsed.ok() ? *std::move(parsed) : Message();
}

}  // namespace

absl::Status Corrupt(absl::string_view name, absl::string_view fault) {
  return WithReason(absl::DataLossError(absl::StrCat("store: ", name, " ", fault)),
                    "STORE_CORRUPT");
}

absl::Status CheckSchema(uint64_t version, uint64_t known) {
  if (version <= known) return absl::OkStatus();
  return WithReason(absl::FailedPreconditionError(
                        absl::StrCat("schema version ", version, " is newer than this program's ",
                                     known, ": run the Muster that wrote it, or a newer one")),
                    "STORE_TOO_NEW");
}

std::string NewClusterId() {
  std::array<unsigned char, 16> bytes;
  CHECK_EQ(getrandom(bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const std::string hex = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const absl::string_view id = hex;
  return absl::StrCat(id.substr(0, 8), "-", id.substr(8, 4), "-", id.substr(12, 4), "-",
                      id.substr(16, 4), "-", id.substr(20));
}

v1::BackupJob NewJob(uint64_t number, Store::Submission& submission) {
  v1::Job& record = submission.record;
  record.set_number(number);
  record.set_name(JobName(absl::StrCat(record.spec().name(), "-", number)));
  record.set_revision(1);
  v1::JobEvent event;
  event.set_revision(1);
  *event.mutable_time() = record.create_time();
  event.set_state(record.state());
  event.set_reason(record.reason());
  event.set_message(record.message());
  v1::BackupJob job;
  job.set_number(number);
  job.set_record(record.SerializeAsString());
  job.mutable_origin()->set_restore(submission.origin.restore);
  job.mutable_origin()->set_first_step(submission.origin.first_step);
  job.mutable_origin()->set_request_id(submission.request_id);
  job.set_fingerprint(submission.fingerprint);
  job.set_graph(submission.origin.graph.SerializeAsString());
  job.add_events(event.SerializeAsString());
  return job;
}

StoredJob ParseJob(const v1::BackupJob& stored) {
  StoredJob job;
  const uint64_t number = stored.number();
  job.record = ParsePart<v1::Job>("record", number, stored.record(), job.damage);
  job.record.set_number(number);
  job.origin = {.restore = stored.origin().restore(),
                .first_step = stored.origin().first_step(),
                .graph = ParsePart<v1::Graph>("graph", number, stored.graph(), job.damage)};
  if (stored.plan().empty() || job.record.has_end_time()) return job;
  auto plan = Parsed<v1::JobPlan>(absl::StrCat("the plan of job ", number), stored.plan());
  job.damage.Update(plan.status());
  if (plan.ok() && plan->generation() == job.record.generation()) {
    job.plan = std::make_shared<v1::JobPlan>(*std::move(plan));
  }
  return job;
}

absl::Status StoreNotEmpty() {
  return WithReason(
      absl::FailedPreconditionError("the store already has jobs or tokens; --force replaces them "
                                    "by those of the backup"),
      "STORE_NOT_EMPTY");
}

absl::Status ForEachRecord(
    const std::function<absl::StatusOr<std::optional<v1::BackupRecord>>()>& next,
    absl::FunctionRef<absl::Status(const v1::BackupHeader&)> header,
    absl::FunctionRef<absl::Status(const v1::BackupJob&)> job,
    absl::FunctionRef<absl::Status(const std::string& id, const v1::StoredToken&)> token) {
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<v1::BackupRecord> record, next());
    if (!record) return absl::OkStatus();
    if (record->has_header()) RETURN_IF_ERROR(header(record->header()));
    if (record->has_job()) RETURN_IF_ERROR(job(record->job()));
    if (!record->has_token()) continue;
    v1::AccessToken parsed;
    if (parsed.ParseFromString(record->token().record())) {
      RETURN_IF_ERROR(token(parsed.id(), record->token()));
    } else {
      LOG(ERROR) << "backup: left out access token "
                 << (parsed.id().empty() ? "(no id)" : absl::CEscape(parsed.id()))
                 << ": its record does not parse. The token is refused from now on; make a new "
                    "one: muster token create";
    }
  }
}

}  // namespace muster
