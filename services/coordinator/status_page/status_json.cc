#include "services/coordinator/status_page/status_json.h"

#include <charconv>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/util/json_util.h"
#include "lib/status/status.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

// Appends the shortest text that reads back to the same value, or "null" if it is not finite.
template <typename Number>
void AppendNumber(Number value, std::string& text) {
  if (!std::isfinite(value)) {
    text += "null";
    return;
  }
  char digits[32];
  const auto result = std::to_chars(digits, digits + sizeof(digits), value);
  text.append(digits, result.ptr - digits);
}

void AppendPoint(const SeriesPoint& point, std::string& text) {
  text += '[';
  AppendNumber(point.first_step, text);
  text += ',';
  AppendNumber(point.last_step, text);
  for (const double value : {point.values.min, point.values.max, point.values.last}) {
    text += ',';
    AppendNumber(value, text);
  }
  text += ']';
}

// Returns the remedy for a reason. The page's error messages state only the fault, so that no
// remedy is shown twice.
std::string WhatToTry(const std::string& reason) {
  if (reason == "NO_CREDENTIALS" || reason == "TOKEN_INVALID") {
    return "sign in on the page, or send the header 'Authorization: Bearer TOKEN'; an admin makes "
           "a token with `muster token create NAME --scope read`";
  }
  if (reason == "JOB_NOT_FOUND") return "/api/v1/jobs lists all jobs";
  if (reason == "TOO_MANY_CALLS") return "close one, or try again later";
  if (reason == "INVALID_REQUEST" || reason == "PATH_NOT_FOUND") {
    return "docs/status_page.md lists every path and its parameters";
  }
  return absl::StrCat("docs/operations/reasons.md explains ",
                      reason.empty() ? "every reason" : reason);
}

}  // namespace

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto printed = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (printed.ok()) return json;
  return ToJson(absl::InternalError(absl::StrCat(
      message.GetTypeName(), " cannot be shown as JSON: ", std::string(printed.message()))));
}

std::string ToJson(const v1::ReadJobTimingResponse& timing,
                   const std::vector<std::string>& verdict) {
  std::string text = ToJson(timing);
  if (verdict.empty()) return text;
  text.pop_back();
  const auto quote = [](std::string* out, const std::string& line) { *out += Quoted(line); };
  return absl::StrCat(text, ",\"verdict\":[", absl::StrJoin(verdict, ",", quote), "]}");
}

std::string ToJson(const JobSeries& series) {
  std::string text = absl::StrCat("{\"first_step\":", series.first_step,
                                  ",\"last_step\":", series.last_step, ",\"series\":[");
  for (const Series& one : series.series) {
    if (text.back() == '}') text += ',';
    absl::StrAppend(&text, "{\"name\":", Quoted(one.name), ",\"points\":[");
    for (const SeriesPoint& point : one.points) {
      if (text.back() == ']') text += ',';
      AppendPoint(point, text);
    }
    text += "]}";
  }
  return text + "]}";
}

std::string ToJson(const absl::Status& error) {
  const std::string reason = ReasonOf(error);
  return absl::StrCat("{\"what\":", Quoted(error.message()), ",\"reason\":", Quoted(reason),
                      ",\"try\":", Quoted(WhatToTry(reason)), "}");
}

std::string Quoted(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/false,
            nlohmann::json::error_handler_t::replace);
}

}  // namespace muster
