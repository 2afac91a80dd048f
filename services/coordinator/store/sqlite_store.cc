#include "services/coordinator/store/sqlite_store.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "lib/checkpoint/folder.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "services/coordinator/store/cluster_id.h"
#include "services/coordinator/store/store_records.h"

namespace muster {
namespace {

constexpr char kSqliteSchema[] = R"sql(
  CREATE TABLE counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
  INSERT INTO counters VALUES ('term', 0), ('jobs', 0);
  CREATE TABLE jobs(number INTEGER PRIMARY KEY, record BLOB NOT NULL, restore TEXT NOT NULL,
                    first_step INTEGER NOT NULL, graph BLOB NOT NULL);
  CREATE TABLE events(job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE, revision INTEGER NOT NULL,
                      event BLOB NOT NULL, PRIMARY KEY (job, revision)) WITHOUT ROWID;
  CREATE TABLE plans(job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE, generation INTEGER NOT NULL,
                     plan BLOB NOT NULL, PRIMARY KEY (job, generation));
  CREATE TABLE checkpoints(job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE, step INTEGER NOT NULL,
                           record BLOB NOT NULL, PRIMARY KEY (job, step)) WITHOUT ROWID;
  CREATE TABLE requests(id TEXT PRIMARY KEY, fingerprint BLOB NOT NULL,
                        job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE) WITHOUT ROWID;
  CREATE INDEX requests_by_job ON requests(job);
)sql";

// Upgrade from schema 1, in which every model came from the zoo.
constexpr char kGraphColumn[] = "ALTER TABLE jobs ADD COLUMN graph BLOB NOT NULL DEFAULT x''";

// Upgrade from schema 2, which had no cluster id and no seats.
constexpr char kIdentityTables[] = R"sql(
  CREATE TABLE cluster(id TEXT NOT NULL);
  CREATE TABLE seats(member TEXT PRIMARY KEY, ordinal INTEGER NOT NULL) WITHOUT ROWID;
)sql";

// Upgrade from schema 3, which had no access tokens.
constexpr char kTokenTable[] =
    "CREATE TABLE tokens(id TEXT PRIMARY KEY, record BLOB NOT NULL, hash BLOB NOT NULL) WITHOUT "
    "ROWID";

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

absl::Status Execute(sqlite3* database, const char* sql) {
  return sqlite3_exec(database, sql, nullptr, nullptr, nullptr) == SQLITE_OK ? absl::OkStatus()
                                                                             : SqlError(database);
}

// A prepared statement. Columns count from 0. Calls of Bind bind the parameters in their order.
class Statement {
 public:
  Statement(sqlite3* database, const char* sql) : database_(database) {
    prepared_ = sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr) == SQLITE_OK;
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Bind(int64_t value) {
    if (prepared_) sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }
  Statement& BindText(const std::string& value) {
    if (prepared_)
      sqlite3_bind_text(statement_, ++bound_, value.data(), value.size(), SQLITE_TRANSIENT);
    return *this;
  }
  Statement& BindBlob(const std::string& value) {
    if (prepared_)
      sqlite3_bind_blob64(statement_, ++bound_, value.data(), value.size(), SQLITE_TRANSIENT);
    return *this;
  }

  // Returns true if there is a row, false after the last one.
  absl::StatusOr<bool> Step() {
    const int code = prepared_ ? sqlite3_step(statement_) : SQLITE_ERROR;
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    return SqlError(database_);
  }
  absl::Status Run() { return Step().status(); }

