// SQL statements. They return their errors as absl::Status.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "lib/status/status.h"

namespace muster {

// Returns the last error of the database: RESOURCE_EXHAUSTED (reason "STORE_FULL"), DATA_LOSS
// ("STORE_CORRUPT"), PERMISSION_DENIED ("STORE_UNWRITABLE") or INTERNAL ("STORE_FAILED").
absl::Status SqlError(sqlite3* database);

// Executes statements without parameters.
absl::Status ExecuteAll(sqlite3* database, const char* sql);

struct Blob {
  const std::string& bytes;
};

// A prepared statement. The values are bound to its parameters in their order: an integer, a
// std::string as TEXT, a Blob or a message as BLOB. Columns count from 0. Not thread-safe.
class Statement {
 public:
  template <typename... Values>
  Statement(sqlite3* database, const char* sql, const Values&... values) : database_(database) {
    prepared_ = sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr) == SQLITE_OK;
    if (prepared_) (Bind(values), ...);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Returns true if there is a row, false after the last one.
  absl::StatusOr<bool> Step();
  absl::Status Run() { return Step().status(); }
  int64_t Integer(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string Bytes(int column) const;  // "" for NULL

 private:
  void Bind(int64_t value) { sqlite3_bind_int64(statement_, ++bound_, value); }
  void Bind(const std::string& text);
  void Bind(const Blob& blob);
  void Bind(const google::protobuf::MessageLite& message);

  sqlite3* const database_;
  sqlite3_stmt* statement_ = nullptr;
  bool prepared_ = false;
  int bound_ = 0;
};

// Returns a value for each row. Stops at the first error.
template <typename Value>
absl::StatusOr<std::vector<Value>> AllRows(
    Statement&& rows, absl::FunctionRef<absl::StatusOr<Value>(const Statement& row)> value) {
  std::vector<Value> values;
  while (true) {
    ASSIGN_OR_RETURN(const bool found, rows.Step());
    if (!found) return values;
    ASSIGN_OR_RETURN(values.emplace_back(), value(rows));
  }
}

// Executes one statement.
template <typename... Values>
absl::Status Execute(sqlite3* database, const char* sql, const Values&... values) {
  return Statement(database, sql, values...).Run();
}

}  // namespace muster
