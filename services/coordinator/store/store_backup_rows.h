// The rows of a job in a backup. Some of them may be damaged.
#pragma once

#include <glog/logging.h>
#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace muster {

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

}  // namespace muster