  int64_t Integer(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string Bytes(int column) const {
    const void* bytes = sqlite3_column_blob(statement_, column);
    return std::string(static_cast<const char*>(bytes), sqlite3_column_bytes(statement_, column));
  }
  template <typename Message>
  absl::Status Parse(int column, Message& message) const {
    if (message.ParseFromString(Bytes(column))) return absl::OkStatus();
    return WithReason(
        absl::DataLossError(absl::StrCat("store: a ", message.GetTypeName(), " does not parse")),
        "STORE_CORRUPT");
  }

 private:
  sqlite3* const database_;
  sqlite3_stmt* statement_ = nullptr;
  bool prepared_ = false;
  int bound_ = 0;
};

// Locks the store against other processes. The lock is a separate file, because closing any
// descriptor of the database file would drop SQLite's own POSIX locks on it.
absl::StatusOr<int> Lock(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) {
    return WithReason(absl::PermissionDeniedError(absl::StrCat(path, ": open: ", strerror(errno))),
                      "STORE_UNWRITABLE");
  }
  if (flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  const int error = errno;
  close(file);
  return WithReason(absl::UnavailableError(absl::StrCat(
                        path, error == EWOULDBLOCK ? ": another coordinator uses this state folder"
                                                   : absl::StrCat(": ", strerror(error)))),
                    "STORE_LOCKED");
}

// The files of a SQLite database; the database file itself is first.
constexpr const char* kSuffixes[] = {"", "-wal", "-shm"};

// The path of the store that Replace() fills. If it exists and `path` does not, a restore was cut
// off.
std::string RestoringOf(const std::string& path) { return path + ".restoring"; }

bool FileExists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// Renames a file; OK if it does not exist.
absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return WithReason(absl::PermissionDeniedError(
                        absl::StrCat(from, ": cannot be renamed to ", to, ": ", strerror(errno))),
                    "STORE_UNWRITABLE");
}

absl::Status RemoveDatabase(const std::string& path) {
  for (const char* suffix : kSuffixes) {
    const std::string file = path + suffix;
    if (unlink(file.c_str()) == 0 || errno == ENOENT) continue;
    return WithReason(
        absl::PermissionDeniedError(absl::StrCat(file, ": cannot be removed: ", strerror(errno))),
        "STORE_UNWRITABLE");
  }
  return absl::OkStatus();
}

// Renames the database file first. Without it, Open() does not take the remaining files for a
// store.
absl::Status PutAside(const std::string& path) {
  int64_t now = absl::ToUnixSeconds(absl::Now());
  std::string kept;
  do {
    kept = absl::StrCat(path, ".before-restore-", now++);
  } while (FileExists(kept));
  const bool was_there = FileExists(path);
  for (const char* suffix : kSuffixes) {
    RETURN_IF_ERROR(Rename(path + suffix, kept + suffix));
  }
  if (was_there) LOG(INFO) << "the previous store is kept as " << kept;
  return SyncFolder(ParentOf(path));
}

absl::Status InsertEvent(sqlite3* database, uint64_t job, const v1::JobEvent& event) {
  return Statement(database, "INSERT INTO events VALUES (?, ?, ?)")
      .Bind(job)
      .Bind(event.revision())
      .BindBlob(event.SerializeAsString())
      .Run();
}

absl::StatusOr<int64_t> RaiseCounter(sqlite3* database, const std::string& name) {
  Statement raise(database, "UPDATE counters SET value = value + 1 WHERE name = ? RETURNING value");
  ASSIGN_OR_RETURN(const bool found, raise.BindText(name).Step());
  if (!found)
    return WithReason(absl::DataLossError("store: a counter is missing"), "STORE_CORRUPT");
  const int64_t value = raise.Integer(0);
  RETURN_IF_ERROR(raise.Run());
  return value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> SqliteStore::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const int lock_file, Lock(path + ".lock"));
  const std::string restoring = RestoringOf(path);
  if (FileExists(restoring)) {
    if (!FileExists(path)) {
      close(lock_file);
      return WithReason(
          absl::DataLossError(absl::StrCat(path,
                                           ": a restore of a backup into this store has not ended: "
                                           "repeat it, or remove ",
                                           restoring, " to start without any job")),
          "STORE_CORRUPT");
    }
    RemoveDatabase(restoring).IgnoreError();  // Replace() died before it touched the old store
  }
  return OpenLocked(path, lock_file);
}

