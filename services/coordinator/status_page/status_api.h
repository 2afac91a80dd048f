// /api/v1/...: the coordinator's state as JSON. docs/status_page.md lists the paths.
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/http/http_server.h"
#include "services/coordinator/status_page/change_feed.h"
#include "services/coordinator/status_page/status_source.h"

namespace muster {

// Requires: the caller has admitted the request. Thread-safe.
class StatusApi {
 public:
  static constexpr int kDownloadsMax = 4;
  // Limit of concurrent reads of members' logs. Each occupies a thread until the member answers.
  static constexpr int kLogReadersMax = 2;

  struct Options {
    StatusSource* source;  // both must outlive this
    ChangeFeed* feed;
    std::string version;
    bool signed_in = false;  // the page has a session to sign out of
  };
  explicit StatusApi(Options options) : options_(std::move(options)) {}

  // Answers a path below /api/v1. Errors are answers, too: {"what", "reason", "try"}.
  HttpResponse Answer(const HttpRequest& request);
  static HttpResponse Refuse(const absl::Status& error);

 private:
  using Path = std::vector<std::string>;
  absl::StatusOr<HttpResponse> Find(const Path& path, const HttpRequest& request);
  absl::StatusOr<HttpResponse> FindOfJob(const Path& path, const HttpRequest& request);
  absl::StatusOr<HttpResponse> Jobs(const HttpRequest& request);
  absl::StatusOr<HttpResponse> Queue();
  absl::StatusOr<HttpResponse> Events(const std::string& job, const HttpRequest& request);
  absl::StatusOr<HttpResponse> Series(const std::string& job, const HttpRequest& request);
  absl::StatusOr<HttpResponse> Checkpoints(const std::string& job);
  absl::StatusOr<HttpResponse> File(const std::string& checkpoint, const std::string& file);
  absl::StatusOr<HttpResponse> Log(const std::string& member, const HttpRequest& request);
  absl::StatusOr<HttpResponse> Changes();
  StatusSource& source() const { return *options_.source; }

  const Options options_;
  std::atomic<int> downloads_ = 0;
  std::atomic<int> log_readers_ = 0;
};

}  // namespace muster
