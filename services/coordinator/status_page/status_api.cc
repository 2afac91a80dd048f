#include "services/coordinator/status_page/status_api.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "lib/text/step_verdict.h"
#include "services/coordinator/status_page/status_json.h"

namespace muster {
namespace {

absl::Status Invalid(absl::string_view what) {
  return WithReason(absl::InvalidArgumentError(what), "INVALID_REQUEST");
}

absl::Status NoSuchPath(absl::string_view path) {
  return WithReason(absl::NotFoundError(absl::StrCat("there is nothing at ", path)),
                    "PATH_NOT_FOUND");
}

// Returns a place among `max`. Its last copy gives the place back. `taken` must outlive it.
absl::StatusOr<std::shared_ptr<void>> TakePlace(std::atomic<int>& taken, int max,
                                                absl::string_view what) {
  std::shared_ptr<void> place(nullptr, [&taken](void*) { --taken; });
  if (++taken <= max) return place;
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(max, " ", what, ", the limit")),
                    "TOO_MANY_CALLS");
}

template <typename Number>
absl::StatusOr<Number> NumberOr(const HttpRequest& request, const std::string& name,
                                Number otherwise) {
  const std::optional<std::string> text = FormValue(request.query, name);
  if (!text || text->empty()) return otherwise;
  Number number{};
  if (absl::SimpleAtoi(*text, &number)) return number;
  return Invalid(absl::StrCat(name, ": '", *text, "' is not a whole number"));
}

std::vector<std::string> ListOf(const HttpRequest& request, const std::string& name) {
  const std::optional<std::string> text = FormValue(request.query, name);
  if (!text) return {};
  return absl::StrSplit(*text, ',', absl::SkipEmpty());
}

// Makes {"<name>":[...]}. `more` is added after the list.
template <typename Messages>
HttpResponse ListAnswer(absl::string_view name, const Messages& messages,
                        absl::string_view more = "") {
  std::string text = absl::StrCat("{\"", name, "\":[");
  bool first = true;
  for (const auto& message : messages) {
    if (!std::exchange(first, false)) text += ',';
    text += ToJson(message);
  }
  absl::StrAppend(&text, "]", more, "}");
  return {.body = std::move(text)};
}

}  // namespace

HttpResponse StatusApi::Refuse(const absl::Status& error) {
  HttpResponse response{.body = ToJson(error)};
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
      response.status = 400;
      break;
    case absl::StatusCode::kUnauthenticated:
      response.status = 401;
      response.headers = {{"WWW-Authenticate", "Bearer"}};
      break;
    case absl::StatusCode::kPermissionDenied:
      response.status = 403;
      break;
    case absl::StatusCode::kNotFound:
      response.status = 404;
      break;
    case absl::StatusCode::kResourceExhausted:
      response.status = 429;
      break;
    case absl::StatusCode::kUnavailable:
      response.status = 503;
      break;
    default:
      response.status = 500;
  }
  return response;
}

HttpResponse StatusApi::Answer(const HttpRequest& request) {
  absl::StatusOr<HttpResponse> found =
      Find(absl::StrSplit(absl::StripPrefix(request.path, "/api/v1/"), '/'), request);
  HttpResponse response = found.ok() ? *std::move(found) : Refuse(found.status());
  response.headers.emplace_back("Cache-Control", "no-store");
  return response;
}

absl::StatusOr<HttpResponse> StatusApi::Find(const Path& path, const HttpRequest& request) {
  if (path[0] == "jobs" && path.size() > 1) return FindOfJob(path, request);
  if (path.size() == 1) {
    if (path[0] == "jobs") return Jobs(request);
    if (path[0] == "queue") return Queue();
    if (path[0] == "members") return HttpResponse{.body = ToJson(source().ListMembers())};
    if (path[0] == "events") return Changes();
    if (path[0] == "server") {
      return HttpResponse{
          .body = absl::StrCat("{\"version\":", Quoted(options_.version), ",\"term\":\"",
                               source().ListMembers().term(),
                               "\",\"signed_in\":", options_.signed_in ? "true" : "false", "}")};
    }
  }
  if (path[0] == "members" && path.size() == 3 && path[2] == "log") return Log(path[1], request);
  return NoSuchPath(request.path);
}

