#include "lib/checkpoint/manifest.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/util/json_util.h"
#include "lib/checkpoint/checkpoint_layout.h"
#include "lib/checkpoint/disk_file.h"
#include "lib/checkpoint/strict_json.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

constexpr char kChecksumKey[] = "manifest_sha256";

// Keys are sorted, so the same content always gives the same text.
std::string Canonical(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<nlohmann::json> SpecToJson(const v1::JobSpec& spec) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto printed = google::protobuf::util::MessageToJsonString(spec, &text, options);
  if (!printed.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job's spec cannot be written as JSON: ", std::string(printed.message())));
  }
  return ParseStrictJson(text);
}

// Reads the members of one object. status() keeps the first fault.
class ObjectReader {
 public:
  ObjectReader(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  int64_t Integer(const char* key) {
    std::optional<int64_t> value;
    if (const nlohmann::json* member = Find(key)) value = NonNegativeInteger(*member);
    return value ? *value : (Fault(key, "a non-negative integer"), 0);
  }

  double NonNegativeNumber(const char* key) {
    const nlohmann::json* member = Find(key);
    const double value = member != nullptr && member->is_number() ? member->get<double>() : -1;
    if (!(value >= 0 && std::isfinite(value))) Fault(key, "a non-negative number");
    return value;
  }

  std::string String(const char* key) {
    const nlohmann::json* member = Find(key);
    if (member == nullptr || !member->is_string()) return Fault(key, "a string"), "";
    return member->get<std::string>();
  }

  const nlohmann::json& Array(const char* key) {
    static const auto* const kNone = new nlohmann::json(nlohmann::json::array());
    const nlohmann::json* member = Find(key);
    if (member == nullptr || !member->is_array()) return Fault(key, "an array"), *kNone;
    return *member;
  }

  void Fault(absl::string_view key, absl::string_view expected) {
    if (fault_.empty()) fault_ = absl::StrCat("'", where_, key, "' is not ", expected);
  }

  absl::Status status() const {
    return fault_.empty() ? absl::OkStatus() : absl::DataLossError(fault_);
  }

 private:
  const nlohmann::json* Find(const char* key) const {
    auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  const nlohmann::json& object_;
  const std::string where_;
  std::string fault_;
};

absl::StatusOr<v1::CheckpointFile> ParseFile(const nlohmann::json& json) {
  if (!json.is_object()) return absl::DataLossError("'files' has an element that is not an object");
  ObjectReader reader(json, "files.");
  v1::CheckpointFile file;
  file.set_name(reader.String("name"));
  file.set_size_bytes(reader.Integer("size_bytes"));
  file.set_sha256(reader.String("sha256"));
  RETURN_IF_ERROR(reader.status());
  if (!IsCheckpointFileName(file.name())) reader.Fault("name", "the name of a checkpoint file");
  const std::string& digest = file.sha256();
  auto hex = [](char c) { return absl::ascii_isdigit(c) || ('a' <= c && c <= 'f'); };
  if (digest.size() != 64 || !std::all_of(digest.begin(), digest.end(), hex)) {
    reader.Fault("sha256", "64 lower-case hex digits");
  }
  RETURN_IF_ERROR(reader.status());
  return file;
}

absl::StatusOr<v1::UpdateState> ParseUpdateState(const nlohmann::json& json, int64_t step) {
  if (!json.is_object()) return absl::DataLossError("'update_state' is not an object");
  ObjectReader reader(json, "update_state.");
  v1::UpdateState state;
  state.set_updates(reader.Integer("updates"));
  state.set_loss_scale(reader.NonNegativeNumber("loss_scale"));
  state.set_clean_steps(reader.Integer("clean_steps"));
  // An asynchronous job counts the updates of each worker, so `updates` may exceed `step`.
  if (state.updates() > 0 && (state.updates() - 1) / limits::kWorkersMax >= step) {
    reader.Fault("updates", absl::StrCat("at most ", limits::kWorkersMax, " times 'step'"));
  }
  RETURN_IF_ERROR(reader.status());
  return state;
}

absl::StatusOr<v1::JobSpec> ParseSpec(const nlohmann::json& json) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // unknown fields: a newer Muster may have written it
  v1::JobSpec spec;
  auto status = google::protobuf::util::JsonStringToMessage(Canonical(json), &spec, options);
  if (!status.ok()) {
    return absl::DataLossError(
        absl::StrCat("'spec' is not a job spec: ", std::string(status.message())));
  }
  return spec;
}

absl::StatusOr<Manifest> Parse(const std::string& text) {
  absl::StatusOr<nlohmann::json> parsed = ParseStrictJson(text);
  if (!parsed.ok()) return absl::DataLossError(parsed.status().message());
  nlohmann::json& json = *parsed;
  if (!json.is_object()) return absl::DataLossError("not a JSON object");

  ObjectReader reader(json, "");
  const int64_t version = reader.Integer("format_version");
  const std::string checksum = reader.String(kChecksumKey);
  RETURN_IF_ERROR(reader.status());
  json.erase(kChecksumKey);
  // Checked before any content is believed, including the version.
  if (Sha256Of(Canonical(json)) != checksum) {
    return absl::DataLossError(absl::StrCat("'", kChecksumKey, "' does not match the content"));
  }
  if (version > Manifest::kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat("format version ", version, " is newer than ",
                                                      Manifest::kFormatVersion,
                                                      "; use a newer Muster"));
  }