absl::Status SqliteStore::Replace(const std::string& path,
                                  const std::function<absl::Status(Store&)>& fill) {
  ASSIGN_OR_RETURN(const int lock_file, Lock(path + ".lock"));
  const absl::Cleanup unlock = [lock_file] { close(lock_file); };
  const std::string restoring = RestoringOf(path);
  RETURN_IF_ERROR(RemoveDatabase(restoring));
  absl::Status filled;
  {
    auto store = OpenLocked(restoring, fcntl(lock_file, F_DUPFD_CLOEXEC, 0));
    filled = store.status();
    if (filled.ok()) filled = fill(**store);
    if (filled.ok()) filled = (*store)->Settle();
  }
  if (!filled.ok()) {
    // If there was no store, the unfinished one stays, so that Open() reports the cut-off restore.
    if (FileExists(path)) RemoveDatabase(restoring).IgnoreError();
    return filled;
  }
  // Sync the new store's name before the old one is renamed.
  RETURN_IF_ERROR(SyncFolder(ParentOf(path)));
  RETURN_IF_ERROR(PutAside(path));
  RETURN_IF_ERROR(Rename(restoring, path));
  return SyncFolder(ParentOf(path));
}

// The user version is stored big-endian at byte 60: "Database File Format", sqlite.org, section
// 1.3.
int64_t SqliteStore::SchemaIn(const std::string& path) {
  constexpr int kUserVersionAt = 60;
  std::array<unsigned char, kUserVersionAt + 4> header{};
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(header.data()), header.size())) return 0;
  int64_t version = 0;
  for (int i = 0; i < 4; ++i) version = version << 8 | header[kUserVersionAt + i];
  return version;
}

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::OpenLocked(const std::string& path,
                                                                     int lock_file) {
  // The file contains plans and their session tokens, so only the owner may read it. SQLite gives
  // its other files the same mode.
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file >= 0) {
    fchmod(file, S_IRUSR | S_IWUSR);
    close(file);
  }
  sqlite3* database = nullptr;
  const int opened =
      sqlite3_open_v2(path.c_str(), &database,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  CHECK(database != nullptr) << "out of memory";
  std::unique_ptr<SqliteStore> store(new SqliteStore(database, lock_file));
  absl::Status status = opened == SQLITE_OK ? store->Initialize(path) : SqlError(database);
  if (!status.ok()) return Annotate(status, path);
  return store;
}

SqliteStore::~SqliteStore() {
  CHECK_EQ(sqlite3_close(database_), SQLITE_OK);
  close(lock_file_);
}

absl::Status SqliteStore::Initialize(const std::string& path) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(Execute(database_,
                          "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                          "PRAGMA foreign_keys = ON; PRAGMA busy_timeout = 2000"));
  {
    Statement check(database_, "PRAGMA quick_check(1)");
    ASSIGN_OR_RETURN(const bool answered, check.Step());
    if (!answered || check.Bytes(0) != "ok") {
      return WithReason(absl::DataLossError(absl::StrCat("damaged: ", check.Bytes(0))),
                        "STORE_CORRUPT");
    }
  }
  int64_t version = 0;
  {
    Statement read(database_, "PRAGMA user_version");
    RETURN_IF_ERROR(read.Run());
    version = read.Integer(0);
  }
  if (version > kSchemaVersion) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "schema version ", version, " is newer than this program's ",
                          kSchemaVersion, ": run the Muster that wrote it, or a newer one")),
                      "STORE_TOO_NEW");
  }
  if (version == 0) LOG(INFO) << "new store " << path;
  if (version > 0 && version < kSchemaVersion) {
    LOG(INFO) << path << ": upgrading its schema from version " << version << " to "
              << kSchemaVersion << "; an older Muster can no longer open it";
  }
  return InTransaction([&]() -> absl::Status {
    if (version == 0) {
      RETURN_IF_ERROR(Execute(database_, kSqliteSchema));
    } else if (version == 1) {
      RETURN_IF_ERROR(Execute(database_, kGraphColumn));
    }
    if (version < 3) {
      RETURN_IF_ERROR(Execute(database_, kIdentityTables));
      RETURN_IF_ERROR(
          Statement(database_, "INSERT INTO cluster VALUES (?)").BindText(NewClusterId()).Run());
    }
    if (version < kTokensSince) RETURN_IF_ERROR(Execute(database_, kTokenTable));
    if (version < kSchemaVersion) {
      RETURN_IF_ERROR(
          Execute(database_, absl::StrCat("PRAGMA user_version = ", kSchemaVersion).c_str()));
    }
    ASSIGN_OR_RETURN(const int64_t term, RaiseCounter(database_, "term"));
    term_ = term;
    Statement identity(database_, "SELECT id FROM cluster");
    ASSIGN_OR_RETURN(const bool found, identity.Step());
    if (!found) {
      return WithReason(absl::DataLossError("store: the cluster's id is missing"), "STORE_CORRUPT");
    }
    cluster_ = identity.Bytes(0);
    return absl::OkStatus();
  });
}