absl::StatusOr<HttpResponse> StatusApi::FindOfJob(const Path& path, const HttpRequest& request) {
  const std::string& job = path[1];
  if (path.size() == 2) {
    ASSIGN_OR_RETURN(const v1::Job record, source().GetJob(job));
    return HttpResponse{.body = ToJson(record)};
  }
  if (path.size() == 3) {
    if (path[2] == "series") return Series(job, request);
    if (path[2] == "events") return Events(job, request);
    if (path[2] == "timing") {
      ASSIGN_OR_RETURN(const v1::ReadJobTimingResponse timing, source().ReadTiming(job));
      return HttpResponse{.body = ToJson(timing, StepVerdict(StepCosts(timing)))};
    }
    if (path[2] == "links") {
      ASSIGN_OR_RETURN(const v1::ReadJobLinksResponse links, source().ReadLinks(job));
      return HttpResponse{.body = ToJson(links)};
    }
    if (path[2] == "checkpoints") return Checkpoints(job);
  }
  int64_t step = 0;
  if (path.size() == 6 && path[2] == "checkpoints" && absl::SimpleAtoi(path[3], &step) &&
      path[4] == "files") {
    return File(CheckpointName(job, step), path[5]);
  }
  return NoSuchPath(request.path);
}

absl::StatusOr<HttpResponse> StatusApi::Jobs(const HttpRequest& request) {
  v1::ListJobsRequest wanted;
  ASSIGN_OR_RETURN(const int32_t page_size, NumberOr<int32_t>(request, "page_size", 0));
  wanted.set_page_size(page_size);
  wanted.set_page_token(FormValue(request.query, "page_token").value_or(""));
  for (const std::string& name : ListOf(request, "states")) {
    v1::JobState state;
    if (!v1::JobState_Parse(name, &state)) {
      return Invalid(
          absl::StrCat("states: no state '", name, "'; states are QUEUED, RUNNING and so on"));
    }
    wanted.add_states(state);
  }
  const std::string view = FormValue(request.query, "view").value_or("basic");
  if (view != "basic" && view != "full") return Invalid("view: must be basic or full");
  wanted.set_view(view == "full" ? v1::JOB_VIEW_FULL : v1::JOB_VIEW_BASIC);
  ASSIGN_OR_RETURN(const v1::ListJobsResponse listed, source().ListJobs(wanted));
  return ListAnswer("jobs", listed.jobs(),
                    absl::StrCat(",\"next_page_token\":", Quoted(listed.next_page_token())));
}

// Returns waiting jobs in the order of service: recovering jobs first, then by priority, then by
// age. ListJobs returns the newest first, so the head of the queue may be on its last page.
absl::StatusOr<HttpResponse> StatusApi::Queue() {
  v1::ListJobsRequest wanted;
  wanted.set_page_size(limits::kPageSizeMax);
  wanted.set_view(v1::JOB_VIEW_BASIC);
  wanted.add_states(v1::QUEUED);
  wanted.add_states(v1::RECOVERING);
  std::vector<v1::Job> jobs;
  do {
    ASSIGN_OR_RETURN(v1::ListJobsResponse page, source().ListJobs(wanted));
    std::ranges::move(*page.mutable_jobs(), std::back_inserter(jobs));
    wanted.set_page_token(page.next_page_token());
  } while (!wanted.page_token().empty());
  std::sort(jobs.begin(), jobs.end(), [](const v1::Job& a, const v1::Job& b) {
    const auto rank = [](const v1::Job& job) {
      return std::make_tuple(job.state() != v1::RECOVERING, -job.spec().priority(), job.number());
    };
    return rank(a) < rank(b);
  });
  if (std::ssize(jobs) > limits::kPageSizeMax) jobs.resize(limits::kPageSizeMax);
  return ListAnswer("jobs", jobs);
}

