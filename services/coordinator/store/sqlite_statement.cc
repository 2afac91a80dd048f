#include "services/coordinator/store/sqlite_statement.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Returns the file operation that failed. SQLite's own message does not name it.
absl::string_view ActionOf(int extended_code) {
  switch (extended_code) {
    case SQLITE_IOERR_READ:
    case SQLITE_IOERR_SHORT_READ:
      return "read";
    case SQLITE_IOERR_WRITE:
      return "write";
    case SQLITE_IOERR_FSYNC:
    case SQLITE_IOERR_DIR_FSYNC:
      return "sync";
    case SQLITE_IOERR_TRUNCATE:
      return "resize";
    case SQLITE_IOERR_SHMOPEN:
    case SQLITE_IOERR_SHMSIZE:
    case SQLITE_IOERR_SHMMAP:
      return "open, resize or write";
    case SQLITE_IOERR_DELETE:
      return "remove";
    default:
      return "open or use";
  }
}

// Returns the message of the last error, such as: "store: disk I/O error: sync /x/coordinator.db or
// its -wal, -shm, -journal: Input/output error"
std::string Describe(sqlite3* database) {
  std::string message = absl::StrCat("store: ", sqlite3_errmsg(database));
  const int code = sqlite3_extended_errcode(database);
  const int error = sqlite3_system_errno(database);
  const char* const file = sqlite3_db_filename(database, "main");
  // Other codes may leave errno of an unrelated call.
  if ((code & 0xff) != SQLITE_IOERR) return message;
  absl::StrAppend(
      &message, ": ", ActionOf(code), " ", file == nullptr ? "its file" : file,
      " or its -wal, -shm, -journal: ", error == 0 ? "input/output error" : strerror(error));
  return message;
}

}  // namespace

absl::Status SqlError(sqlite3* database) {
  const std::string message = Describe(database);
  switch (sqlite3_errcode(database) & 0xff) {
    case SQLITE_IOERR:
      // SQLite reports an exceeded quota as an I/O error, and a full disk too unless it was writing
      // a page.
      if (const int error = sqlite3_system_errno(database); error != ENOSPC && error != EDQUOT) {
        return WithReason(absl::InternalError(message), "STORE_FAILED");
      }
      [[fallthrough]];
    case SQLITE_FULL:
      return WithReason(absl::ResourceExhaustedError(message), "STORE_FULL");
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return WithReason(absl::DataLossError(message), "STORE_CORRUPT");
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      return WithReason(absl::PermissionDeniedError(message), "STORE_UNWRITABLE");
    default:
      return WithReason(absl::InternalError(message), "STORE_FAILED");
  }
}

absl::Status ExecuteAll(sqlite3* database, const char* sql) {
  return sqlite3_exec(database, sql, nullptr, nullptr, nullptr) == SQLITE_OK ? absl::OkStatus()
                                                                             : SqlError(database);
}

absl::StatusOr<bool> Statement::Step() {
  const int code = prepared_ ? sqlite3_step(statement_) : SQLITE_ERROR;
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return SqlError(database_);
}

std::string Statement::Bytes(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  return std::string(static_cast<const char*>(bytes), sqlite3_column_bytes(statement_, column));
}

void Statement::Bind(const std::string& text) {
  sqlite3_bind_text(statement_, ++bound_, text.data(), text.size(), SQLITE_TRANSIENT);
}

void Statement::Bind(const Blob& blob) {
  sqlite3_bind_blob64(statement_, ++bound_, blob.bytes.data(), blob.bytes.size(), SQLITE_TRANSIENT);
}

void Statement::Bind(const google::protobuf::MessageLite& message) {
  Bind(Blob{message.SerializeAsString()});
}

}  // namespace muster
