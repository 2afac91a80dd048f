// The part of the record schema that every implementation of Store shares.
#pragma once

#include <glog/logging.h>
#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/muster/v1/store.pb.h"
#include "services/coordinator/store/store.h"

namespace muster {

// Returns DATA_LOSS (reason "STORE_CORRUPT") with the message "store: `name` `fault`".
absl::Status Corrupt(absl::string_view name, absl::string_view fault);

// Returns Corrupt() if the bytes are not such a message.
template <typename Message>
absl::StatusOr<Message> Parsed(absl::string_view name, const std::string& bytes) {
  Message message;
  if (message.ParseFromString(bytes)) return message;
  return Corrupt(name, absl::StrCat("is not a ", message.GetTypeName()));
}

// Returns FAILED_PRECONDITION (reason "STORE_TOO_NEW") if `version` is above `known`.
absl::Status CheckSchema(uint64_t version, uint64_t known);

// Returns a random UUID (RFC 9562, version 4) for a new cluster or folder. Each call returns
// another one.
std::string NewClusterId();

// Gives a new job its number, its name and revision 1. Returns it with its first event.
v1::BackupJob NewJob(uint64_t number, Store::Submission& submission);

// Parses the number, record, origin, graph and plan of a job. A plan of another generation, or of a
// job that has ended, is left out.
StoredJob ParseJob(const v1::BackupJob& stored);

// Returns the rows that parse and logs the others. A damaged row must not keep the other rows out
// of a backup or a store.
template <typename Message>
std::vector<Message> RowsThatParse(uint64_t job,
                                   const google::protobuf::RepeatedPtrField<std::string>& rows) {
  std::vector<Message> parsed;
  for (int row = 0; row < rows.size(); ++row) {
    Message message;
    if (message.ParseFromString(rows[row])) {
      parsed.push_back(std::move(message));
    } else {
      LOG(ERROR) << "backup: job " << job << ": " << message.GetTypeName() << " " << row + 1
                 << " of " << rows.size() << " does not parse and is left out";
    }
  }
  return parsed;
}

// The error of Store::Import() for a store with jobs or tokens.
absl::Status StoreNotEmpty();

// Passes each record of a backup to the function for its kind. Logs damaged tokens and leaves them
// out. Stops at the first error.
absl::Status ForEachRecord(
    const std::function<absl::StatusOr<std::optional<v1::BackupRecord>>()>& next,
    absl::FunctionRef<absl::Status(const v1::BackupHeader&)> header,
    absl::FunctionRef<absl::Status(const v1::BackupJob&)> job,
    absl::FunctionRef<absl::Status(const std::string& id, const v1::StoredToken&)> token);

}  // namespace muster
