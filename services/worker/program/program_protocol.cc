#include "services/worker/program/program_protocol.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/checkpoint/strict_json.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "lib/status/utf8.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr size_t kMetricsMax = 32;
constexpr size_t kMetricNameBytesMax = 64;
constexpr size_t kTextBytesMax = 256;
constexpr int64_t kSamplesMax = int64_t{1} << 50;
constexpr size_t kGradientsHeaderBytes = 16;
constexpr size_t kGradientsEntryBytes = 16;
constexpr uint32_t kNoGradient = 1;  // a flag

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

template <typename T>
T Get(absl::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

std::optional<double> NumberOf(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

// Reads the fields of a JSON object. Keeps the first fault. A missing field has its default.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {
    if (!object.is_object()) fault_ = Invalid("the body is no JSON object");
  }

  int64_t Integer(const char* key, int64_t max) {
    const json* const value = Find(key);
    if (value == nullptr) return 0;
    const std::optional<int64_t> number = NonNegativeInteger(*value);
    if (number && *number <= max) return *number;
    return Fault<int64_t>(key, absl::StrCat("must be an integer in [0, ", max, "]"));
  }
  std::string Text(const char* key, size_t bytes_max) {
    const json* const value = Find(key);
    if (value == nullptr) return "";
    if (value->is_string() && value->get_ref<const std::string&>().size() <= bytes_max) {
      return value->get<std::string>();
    }
    return Fault<std::string>(key, absl::StrCat("must be a text of at most ", bytes_max, " bytes"));
  }
  // None if the field is missing or null.
  std::optional<double> Number(const char* key) {
    const json* const value = Find(key);
    if (value == nullptr || value->is_null()) return std::nullopt;
    if (const std::optional<double> number = NumberOf(*value)) return number;
    return Fault<std::optional<double>>(key, "must be a number, \"nan\", \"inf\" or \"-inf\"");
  }
  double Seconds(const char* key) {
    const double seconds = Number(key).value_or(0);
    if (seconds >= 0 && std::isfinite(seconds)) return seconds;
    return Fault<double>(key, "must be finite and not negative");
  }
  ProgramMetrics Metrics(const char* key) {
    const json* const value = Find(key);
    if (value == nullptr) return {};
    if (!value->is_object() || value->size() > kMetricsMax) {
      return Fault<ProgramMetrics>(
          key, absl::StrCat("must be an object of at most ", kMetricsMax, " numbers"));
    }
    ProgramMetrics metrics;
    for (const auto& [name, metric] : value->items()) {
      const std::optional<double> number = NumberOf(metric);
      if (!number || name.empty() || name.size() > kMetricNameBytesMax) {
        return Fault<ProgramMetrics>(
            key, absl::StrCat("needs numbers with names of 1 to ", kMetricNameBytesMax, " bytes"));
      }
      metrics[name] = *number;
    }
    return metrics;
  }
  const json* Find(const char* key) {
    if (!fault_.ok()) return nullptr;
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  const absl::Status& fault() const { return fault_; }

 private:
  template <typename T>
  T Fault(const char* key, absl::string_view what) {
    if (fault_.ok()) fault_ = Invalid("'", key, "' ", what);
    return T();
  }

  const json& object_;
  absl::Status fault_;
};

absl::StatusOr<ProgramMessage> ParseHello(Fields& fields) {
  ProgramHello hello;
  hello.protocol = fields.Integer("protocol", std::numeric_limits<int32_t>::max());
  hello.version = fields.Text("version", kTextBytesMax);
  hello.job = fields.Text("job", kTextBytesMax);
  hello.process = fields.Integer("process", std::numeric_limits<int32_t>::max());
  hello.pid = fields.Integer("pid", std::numeric_limits<int32_t>::max());
  RETURN_IF_ERROR(fields.fault());
  return hello;
}

absl::StatusOr<ProgramMessage> ParseData(Fields& fields) {
  ProgramData data;
  data.samples = fields.Integer("samples", kSamplesMax);
  data.evaluation_samples = fields.Integer("evaluation_samples", kSamplesMax);
  RETURN_IF_ERROR(fields.fault());
  return data;
}

absl::StatusOr<FinishedStep> ParseFinished(const json& object) {
  Fields fields(object);
  FinishedStep finished;
  finished.attempt = fields.Integer("attempt", std::numeric_limits<int64_t>::max());
  finished.step = fields.Integer("step", limits::kStepsMax);
  finished.samples = fields.Integer("samples", kSamplesMax);
  finished.loss = fields.Number("loss");
  finished.metrics = fields.Metrics("metrics");
  finished.forward_seconds = fields.Seconds("forward_seconds");
  finished.backward_seconds = fields.Seconds("backward_seconds");
  finished.data_seconds = fields.Seconds("data_seconds");
  if (!fields.fault().ok()) return Annotate(fields.fault(), "finished");
  return finished;
}

absl::StatusOr<ProgramMessage> ParseNext(Fields& fields) {
  ProgramNext next;
  const json* const finished = fields.Find("finished");
  RETURN_IF_ERROR(fields.fault());
  if (finished != nullptr && !finished->is_null()) {
    ASSIGN_OR_RETURN(next.finished, ParseFinished(*finished));
  }
  return next;
}

absl::StatusOr<ProgramMessage> ParseEvaluation(Fields& fields) {
  ProgramEvaluation evaluation;
  evaluation.step = fields.Integer("step", limits::kStepsMax);
  evaluation.samples = fields.Integer("samples", kSamplesMax);
  evaluation.metrics = fields.Metrics("metrics");
  RETURN_IF_ERROR(fields.fault());
  return evaluation;
}

absl::StatusOr<ProgramMessage> ParseFailed(Fields& fields) {
  std::string message = fields.Text("message", kProgramBodyBytesMax);
  RETURN_IF_ERROR(fields.fault());
  // The last lines of a traceback say the most.
  if (message.size() > kProgramErrorBytesMax) {
    message = ValidUtf8(absl::string_view(message).substr(message.size() - kProgramErrorBytesMax));
  }
  return ProgramFailure{std::move(message)};
}

absl::StatusOr<ProgramMessage> ParseGradients(absl::string_view body) {
  if (body.size() < kGradientsHeaderBytes) return Invalid("a body of ", body.size(), " bytes");
  ProgramGradients gradients{.attempt = Get<int64_t>(body, 0), .weight = Get<float>(body, 8)};
  const auto count = Get<uint32_t>(body, 12);
  if (body.size() != kGradientsHeaderBytes + kGradientsEntryBytes * size_t{count}) {
    return Invalid(count, " entries in a body of ", body.size(), " bytes");
  }
  if (!(gradients.weight > 0 && std::isfinite(gradients.weight))) {
    return Invalid("the weight ", gradients.weight, "; it must be finite and above 0");
  }
  gradients.entries.reserve(count);
  for (size_t at = kGradientsHeaderBytes; at < body.size(); at += kGradientsEntryBytes) {
    const auto flags = Get<uint32_t>(body, at + 4);
    const auto learning_rate = Get<double>(body, at + 8);
    if ((flags & ~kNoGradient) != 0) return Invalid("unknown flags ", flags);
    if (!(learning_rate >= 0 && std::isfinite(learning_rate))) {
      return Invalid("the learning rate ", learning_rate, "; it must be finite and not negative");
    }
    gradients.entries.push_back({.parameter = Get<uint32_t>(body, at),
                                 .has_gradient = (flags & kNoGradient) == 0,
                                 .learning_rate = learning_rate});
  }
  return gradients;
}

absl::StatusOr<ProgramMessage> ParseJson(ProgramMessageKind kind, absl::string_view body) {
  ASSIGN_OR_RETURN(const json object, ParseStrictJson(body));
  Fields fields(object);
  switch (kind) {
    case ProgramMessageKind::kHello:
      return ParseHello(fields);
    case ProgramMessageKind::kData:
      return ParseData(fields);
    case ProgramMessageKind::kNext:
      return ParseNext(fields);
    case ProgramMessageKind::kEvaluation:
      return ParseEvaluation(fields);
    case ProgramMessageKind::kFailed:
      return ParseFailed(fields);
    default:
      return Invalid("it is not for a worker");
  }
}

}  // namespace