absl::Status SqliteStore::Settle() {
  absl::MutexLock lock(&mu_);
  Statement settle(database_, "PRAGMA wal_checkpoint(TRUNCATE)");
  ASSIGN_OR_RETURN(const bool answered, settle.Step());
  if (answered && settle.Integer(0) == 0) return absl::OkStatus();
  return WithReason(absl::InternalError("store: another connection uses its file"), "STORE_FAILED");
}

absl::Status SqliteStore::InTransaction(const std::function<absl::Status()>& body) {
  const absl::Duration start = SteadyNow();
  RETURN_IF_ERROR(Execute(database_, "BEGIN IMMEDIATE"));
  absl::Status status = body();
  if (status.ok()) status = Execute(database_, "COMMIT");
  if (!status.ok() && sqlite3_get_autocommit(database_) == 0) {
    Execute(database_, "ROLLBACK").IgnoreError();
  }
  if (observe_commit_) observe_commit_(SteadyNow() - start);
  return status;
}

absl::StatusOr<v1::Job> SqliteStore::AddJob(Submission submission) {
  absl::MutexLock lock(&mu_);
  v1::Job& record = submission.record;
  RETURN_IF_ERROR(InTransaction([&]() -> absl::Status {
    ASSIGN_OR_RETURN(const int64_t number, RaiseCounter(database_, "jobs"));
    record.set_number(number);
    record.set_name(JobName(absl::StrCat(record.spec().name(), "-", number)));
    record.set_revision(1);
    v1::JobEvent event;
    event.set_revision(1);
    *event.mutable_time() = record.create_time();
    event.set_state(record.state());
    event.set_reason(record.reason());
    event.set_message(record.message());
    RETURN_IF_ERROR(Statement(database_, "INSERT INTO jobs VALUES (?, ?, ?, ?, ?)")
                        .Bind(number)
                        .BindBlob(record.SerializeAsString())
                        .BindText(submission.origin.restore)
                        .Bind(submission.origin.first_step)
                        .BindBlob(submission.origin.graph.SerializeAsString())
                        .Run());
    RETURN_IF_ERROR(InsertEvent(database_, number, event));
    if (submission.request_id.empty()) return absl::OkStatus();
    return Statement(database_, "INSERT INTO requests VALUES (?, ?, ?)")
        .BindText(submission.request_id)
        .BindBlob(submission.fingerprint)
        .Bind(number)
        .Run();
  }));
  return std::move(record);
}