absl::StatusOr<HttpResponse> StatusApi::Events(const std::string& job, const HttpRequest& request) {
  ASSIGN_OR_RETURN(const uint64_t after, NumberOr<uint64_t>(request, "after", 0));
  ASSIGN_OR_RETURN(const std::vector<v1::JobEvent> events, source().ListEvents(job, after));
  return ListAnswer("events", events);
}

absl::StatusOr<HttpResponse> StatusApi::Series(const std::string& job, const HttpRequest& request) {
  SeriesRequest wanted{.names = ListOf(request, "names")};
  ASSIGN_OR_RETURN(wanted.from, NumberOr<int64_t>(request, "from", 0));
  ASSIGN_OR_RETURN(wanted.to,
                   NumberOr<int64_t>(request, "to", std::numeric_limits<int64_t>::max()));
  ASSIGN_OR_RETURN(wanted.points, NumberOr<int64_t>(request, "points", 1000));
  ASSIGN_OR_RETURN(const JobSeries series, source().ReadSeries(job, wanted));
  return HttpResponse{.body = ToJson(series)};
}

absl::StatusOr<HttpResponse> StatusApi::Checkpoints(const std::string& job) {
  ASSIGN_OR_RETURN(const std::vector<v1::Checkpoint> checkpoints, source().ListCheckpoints(job));
  return ListAnswer("checkpoints", checkpoints);
}

absl::StatusOr<HttpResponse> StatusApi::File(const std::string& checkpoint,
                                             const std::string& file) {
  // The response keeps the place, so the download counts as long as it exists.
  ASSIGN_OR_RETURN(const auto place,
                   TakePlace(downloads_, kDownloadsMax, "files are being downloaded"));
  ASSIGN_OR_RETURN(StatusSource::Download download, source().OpenFile(checkpoint, file));
  return HttpResponse{
      .content_type = "application/octet-stream",
      // `file` is a name from the checkpoint's list, so it needs no escaping.
      .headers = {{"Content-Disposition", absl::StrCat("attachment; filename=\"", file, "\"")}},
      .stream =
          [place, send = std::move(download.send)](HttpStream& stream) {
            (void)send([&stream](absl::string_view piece) { return stream.Write(piece); });
          },
      .stream_bytes = download.bytes};
}

absl::StatusOr<HttpResponse> StatusApi::Log(const std::string& member, const HttpRequest& request) {
  v1::ReadMemberLogRequest wanted;
  wanted.set_name(member);
  if (FormValue(request.query, "offset")) {
    ASSIGN_OR_RETURN(const int64_t offset, NumberOr<int64_t>(request, "offset", 0));
    wanted.set_offset(offset);
  }
  ASSIGN_OR_RETURN(const int32_t bytes, NumberOr<int32_t>(request, "bytes", 64 << 10));
  wanted.set_bytes_max(bytes);
  ASSIGN_OR_RETURN(const auto place,
                   TakePlace(log_readers_, kLogReadersMax, "logs are being read"));
  ASSIGN_OR_RETURN(const v1::ReadMemberLogResponse log, source().ReadLog(wanted));
  // Like ToJson(), except that `text` stays text. ToJson() encodes bytes as Base64.
  return HttpResponse{.body = absl::StrCat("{\"offset\":\"", log.offset(),
                                           "\",\"text\":", Quoted(log.text()),
                                           ",\"next_offset\":\"", log.next_offset(),
                                           "\",\"incarnation\":", Quoted(log.incarnation()), "}")};
}

absl::StatusOr<HttpResponse> StatusApi::Changes() {
  ASSIGN_OR_RETURN(std::shared_ptr<ChangeFeed::Stream> changes, options_.feed->Open());
  return HttpResponse{.content_type = "text/event-stream",
                      .stream = [changes = std::move(changes)](HttpStream& stream) {
                        // The first line tells a browser that it is connected.
                        if (!stream.Write("retry: 2000\nevent: hello\ndata: {}\n\n")) return;
                        while (const std::optional<std::string> text = changes->Next()) {
                          if (!stream.Write(*text)) return;
                        }
                      }};
}

}  // namespace muster