absl::StatusOr<ProgramMessage> ParseProgramMessage(uint8_t kind, absl::string_view body) {
  const auto known = static_cast<ProgramMessageKind>(kind);
  absl::StatusOr<ProgramMessage> message =
      known == ProgramMessageKind::kGradients ? ParseGradients(body) : ParseJson(known, body);
  if (message.ok()) return message;
  return Annotate(message.status(), absl::StrCat("message of kind ", kind));
}

absl::StatusOr<ProgramHeader> ParseProgramHeader(absl::string_view bytes) {
  const ProgramHeader header{.length = Get<uint32_t>(bytes, 0), .kind = Get<uint8_t>(bytes, 4)};
  if (header.length > kProgramBodyBytesMax) {
    return Invalid("a message of ", header.length, " bytes; at most ", kProgramBodyBytesMax,
                   " are allowed");
  }
  if (bytes[5] != 0 || bytes[6] != 0 || bytes[7] != 0) {
    return Invalid("a message whose bytes 5 to 7 are not zero");
  }
  return header;
}

std::string FrameProgramMessage(ProgramMessageKind kind, absl::string_view body) {
  std::string frame(kProgramHeaderBytes, '\0');
  const auto length = static_cast<uint32_t>(body.size());
  std::memcpy(frame.data(), &length, sizeof(length));
  frame[4] = static_cast<char>(kind);
  frame.append(body.data(), body.size());
  return frame;
}

json JsonNumber(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

std::string JsonText(const json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace muster