absl::StatusOr<std::optional<Store::Request>> SqliteStore::FindRequest(
    const std::string& request_id) const {
  absl::MutexLock lock(&mu_);
  Statement find(database_,
                 "SELECT fingerprint, record FROM requests JOIN jobs ON job = number WHERE id = ?");
  ASSIGN_OR_RETURN(const bool found, find.BindText(request_id).Step());
  if (!found) return std::nullopt;
  v1::Job record;
  RETURN_IF_ERROR(find.Parse(1, record));
  return Request{find.Bytes(0), JobIdOf(record.name())};
}

absl::Status SqliteStore::TakeSeat(const Seat& seat) {
  RETURN_IF_ERROR(Statement(database_, "INSERT OR REPLACE INTO seats VALUES (?, ?)")
                      .BindText(seat.member)
                      .Bind(seat.ordinal)
                      .Run());
  return Statement(database_,
                   "DELETE FROM seats WHERE ordinal <= "
                   "(SELECT ordinal FROM seats ORDER BY ordinal DESC LIMIT 1 OFFSET ?)")
      .Bind(limits::kMembersRememberedMax)
      .Run();
}

absl::Status SqliteStore::Commit(const Change& change) {
  absl::MutexLock lock(&mu_);
  return InTransaction([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    if (change.seat != nullptr) RETURN_IF_ERROR(TakeSeat(*change.seat));
    if (change.record == nullptr) return absl::OkStatus();
    const v1::Job& record = *change.record;
    RETURN_IF_ERROR(Statement(database_, "UPDATE jobs SET record = ? WHERE number = ?")
                        .BindBlob(record.SerializeAsString())
                        .Bind(record.number())
                        .Run());
    CHECK_EQ(sqlite3_changes(database_), 1) << record.name() << " is not in the store";
    for (const v1::JobEvent& event : change.events) {
      RETURN_IF_ERROR(InsertEvent(database_, record.number(), event));
    }
    if (!change.events.empty()) {
      RETURN_IF_ERROR(Statement(database_, "DELETE FROM events WHERE job = ? AND revision <= ?")
                          .Bind(record.number())
                          .Bind(static_cast<int64_t>(record.revision()) - limits::kJobEventsKeptMax)
                          .Run());
    }
    if (change.plan != nullptr || record.has_end_time()) {
      RETURN_IF_ERROR(
          Statement(database_, "DELETE FROM plans WHERE job = ?").Bind(record.number()).Run());
    }
    if (change.plan != nullptr && !record.has_end_time()) {
      RETURN_IF_ERROR(Statement(database_, "INSERT INTO plans VALUES (?, ?, ?)")
                          .Bind(record.number())
                          .Bind(change.plan->generation())
                          .BindBlob(change.plan->SerializeAsString())
                          .Run());
    }
    if (change.checkpoint != nullptr) {
      RETURN_IF_ERROR(Statement(database_, "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)")
                          .Bind(record.number())
                          .Bind(change.checkpoint->step())
                          .BindBlob(change.checkpoint->SerializeAsString())
                          .Run());
    }
    for (int64_t step : change.checkpoints_removed) {
      RETURN_IF_ERROR(Statement(database_, "DELETE FROM checkpoints WHERE job = ? AND step = ?")
                          .Bind(record.number())
                          .Bind(step)
                          .Run());
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<bool> SqliteStore::PassOverNumbers(uint64_t last) {
  absl::MutexLock lock(&mu_);
  Statement look(database_, "SELECT 1 FROM counters WHERE name = 'jobs' AND value < ?");
  ASSIGN_OR_RETURN(const bool lower, look.Bind(last).Step());
  if (!lower) return false;
  RETURN_IF_ERROR(look.Run());
  RETURN_IF_ERROR(InTransaction([&] {
    return Statement(database_, "UPDATE counters SET value = ? WHERE name = 'jobs'")
        .Bind(last)
        .Run();
  }));
  return true;
}

absl::Status SqliteStore::DeleteJob(uint64_t number) {
  absl::MutexLock lock(&mu_);
  return InTransaction(
      [&] { return Statement(database_, "DELETE FROM jobs WHERE number = ?").Bind(number).Run(); });
}

absl::StatusOr<std::vector<StoredJob>> SqliteStore::LoadJobs() const {
  absl::MutexLock lock(&mu_);
  std::vector<StoredJob> jobs;
  Statement all(database_,
                "SELECT record, restore, first_step, graph, number FROM jobs ORDER BY number");
  while (true) {
    ASSIGN_OR_RETURN(const bool row, all.Step());
    if (!row) break;
    StoredJob& job = jobs.emplace_back();
    job.damage = all.Parse(0, job.record);
    if (!job.damage.ok()) job.record.Clear();
    job.record.set_number(all.Integer(4));
    job.origin = {.restore = all.Bytes(1), .first_step = all.Integer(2)};
    job.damage.Update(all.Parse(3, job.origin.graph));
  }
  for (StoredJob& job : jobs) {
    if (job.record.has_end_time()) continue;
    Statement find(database_, "SELECT plan FROM plans WHERE job = ? AND generation = ?");
    ASSIGN_OR_RETURN(const bool found,
                     find.Bind(job.record.number()).Bind(job.record.generation()).Step());
    if (!found) continue;
    auto plan = std::make_shared<v1::JobPlan>();
    if (const absl::Status parsed = find.Parse(0, *plan); parsed.ok()) {
      job.plan = std::move(plan);
    } else {
      job.damage.Update(parsed);
    }
  }
  return jobs;
}

absl::StatusOr<std::vector<Store::Seat>> SqliteStore::Seats() const {
  absl::MutexLock lock(&mu_);
  std::vector<Seat> seats;
  Statement all(database_, "SELECT member, ordinal FROM seats");
  while (true) {
    ASSIGN_OR_RETURN(const bool row, all.Step());
    if (!row) return seats;
    seats.push_back({.member = all.Bytes(0), .ordinal = static_cast<uint64_t>(all.Integer(1))});
  }
}

absl::Status SqliteStore::PutToken(const Token& token) {
  absl::MutexLock lock(&mu_);
  return InTransaction([&] {
    return Statement(database_, "INSERT OR REPLACE INTO tokens VALUES (?, ?, ?)")
        .BindText(token.record.id())
        .BindBlob(token.record.SerializeAsString())
        .BindBlob(token.hash)
        .Run();
  });
}

absl::Status SqliteStore::DeleteToken(const std::string& id) {
  absl::MutexLock lock(&mu_);
  return InTransaction(
      [&] { return Statement(database_, "DELETE FROM tokens WHERE id = ?").BindText(id).Run(); });
}

absl::StatusOr<std::vector<Store::Token>> SqliteStore::Tokens() const {
  absl::MutexLock lock(&mu_);
  std::vector<Token> tokens;
  Statement all(database_, "SELECT id, record, hash FROM tokens");
  while (true) {
    ASSIGN_OR_RETURN(const bool row, all.Step());
    if (!row) return tokens;
    Token& token = tokens.emplace_back();
    token.hash = all.Bytes(2);
    if (!token.record.ParseFromString(all.Bytes(1))) {
      return WithReason(
          absl::DataLossError(absl::StrCat("store: the token ", all.Bytes(0), " is damaged")),
          "STORE_CORRUPT");
    }
  }
}

absl::StatusOr<std::vector<v1::JobEvent>> SqliteStore::Events(uint64_t number,
                                                              uint64_t after_revision,
                                                              int max) const {
  absl::MutexLock lock(&mu_);
  std::vector<v1::JobEvent> events;
  Statement some(
      database_,
      "SELECT event FROM events WHERE job = ? AND revision > ? ORDER BY revision LIMIT ?");
  some.Bind(number).Bind(after_revision).Bind(max);
  while (true) {
    ASSIGN_OR_RETURN(const bool row, some.Step());
    if (!row) return events;
    RETURN_IF_ERROR(some.Parse(0, events.emplace_back()));
  }
}

absl::StatusOr<std::vector<v1::Checkpoint>> SqliteStore::Checkpoints(uint64_t number) const {
  absl::MutexLock lock(&mu_);
  std::vector<v1::Checkpoint> checkpoints;
  Statement some(database_, "SELECT record FROM checkpoints WHERE job = ? ORDER BY step");
  some.Bind(number);
  while (true) {
    ASSIGN_OR_RETURN(const bool row, some.Step());
    if (!row) return checkpoints;
    RETURN_IF_ERROR(some.Parse(0, checkpoints.emplace_back()));
  }
}

// Reads over a second connection. Its one transaction sees one state of the file while other
// connections write.
absl::Status SqliteStore::Export(
    const std::function<absl::Status(const v1::BackupRecord&)>& take) const {
  sqlite3* reader = nullptr;
  const int opened = sqlite3_open_v2(sqlite3_db_filename(database_, "main"), &reader,
                                     SQLITE_OPEN_READONLY | SQLITE_OPEN_FULLMUTEX, nullptr);
  CHECK(reader != nullptr) << "out of memory";
  const absl::Cleanup close = [reader] { sqlite3_close(reader); };
  if (opened != SQLITE_OK) return SqlError(reader);
  RETURN_IF_ERROR(Execute(reader, "PRAGMA busy_timeout = 2000; BEGIN"));
  v1::BackupRecord header;
  header.mutable_header()->set_cluster(cluster_);
  Statement counters(reader, "SELECT name, value FROM counters");
  while (true) {
    ASSIGN_OR_RETURN(const bool row, counters.Step());
    if (!row) break;
    if (counters.Bytes(0) == "term") header.mutable_header()->set_term(counters.Integer(1));
    if (counters.Bytes(0) == "jobs") header.mutable_header()->set_jobs(counters.Integer(1));
  }
  RETURN_IF_ERROR(take(header));
  Statement jobs(reader,
                 "SELECT number, jobs.record, restore, first_step, graph, id, fingerprint "
                 "FROM jobs LEFT JOIN requests ON job = number ORDER BY number");
  while (true) {
    ASSIGN_OR_RETURN(const bool row, jobs.Step());
    if (!row) break;
    v1::BackupRecord record;
    v1::BackupJob& job = *record.mutable_job();
    job.set_number(jobs.Integer(0));
    job.set_record(jobs.Bytes(1));
    job.mutable_origin()->set_restore(jobs.Bytes(2));
    job.mutable_origin()->set_first_step(jobs.Integer(3));
    job.set_graph(jobs.Bytes(4));
    job.mutable_origin()->set_request_id(jobs.Bytes(5));
    job.set_fingerprint(jobs.Bytes(6));
    const auto add_all = [&](const char* sql,
                             const std::function<void(std::string)>& add) -> absl::Status {
      Statement some(reader, sql);
      some.Bind(job.number());
      while (true) {
        ASSIGN_OR_RETURN(const bool found, some.Step());
        if (!found) return absl::OkStatus();
        add(some.Bytes(0));
      }
    };
    RETURN_IF_ERROR(add_all("SELECT plan FROM plans WHERE job = ?",
                            [&](std::string plan) { job.set_plan(std::move(plan)); }));
    RETURN_IF_ERROR(add_all("SELECT event FROM events WHERE job = ? ORDER BY revision",
                            [&](std::string event) { job.add_events(std::move(event)); }));
    RETURN_IF_ERROR(
        add_all("SELECT record FROM checkpoints WHERE job = ? ORDER BY step",
                [&](std::string checkpoint) { job.add_checkpoints(std::move(checkpoint)); }));
    RETURN_IF_ERROR(take(record));
  }
  Statement tokens(reader, "SELECT record, hash FROM tokens ORDER BY id");
  while (true) {
    ASSIGN_OR_RETURN(const bool row, tokens.Step());
    if (!row) return absl::OkStatus();
    v1::BackupRecord record;
    record.mutable_token()->set_record(tokens.Bytes(0));
    record.mutable_token()->set_hash(tokens.Bytes(1));
    RETURN_IF_ERROR(take(record));
  }
}

absl::Status SqliteStore::ImportJob(const v1::BackupJob& job) {
  RETURN_IF_ERROR(Statement(database_, "INSERT INTO jobs VALUES (?, ?, ?, ?, ?)")
                      .Bind(job.number())
                      .BindBlob(job.record())
                      .BindText(job.origin().restore())
                      .Bind(job.origin().first_step())
                      .BindBlob(job.graph())
                      .Run());
  for (const auto& event : RowsThatParse<v1::JobEvent>(job.number(), job.events())) {
    RETURN_IF_ERROR(InsertEvent(database_, job.number(), event));
  }
  if (!job.plan().empty()) {
    // A damaged plan is stored where LoadJobs() looks for it, so that the job stays damaged.
    int64_t generation = 0;
    if (v1::JobPlan plan; plan.ParseFromString(job.plan())) {
      generation = plan.generation();
    } else if (v1::Job record; record.ParseFromString(job.record())) {
      generation = record.generation();
    }
    RETURN_IF_ERROR(Statement(database_, "INSERT INTO plans VALUES (?, ?, ?)")
                        .Bind(job.number())
                        .Bind(generation)
                        .BindBlob(job.plan())
                        .Run());
  }
  for (const auto& checkpoint : RowsThatParse<v1::Checkpoint>(job.number(), job.checkpoints())) {
    RETURN_IF_ERROR(Statement(database_, "INSERT INTO checkpoints VALUES (?, ?, ?)")
                        .Bind(job.number())
                        .Bind(checkpoint.step())
                        .BindBlob(checkpoint.SerializeAsString())
                        .Run());
  }
  if (job.origin().request_id().empty()) return absl::OkStatus();
  return Statement(database_, "INSERT INTO requests VALUES (?, ?, ?)")
      .BindText(job.origin().request_id())
      .BindBlob(job.fingerprint())
      .Bind(job.number())
      .Run();
}

absl::Status SqliteStore::Import(
    const std::function<absl::StatusOr<std::optional<v1::BackupRecord>>()>& next) {
  absl::MutexLock lock(&mu_);
  return InTransaction([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    Statement used(database_, "SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM tokens)");
    RETURN_IF_ERROR(used.Run());
    if (used.Integer(0) > 0) return StoreNotEmpty();
    RETURN_IF_ERROR(
        Statement(database_, "UPDATE cluster SET id = ?").BindText(NewClusterId()).Run());
    while (true) {
      ASSIGN_OR_RETURN(const std::optional<v1::BackupRecord> record, next());
      if (!record) return absl::OkStatus();
      if (record->has_header()) {
        const v1::BackupHeader& header = record->header();
        const std::pair<const char*, uint64_t> least[] = {
            {"term", std::max(term_, header.term()) + kTermsPassedOver}, {"jobs", header.jobs()}};
        for (const auto& [name, value] : least) {
          RETURN_IF_ERROR(
              Statement(database_, "UPDATE counters SET value = max(value, ?) WHERE name = ?")
                  .Bind(value)
                  .BindText(name)
                  .Run());
        }
      } else if (record->has_job()) {
        RETURN_IF_ERROR(ImportJob(record->job()));
      } else if (record->has_token()) {
        v1::AccessToken token;
        if (!token.ParseFromString(record->token().record())) {
          LOG(ERROR) << TokenLeftOut(token);
          continue;
        }
        RETURN_IF_ERROR(Statement(database_, "INSERT INTO tokens VALUES (?, ?, ?)")
                            .BindText(token.id())
                            .BindBlob(record->token().record())
                            .BindBlob(record->token().hash())
                            .Run());
      }
    }
  });
}

}  // namespace muster
