#include "services/coordinator/common/admission.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr const char* kNames[kCallKinds] = {"CreateJob",
                                            "WatchJob",
                                            "ReadCheckpoint",
                                            "SaveCheckpoint",
                                            "Attach",
                                            "WriteShard",
                                            "ReadShard",
                                            "lists, ReadJobMetrics, ReadJobLinks",
                                            "ServerReflectionInfo",
                                            "UploadModel"};

}  // namespace

Admission::LimitsByKind Admission::DefaultLimits() {
  LimitsByKind limits;
  auto set = [&](CallKind kind, int total, int per_client) {
    limits[static_cast<size_t>(kind)] = {.total = total, .per_client = per_client};
  };
  set(CallKind::kCreate, limits::kCreateCallsMax, limits::kCreateCallsMax / 4);
  set(CallKind::kWatch, limits::kWatchCallsMax, limits::kWatchCallsMax / 16);
  set(CallKind::kDownload, limits::kDownloadCallsMax, limits::kDownloadCallsMax / 4);
  set(CallKind::kSave, limits::kSaveCallsMax, limits::kSaveCallsMax / 4);
  // A member has one stream, or two for a moment when it reattaches before the old one has ended.
  set(CallKind::kAttach, 2 * limits::kAttachedMembersMax, 4);
  set(CallKind::kUpload, limits::kShardCallsMax, limits::kShardCallsMax / 4);
  set(CallKind::kRestore, limits::kShardCallsMax, limits::kShardCallsMax / 4);
  // Queries have the limits of downloads, because the disk limits both.
  set(CallKind::kQuery, limits::kDownloadCallsMax, limits::kDownloadCallsMax / 4);
  set(CallKind::kReflection, limits::kDownloadCallsMax, limits::kDownloadCallsMax / 4);
  set(CallKind::kModelUpload, limits::kModelUploadCallsMax, limits::kModelUploadCallsMax / 4);
  return limits;
}

absl::StatusOr<Admission::Ticket> Admission::Enter(CallKind kind, absl::string_view client) {
  const auto k = static_cast<size_t>(kind);
  const Limit& limit = limits_[k];
  absl::MutexLock lock(&mu_);
  Count& count = counts_[k];
  std::string name(client);
  const auto of_client = count.of_client.find(name);
  const bool greedy = of_client != count.of_client.end() && of_client->second >= limit.per_client;
  if (greedy || count.total >= limit.total) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat(
            kNames[k], ": ", greedy ? limit.per_client : limit.total, " such calls ",
            greedy ? "of this connection " : "", "are under way, the limit: try again later")),
        "TOO_MANY_CALLS");
  }
  ++count.total;
  ++count.of_client[name];
  return Ticket(nullptr, [this, kind, name = std::move(name)](void*) { Leave(kind, name); });
}

void Admission::Leave(CallKind kind, const std::string& client) {
  absl::MutexLock lock(&mu_);
  Count& count = counts_[static_cast<size_t>(kind)];
  --count.total;
  const auto of_client = count.of_client.find(client);
  if (--of_client->second == 0) count.of_client.erase(of_client);
}

int Admission::under_way(CallKind kind) const {
  absl::MutexLock lock(&mu_);
  return counts_[static_cast<size_t>(kind)].total;
}

}  // namespace muster