  Manifest manifest;
  manifest.job = reader.String("job");
  manifest.step = reader.Integer("step");
  manifest.total_steps = reader.Integer("total_steps");
  manifest.create_time_unix_millis = reader.Integer("create_time_unix_millis");
  for (const nlohmann::json& slot : reader.Array("slots")) {
    if (!slot.is_string())
      reader.Fault("slots", "an array of strings");
    else
      manifest.slots.push_back(slot.get<std::string>());
  }
  for (const nlohmann::json& entry : reader.Array("files")) {
    ASSIGN_OR_RETURN(v1::CheckpointFile file, ParseFile(entry));
    manifest.files.push_back(std::move(file));
  }
  RETURN_IF_ERROR(reader.status());
  if (json.contains("update_state")) {
    ASSIGN_OR_RETURN(manifest.update_state, ParseUpdateState(json["update_state"], manifest.step));
  }
  if (json.contains("data_fingerprint")) {
    manifest.data_fingerprint = reader.String("data_fingerprint");
    RETURN_IF_ERROR(reader.status());
  }
  if (!json.contains("spec")) return absl::DataLossError("'spec' is missing");
  ASSIGN_OR_RETURN(manifest.spec, ParseSpec(json["spec"]));
  int64_t samples_read;
  if (__builtin_mul_overflow(manifest.step, manifest.spec.data().batch_size(), &samples_read)) {
    return absl::DataLossError("'step' batches have more samples than can be counted");
  }
  return manifest;
}

}  // namespace

absl::StatusOr<std::string> Manifest::ToJson() const {
  ASSIGN_OR_RETURN(nlohmann::json spec_json, SpecToJson(spec));
  nlohmann::json json = {
      {"format_version", kFormatVersion},
      {"job", job},
      {"step", step},
      {"total_steps", total_steps},
      {"create_time_unix_millis", create_time_unix_millis},
      {"slots", slots},
      {"spec", std::move(spec_json)},
      {"data_cursor",
       {{"samples_read", step * spec.data().batch_size()}, {"seed", spec.data().seed()}}},
      {"random_state",
       {{"initial_values_seed", spec.training().seed()},
        {"sample_order_seed", spec.data().seed()}}},
      {"files", nlohmann::json::array()},
  };
  if (update_state) {
    json["update_state"] = {{"updates", update_state->updates()},
                            {"loss_scale", update_state->loss_scale()},
                            {"clean_steps", update_state->clean_steps()}};
  }
  if (!data_fingerprint.empty()) json["data_fingerprint"] = data_fingerprint;
  for (const v1::CheckpointFile& file : files) {
    json["files"].push_back(
        {{"name", file.name()}, {"size_bytes", file.size_bytes()}, {"sha256", file.sha256()}});
  }
  json[kChecksumKey] = Sha256Of(Canonical(json));
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Manifest> Manifest::FromJson(const std::string& json, const std::string& path) {
  absl::StatusOr<Manifest> manifest = Parse(json);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  return manifest;
}

}  // namespace muster
